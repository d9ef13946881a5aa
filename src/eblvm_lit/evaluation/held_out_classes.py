"""The detection of the classes that training leaves out, among the test examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.data.base import ArrayDataModule, Splits
from eblvm_lit.data.held_out import labels_of_classes
from eblvm_lit.energies.base import MarginalEnergy
from eblvm_lit.energies.latent_prior import LatentPriorEnergy
from eblvm_lit.evaluation.base import Metric
from eblvm_lit.evaluation.detection import detection
from eblvm_lit.evaluation.outlier_score import parts_at_levels, scores_to_rank
from eblvm_lit.methods.base import Method
from eblvm_lit.methods.parts import MethodParts
from eblvm_lit.posteriors.free_energy_bound import has_free_energy_bound
from eblvm_lit.utils.quantities import Quantity

__all__ = ["HeldOutClasses", "parts_by_score"]


class HeldOutClasses(
    Metric,
    emits={
        "auprc_held_out_*": Quantity(1, "", "the area under the curve of precision against recall of held-out classes"),
        "auroc_held_out_*": Quantity(1, "", "the area under the curve of true against false positives; 0.5 is chance"),
    },
):
    r"""The detection of held-out classes: ``auprc_held_out_<score>`` and ``auroc_held_out_<score>``.

    The classes ``data.held_out_classes`` are not in the training and the validation split. Their test examples are the
    positive class, and the other test examples are the negative class. All test examples are ranked by each score that
    the method has, where a high score means an outlier:

    - ``free_energy``: F(v), or its upper bound :math:`E_q[E(v, h) + \log q(h|v)]`. It is -log p(v) up to log Z.
    - ``joint``: E(v, h) at the h of the encoder, or at the mean of q(h|v), if F is not tractable. With the chain of
      LEBM as encoder, it is the score of Pang et al. 2020.
    - ``elbo``: for methods with a generator G and a posterior, such as the VAE, the negative evidence lower bound
      :math:`E_q[\|v - G(h)\|^2] + KL(q(h|v) \| N(0, I))` up to a constant.

    AUPRC is the average precision, whose value by chance is the share of the held-out classes in the test split.
    Without held-out classes, and on the validation split, there are no numbers. Reference: Pang et al. 2020,
    arXiv 2006.08205, section 4.5, who hold out one digit of MNIST.

    Args:
        n_particles: Number of latents drawn per example for the bounds.
        levels: Further noise levels, in units of the data's variance; models that do not know the level ignore them.
            ``auprc_held_out_free_energy_at_<level>`` ranks by F(v, t) at such a level t.

    Raises:
        ConfigError: Raised by :meth:`evaluate` if a score is NaN.

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.data.digits import Digits
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> data = Digits(held_out_classes=[1])
        >>> data.setup()
        >>> parts = MethodParts(energy=GRBM(v_dim=64, h_dim=3))
        >>> method = SimpleNamespace(parts=parts, device="cpu", dtype=torch.float32)
        >>> list(HeldOutClasses().evaluate(method, data, "test", torch.Generator()))
        ['auprc_held_out_free_energy', 'auroc_held_out_free_energy']
    """

    needs = "data with `data.held_out_classes`, and an energy F(v), an energy with an encoder, or a VAE"

    def __init__(self, *, n_particles: PositiveInt = 10, levels: Sequence[PositiveFloat] = ()) -> None:
        self.n_particles = n_particles
        self.levels = levels

    @torch.no_grad()
    def evaluate(
        self, method: Method, data: ArrayDataModule, split: str, generator: torch.Generator
    ) -> dict[str, float]:
        """Evaluate a method on a split; see :meth:`Metric.evaluate`."""
        if not data.held_out_classes or split != "test":
            return {}
        classes = labels_of_classes(data.held_out_classes, data.load_labels(), data.class_names)
        outliers = torch.isin(cast(Splits, data.labels).test, classes).to(method.device)
        if outliers.all() or not outliers.any():  # max_examples has kept only one kind
            return {}
        v = data.as_float(data.splits.test).to(device=method.device, dtype=method.dtype)
        found = {}
        for suffix, parts in parts_at_levels(method.parts, self.levels).items():
            for name, scored in parts_by_score(parts).items():
                own = keyed_generator(generator.initial_seed(), "held out", name, device=generator.device)
                score = -scores_to_rank(scored, v, own, n_particles=self.n_particles)
                values = detection(score[outliers], score[~outliers])
                found[f"auprc_held_out_{name}{suffix}"] = values["aupr"]
                found[f"auroc_held_out_{name}{suffix}"] = values["auroc"]
        return found


def parts_by_score(parts: MethodParts) -> dict[str, MethodParts]:
    """Return, for each score of a method, the parts whose outlier score is this score; see :class:`HeldOutClasses`.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> list(parts_by_score(MethodParts(energy=GRBM(v_dim=2, h_dim=3))))
        ['free_energy']
    """
    found = {"free_energy": parts} if has_free_energy_bound(parts.energy, parts.posterior) else {}
    if not isinstance(parts.energy, MarginalEnergy | None) and parts.encoding is not None:
        found["joint"] = parts._replace(posterior=None, encoder=parts.encoding)
    if parts.generator is not None and parts.posterior is not None:
        generator = cast(Any, parts.generator)
        # The decoder of a VAE and of BiDVL is N(G(h), I / 2), and its prior is N(0, I).
        model = LatentPriorEnergy(h_dim=generator.h_dim, generator=generator, prior=_NoTilt(), std=0.5**0.5)
        found["elbo"] = MethodParts(energy=model, posterior=parts.posterior)
    return found


class _NoTilt(nn.Module):
    """The function f(h) = 0 of a latent prior, with which the prior is N(0, I)."""

    def forward(self, h: Tensor) -> Tensor:
        return h.new_zeros(len(h), 1)
