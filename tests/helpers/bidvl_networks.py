"""Small networks for BiDVL, and a list of all its losses."""

import copy

import torch
from torch import nn

from cases import randomise
from eblvm_lit.energies.spectral import JointSpectralEnergy, SpectralEnergy
from eblvm_lit.methods.bidvl.base import Networks
from eblvm_lit.methods.bidvl.joint_losses import CanonicalJoint, SymmetricJoint
from eblvm_lit.methods.bidvl.losses import FullLatentTerm, NoLatentTerm, OffsetLatentTerm
from eblvm_lit.methods.bidvl.ratios import ClampedExponentialRatio, ConstantRatio, SigmoidRatio
from eblvm_lit.networks.mlp import MLP
from eblvm_lit.posteriors.gaussian import EncoderPosterior

V_DIM = 3
H_DIM = 2
R = 0.3

LOSSES = {
    "offset": OffsetLatentTerm(ratio=ConstantRatio(scale=R)),
    "offset-hinge": OffsetLatentTerm(ratio=ConstantRatio(scale=R), critic_loss="hinge", latent_weight=1e-4),
    "offset-sigmoid": OffsetLatentTerm(ratio=SigmoidRatio(scale=R)),
    "offset-exp": OffsetLatentTerm(ratio=ClampedExponentialRatio(scale=R)),
    "complete": FullLatentTerm(ratio=ConstantRatio(scale=R)),
    "without": NoLatentTerm(ratio=ConstantRatio(scale=R)),
    "joint": SymmetricJoint(ratio=ConstantRatio(scale=R)),
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


def networks(loss):
    q = encoder()
    frozen = copy.deepcopy(q).requires_grad_(False)
    return Networks(energy(loss.joint).eval(), q, frozen, generator())


def noise(n):
    return {"h_hat": torch.randn(n, H_DIM), "eps": torch.randn(n, H_DIM), "eps_hat": torch.randn(n, H_DIM)}
