"""What all loggers are told beside metrics: figures, and the final metrics of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pytorch_lightning.loggers import Logger, TensorBoardLogger, WandbLogger
from pytorch_lightning.utilities import rank_zero_only

__all__ = ["figure_tag", "log_figures", "log_results"]


def figure_tag(path: Path, iteration: int) -> str:
    """The name under which a figure is logged, the same at all iterations.

    Example:
        >>> figure_tag(Path("figures/density.png"), 600), figure_tag(Path("figures/density_000600.png"), 600)
        ('figures/density', 'figures/density')
    """
    return "figures/" + re.sub(rf"_0*{iteration}$", "", path.stem)


@rank_zero_only
def log_figures(loggers: Sequence[Logger], paths: Sequence[Path], iteration: int) -> None:
    """Log figures to TensorBoard and W&B.

    Args:
        loggers: Those of the trainer.
        paths: The files of the figures, as PNG.
        iteration: The iteration that they show.
    """
    for logger in loggers:
        for path in paths:
            if isinstance(logger, WandbLogger):
                logger.log_image(figure_tag(path, iteration), [str(path)], step=iteration)
            elif isinstance(logger, TensorBoardLogger):
                pixels = np.asarray(Image.open(path).convert("RGB"))
                logger.experiment.add_image(figure_tag(path, iteration), pixels, iteration, dataformats="HWC")
                logger.experiment.flush()  # the last figures come after Lightning has finished with the logger


@rank_zero_only
def log_results(loggers: Sequence[Logger], metrics: Mapping[str, float], config: Mapping[str, Any]) -> None:
    """Log the final metrics, in TensorBoard beside the configuration, under HPARAMS."""
    step, final = int(metrics["iteration"]), {k: v for k, v in metrics.items() if k.startswith("test")}
    for logger in loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.log_hyperparams(dict(config), final, step)
        else:
            logger.log_metrics(final, step)
        logger.save()
