"""The callback that draws figures at the end of a run, and on request at validations."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Mapping
from pathlib import Path

import pytorch_lightning as pl

from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.distributed.ranks import barrier, rank_and_size
from eblvm_lit.errors import ConfigError
from eblvm_lit.figures.base import Picture
from eblvm_lit.loggers.base import of_runs
from eblvm_lit.methods.base import Method
from eblvm_lit.utils.io import write_whole

__all__ = ["Figures"]

log = logging.getLogger(__name__)


class Figures(pl.Callback):
    """Draws figures into ``figures/*.png`` of the run's folder.

    Args:
        figures: Figures by name; a figure that does not apply is skipped.
        save_dir: The run's folder.
        at_validation: Whether they are also redrawn at each validation.

    Raises:
        ConfigError: If a figure's name could be a path to another folder.
    """

    def __init__(self, *, figures: Mapping[str, Picture | None], save_dir: str, at_validation: bool = False) -> None:
        for name in figures:
            if not re.fullmatch(r"\w[\w.-]*", str(name)):
                raise ConfigError(f"A figure is named by letters, digits, '_', '-' and '.', not {name!r}.")
        self.figures = {name: figure for name, figure in figures.items() if figure is not None}
        self.folder, self.at_validation = Path(save_dir) / "figures", at_validation

    def draw(self, method: Method, data: pl.LightningDataModule) -> list[Path]:
        """Draw all figures; returns the files."""
        paths = []
        for name, figure in self.figures.items():
            generator = keyed_generator(method.seed, "figure", name, device=method.device)
            drawn = figure.draw(method, data, generator)
            if drawn is not None:
                paths.append(self.folder / f"{name}.png")
                save = functools.partial(drawn.savefig, format="png", dpi=150, bbox_inches="tight")
                write_whole(paths[-1], save)
        return paths

    def on_fit_start(self, trainer: pl.Trainer, pl_module: Method) -> None:  # noqa: ARG002
        """Let each figure check the files that it needs."""
        for figure in self.figures.values():
            figure.prepare()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Method) -> None:
        """Redraw, if asked."""
        if self.at_validation:
            for logger in trainer.loggers:
                logger.save()  # learning curves are drawn from its file
            if rank_and_size()[0] == 0:
                paths = self.draw(pl_module, trainer.datamodule)
                for logger in of_runs(trainer.loggers):
                    logger.log_figures(paths, trainer.global_step)
            barrier()
