"""The logger for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from PIL import Image
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.utilities import rank_zero_only

from eblvm_lit.training.loggers.base import RunLogger, figure_tag
from eblvm_lit.training.loggers.csv import earlier_rows
from eblvm_lit.training.provenance import Job
from eblvm_lit.utils.run_files import flatten

__all__ = ["TensorBoardRun"]


class TensorBoardRun(RunLogger, TensorBoardLogger):
    """Writes curves, figures and the configuration to ``tensorboard/`` in the run folder.

    TensorBoard shows curves over the iteration, figures under IMAGES, the configuration under TEXT, and under HPARAMS
    the configuration beside the final metrics. ``hparams.yaml`` holds the configuration by dotted path. Lightning's
    logger, which this one extends, writes no figures, and closes its file before the final metrics are known.

    Args:
        save_dir: The run folder.

    Example:
        >>> TensorBoardRun(save_dir="outputs").log_dir
        'outputs/tensorboard/'
    """

    def __init__(self, *, save_dir: str) -> None:
        super().__init__(save_dir, name="tensorboard", version="", default_hp_metric=False)
        import torch.utils.tensorboard  # noqa: F401 - optional: without it, the run fails here and not at its end

    def resume(self, checkpoint: Mapping[str, Any], path: Path) -> None:
        """Copy the curves of the earlier part, or, in the same run folder, hide what lies beyond the checkpoint."""
        folder, resumed_at = path.parent.parent, checkpoint["eblvm_lit"]["iteration"]
        if folder.resolve() == Path(self.save_dir).resolve():
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog

            # files are only added to: from the step of this event on, readers drop what earlier files hold
            start = Event(session_log=SessionLog(status=SessionLog.START))
            self.experiment.file_writer.add_event(start, resumed_at + 1)
            return
        for iteration, row in earlier_rows(folder / "metrics.csv", resumed_at).items():
            self.log_metrics(row, iteration)

    @rank_zero_only
    def begin(self, job: Job, config: Mapping[str, Any]) -> None:  # noqa: ARG002 - the file is of one run
        """Write the configuration."""
        self.log_hyperparams(flatten(config))
        self.experiment.add_text("config", f"```yaml\n{OmegaConf.to_yaml(OmegaConf.create(dict(config)))}```", 0)
        self.save()

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write values at an iteration."""
        super().log_metrics({key: value for key, value in metrics.items() if key != "epoch"}, step)

    @rank_zero_only
    def log_figures(self, paths: Sequence[Path], iteration: int) -> None:
        """Write figures."""
        for path in paths:
            with Image.open(path) as image:
                pixels = np.asarray(image.convert("RGB"))
            self.experiment.add_image(figure_tag(path, iteration), pixels, iteration, dataformats="HWC")
        self.save()

    @rank_zero_only
    def conclude(self, metrics: Mapping[str, float], checkpoints: Sequence[Path]) -> None:  # noqa: ARG002
        """Write the configuration beside the final metrics, for comparisons of runs."""
        from torch.utils.tensorboard.summary import hparams

        simple = {key: v if isinstance(v, bool | int | float | str) else str(v) for key, v in self.hparams.items()}
        final = {key: value for key, value in metrics.items() if key.startswith("test")}
        for summary in hparams(simple, final):
            self.experiment.file_writer.add_summary(summary)

    @rank_zero_only
    def finalize(self, status: str) -> None:  # noqa: ARG002 - Lightning's signature
        """Write what is pending; the file stays open for the final metrics and figures."""
        self.save()

    @rank_zero_only
    def close(self, *, failed: bool) -> None:  # noqa: ARG002
        """Close the file."""
        self.save()
        self.experiment.close()
