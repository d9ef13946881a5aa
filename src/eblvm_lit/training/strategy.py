"""The Lightning strategy for several processes that divide each minibatch."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

from pytorch_lightning import LightningModule
from pytorch_lightning.strategies import DDPStrategy

from eblvm_lit.core.ranks import gather_objects
from eblvm_lit.errors import ConfigError
from eblvm_lit.utils.digest import digest

__all__ = ["SharedMinibatches"]

# Processes wait for others that still compute metrics or draw figures.
TIMEOUT = timedelta(hours=3)


class SharedMinibatches(DDPStrategy):
    """Lightning's DDP strategy without the DDP wrapper: it launches processes and creates the process group.

    Methods differentiate functions of explicit parameters with ``torch.autograd.grad`` and ``torch.func``, which do not
    trigger the hooks of a DDP wrapper; they reduce their gradients themselves, once per step. The backend is NCCL on
    GPUs and gloo on CPUs.

    Example:
        >>> SharedMinibatches().launcher is None  # before a trainer uses it
        True
    """

    def __init__(self) -> None:
        super().__init__(timeout=TIMEOUT)

    def configure_ddp(self) -> None:
        """Check that all processes start with equal parameters, and do not wrap the module.

        Raises:
            ConfigError: If the parameters differ, as with different versions of torch.
        """
        weights = cast(LightningModule, self.lightning_module).state_dict().values()
        if len(set(gather_objects(digest(*weights)))) > 1:
            raise ConfigError(
                "The processes begin with different parameters: run the same version of this package and of torch in "
                "all of them."
            )
