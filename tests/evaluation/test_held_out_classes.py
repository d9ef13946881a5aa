"""Tests of the detection of held-out classes: against its definition, for each score, and in a whole run."""

import math

import pytest
import torch

import eblvm_lit as eb
from eblvm_lit.data.base import ArrayDataModule, Splits
from eblvm_lit.data.digits import Digits
from eblvm_lit.evaluation.held_out_classes import HeldOutClasses, parts_by_score
from eblvm_lit.evaluation.outlier_score import outlier_score
from eblvm_lit.methods.parts import MethodParts
from helpers.models import LatentOnly, method_of, normal, random_gaussian_model
from helpers.shell import train


class Scored(eb.VisibleEnergy):
    """The energy F(v) = v of numbers."""

    event_shape = (1,)

    def free_energy(self, v):
        return v[:, 0]


class Numbers(ArrayDataModule):
    event_shape = (1,)
    held_out_classes = (2,)

    def __init__(self, values, labels):
        super().__init__()
        self.values = torch.tensor(values)[:, None]
        self.known = torch.tensor(labels)

    def load(self):
        return Splits(self.values, self.values, self.values)

    def load_labels(self):
        return Splits(self.known, self.known, self.known)


def evaluated(method, data, split="test"):
    data.setup()
    return HeldOutClasses().evaluate(method, data, split, torch.Generator().manual_seed(0))


def average_precision(energy, positive):
    """Compute the mean, over the positives, of the precision among all examples of at least their energy."""
    order = energy.argsort(descending=True)
    hits = positive[order].double()
    precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1)
    return float((precision * hits).sum() / hits.sum())


def test_the_held_out_class_is_the_positive_class():
    # By falling energy: held out, other, held out, other, other. The precisions at the positives are 1 and 2/3.
    data = Numbers([50.0, -10.0, 80.0, 60.0, -30.0], [2, 0, 2, 1, 0])
    found = evaluated(method_of(Scored()), data)
    # There are 2 x 3 pairs, and in one of them the energy of the held-out example is the lower one.
    assert found == {
        "auprc_held_out_free_energy": pytest.approx(5 / 6),
        "auroc_held_out_free_energy": pytest.approx(5 / 6),
    }
    assert evaluated(method_of(Scored()), data, "val") == {}
    data = Numbers([80.0, 50.0, 60.0, -10.0], [0, 2, 1, 2])
    found = evaluated(method_of(Scored()), data)
    assert found["auprc_held_out_free_energy"] == pytest.approx((1 / 3 + 2 / 4) / 2)
    assert found["auroc_held_out_free_energy"] == 0


def test_a_test_split_of_one_kind_has_no_numbers():
    data = Numbers([50.0, -10.0, 80.0], [0, 1, 2])
    data.setup()
    for labels in ([2, 2, 2], [0, 1, 0]):
        data.labels = Splits(*[torch.tensor(labels)] * 3)
        assert HeldOutClasses().evaluate(method_of(Scored()), data, "test", torch.Generator()) == {}


def test_without_held_out_classes_there_are_no_numbers():
    assert evaluated(method_of(Scored()), Digits()) == {}


def test_digits_are_ranked_by_the_energy_of_the_model():
    data = Digits(held_out_classes=[4, 9])
    data.setup()
    v = data.splits.train
    model = eb.GaussianLatentModel(v_dim=64, h_dim=2)
    with torch.no_grad():
        model.W.zero_()
        model.b.copy_(v.mean(0))
        model.log_std.copy_((v.std(0) + 0.1).log())
    found = evaluated(method_of(model), data)
    energy = (((data.splits.test - v.mean(0)) / (v.std(0) + 0.1)).double() ** 2).sum(1)
    positive = (data.labels.test == 4) | (data.labels.test == 9)
    assert found["auprc_held_out_free_energy"] == pytest.approx(average_precision(energy, positive), abs=1e-3)
    assert found["auprc_held_out_free_energy"] > positive.float().mean()


def test_each_score_is_minus_the_energy_that_it_is_named_after():
    model = LatentOnly(random_gaussian_model())
    q = eb.LinearGaussianPosterior(v_dim=3, h_dim=4).double()
    generator = torch.nn.Linear(4, 3).double()
    generator.event_shape = (3,)
    generator.h_dim = 4
    v = normal(5, 3)
    found = parts_by_score(MethodParts(energy=model, posterior=q, generator=generator))
    assert list(found) == ["free_energy", "joint", "elbo"]
    with torch.no_grad():
        mean, log_std = q.distribution_params(v)[:2]
        joint = outlier_score(found["joint"], v, torch.Generator(), n_particles=1)
        torch.testing.assert_close(joint, -model.energy(v, mean))
        # E_q of |v - G(h)|^2 and the divergence of two Gaussians have closed forms, because G is linear.
        variance = (2 * log_std).exp().expand_as(mean)
        spread = (variance[:, None] * generator.weight**2).sum((1, 2))
        error = (v - generator(mean)).square().sum(1) + spread
        divergence = 0.5 * (variance + mean**2 - 1 - variance.log()).sum(1)
        shift = 0.5 * 4 * math.log(2 * math.pi)  # the energy |h|^2 / 2 lacks the constant of log N(h; 0, I)
        n = 200_000
        elbo = torch.stack(
            [outlier_score(found["elbo"], row, torch.Generator().manual_seed(0), n_particles=n) for row in v[:, None]]
        )[:, 0]
        torch.testing.assert_close(-elbo + shift, error + divergence, atol=0.05, rtol=0)
    only = parts_by_score(MethodParts(posterior=q, generator=generator))
    assert list(only) == ["elbo"]
    assert list(parts_by_score(MethodParts(energy=model.model, posterior=q))) == ["free_energy"]
    assert list(parts_by_score(MethodParts(energy=model, encoder=generator))) == ["joint"]


def test_a_run_reports_the_held_out_class_without_another_option(tmp_path):
    chosen = ("data=digits", "data.held_out_classes=[1]", "method=cd", "trainer.max_steps=2", "callbacks.figures=null")
    metrics = train(tmp_path, *chosen)
    assert {name for name in metrics if "held_out" in name} == {
        f"test/{key}_held_out_free_energy" for key in ("auprc", "auroc")
    }
