"""The samplers that are compared with one another.

Each sampler draws images of a shipped model. Most of them also sample a mixture whose mode weights are known.
"""

from __future__ import annotations

import time
from functools import partial

import torch
from torch import Tensor, nn

import eblvm_lit
from benchmarks.tables import Row
from eblvm_lit.cli.compose import sampler_config
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.data.blobs import TwentyFiveGaussians
from eblvm_lit.energies.base import VisibleEnergy
from eblvm_lit.runs.instantiate import instantiate
from eblvm_lit.samplers.energy_grad import energy_grad
from eblvm_lit.samplers.sampler import Sampler

Words = tuple[str, ...]


def words(sampler: str, kind: str | None = None, **dynamics: float) -> Words:
    """Return the overrides that choose a sampler and its settings.

    ``kind`` adds the overrides for shipped models, which were trained on noised images.
    """
    own = () if kind is None else (f"sampler.kind={kind}", "sampler.dynamics.denoise_std=0.2")
    return (f"sampler={sampler}", *own, *(f"sampler.dynamics.{key}={value}" for key, value in dynamics.items()))


annealed = partial(words, "annealed", temperature=56, n_cold=0)
moves = {"n_leapfrog": 8, "step_size": 0.09}
points = partial(words, "annealed", temperature=100, n_cold=0, step_size=0.1, denoise_std=0)
digs = {"noise_max": 1.5, "noise_min": 0.2, "n_levels": 10, "n_moves": 4, "step_size": 0.08}
# Each sampler has overrides for images and overrides for the 25 Gaussians; None means that it does not sample the
# Gaussians. For images, each sampler makes about 1,250 evaluations per sample, as the shipped sampler does; only
# "shipped, ten times" makes ten times as many.
SAMPLERS: dict[str, tuple[Words, Words | None]] = {
    "shipped": (annealed("mean", **moves, n_hot=6, n_falling=110, n_held=35), None),
    "shipped, ten times": (annealed("mean", **moves, n_hot=60, n_falling=1100, n_held=350), None),
    "annealed, score": (
        annealed("score", step_size=0.08, n_hot=50, n_falling=1200),
        words("walk_jump", step_size=0.1, n_hot=4800, denoise_std=0),
    ),
    "annealed, 1 leapfrog step": (
        annealed("mean", n_leapfrog=1, step_size=0.08, n_hot=50, n_falling=900, n_held=300),
        points(n_leapfrog=1, n_hot=800, n_falling=4000),
    ),
    "annealed, 8 leapfrog steps": (
        annealed("mean", **moves, n_hot=6, n_falling=150),
        points(n_leapfrog=8, n_hot=100, n_falling=500),
    ),
    "walk_jump": (words("walk_jump", "mean", **moves, n_hot=156), None),
    "parallel_tempering": (
        words("parallel_tempering", "mean", temperature=56, n_temperatures=8, n_steps=20, **moves),
        words("parallel_tempering", temperature=100, step_size=0.15, n_steps=800),
    ),
    "diffusive_gibbs": (
        words("diffusive_gibbs", "mean", n_sweeps=18, **digs),
        words("diffusive_gibbs", noise_max=3, step_size=0.15, n_sweeps=480),
    ),
}


class UnequalModes(VisibleEnergy):
    """The energy of 25 Gaussians of standard deviation 0.05 on a grid, with weights proportional to 1, 2, ..., 25."""

    event_shape = (2,)
    std = 0.05

    def __init__(self) -> None:
        super().__init__()
        self.centres = torch.tensor(TwentyFiveGaussians.centres)
        self.weights = torch.arange(1.0, 26.0) / 325
        self.place = nn.Parameter(torch.zeros(()))
        self.n = 0  # the number of evaluations of the energy so far

    def free_energy(self, v: Tensor) -> Tensor:
        self.n += len(v)
        squares = (v.unsqueeze(1) - self.centres).square().sum(-1) / (2 * self.std**2)
        return -(self.weights.log() - squares).logsumexp(1) + 0 * self.place

    def error(self, v: Tensor) -> float:
        """Compute the total variation distance between the modes' true weights and their shares of samples v (n, 2)."""
        shares = torch.bincount(torch.cdist(v, self.centres).argmin(1), minlength=25) / len(v)
        return 0.5 * float((shares - self.weights).abs().sum())


def sampler_of(overrides: Words) -> Sampler:
    return instantiate(sampler_config(overrides), "sampler")


@torch.no_grad()
def weights_error(overrides: Words, n: int = 4000) -> Row:
    """Measure a sampler on the 25 Gaussians: the error of the mode weights, and the evaluations per sample.

    The chains start near (0.5, 0.5).
    """
    energy = UnequalModes()
    sampler = sampler_of(("sampler.kind=marginal", *overrides))
    sampler.batch_size = n
    error = energy.error(sampler.draw(energy, range(n), seed=0))
    return {"weights_error": error, "weights_evaluations": energy.n // n}


def denoised(model: str, images: Tensor, std: float = 0.2) -> tuple[Tensor, nn.Module]:
    """Add noise to images (uint8), and remove it by a gradient of the model's energy.

    The noise is removed in the same way as at the end of chains: v - std^2 dE(v, E_q[h|v])/dv.
    """
    run = eblvm_lit.load(model)
    noise = keyed_generator(0, "denoised")
    found = []
    for some in map(run.data.as_float, images.split(500)):
        v = some + std * torch.randn(some.shape, generator=noise)
        (slope,) = energy_grad(lambda v: run.energy(v, run.posterior.mean(v)).sum(), (v,))
        found.append(run.data.as_bytes(v - std**2 * slope))
    return torch.cat(found), run.method


def draw_images(model: str, overrides: Words, n: int) -> tuple[Tensor, nn.Module, Row]:
    """Draw n images of a shipped model with a sampler.

    Return the images (uint8), the method, and the cost: evaluations per sample and seconds per 100 samples.
    """
    run = eblvm_lit.load(model)
    count = [0]
    hook = run.energy.network.register_forward_hook(lambda network, args, out: count.append(len(args[0])))  # noqa: ARG005
    begin = time.process_time()
    v = run.sample(n, sampler=sampler_of(overrides))
    seconds = time.process_time() - begin
    hook.remove()
    return run.data.as_bytes(v), run.method, {"evaluations": sum(count) / n, "seconds": 100 * seconds / n}
