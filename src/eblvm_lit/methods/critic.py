"""The base of methods that train a critic of a model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from eblvm_lit.core.autograd import grad, grad_and_value
from eblvm_lit.core.functional import Params, bind, sum_event
from eblvm_lit.energies.base import Energy
from eblvm_lit.methods.base import Method
from eblvm_lit.methods.levels import Gradient, Level, TrainState
from eblvm_lit.optimizers.base import Optimizer

__all__ = ["Critic", "bracket"]


def bracket(critic: Callable[[Tensor], Tensor], s: Tensor, v: Tensor, u: Tensor) -> Tensor:
    r"""What a critic f of the scores s is worth at each example.

    .. math:: s^\top f(v) + u^\top (\nabla_v f(v))\, u - \tfrac12 \|f(v)\|^2

    Args:
        critic: f, maps (B, *event) to (B, *event), row by row.
        s: The model's score at v, shape (B, *event).
        v: Shape (B, *event).
        u: Directions, E[u u'] = I, shape (B, *event).

    Returns:
        Shape (B,).

    Example:
        >>> one = torch.ones(1, 2)
        >>> bracket(lambda v: 2 * v, s=-one, v=one, u=one)  # -4 + 4 - 8 / 2
        tensor([-4.])
    """

    def along_u(x: Tensor) -> tuple[Tensor, Tensor]:
        f = critic(x)
        return (f * u).sum(), f

    slope, f = grad(along_u, has_aux=True)(v)
    return sum_event(s * f + slope * u - 0.5 * f.square())


class Critic(Method):
    """A critic f of a model that stays as it is; a subclass says how the model's score is had.

    Args:
        energy: The model; no level moves it.
        critic: A network that maps v (B, *event) to (B, *event).
        optimizer: Rule of the critic.
        residual: Whether f is the network added to :meth:`model_field`, so that only the score of the data is left for
            it to learn; else it is the network alone, as published.
        seed: Seed of all noise.
        compile: Whether the iteration is compiled.
    """

    def __init__(
        self,
        *,
        energy: Energy,
        critic: nn.Module,
        optimizer: Optimizer,
        residual: bool = False,
        seed: int = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(seed=seed, compile=compile)
        self.energy, self.critic, self.optimizer, self.residual = energy, critic, optimizer, residual
        self.posterior, self.divergence = None, None

    @abstractmethod
    def score_noise(self, v: Tensor, generator: torch.Generator) -> Any:
        """The random numbers of one estimate of the score."""

    @abstractmethod
    def model_score(self, params: dict[str, Params], v: Tensor, noise: Any) -> Tensor:
        """The model's score at v, shape (B, *event), for some players' parameters, and the live ones of the others."""

    @abstractmethod
    def model_field(self, params: dict[str, Params], v: Tensor) -> Tensor:
        """What is near the model's score, shape (B, *event), and a function of v alone, without any noise.

        Any function of v may be a part of f: how near it is decides how much is left to learn, not what is estimated.
        """

    def field(self, params: dict[str, Params]) -> Callable[[Tensor], Tensor]:
        """f, for some players' parameters, and the live ones of the others."""
        network = bind(self.critic, params.get("critic", {}))
        return (lambda v: network(v) + self.model_field(params, v)) if self.residual else network

    def players(self) -> dict[str, nn.Module]:
        """The model, which stays, and the critic."""
        return {"theta": self.energy, "critic": self.critic}

    def levels(self) -> Sequence[Level]:
        """One step on the critic."""
        return [Level("upper", "critic", 1, self.optimizer, self.noise, self._gradient)]

    def noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Any]:
        """The random numbers of one evaluation of the bracket."""
        signs = torch.randint(2, v.shape, generator=generator, device=v.device)
        return {"u": 2 * signs.to(v.dtype) - 1, "score": self.score_noise(v, generator)}

    def bracket(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """The critic's worth per example, shape (B,), whose mean is the estimate of the divergence."""
        noise = self.noise(v, generator)
        return bracket(self.field({}), self.model_score({}, v, noise["score"]).detach(), v, noise["u"])

    def _gradient(self, situation: TrainState, v: Tensor, noise: Any, step: int) -> Gradient:  # noqa: ARG002
        s = self.model_score(situation.params, v, noise["score"])

        def loss(critic: Params) -> Tensor:
            return -bracket(self.field({**situation.params, "critic": critic}), s, v, noise["u"]).mean()

        grads, value = grad_and_value(loss)(situation.params["critic"])
        return Gradient(value, grads)

    def validation_loss(self, v: Tensor, generator: torch.Generator) -> Tensor:
        """Minus the bracket, per example, shape (B,)."""
        return -self.bracket(v, generator)
