"""Rows of samplers: images of a shipped model by each, and the weights of modes that it finds."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

import eblvm_lit
from benchmarks.tables import Row
from eblvm_lit.cli.compose import sampler_config
from eblvm_lit.cli.instantiate import instantiate
from eblvm_lit.data.blobs import TwentyFiveGaussians
from eblvm_lit.energies.base import VisibleEnergy
from eblvm_lit.samplers.chain_samples import ChainSamples

D = "sampler.dynamics"
MEAN = ("sampler.kind=mean", f"{D}.denoise_std=0.2")
ANNEALED = ("sampler=annealed", f"{D}.temperature=56", f"{D}.n_cold=0", *MEAN)
SAMPLERS = {  # of images; their values for the 25 Gaussians; gradients of a step
    "shipped": ((), None),
    "annealed, score, 4x": (
        (
            "sampler=annealed",
            "sampler.kind=score",
            f"{D}.temperature=56",
            f"{D}.step_size=0.08",
            f"{D}.denoise_std=0.2",
            f"{D}.n_hot=40",
            f"{D}.n_falling=800",
            f"{D}.n_cold=80",
        ),
        ("sampler=walk_jump", f"{D}.step_size=0.1", f"{D}.n_hot=4800", f"{D}.denoise_std=0"),
    ),
    "annealed, 1 leapfrog step": (
        (*ANNEALED, f"{D}.n_leapfrog=1", f"{D}.step_size=0.08", f"{D}.n_hot=40", f"{D}.n_falling=880"),
        (
            "sampler=annealed",
            f"{D}.temperature=100",
            f"{D}.n_cold=0",
            f"{D}.n_leapfrog=1",
            f"{D}.step_size=0.1",
            f"{D}.n_hot=800",
            f"{D}.n_falling=4000",
            f"{D}.denoise_std=0",
        ),
    ),
    "annealed, 8 leapfrog steps": (
        (*ANNEALED, f"{D}.n_leapfrog=8", f"{D}.step_size=0.07", f"{D}.n_hot=6", f"{D}.n_falling=110"),
        (
            "sampler=annealed",
            f"{D}.temperature=100",
            f"{D}.n_cold=0",
            f"{D}.n_leapfrog=8",
            f"{D}.step_size=0.1",
            f"{D}.n_hot=100",
            f"{D}.n_falling=500",
            f"{D}.denoise_std=0",
        ),
    ),
    "walk_jump": (
        ("sampler=walk_jump", *MEAN, f"{D}.n_leapfrog=8", f"{D}.step_size=0.07", f"{D}.n_hot=116"),
        None,
    ),
    "parallel_tempering": (
        (
            "sampler=parallel_tempering",
            *MEAN,
            f"{D}.temperature=56",
            f"{D}.n_temperatures=8",
            f"{D}.n_steps=15",
            f"{D}.n_leapfrog=8",
            f"{D}.step_size=0.07",
        ),
        ("sampler=parallel_tempering", f"{D}.temperature=100", f"{D}.step_size=0.15", f"{D}.n_steps=800"),
    ),
    "diffusive_gibbs": (
        (
            "sampler=diffusive_gibbs",
            *MEAN,
            f"{D}.n_sweeps=23",
            f"{D}.noise_max=1.5",
            f"{D}.noise_min=0.2",
            f"{D}.n_levels=10",
            f"{D}.n_moves=4",
            f"{D}.step_size=0.08",
        ),
        ("sampler=diffusive_gibbs", f"{D}.noise_max=3", f"{D}.step_size=0.15", f"{D}.n_sweeps=480"),
    ),
}


class UnequalModes(VisibleEnergy):
    """The grid of 25 Gaussians of standard deviation 0.05, of weights 1, 2, ..., 25 over their sum."""

    event_shape, std = (2,), 0.05

    def __init__(self) -> None:
        super().__init__()
        self.centres, self.weights = torch.tensor(TwentyFiveGaussians.centres), torch.arange(1.0, 26.0) / 325
        self.place = nn.Parameter(torch.zeros(()))
        self.n = 0  # evaluations

    def free_energy(self, v: Tensor) -> Tensor:
        self.n += len(v)
        squares = (v.unsqueeze(1) - self.centres).square().sum(-1) / (2 * self.std**2)
        return -(self.weights.log() - squares).logsumexp(1) + 0 * self.place

    def error(self, v: Tensor) -> float:
        """The total variation between the weights and the shares of samples v (n, 2)."""
        shares = torch.bincount(torch.cdist(v, self.centres).argmin(1), minlength=25) / len(v)
        return 0.5 * float((shares - self.weights).abs().sum())


def sampler_of(overrides: tuple[str, ...]) -> ChainSamples:
    return instantiate(sampler_config(overrides), "sampler")


@torch.no_grad()
def weights_error(overrides: tuple[str, ...], n: int = 4000) -> Row:
    """Of chains that all begin about (0.5, 0.5)."""
    energy, sampler = UnequalModes(), sampler_of(("sampler.kind=marginal", *overrides))
    sampler.batch_size = n
    error = energy.error(sampler.draw(energy, range(n), seed=0))
    return {"weights_error": error, "weights_evaluations": energy.n // n}


def draw_images(model: str, overrides: tuple[str, ...], n: int) -> tuple[Tensor, nn.Module, Row]:
    """n images of a shipped model, uint8, the model, and what a sample has cost."""
    run, count = eblvm_lit.load(model), [0]
    hook = run.energy.network.register_forward_hook(lambda network, args, out: count.append(len(args[0])))  # noqa: ARG005
    begin = time.process_time()
    v = run.sample(n, sampler=sampler_of(overrides) if overrides else run.sampler)
    seconds = time.process_time() - begin
    hook.remove()
    return run.data.as_bytes(v), run.method, {"evaluations": sum(count) / n, "seconds": 100 * seconds / n}
