"""Lightning's strategy for several processes that share each minibatch."""

from __future__ import annotations

from datetime import timedelta

from pytorch_lightning.strategies import DDPStrategy

from eblvm_lit.distributed.ranks import gather_objects
from eblvm_lit.errors import ConfigError
from eblvm_lit.utils.digest import digest

__all__ = ["SharedMinibatches"]

# Metrics are dealt to processes, and figures are drawn by one: the others wait for them.
PATIENCE = timedelta(hours=3)


class SharedMinibatches(DDPStrategy):
    """Lightning's DDP as a launcher and a process group, and nothing more: modules are not wrapped.

    Gradients are of functions of explicit parameters, by ``torch.autograd.grad`` and ``torch.func``, which never fire
    the hooks of a wrapper; levels reduce theirs themselves, once a step. Processes talk by NCCL on GPUs, and by gloo on
    CPUs.

    Example:
        >>> SharedMinibatches().launcher is None  # until a trainer has it
        True
    """

    def __init__(self) -> None:
        super().__init__(timeout=PATIENCE)

    def configure_ddp(self) -> None:
        """Leave the module as it is, and see that all processes begin with the same.

        Raises:
            ConfigError: If they do not, as with other versions of torch on other machines.
        """
        if len(set(gather_objects(digest(*self.lightning_module.state_dict().values())))) > 1:
            raise ConfigError(
                "The processes begin with different parameters: run the same version of this package and of torch in "
                "all of them."
            )
