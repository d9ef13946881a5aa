"""The Adam optimizer as a pure function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor
from torch.optim.adam import adam as torch_adam

from eblvm_lit.core.functional import Params
from eblvm_lit.core.ranges import Decay
from eblvm_lit.core.tensors import tree_map
from eblvm_lit.optimizers.base import Optimizer, State
from eblvm_lit.optimizers.schedules import Schedule

__all__ = ["Adam"]

# This constant is added to Adam's second moment before the square root, whose derivative at 0 is infinite. A second
# moment is 0 if all gradients so far were exactly zero. With the constant, the hypergradient through a step stays
# finite. The constant is so far below eps^2 that it changes no step.
ROOT_FLOOR = 1e-30


def bias_correction(beta: float, step: Tensor) -> Tensor:
    """Compute Adam's bias correction 1 - beta^t, for t >= 1, without cancellation error if beta^t is close to 1.

    Example:
        >>> round(bias_correction(0.9999, torch.tensor(1.0)).item(), 10)  # in float32, where 1 - 0.9999 is 1.00017e-4
        0.0001
    """
    return -torch.expm1(step * math.log(beta)) if beta > 0 else torch.ones_like(step)


class Adam(Optimizer):
    r"""The Adam optimizer, whose steps are differentiable everywhere.

    .. math:: m \leftarrow \beta_1 m + (1-\beta_1) g, \quad s \leftarrow \beta_2 s + (1-\beta_2) g^2, \quad
        p \leftarrow p - \alpha \frac{m / (1-\beta_1^t)}{\sqrt{s / (1-\beta_2^t)} + \varepsilon}

    Reference: Kingma and Ba 2015, Algorithm 1. The default betas are those of the BiSM, VaGES and MDSM runs.

    Args:
        lr: The initial learning rate.
        betas: The decay rates of the first and the second moment.
        eps: The number that is added to the root of the second moment.
        weight_decay: The factor of the parameter in the term that is added to its gradient.
        schedule: The learning-rate schedule; constant if not given.
        clip_norm: The largest norm of a gradient, to which larger gradients are scaled down; null for no clipping.

    Example:
        >>> import torch
        >>> adam, params = Adam(lr=0.1), {"x": torch.zeros(1)}
        >>> adam.update(params, {"x": torch.ones(1)}, adam.init(params), 0.1)[0]
        {'x': tensor([-0.1000])}
    """

    slots = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        *,
        lr: PositiveFloat,
        betas: Annotated[Sequence[Decay], Field(min_length=2, max_length=2)] = (0.9, 0.95),
        eps: NonNegativeFloat = 1e-8,
        weight_decay: NonNegativeFloat = 0.0,
        schedule: Schedule | None = None,
        clip_norm: PositiveFloat | None = None,
    ) -> None:
        super().__init__(lr=lr, schedule=schedule, clip_norm=clip_norm)
        self.betas = (betas[0], betas[1])
        self.eps = eps
        self.weight_decay = weight_decay

    def update(self, params: Params, grads: Params, state: State, lr: Tensor | float) -> tuple[Params, State]:
        """Compute one step of Adam; see :meth:`Optimizer.update`."""
        beta1, beta2 = self.betas
        step = state["step"] + 1
        # The bias corrections are scalars. Applying them to the step size and to eps saves operations on whole tensors.
        root = bias_correction(beta2, step).sqrt()
        size = lr * root / bias_correction(beta1, step)
        eps = self.eps * root
        moved = {}
        first = {}
        second = {}
        for name, p in params.items():
            g = grads[name] + self.weight_decay * p if self.weight_decay else grads[name]
            first[name] = state["exp_avg"][name].lerp(g, 1 - beta1)
            second[name] = state["exp_avg_sq"][name].lerp(g * g, 1 - beta2)
            moved[name] = p - size * (first[name] / ((second[name] + ROOT_FLOOR).sqrt() + eps))
        return moved, {"step": step, "exp_avg": first, "exp_avg_sq": second}

    def root(self, state: State) -> Params:
        r"""Compute the denominator of Adam's update, :math:`\sqrt{s / (1 - \beta_2^t)} + \varepsilon`.

        s are the second moments. Before the first step the result is 1.

        Example:
            >>> adam, params = Adam(lr=0.1), {"x": torch.zeros(1)}
            >>> after = adam.update(params, {"x": torch.full((1,), 2.0)}, adam.init(params), 0.1)[1]
            >>> round(adam.root(after)["x"].item(), 3)
            2.0
        """
        step = state["step"]
        started = step > 0
        correction = torch.where(started, bias_correction(self.betas[1], step), 1.0)
        return tree_map(
            lambda s: torch.where(started, (s / correction + ROOT_FLOOR).sqrt() + self.eps, torch.ones_like(s)),
            state["exp_avg_sq"],
        )

    @torch.no_grad()
    def update_(self, params: Params, grads: Params, state: State, lr: Tensor | float) -> tuple[Params, State]:
        """Take one step of Adam in place with PyTorch's fused kernel, which passes over memory once.

        The kernel ignores strides, so a transposed gradient would silently give a wrong step. Gradients are therefore
        first copied to the memory layout of their parameters. If moments have other strides than their parameters, as
        after loading some checkpoints, or if the device has no fused kernel, the step is computed by :meth:`update`.
        """
        own = []
        first = []
        second = []
        for name, p in params.items():
            g = grads[name]
            m = state["exp_avg"][name]
            s = state["exp_avg_sq"][name]
            if p.device.type not in ("cpu", "cuda") or not p.stride() == m.stride() == s.stride():
                return super().update_(params, grads, state, lr)
            own.append(g if g.stride() == p.stride() else torch.empty_like(p).copy_(g))
            first.append(m)
            second.append(s)
        # The state has one step count for all parameters, but the kernel needs a separate step count for each
        # parameter. On a GPU the step counts must be float32.
        steps = list(state["step"].float().expand(len(own)).clone().unbind())
        beta1, beta2 = self.betas
        options = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": self.eps, "weight_decay": self.weight_decay}
        torch_adam(
            list(params.values()), own, first, second, [], steps, fused=True, amsgrad=False, maximize=False, **options
        )
        state["step"].add_(1)
        return params, state
