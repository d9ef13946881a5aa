"""Training of an energy at every noise level, by denoising and by classifying the noise level of each example."""

from __future__ import annotations

import math
from functools import partial
from typing import Literal, cast

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from eblvm_lit.core.functional import bind, grad_and_value
from eblvm_lit.core.noise_levels import NoiseRange, join_level, split_level
from eblvm_lit.core.ranges import AtLeastTwo, Seed
from eblvm_lit.energies.base import MarginalEnergy
from eblvm_lit.energies.noise_conditional import FreeEnergyOfLevels
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.loss_method import LossMethod
from eblvm_lit.methods.parts import MethodParts
from eblvm_lit.methods.state import TrainState
from eblvm_lit.objectives.dual import residuals
from eblvm_lit.optimizers.base import Optimizer

__all__ = ["LevelClassification"]


class LevelClassification(LossMethod):
    r"""A method that learns to denoise examples at every noise level, and to predict which of J levels an example has.

    .. math:: \frac1d \| \sqrt{t_1}\, \nabla_{\tilde v} F(\tilde v, t_1) - \epsilon \|^2
        - \frac{2 \lambda}d \log \frac{e^{-F(\tilde v, t_1)}}{\sum_{j \le J} e^{-F(\tilde v, t_j)}}, \quad
        \tilde v = v + \sqrt{t_1}\, \epsilon

    The energy knows the level: w = (v~, log t). For :math:`F = -\log p_t` the second term's softmax is the posterior
    probability of level 1 among the J levels, which are equally probable a priori. Any F that gives these probabilities
    equals :math:`-\log p_t(\tilde v)` up to a function of v~ that all levels share, and the denoising term makes this
    function a constant. So the levels share one normalising constant, as with ``objective=dual``, but without a
    derivative in the level. The weights :math:`w_j` of the paper's softmax are equal here by the choice of the levels:
    an example has a centre c that is uniform in log t, and its J levels, the true one included, are c plus independent
    normal numbers, reflected at the ends of the range; so each level's log t is uniform, and none of them is special.
    Reference: DiffCLF, arXiv 2601.21025.

    ``time_weight`` adds the second term of :class:`~eblvm_lit.objectives.dual.Dual`, which teaches the derivative with
    respect to log t at the example's true level. Both terms determine how log Z changes with the level: the derivative
    from points near the noised data, and the classification also from points far from the data of small levels. The
    same backward pass gives this derivative and the gradient in v.

    The terms are divided by the dimension d of v, as the terms of ``objective=dual`` are. With the weight 1 instead of
    2 / d the classification outweighed the denoising of vectors: on digits, where d = 64, the log-likelihood after
    10,000 iterations was lower by 94 nats.

    The loss needs values of F at several levels and not only a score, so it is a method and not an objective. It takes
    energies with a tractable F.

    Args:
        energy: The energy of every noise level.
        optimizer: The optimizer of theta.
        n_levels: The number J of levels of each example.
        spread: The standard deviation of log t of an example's levels about their centre. If it is not given, each
            example has its own, which is drawn log-uniformly between 2 / sqrt(d) and the width of the range of log t.
            At a distance of 2 / sqrt(d), noised data of d dimensions begin to tell two levels apart; these levels
            determine log Z most exactly. Levels far apart show the energy of a small level at points far from the
            data, where denoising at this level never comes, so that no mass is left there.
        classification_weight: The weight lambda of the classification, which is divided by d / 2.
        time_weight: The weight of the derivative with respect to the level, as in dual score matching; 0 leaves it out.
        seed: The seed of all random numbers.
        compile: Whether to compile the iteration; ``auto`` compiles it only in runs long enough to gain from it.

    Raises:
        ConfigError: If the energy does not know the noise level or has no tractable F.

    Example:
        >>> from eblvm_lit.energies.mlp_energy import MLPEnergy
        >>> from eblvm_lit.energies.noise_conditional import NoiseConditionalFreeEnergy
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> inner = MLPEnergy(v_dim=3, widths=[8])
        >>> energy = NoiseConditionalFreeEnergy(energy=inner, v_shape=[2], noise_range=NoiseRange())
        >>> levels = LevelClassification(energy=energy, optimizer=Adam(lr=1e-3))
        >>> levels.validation_loss(torch.zeros(5, 2), torch.Generator()).shape
        torch.Size([5])
    """

    energy_type = MarginalEnergy

    def __init__(
        self,
        *,
        energy: MarginalEnergy,
        optimizer: Optimizer,
        n_levels: AtLeastTwo = 3,
        spread: PositiveFloat | None = None,
        classification_weight: NonNegativeFloat = 1.0,
        time_weight: NonNegativeFloat = 0.0,
        seed: Seed = 0,
        compile: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(energy=energy, optimizer=optimizer, seed=seed, compile=compile)
        if not isinstance(energy, FreeEnergyOfLevels):
            raise ConfigError(
                f"{type(energy).__name__} does not know the noise level, which method=levels needs: use "
                "model=harmonium or model=noise_conditional, or NoiseConditionalFreeEnergy around your energy."
            )
        self.noise_range: NoiseRange = energy.noise_range
        self.n_levels = n_levels
        self.spread = spread
        self.classification_weight = classification_weight
        self.time_weight = time_weight

    @property
    def title(self) -> str:
        """Return a readable name of the method, with the number J of levels, their spread and the weights."""
        spread = "of all sizes" if self.spread is None else f"{self.spread:g}"
        numbers = f"J = {self.n_levels}, spread {spread}, weight {self.classification_weight:g}"
        if self.time_weight > 0:
            numbers += f", weight of the derivative {self.time_weight:g}"
        return f"Levels: denoising and classification of the noise level, {numbers}"

    def spreads(self, v: Tensor, width: float, generator: torch.Generator) -> Tensor | float:
        """Return the standard deviation of an example's log-levels: a number for all examples, or a tensor (B,).

        Args:
            v: The examples, of shape (B, *event).
            width: The width of the range of log t, the largest of the spreads that are drawn.
            generator: The generator of the random numbers.
        """
        if self.spread is not None:
            return self.spread
        smallest = 2 / math.sqrt(math.prod(v.shape[1:]))
        return smallest * (width / smallest) ** torch.rand(len(v), generator=generator, dtype=v.dtype, device=v.device)

    @property
    def parts(self) -> MethodParts:
        """Return the energy of the data, which is the energy at the smallest noise level."""
        return MethodParts(energy=cast(FreeEnergyOfLevels, self.energy).of_data())

    def float32_reason(self) -> str | None:
        """Return the reason for using float32: the method compares the energies of nearby noise levels."""
        return "as it compares small differences of energies"

    def noise(self, v: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw the standard normal noise ``eps`` (B, *event), and the logarithms ``log_levels`` (J, B) of noise levels.

        The first of the J levels is the true one, which multiplies ``eps``. The centres of a minibatch's examples are
        spread evenly over the range of log t, and shifted by one random number.
        """
        options = {"generator": generator, "dtype": v.dtype, "device": v.device}
        eps = torch.randn(v.shape, **options)
        shift = torch.rand(1, **options)
        apart = torch.randn((self.n_levels, len(v)), **options)
        lowest = math.log(self.noise_range.t_min)
        width = math.log(self.noise_range.t_max) - lowest
        centre = (torch.arange(len(v), dtype=v.dtype, device=v.device) + shift) / len(v)
        # The following is a triangle wave with period 2: it reflects positions outside of [0, 1] at both ends of the
        # range.
        position = (centre + self.spreads(v, width, generator) / width * apart).remainder(2)
        return {"eps": eps, "log_levels": lowest + width * (1 - (1 - position).abs())}

    def loss(self, state: TrainState, v: Tensor, noise: dict[str, Tensor]) -> Tensor:
        """Compute the loss of each example, shape (B,)."""
        energy = cast(MarginalEnergy, bind(self.energy, state.theta))
        log_levels = noise["log_levels"]
        std = (log_levels[0] / 2).exp().unsqueeze(1)
        eps = noise["eps"].flatten(1)
        at_first = grad_and_value(partial(first_and_all, energy, log_levels[1:]), has_aux=True)
        slope, (_, energies) = at_first(join_level(v.flatten(1) + std * eps, log_levels[0]))
        in_space, in_level = residuals(-slope, {"eps": eps, "log_level": log_levels[0]})
        regression = in_space.square().mean(1)
        if self.time_weight > 0:
            regression = regression + self.time_weight * in_level.square()
        return regression + 2 * self.classification_weight / v[0].numel() * level_loss(energies)


def first_and_all(energy: MarginalEnergy, others: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the sum of the free energies at the first noise level, and the free energies (J, B) at all J levels.

    An example's energy depends on no other example, so row b of the gradient of the sum with respect to ``first`` is
    the gradient for example b.

    Args:
        energy: The energy of every noise level.
        others: The logarithms of the other levels, shape (J - 1, B).
        first: The noised examples with the logarithm of the first level, w = (v~, log t), shape (B, d + 1).

    Example:
        >>> from eblvm_lit.energies.mlp_energy import MLPEnergy
        >>> energies = first_and_all(MLPEnergy(v_dim=3, widths=[8]), torch.zeros(3, 5), torch.zeros(5, 3))[1]
        >>> energies.shape
        torch.Size([4, 5])
    """
    v, log_level = split_level(first)
    log_levels = torch.cat([log_level.unsqueeze(0), others])
    w = join_level(v.repeat(len(log_levels), 1), log_levels.flatten())
    found = energy.free_energy(w).view(log_levels.shape)
    return found[0].sum(), found


def level_loss(energies: Tensor) -> Tensor:
    """Compute the negative log-probability of the first noise level, shape (B,), from the energies (J, B) of J levels.

    Example:
        >>> level_loss(torch.zeros(2, 1))
        tensor([0.6931])
    """
    return energies[0] + torch.logsumexp(-energies, 0)
