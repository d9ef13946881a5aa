"""The variational autoencoder: its loss against the evidence, and what a step descends."""

import math

import torch
from torch import nn
from torch.distributions import MultivariateNormal

from cases import hermite, randomise
from eblvm_lit.methods.bidvl.base import Networks
from eblvm_lit.methods.bidvl.losses import OffsetLatentTerm
from eblvm_lit.methods.bidvl.ratios import ConstantRatio
from eblvm_lit.methods.bidvl.vae import VAE
from eblvm_lit.optimizers.sgd import SGD
from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
from helpers.bidvl_images import H_DIM, SHAPE, vae


def test_the_autoencoders_loss_is_minus_the_log_evidence_if_the_encoder_is_the_true_posterior(float64):
    """-log N(v; a, AA' + I/2) of the model N(h; 0, I) N(v; A h + a, I/2), h integrated out exactly."""
    d, n_h = 3, 2
    decoder = randomise(nn.Linear(n_h, d))
    A, a = decoder.weight.detach(), decoder.bias.detach()
    # the columns of A are orthogonal, so that the covariance of the posterior is diagonal
    A = torch.linalg.qr(A)[0] * torch.tensor([1.5, 0.4])
    decoder.weight.data.copy_(A)
    precision = torch.eye(n_h) + 2 * A.T @ A
    q = LinearGaussianPosterior(v_dim=d, h_dim=n_h)
    method = VAE(posterior=q, generator=decoder, optimizer=SGD(lr=0.1))
    v = torch.randn(4, d)
    mean = 2 * (v - a) @ A @ torch.linalg.inv(precision)

    class Posterior(LinearGaussianPosterior):
        def moments(self, x):
            return mean, (-0.5 * precision.diag().log()).expand_as(mean)

    networks = Networks(None, Posterior(v_dim=d, h_dim=n_h), None, decoder)
    eps, w = hermite(4, n_h)
    total = 0.0
    for e, weight in zip(eps, w, strict=True):
        terms = method.bound(networks, v, {"eps": e.expand(len(v), -1)})
        total = total + weight * (terms["reconstruction"] + terms["prior"])
    exact = -MultivariateNormal(a, A @ A.T + 0.5 * torch.eye(d)).log_prob(v)
    torch.testing.assert_close(total + 0.5 * d * math.log(math.pi), exact)


def test_the_autoencoders_loss_is_term_a_of_bidvl_with_a_ratio_of_one(float64):
    method, v, noise = vae(), torch.randn(5, *SHAPE), {"eps": torch.randn(5, H_DIM)}
    networks = Networks(None, method.posterior, None, method.generator)
    terms = OffsetLatentTerm(ratio=ConstantRatio(scale=1.0)).reconstruction(networks, v, noise)
    torch.testing.assert_close(method.bound(networks, v, noise), terms)
