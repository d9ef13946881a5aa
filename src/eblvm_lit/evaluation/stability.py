"""Gradient norms of each term of the loss, and spectral norms of the energy's weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from eblvm_lit.core.functional import plain_autograd
from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.evaluation.base import Metric
from eblvm_lit.methods.base import Method
from eblvm_lit.methods.bidvl.base import GeneratorMethod
from eblvm_lit.samplers.eval_mode import eval_mode

__all__ = ["Stability", "spectral_norms"]


@torch.no_grad()
def spectral_norms(module: nn.Module) -> dict[str, float]:
    r"""The largest singular value of any weight before (``weight_norm``) and after (``spectral_norm``) normalisation.

    The first grows during training, which slows training down. The second exceeds one where the power iteration lags
    behind.

    Args:
        module: Any network; layers without normalisation are left out.

    Example:
        >>> from eblvm_lit.networks.layers import spectrally_normalised
        >>> layer = nn.Linear(2, 2, bias=False)
        >>> _ = layer.weight.data.copy_(torch.tensor([[3.0, 0.0], [0.0, 1.0]]))
        >>> {name: round(value, 2) for name, value in spectral_norms(spectrally_normalised(layer)).items()}
        {'weight_norm': 3.0, 'spectral_norm': 1.0}
    """
    layers: list[Any] = [layer for layer in module.modules() if is_parametrized(layer, "weight")]
    with eval_mode(module):  # in training mode, reading the weight moves the power iteration
        pairs = [(layer.parametrizations.weight.original, layer.weight) for layer in layers]
    largest = [[float(torch.linalg.matrix_norm(w.flatten(1).float(), 2)) for w in pair] for pair in pairs]
    return dict(zip(("weight_norm", "spectral_norm"), map(max, zip(*largest, strict=True)), strict=False))


class Stability(Metric):
    """Norms of the gradient of each term, ``<level>_<term>_grad_norm``, and the energy's weight and spectral norms.

    Each gradient is taken in the parameters that the level moves, on one minibatch, in training mode; nothing is
    updated. It is a metric and not part of an iteration, because each term costs a backward pass.

    Args:
        n: Size of the minibatch, the first examples of the split.

    Example:
        >>> Stability(n=8).evaluate(None, None, "val", torch.Generator())  # not a method with a generator
        {}
    """

    def __init__(self, *, n: int = 100) -> None:
        self.n = n

    def evaluate(
        self, method: Method, data: ArrayDataModule, split: str, generator: torch.Generator
    ) -> dict[str, float]:
        """Norms on a split; see :meth:`Metric.evaluate`. For methods whose levels descend named terms."""
        if not isinstance(method, GeneratorMethod):
            return {}
        v = data.as_float(getattr(data.splits, split)[: self.n]).to(device=method.device, dtype=method.dtype)
        was_training = method.training
        method.train()
        try:
            found = self._gradients(method, v, generator)
        finally:
            method.train(was_training)
        return {**found, **({} if method.energy is None else spectral_norms(method.energy))}

    def _gradients(self, method: GeneratorMethod, v: Tensor, generator: torch.Generator) -> dict[str, float]:
        state, noise, found = method.live_state(), method.draw_noise(v, generator), {}
        for name, terms in method.terms.items():
            if name not in method.groups:
                continue
            drawn = noise[name][0] if isinstance(noise[name], list) else noise[name]  # that of the first step
            with torch.no_grad():
                descended, _ = terms(method.networks_at(state, state.params, state.params["omega"])[0], v, drawn)
            for term in descended:
                with plain_autograd():
                    samples = method.generate(state, drawn) if "h_hat" in drawn else None
                    step = method.gradient(state, name, v, drawn, samples, only=term)
                squares = [float(g.double().square().sum()) for g in step.grads.values()]
                found[f"{name}_{term}_grad_norm"] = math.sqrt(sum(squares))
        return found
