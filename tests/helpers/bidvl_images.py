"""Methods with a generator on tiny images, and the changes in their state."""

import torch

import eblvm_lit as eb
from eblvm_lit.energies.spectral import JointSpectralEnergy, SpectralEnergy
from eblvm_lit.methods.bidvl.losses import Adversarial
from eblvm_lit.networks.bidvl_conv import BatchNormEncoder, ConvGenerator, SpectralConv
from eblvm_lit.posteriors.gaussian import EncoderPosterior
from helpers.bidvl_networks import LOSSES

SHAPE = (1, 8, 8)
H_DIM = 3


def energy(**options):
    return SpectralEnergy(network=SpectralConv(v_shape=SHAPE, width=2), **options)


def encoder():
    return EncoderPosterior(network=BatchNormEncoder(v_shape=SHAPE, width=2), h_dim=H_DIM)


def generator(v_shape=SHAPE, h_dim=H_DIM):
    return ConvGenerator(v_shape=v_shape, h_dim=h_dim, width=2)


def vae(**options):
    return eb.VAE(**{"posterior": encoder(), "generator": generator(), "optimizer": eb.Adam(lr=1e-2), **options})


def sngan(**options):
    parts = {"energy": energy(output="identity"), "generator": generator(), "loss": Adversarial()}
    return eb.SNGAN(**{**parts, "optimizer": eb.SGD(lr=0.01), **options})


def bidvl(name="offset", **options):
    """Build BiDVL with an optimizer that has moments and weight decay.

    Such an optimizer moves a parameter even where its gradient is zero. This shows which parameters a step updates.
    """
    network = SpectralConv(v_shape=SHAPE, width=2)
    joint = LOSSES[name].joint
    parts = {
        "energy": JointSpectralEnergy(network=network, h_dim=H_DIM, h_widths=[4])
        if joint
        else SpectralEnergy(network=network),
        "posterior": encoder(),
        "generator": generator(),
        "loss": LOSSES[name],
    }
    rule = {"optimizer": eb.Adam(lr=1e-2, betas=(0.5, 0.9), weight_decay=0.1), "encoder_optimizer": "own"}
    return eb.BiDVL(**{**parts, **rule, **options})


def minibatch(method, n=6):
    return torch.randn(n, *SHAPE).tanh(), method.draw_noise(torch.randn(n, *SHAPE), torch.Generator().manual_seed(0))


def flat(state):
    """Return the parameters and buffers of a training state by name, without the states of the optimizers."""
    params = {f"{network}.{name}": p for network, own in state.params.items() for name, p in own.items()}
    return {**params, **state.buffers}


def changed(before, after):
    """Return the names of the tensors that differ between two states."""
    before = flat(before)
    after = flat(after)
    return {name for name, value in before.items() if not torch.equal(value, after[name])}
