"""The logger for MLflow."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from PIL import Image
from pytorch_lightning.loggers import MLFlowLogger
from pytorch_lightning.utilities import rank_zero_only

from eblvm_lit.training.provenance import Job

__all__ = ["MLFlowRun"]


class MLFlowRun(MLFlowLogger):
    """Lightning's MLflow logger, extended by this package's tags, by figures, and by runs that can be resumed.

    Args:
        experiment_name: The name of the MLflow experiment.
        tracking_uri: A database file on this machine, or the address of a server.
        run_name: The name of the run; None uses the overrides of the command line.
    """

    def __init__(self, *, experiment_name: str, tracking_uri: str, run_name: str | None = None) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # otherwise MLflow sends usage statistics
        job = Job.current()
        tags = {"job": job.kind, "group": job.group or "", **job.choices}
        super().__init__(experiment_name, run_name or job.name, tracking_uri, tags)

    def resume(self, run_id: str | None) -> None:
        """Continue an earlier MLflow run; call this method before anything is logged."""
        self._run_id = run_id

    @rank_zero_only
    def log_hyperparams(self, params: Any) -> None:
        """Log the configuration only once: MLflow refuses changed values, and a resumed run changes ``ckpt``."""
        if not self.experiment.get_run(self.run_id).data.params:
            super().log_hyperparams(params)

    @rank_zero_only
    def log_image(self, key: str, images: Sequence[str], step: int | None = None) -> None:
        """Log image files; the arguments are the same as in Lightning's W&B logger."""
        for image in images:
            self.experiment.log_image(self.run_id, Image.open(image), key=key, step=step)
