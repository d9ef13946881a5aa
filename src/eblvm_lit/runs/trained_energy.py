"""The energy of a trained model as a part of a configuration."""

from __future__ import annotations

from torch import Tensor

from eblvm_lit.energies.composed import Composed, of_every_level
from eblvm_lit.runs.load import load

__all__ = ["TrainedEnergy"]


class TrainedEnergy(Composed):
    """The energy F(v, t) of a trained model that takes the noise level t as an input; its parameters stay fixed.

    A configuration names it as the guide of the probability flow (``sampler=guided_flow``).

    Args:
        path: The folder of a run, a checkpoint, a folder of ``save_pretrained``, or the name of a model of this
            package; see :func:`~eblvm_lit.runs.load.load`.

    Raises:
        DataError: If there is no such model.
        ConfigError: If the model does not take the noise level as an input, or its latents cannot be summed out.

    Example:
        >>> TrainedEnergy(path="dual_mnist").v_shape
        (1, 32, 32)
    """

    def __init__(self, *, path: str) -> None:
        part = of_every_level(load(path).energy)
        super().__init__([part], part.noise_range)
        self.requires_grad_(False)

    def free_energy(self, v: Tensor) -> Tensor:
        """Compute the free energy F(w), shape (B,), for noised data followed by their log level, w (B, n + 1)."""
        (part,) = self.parts
        return part.free_energy(v)  # pyright: ignore[reportCallIssue]
