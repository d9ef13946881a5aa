"""The callback that draws figures at the end of a run, and on request at validations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import pytorch_lightning as pl
from matplotlib.figure import Figure
from pydantic import Field

from eblvm_lit.core.ranks import barrier, rank_and_size
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.data.applicable import applicable
from eblvm_lit.errors import ConfigError
from eblvm_lit.figures.base import Picture
from eblvm_lit.figures.style import save
from eblvm_lit.methods.base import Method
from eblvm_lit.training.loggers.base import log_figures
from eblvm_lit.utils.io import copy_whole

__all__ = ["Figures"]

Format = Literal["png", "pdf", "svg"]


class Figures(pl.Callback):
    """Draws figures and saves them as ``figures/*.png`` in the run's folder.

    Args:
        figures: The figures by name; figures that do not apply to the method or the data are named in the log.
        save_dir: The run's folder.
        at_validation: Whether to draw figures at each validation, too, as ``density_000600.png`` after 600 iterations.
        formats: The file formats of each figure: ``png``, ``pdf``, ``svg``.

    Raises:
        ConfigError: If a figure's name could be a path to another folder.
    """

    def __init__(
        self,
        *,
        figures: Mapping[str, Picture | None],
        save_dir: str,
        at_validation: bool = False,
        formats: Annotated[Sequence[Format], Field(min_length=1)] = ("png",),
    ) -> None:
        for name in figures:
            if not re.fullmatch(r"\w[\w.-]*", str(name)):
                raise ConfigError(f"A figure is named by letters, digits, '_', '-' and '.', not {name!r}.")
        self.figures = {name: figure for name, figure in figures.items() if figure is not None}
        self.folder = Path(save_dir) / "figures"
        self.at_validation = at_validation
        self.formats = tuple(formats)

    def draw(
        self,
        method: Method,
        data: pl.LightningDataModule,
        iteration: int | None = None,
        of_metrics: Mapping[str, Figure] | None = None,
    ) -> list[Path]:
        """Draw and save all figures.

        Args:
            method: The method.
            data: The data set of the run, set up.
            iteration: The iteration of a validation, whose figures are also saved under this number; None at the end
                of the run.
            of_metrics: Figures that metrics have drawn, by name, which are saved with the others.

        Returns:
            The PNG files without a number in their names, which are the latest figures.
        """
        self.figures = applicable("figures", self.figures, method, data)
        paths = []
        for name, figure in self.figures.items():
            generator = keyed_generator(method.seed, "figure", name, device=method.device)
            if (drawn := figure.draw(method, data, generator)) is not None:
                paths += self._save(name, drawn, iteration)
        for name, drawn in (of_metrics or {}).items():
            paths += self._save(name, drawn, iteration)
        return paths

    def _save(self, name: str, figure: Figure, iteration: int | None) -> list[Path]:
        """Save a figure in all formats; if an iteration is given, also save copies with this number in the file names.

        Returns the PNG files without the number.
        """
        files = save(figure, self.folder / name, self.formats)
        if iteration is not None:
            for file in files:
                copy_whole(file, file.with_stem(f"{name}_{iteration:06d}"))
        return [file for file in files if file.suffix == ".png"]

    def on_fit_start(self, trainer: pl.Trainer, pl_module: Method) -> None:
        """Check that all files needed by the figures exist."""
        self.figures = applicable("figures", self.figures, pl_module, trainer.datamodule)
        for figure in self.figures.values():
            figure.prepare()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Method) -> None:
        """Draw the figures, if ``at_validation`` is true."""
        if self.at_validation:
            for logger in trainer.loggers:
                logger.save()  # write metrics.csv, from which the learning curves are drawn
            if rank_and_size()[0] == 0:
                paths = self.draw(pl_module, trainer.datamodule, trainer.global_step)
                log_figures(trainer.loggers, paths, trainer.global_step)
            barrier()
