"""The logger that writes metrics.csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.utilities import rank_zero_only

from eblvm_lit.utils.io import write_whole

__all__ = ["CSVCurves", "read_rows"]


def read_rows(path: str | Path) -> list[dict[str, float]]:
    """Read the rows of a file that :class:`CSVCurves` wrote, without empty cells."""
    with open(path, newline="") as file:
        return [{key: float(cell) for key, cell in row.items() if cell} for row in csv.DictReader(file)]


class CSVCurves(Logger):
    """Writes ``metrics.csv``: one row per iteration with logged values, sorted by ``iteration``.

    Lightning's CSV logger names the column ``step`` and deletes the file when a run is resumed. This logger keeps the
    rows up to the iteration at which the run resumes. The file is replaced atomically, so it is never incomplete.

    Args:
        save_dir: The folder of the run.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     logger = CSVCurves(save_dir=folder)
        ...     logger.log_metrics({"val/loss": 1.0}, step=10)
        ...     logger.save()
        ...     read_rows(Path(folder) / "metrics.csv")
        [{'iteration': 10.0, 'val/loss': 1.0}]
    """

    def __init__(self, *, save_dir: str) -> None:
        super().__init__()
        self.path = Path(save_dir) / "metrics.csv"
        self.rows: dict[int, dict[str, float]] = {}
        self._unsaved = 0

    @property
    def name(self) -> str:
        """The name of the logger, required by Lightning."""
        return "csv"

    @property
    def version(self) -> str:
        """The version of the logger, an empty text, because Lightning requires this property."""
        return ""

    def resume(self, folder: Path, iteration: int) -> None:
        """Read the curves of the resumed run from its folder, up to the iteration at which it resumes."""
        path = folder / "metrics.csv"
        if path.is_file():
            rows = {int(row.pop("iteration")): row for row in read_rows(path)}
            self.rows = {at: row for at, row in rows.items() if at <= iteration}

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add logged values to the row of an iteration."""
        kept = {key: float(value) for key, value in metrics.items() if key != "epoch"}
        if kept and step is not None:
            self.rows.setdefault(int(step), {}).update(kept)
            self._unsaved += 1
        if self._unsaved >= 100:
            self.save()

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing, because ``config.yaml`` in the run's folder contains the settings."""

    @rank_zero_only
    def save(self) -> None:
        """Write all rows to ``metrics.csv``."""
        columns = sorted({key for row in self.rows.values() for key in row})
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, ["iteration", *columns])
        writer.writeheader()
        writer.writerows({"iteration": at, **self.rows[at]} for at in sorted(self.rows))
        write_whole(self.path, lambda file: file.write(text.getvalue().encode()))
        self._unsaved = 0

    @rank_zero_only
    def finalize(self, status: str) -> None:  # noqa: ARG002 - Lightning's signature
        """Write the file if there are unsaved rows; a run that fails before it logs must not change the file."""
        if self._unsaved:
            self.save()
