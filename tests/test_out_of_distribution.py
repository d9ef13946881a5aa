"""Detection of outliers: against the definition, at energies of any size, and end to end."""

import pytest
import torch
from pytorch_lightning import LightningModule

from eblvm_lit.energies.deep import DeepVectorEnergy
from eblvm_lit.energies.gaussian import GaussianLatentModel
from eblvm_lit.errors import ConfigError
from eblvm_lit.evaluation.free_energy_bound import free_energy_bound
from eblvm_lit.evaluation.out_of_distribution import Constant, DataSet, OutOfDistribution, UniformNoise, detection
from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior


def by_definition(inside, outside):
    gaps = inside[:, None] - outside[None]
    threshold = inside.sort().values[int(0.05 * len(inside))]
    return {
        "auroc": ((gaps > 0).double() + 0.5 * (gaps == 0)).mean().item(),
        "fpr95": (outside >= threshold).double().mean().item(),
    }


@pytest.mark.parametrize("rounded", [False, True], ids=["no ties", "ties"])
def test_detection_is_what_it_is_defined_to_be(rounded):
    generator = torch.Generator().manual_seed(0)
    inside, outside = torch.randn(200, generator=generator) + 1, torch.randn(300, generator=generator)
    if rounded:
        inside, outside = inside.round(), outside.round()
    found = detection(inside, outside)
    expected = by_definition(inside.double(), outside.double())
    assert found["auroc"] == pytest.approx(expected["auroc"], abs=1e-12)
    assert found["fpr95"] == pytest.approx(expected["fpr95"], abs=1e-12)


@pytest.mark.parametrize(("a", "b"), [(1.0, 1e4), (1e4, 0.0), (1e-4, -50.0)])
def test_only_ranks_count_at_energies_of_any_size(a, b):
    generator = torch.Generator().manual_seed(1)
    inside = torch.randn(100, generator=generator, dtype=torch.float64) + 0.5
    outside = torch.randn(100, generator=generator, dtype=torch.float64)
    assert detection(a * inside + b, a * outside + b) == detection(inside, outside)
    assert detection(torch.tensor([60.0, 61.0]), torch.tensor([50.0, 51.0])) == {"auroc": 1, "aupr": 1, "fpr95": 0}


def test_a_positive_score_means_data():
    assert detection(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 3.0]))["auroc"] == 0


def method_of(energy, posterior=None):
    method = LightningModule()
    method.energy, method.posterior, method.seed = energy, posterior, 0
    return method


def test_a_model_of_the_data_finds_noise_and_constants():
    model = GaussianLatentModel(v_dim=9, h_dim=2)  # standard normal, but for a small W
    v = 0.3 * torch.randn(400, 9, generator=torch.Generator().manual_seed(0))
    sets = {"noise": UniformNoise(low=-4, high=4), "flat": Constant(low=3, high=5), "none": None}
    found = OutOfDistribution(sets=sets).compute(method_of(model), v, torch.Generator().manual_seed(0))
    assert set(found) == {f"{key}_{name}" for key in ("auroc", "aupr", "fpr95") for name in ("noise", "flat")}
    assert found["auroc_noise"] > 0.99
    assert found["auroc_flat"] == found["aupr_flat"] == 1
    assert found["fpr95_flat"] == 0


def test_without_a_free_energy_the_posteriors_bound_stands_for_it():
    v = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    energy, posterior = DeepVectorEnergy(v_dim=2, h_dim=3), LinearGaussianPosterior(v_dim=2, h_dim=3)
    metric = OutOfDistribution(sets={"noise": UniformNoise()}, n_particles=4)
    assert set(metric.compute(method_of(energy, posterior), v, torch.Generator().manual_seed(0))) == {
        *("auroc_noise", "aupr_noise", "fpr95_noise")
    }
    assert metric.compute(method_of(energy), v, torch.Generator()) == {}


def test_the_bound_is_the_free_energy_where_q_is_the_posterior():
    model = GaussianLatentModel(v_dim=3, h_dim=2).double()
    torch.nn.init.normal_(model.W, std=0.3, generator=torch.Generator().manual_seed(0))
    v = torch.randn(20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    class TruePosterior:
        def noise(self, shape, v, generator):
            return torch.randn((*shape, len(v), 2), generator=generator, dtype=v.dtype)

        def rsample_and_log_prob(self, v, noise):
            h = model.latent_mean(v) + noise
            return h, model.free_energy(v) - model.energy(v, h)

    joint_only = type("JointOnly", (), {"energy": staticmethod(model.energy)})()
    found = free_energy_bound(joint_only, TruePosterior(), v, torch.Generator(), n_particles=3)
    torch.testing.assert_close(found, model.free_energy(v))


class Pictures:
    image_shape = (3, 6, 6)

    def __init__(self):
        self.splits = None

    def setup(self):
        ramp = torch.arange(6, dtype=torch.uint8) * 40
        image = ramp.expand(3, 6, 6) + torch.tensor([0, 10, 20], dtype=torch.uint8)[:, None, None]
        self.splits = type("Splits", (), {"test": image.expand(5, 3, 6, 6)})()

    def as_float(self, batch):
        return batch.float() / 255


def test_another_data_set_is_brought_to_size_and_channels():
    grey = DataSet(data=Pictures(), n_max=2).draw(torch.zeros(7, 1, 6, 6), torch.Generator())
    torch.testing.assert_close(grey, ((torch.arange(6) * 40 + 10) / 255).expand(2, 1, 6, 6))
    small = DataSet(data=Pictures()).draw(torch.zeros(7, 3, 3, 3), torch.Generator())
    assert small.shape == (5, 3, 3, 3)
    assert (small[..., 1:] > small[..., :-1]).all()
    with pytest.raises(ConfigError, match="no images to compare"):
        DataSet(data=Pictures()).draw(torch.zeros(7, 36), torch.Generator())


@pytest.mark.parametrize("kind", [UniformNoise, Constant])
def test_an_empty_range_is_refused(kind):
    with pytest.raises(ConfigError, match="low < high"):
        kind(low=1.0, high=1.0)
