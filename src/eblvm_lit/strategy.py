"""Lightning's strategy for several processes that share each minibatch."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pytorch_lightning.strategies import DDPStrategy

__all__ = ["SharedMinibatches"]

# Metrics are dealt to processes, and figures are drawn by one: the others wait for them.
PATIENCE = timedelta(hours=3)


class SharedMinibatches(DDPStrategy):
    """Lightning's DDP as a launcher and a process group, and nothing more: modules are not wrapped.

    Gradients are of functions of explicit parameters, by ``torch.autograd.grad`` and ``torch.func``, which never fire
    the hooks of a wrapper; levels reduce theirs themselves, once a step.

    Args:
        process_group_backend: ``nccl`` or ``gloo``; what fits the devices if not given.

    Example:
        >>> SharedMinibatches().process_group_backend is None
        True
    """

    def __init__(self, *, process_group_backend: Literal["nccl", "gloo"] | None = None) -> None:
        super().__init__(process_group_backend=process_group_backend, timeout=PATIENCE)

    def configure_ddp(self) -> None:
        """Leave the module as it is."""
