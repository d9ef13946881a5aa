"""Samplers with few steps, and a Gaussian model to draw from."""

import torch

import eblvm_lit as eb
from helpers.models import F64, LatentOnly, generator


def sampler(n_steps=120, batch_size=2000, kind="auto", bfloat16=False, **options):
    """Build a sampler at temperature one, whose stationary distribution is known."""
    options = {"step_size": 0.5, "temperature": 1.0, "n_falling": 0, "n_cold": 0, "denoise_std": 0.0, **options}
    dynamics = eb.AnnealedLangevin(n_hot=n_steps, **options)
    return eb.Sampler(dynamics=dynamics, batch_size=batch_size, kind=kind, bfloat16=bfloat16)


def few(batch_size=4, **options):
    """Build a sampler with a few hot and a few cold steps."""
    return sampler(2, batch_size, temperature=4.0, n_falling=3, n_cold=2, step_size=0.2, denoise_std=0.1, **options)


def gaussian(v_dim=4, h_dim=2):
    model = eb.GaussianLatentModel(v_dim=v_dim, h_dim=h_dim, weight_scale=1.5).double().requires_grad_(False)
    for p in (model.b, model.c, model.log_std):
        p.copy_(0.3 * torch.randn(p.shape, generator=generator(1), dtype=F64))
    model.W.copy_(0.35 * torch.randn(model.W.shape, generator=generator(2), dtype=F64))
    return model.requires_grad_(True)


class Hidden(LatentOnly):
    """A joint energy with continuous latents that delegates to another model and has no free energy."""

    continuous = True
