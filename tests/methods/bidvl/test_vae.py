"""Tests of the variational autoencoder: its loss is minus the log-evidence if the encoder is exact."""

import math

import torch
from torch import nn
from torch.distributions import MultivariateNormal

import eblvm_lit as eb
from cases import hermite, randomise
from eblvm_lit.methods.bidvl.base import Networks


def test_the_autoencoders_loss_is_minus_the_log_evidence_if_the_encoder_is_the_true_posterior(float64):
    """Compare with -log N(v; a, AA' + I/2), the exact value for h ~ N(0, I) and v ~ N(A h + a, I/2)."""
    d = 3
    n_h = 2
    decoder = randomise(nn.Linear(n_h, d))
    q = eb.LinearGaussianPosterior(v_dim=d, h_dim=n_h)
    a = decoder.bias.detach()
    # the columns of A are orthogonal, so that the covariance of the posterior is diagonal
    A = torch.linalg.qr(decoder.weight.detach())[0] * torch.tensor([1.5, 0.4])
    precision = torch.eye(n_h) + 2 * A.T @ A
    with torch.no_grad():  # With the posterior's precision P, the mean of h given v is 2 P^-1 A' (v - a).
        decoder.weight.copy_(A)
        q.linear.weight.copy_(2 * torch.linalg.solve(precision, A.T))
        q.linear.bias.copy_(-q.linear.weight @ a)
        q.log_std.copy_(-0.5 * precision.diag().log())
    method = eb.VAE(posterior=q, generator=decoder, optimizer=eb.SGD(lr=0.1))
    v = torch.randn(4, d)
    networks = Networks(None, q, None, decoder)
    eps, w = hermite(4, n_h)
    total = 0.0
    for e, weight in zip(eps, w, strict=True):
        terms = method.bound(networks, v, {"eps": e.expand(len(v), -1)})
        total = total + weight * (terms["reconstruction"] + terms["prior"])
    exact = -MultivariateNormal(a, A @ A.T + 0.5 * torch.eye(d)).log_prob(v)
    torch.testing.assert_close(total + 0.5 * d * math.log(math.pi), exact)
