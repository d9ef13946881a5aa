"""Adam."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam as torch_adam

from eblvm_lit.core.functional import Params, tree_map
from eblvm_lit.errors import ConfigError
from eblvm_lit.optimizers.base import Optimizer, State
from eblvm_lit.optimizers.schedules import Schedule

__all__ = ["Adam"]

# sqrt has no derivative at 0, where Adam's second moment is when a gradient is exactly zero. This is far below eps^2:
# it changes no step, and makes the hypergradient through one finite.
ROOT_FLOOR = 1e-30


class Adam(Optimizer):
    r"""Adam, differentiable everywhere.

    .. math:: m \leftarrow \beta_1 m + (1-\beta_1) g, \quad s \leftarrow \beta_2 s + (1-\beta_2) g^2, \quad
        p \leftarrow p - \alpha \frac{m / (1-\beta_1^t)}{\sqrt{s / (1-\beta_2^t)} + \varepsilon}

    Reference: Kingma and Ba 2015, Algorithm 1. The default betas are those of the BiSM, VaGES and MDSM runs.

    Args:
        lr: Learning rate at the start.
        betas: Decay of the first and second moment.
        eps: Added to the root of the second moment.
        weight_decay: Added to the gradient, times the parameter.
        schedule: Factor on lr over the run; constant if not given.
        clip_norm: Largest norm of a gradient, or null.

    Raises:
        ConfigError: For values outside their ranges.

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
        lr: float,
        betas: Sequence[float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        schedule: Schedule | None = None,
        clip_norm: float | None = None,
    ) -> None:
        super().__init__(lr=lr, schedule=schedule, clip_norm=clip_norm)
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ConfigError(f"Adam needs two betas in [0, 1), not {list(betas)}.")
        if not eps > 0 or weight_decay < 0:
            raise ConfigError(f"Adam needs eps > 0 and weight_decay >= 0, not {eps} and {weight_decay}.")
        self.betas, self.eps, self.weight_decay = (betas[0], betas[1]), eps, weight_decay

    def update(self, params: Params, grads: Params, state: State, lr: Tensor | float) -> tuple[Params, State]:
        """One step of Adam."""
        beta1, beta2 = self.betas
        if self.weight_decay:
            grads = tree_map(lambda g, p: g + self.weight_decay * p, grads, params)
        step = state["step"] + 1
        first = tree_map(lambda m, g: m.lerp(g, 1 - beta1), state["exp_avg"], grads)
        second = tree_map(lambda s, g: s.lerp(g * g, 1 - beta2), state["exp_avg_sq"], grads)
        # Bias corrections are numbers: they go to the step size and to eps instead of to whole tensors.
        root = (1 - beta2**step).sqrt()
        size, eps = lr * root / (1 - beta1**step), self.eps * root

        def descend(p: Tensor, m: Tensor, s: Tensor) -> Tensor:
            return p - size * (m / ((s + ROOT_FLOOR).sqrt() + eps))

        return tree_map(descend, params, first, second), {
            "step": step,
            "exp_avg": first,
            "exp_avg_sq": second,
        }

    @torch.no_grad()
    def update_(self, params: Params, grads: Params, state: State, lr: Tensor | float) -> tuple[Params, State]:
        """One step of Adam, in place: by torch's fused kernel, one pass over memory instead of a dozen."""
        first, second = state["exp_avg"], state["exp_avg_sq"]
        if not all(_fusable(p, first[name], second[name]) for name, p in params.items()):
            return super().update_(params, grads, state, lr)
        torch_adam(
            list(params.values()),
            [_laid_out_as(p, grads[name]) for name, p in params.items()],
            [first[name] for name in params],
            [second[name] for name in params],
            [],  # the largest second moments, of AMSGrad
            # one number for all parameters here, one each there; the kernel of a GPU takes them in no other type
            list(state["step"].float().expand(len(params)).clone().unbind()),
            fused=True,
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=lr,
            weight_decay=self.weight_decay,
            eps=self.eps,
            maximize=False,
        )
        state["step"].add_(1)
        return params, state


def _fusable(p: Tensor, first: Tensor, second: Tensor) -> bool:
    """Whether the fused kernel can take a parameter and its moments.

    It goes through their memory in order and looks at no strides. Moments that were made like p have its strides just
    if p has no gaps and no overlaps; those of a checkpoint may have others.
    """
    return p.device.type in ("cpu", "cuda") and p.stride() == first.stride() == second.stride()


def _laid_out_as(p: Tensor, g: Tensor) -> Tensor:
    """The gradient with the strides of p: that of a product's factor may be transposed, that of a sum be one number."""
    return g if g.stride() == p.stride() else torch.empty_like(p).copy_(g)
