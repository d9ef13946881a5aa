"""Tests of the detection of outliers: against its definition, for energies of any size, and in whole runs."""

import pytest
import torch

import eblvm_lit as eb
from cases import binary, randomise
from eblvm_lit.data.base import Splits
from eblvm_lit.evaluation.out_of_distribution import (
    Constant,
    DataSet,
    OutlierSet,
    OutOfDistribution,
    UniformNoise,
    detection,
)
from eblvm_lit.posteriors.free_energy_bound import free_energy_bound
from eblvm_lit.runs import run
from helpers.image_files import write_images, write_svhn
from helpers.models import LatentOnly, method_of, random_grbm
from helpers.shell import configure, evaluate, of_checkpoint
from helpers.short_runs import SMALL_DEEP


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
    inside = torch.randn(200, generator=generator) + 1
    outside = torch.randn(300, generator=generator)
    if rounded:
        inside = inside.round()
        outside = outside.round()
    found = detection(inside, outside)
    for name, value in by_definition(inside.double(), outside.double()).items():
        # the tolerance is for torchmetrics, which divides in float32
        assert found[name] == pytest.approx(value, abs=1e-6)


def test_only_ranks_count_at_energies_of_any_size():
    inside, outside = torch.randn(2, 100, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for a, b in ((1.0, 1e4), (1e4, 0.0), (1e-4, -50.0)):
        assert detection(a * inside + b, a * outside + b) == detection(inside, outside)
    assert detection(torch.tensor([60.0, 61.0]), torch.tensor([50.0, 51.0])) == {"auroc": 1, "aupr": 1, "fpr95": 0}
    inside = torch.tensor([1.0, 2.0, torch.inf])
    outside = torch.tensor([-torch.inf, 1.5, -torch.inf])
    finite = detection(inside.nan_to_num(posinf=9.0), outside.nan_to_num(neginf=-9.0))
    assert detection(inside, outside) == finite


def test_a_model_of_the_data_finds_noise_and_constants():
    # this model is a standard normal distribution, except for a small W
    model = eb.GaussianLatentModel(v_dim=9, h_dim=2)
    v = 0.3 * torch.randn(400, 9, generator=torch.Generator().manual_seed(0))
    sets = {"noise": UniformNoise(low=-4, high=4), "flat": Constant(low=3, high=5), "none": None}
    found = OutOfDistribution(sets=sets).compute(method_of(model), v, torch.Generator().manual_seed(0))
    assert set(found) == {f"{key}_{name}" for key in ("auroc", "aupr", "fpr95") for name in ("noise", "flat")}
    assert found["auroc_noise"] > 0.99
    assert found["auroc_flat"] == found["aupr_flat"] == 1
    assert found["fpr95_flat"] == 0


class Given(OutlierSet):
    def __init__(self, w):
        self.w = w

    def draw(self, v, generator):
        return self.w


@pytest.mark.parametrize(
    ("output", "sign", "bias"), [("softplus", -1, -200.0), ("tanh", 1, 20.0), ("sigmoid", -1, 20.0)]
)
def test_outliers_are_ranked_by_what_comes_before_an_output_that_saturates(output, sign, bias):
    """Check the ranks of outliers with outputs that saturate.

    In float32, tanh(20) and 1 / (1 + exp(-20)) are 1, and log(1 + exp(-200)) is 0.
    """
    torch.manual_seed(0)
    energy = eb.SpectralEnergy(network=eb.MLP(sizes=[2, 4]), output=output, hidden=False).eval()
    with torch.no_grad():
        energy.head.bias.fill_(bias)
    v, w = torch.randn(2, 300, 2, generator=torch.Generator().manual_seed(0)).unbind()
    with torch.no_grad():
        before = [energy.head(energy.network(x)).squeeze(-1) for x in (v, w + 0.5)]
    assert len(torch.cat(before).unique()) > 500
    found = OutOfDistribution(sets={"w": Given(w + 0.5)}).compute(method_of(energy), v, torch.Generator())
    assert found == {f"{key}_w": value for key, value in detection(*(sign * x for x in before)).items()}
    assert found["auroc_w"] != 0.5


@pytest.mark.parametrize("posterior", [True, False], ids=["bound", "free energy"])
def test_the_numbers_of_a_set_do_not_depend_on_the_others(posterior):
    """Check that the numbers of a set depend only on the seed and on the set's name.

    They do not depend on the order of the sets or on earlier random numbers.
    """
    torch.manual_seed(0)
    v = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    energy = eb.DeepVectorEnergy if posterior else eb.GaussianLatentModel
    method = method_of(energy(v_dim=2, h_dim=3), eb.LinearGaussianPosterior(v_dim=2, h_dim=3) if posterior else None)
    every = {"noise": UniformNoise(), "more noise": UniformNoise(), "data": Given(v)}

    def numbers(*names, seed=0, drawn=0):
        generator = torch.Generator().manual_seed(seed)
        torch.rand(drawn, generator=generator)
        return OutOfDistribution(sets={n: every[n] for n in names}, n_particles=2).compute(method, v, generator)

    whole = numbers(*every)
    assert numbers(*reversed(every), drawn=3) == whole
    assert {key: value for name in every for key, value in numbers(name).items()} == whole
    assert numbers("noise", seed=1)["auroc_noise"] != whole["auroc_noise"] != whole["auroc_more noise"]
    # If the data themselves are the outliers, free energies are equal and give exactly 0.5. Bounds are not equal,
    # because each set has its own latents.
    assert (whole["auroc_data"] == pytest.approx(0.5, abs=1e-12)) == (not posterior)


def test_the_bound_is_the_free_energy_where_q_is_the_posterior():
    model = eb.GaussianLatentModel(v_dim=3, h_dim=2).double()
    torch.nn.init.normal_(model.W, std=0.3, generator=torch.Generator().manual_seed(0))
    v = torch.randn(20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    class TruePosterior:
        def noise(self, shape, v, generator):
            return torch.randn((*shape, len(v), 2), generator=generator, dtype=v.dtype)

        def sample_and_log_prob(self, v, noise):
            h = model.latent_mean(v) + noise
            return h, model.free_energy(v) - model.energy(v, h)

    joint_only = type("JointOnly", (), {"energy": staticmethod(model.energy)})()
    found = free_energy_bound(joint_only, TruePosterior(), v, torch.Generator(), n_particles=3)
    torch.testing.assert_close(found, model.free_energy(v))


def test_the_bound_of_binary_latents_is_above_the_free_energy(float64):
    # With relaxed bits, numbers between 0 and 1 in place of 0 and 1, the estimate would be below F(v).
    model = random_grbm(3, 5)
    q = randomise(eb.BernoulliPosterior(v_dim=3, h_dim=5, temperature=1.0))
    v = torch.randn(4, 3)
    h = binary(5)
    log_q = q.log_prob_given(q.distribution_params(v), h[:, None].expand(-1, 4, -1))
    bound = model.energy(v, h[:, None].expand(-1, 4, -1)) + log_q
    exact = (log_q.exp() * bound).sum(0)
    n = 20_000
    error = ((log_q.exp() * bound**2).sum(0) - exact**2).div(n).sqrt()
    found = free_energy_bound(LatentOnly(model), q, v, torch.Generator().manual_seed(0), n_particles=n)
    assert ((found - exact).abs() < 4 * error).all()
    assert (exact > model.free_energy(v)).all()


class Pictures:
    image_shape = (3, 6, 6)
    splits = None

    def setup(self):
        ramp = torch.arange(6, dtype=torch.uint8) * 40 + torch.tensor([0, 10, 20], dtype=torch.uint8)[:, None, None]
        self.splits = Splits(None, None, ramp.expand(5, 3, 6, 6))

    def as_float(self, batch):
        return batch.float() / 255


def test_another_data_set_is_brought_to_size_and_channels():
    grey = DataSet(data=Pictures(), n_max=2).draw(torch.zeros(7, 1, 6, 6), torch.Generator())
    torch.testing.assert_close(grey, ((torch.arange(6) * 40 + 10) / 255).expand(2, 1, 6, 6))
    small = DataSet(data=Pictures()).draw(torch.zeros(7, 3, 3, 3), torch.Generator())
    assert small.shape == (5, 3, 3, 3)
    assert (small[..., 1:] > small[..., :-1]).all()


def test_another_data_set_is_brought_to_the_scale_of_the_data():
    symmetric = type("Symmetric", (Pictures,), {"value_range": "symmetric", "as_float": lambda self, x: x / 127.5 - 1})
    v = torch.zeros(7, 3, 6, 6)
    unit = DataSet(data=Pictures()).draw(v, torch.Generator())
    for data in (Pictures(), symmetric()):
        torch.testing.assert_close(DataSet(data=data, value_range="unit").draw(v, None), unit)
        torch.testing.assert_close(DataSet(data=data, value_range="symmetric").draw(v, None), 2 * unit - 1)


SETS = "callbacks.evaluation.metrics.out_of_distribution.sets"


def test_sets_named_on_the_command_line_are_outliers_and_are_found_again_in_another_folder(tmp_path, monkeypatch):
    write_svhn(tmp_path / "root")
    write_images(tmp_path / "images", 12, size=(8, 8))
    monkeypatch.setenv("EBLVM_DATA", str(tmp_path / "root"))
    data = ["data=image_folder", f"data.path={tmp_path / 'images'}", "data.size=8", "data.test_size=4"]
    model = ["method=mdsm", *SMALL_DEEP, "data.val_size=3", "data.batch_size=4"]
    chosen = ["evaluation@callbacks.evaluation.metrics=out_of_distribution", f"+outliers@{SETS}.svhn=svhn"]
    short = ["debug=fast", "trainer.max_steps=2", "callbacks.figures=null", f"run_dir={tmp_path / 'run'}"]
    metrics = run.train(configure(*data, *model, *short, *chosen, f"{SETS}.constant=null"))
    assert {name for name in metrics if "auroc" in name} == {"test/auroc_noise", "test/auroc_svhn"}
    (tmp_path / "root").rename(tmp_path / "moved")
    moved = f"data_root={tmp_path / 'moved'}"
    again = evaluate(tmp_path / "again", tmp_path / "run" / "checkpoints" / "last.ckpt", moved)
    assert again == of_checkpoint(metrics)


def test_outliers_are_on_the_scale_of_the_data_of_the_run():
    chosen = "evaluation@callbacks.evaluation.metrics=out_of_distribution"
    cfg = configure("data=mnist", chosen, "data.value_range=symmetric", f"+outliers@{SETS}.faces=celeba")
    faces = cfg.callbacks.evaluation.metrics.out_of_distribution.sets.faces
    assert (faces.value_range, faces.data.value_range) == ("symmetric", "unit")
    assert (faces.n_max, faces.data.crop, faces.data.size) == (10_000, 160, 32)
