"""A callback: the norm of the parameters at each validation."""

import pytorch_lightning as pl
import torch


class ParameterNorm(pl.Callback):
    """Logs ``val/parameter_norm``, the Euclidean norm of all parameters, beside the other curves."""

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the norm after each validation."""
        norm = torch.cat([p.detach().flatten() for p in pl_module.parameters()]).norm().item()
        for logger in trainer.loggers:
            logger.log_metrics({"val/parameter_norm": norm}, step=trainer.global_step)
