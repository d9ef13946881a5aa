"""Tests of the checks at the start of training, which refuse a method that cannot be trained as it is written."""

import pytest
import pytorch_lightning as pl
import torch
from torch import nn

from eblvm_lit.core.functional import bind
from eblvm_lit.data.toy import Checkerboard
from eblvm_lit.energies.base import MarginalEnergy
from eblvm_lit.energies.grbm import GRBM
from eblvm_lit.energies.mlp_energy import MLPEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.loss_method import LossMethod
from eblvm_lit.optimizers.adam import Adam
from eblvm_lit.training.callbacks.start_checks import StartChecks


class Contrast(LossMethod):
    """A method that lowers the free energy at data and raises it at perturbed data."""

    energy_type = MarginalEnergy

    def noise(self, v, generator):
        return torch.randn(v.shape, generator=generator)

    def loss(self, state, v, noise):
        F = bind(self.energy, state.theta).free_energy
        return torch.sigmoid(F(v) - F(v + 0.2 * noise))


class Few(Checkerboard):
    """A small data set of points in the plane."""

    sizes = (40, 20, 20)


def fit(method, n=2, data=None, **options):
    """Train a method for a few iterations with the start checks."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    own = {"callbacks": [StartChecks()], "enable_checkpointing": False, **quiet}
    trainer = pl.Trainer(accelerator="cpu", max_steps=n, **own, **options)
    trainer.fit(method, datamodule=data or Few(batch_size=20))
    return method


def contrast(loss=None, energy=None, **options):
    """Build the method Contrast, with another loss or energy if one is given."""
    kind = type("Own", (Contrast,), {} if loss is None else {"loss": loss})
    return kind(energy=energy or GRBM(v_dim=2, h_dim=3), optimizer=Adam(lr=0.01), **options)


def test_a_parameter_that_no_group_moves_is_refused():
    method = contrast()
    method.log_z = nn.Parameter(torch.zeros(()))
    with pytest.raises(ConfigError, match="log_z"):
        fit(method)
    method.log_z.requires_grad_(False)
    fit(method)


class Column(GRBM):
    """A GRBM whose free energy has one dimension too many."""

    def free_energy(self, v):
        return super().free_energy(v)[:, None]


def test_an_energy_of_another_shape_is_refused():
    with pytest.raises(ConfigError, match=r"free_energy\(v\) of Column .*\(5, 1\)"):
        fit(contrast(energy=Column(v_dim=2, h_dim=3)))


def test_a_loss_that_is_not_one_number_for_each_example_is_refused_unless_it_is_one_number():
    with pytest.raises(ConfigError, match=r"loss of Own .*\(20, 1\)"):
        fit(contrast(lambda *given: Contrast.loss(*given)[:, None]), num_sanity_val_steps=0)
    assert fit(contrast(lambda *given: Contrast.loss(*given).mean())).iterations_done == 2


class Deaf(GRBM):
    """A GRBM whose free energy has no gradient."""

    def free_energy(self, v):
        return super().free_energy(v).detach()


def unbound(self, state, v, noise):  # a loss that does not use the parameters in the state
    return torch.sigmoid(self.energy.free_energy(v) - self.energy.free_energy(v + 0.2 * noise))


@pytest.mark.parametrize("n_block", [1, 5])
@pytest.mark.parametrize(
    "method", [lambda: contrast(unbound), lambda: contrast(energy=Deaf(v_dim=2, h_dim=3))], ids=["unbound", "detached"]
)
def test_a_loss_that_does_not_see_the_parameters_is_refused_after_three_iterations(method, n_block):
    method = method()
    data = Few(batch_size=20)
    data.iterations_per_batch = n_block
    with pytest.raises(ConfigError, match=r"group model \(W, b, c, log_std\) are exactly zero.*bind\(self.energy"):
        fit(method, 50, data)
    assert method.iterations_done == max(3, n_block)


class Idle(GRBM):
    """A GRBM with two further parameters that nothing reads: an additive constant, and a vector."""

    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.constant = nn.Parameter(torch.zeros(()))
        self.spare = nn.Parameter(torch.zeros(2))


def test_parameters_without_a_gradient_are_named_once(caplog):
    fit(contrast(energy=Idle(v_dim=2, h_dim=3)), 6)
    assert [r.message for r in caplog.records if "gradient" in r.message] == [
        "Parameters of the group model have no gradient and are not trained: spare."
    ]


def test_gradients_that_are_zero_only_at_first_are_accepted(caplog):
    energy = MLPEnergy(v_dim=2, widths=[5])
    nn.init.zeros_(energy.network[-1].weight)
    fit(contrast(energy=energy), 6)
    assert "gradient" not in caplog.text


def test_an_optimizer_of_torch_is_refused_in_a_sentence():
    energy = GRBM(v_dim=2, h_dim=3)
    with pytest.raises(ConfigError, match=r"eblvm_lit\.Adam.*torch\.optim"):
        fit(Contrast(energy=energy, optimizer=torch.optim.Adam(energy.parameters(), lr=0.01)))
