"""Small players of doubly variational learning, and all variants."""

import copy

import torch
from torch import nn

from cases import randomise
from eblvm_lit.doubly_variational.joint import CanonicalJoint, SymmetricJoint
from eblvm_lit.doubly_variational.players import Players
from eblvm_lit.doubly_variational.ratios import ClampedExponentialRatio, ConstantRatio, SigmoidRatio
from eblvm_lit.doubly_variational.variants import Complete, Offset, Without
from eblvm_lit.energies.spectral import JointSpectralEnergy, SpectralEnergy
from eblvm_lit.networks.mlp import MLP
from eblvm_lit.posteriors.encoder import EncoderPosterior

V_DIM, H_DIM, R = 3, 2, 0.3

VARIANTS = {
    "offset": Offset(ratio=ConstantRatio(basic=R)),
    "offset-hinge": Offset(ratio=ConstantRatio(basic=R), gap="hinge", latent_weight=1e-4),
    "offset-sigmoid": Offset(ratio=SigmoidRatio(basic=R)),
    "offset-exp": Offset(ratio=ClampedExponentialRatio(basic=R)),
    "complete": Complete(ratio=ConstantRatio(basic=R)),
    "without": Without(ratio=ConstantRatio(basic=R)),
    "joint": SymmetricJoint(ratio=ConstantRatio(basic=R)),
    "canonical": CanonicalJoint(),
}


def encoder():
    return randomise(EncoderPosterior(network=MLP(sizes=[V_DIM, 5]), h_dim=H_DIM), 0.4)


def generator():
    return randomise(nn.Sequential(nn.Linear(H_DIM, 5), nn.Tanh(), nn.Linear(5, V_DIM)), 0.4)


def energy(joint=False):
    network = MLP(sizes=[V_DIM, 5])
    if joint:
        return randomise(JointSpectralEnergy(network=network, h_dim=H_DIM, h_widths=[4]), 0.4)
    return randomise(SpectralEnergy(network=network, output="identity"), 0.4)


def players(variant):
    q = encoder()
    frozen = copy.deepcopy(q).requires_grad_(False)
    return Players(energy(variant.joint).eval(), q, frozen, generator())


def noise(n):
    return {"h_hat": torch.randn(n, H_DIM), "eps": torch.randn(n, H_DIM), "eps_hat": torch.randn(n, H_DIM)}
