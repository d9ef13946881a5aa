"""The logger for Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pytorch_lightning.loggers import WandbLogger
from pytorch_lightning.utilities import rank_zero_only

from eblvm_lit.training.provenance import Job
from eblvm_lit.utils.quantities import direction

__all__ = ["WandbRun"]


class WandbRun(WandbLogger):
    """Lightning's W&B logger, extended by tags, by ``iteration`` as the x axis, and by best values in the summary.

    The runs of one experiment and one sweep form a group. A resumed run continues the same W&B run.

    Args:
        save_dir: The folder of the run.
        project: The name of the W&B project.
        entity: The user or team; None uses the user's default.
        name: The name of the run; None uses the overrides of the command line.
        group: The group of the run; None uses the experiment and the sweep.
        tags: Tags in addition to the experiment, the method, the data and the model.
        offline: Whether to write only to ``save_dir``, for a later ``wandb sync``; the same as ``mode=offline``.
        mode: The mode of W&B; None uses the environment variable WANDB_MODE, as W&B does.
        log_checkpoints: Whether to upload the last and the best checkpoint as an artifact.

    Example:
        >>> WandbRun(save_dir="outputs", offline=True).version is None  # until it begins
        True
    """

    def __init__(
        self,
        *,
        save_dir: str,
        project: str = "eblvm_lit",
        entity: str | None = None,
        name: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        offline: bool = False,
        mode: Literal["online", "offline", "disabled"] | None = None,
        log_checkpoints: bool = False,
    ) -> None:
        job = Job.current()
        tags = [*dict.fromkeys([*tags, *filter(None, [job.experiment, *job.choices.values()])])]
        mode = mode or ("offline" if offline else os.environ.get("WANDB_MODE"))
        super().__init__(
            name or (job.name and job.name[:128]),
            save_dir,
            project=project,
            entity=entity,
            group=group or job.group,
            tags=[tag[:64] for tag in tags],
            job_type=job.kind,
            config={"job": {**job._asdict(), "group": group or job.group}},
            # Lightning's argument "offline" is not used, because it sets an environment variable for later runs, too
            mode=mode,
            # without these settings W&B prints up to thirty lines per job
            settings={"quiet": True, "silent": mode == "offline"},
        )
        self._wandb_init.pop("anonymous", None)  # Lightning passes this argument, and W&B warns about it
        self.log_checkpoints = log_checkpoints
        self._defined: set[str] = set()

    def resume(self, run_id: str | None) -> None:
        """Continue an earlier W&B run; call this method before anything is logged."""
        self._id = self._wandb_init["id"] = run_id

    def upload_checkpoints(self, folder: Path) -> None:
        """Upload the checkpoints in the folder of a run as one artifact."""
        import wandb  # imported here, because the import takes a second and other loggers do not need it

        artifact = wandb.Artifact(f"checkpoint-{self.version}", type="model")
        artifact.add_dir(str(folder / "checkpoints"))
        self.experiment.log_artifact(artifact)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log values at an iteration; the summary keeps the best value of each metric with a known direction."""
        for key in metrics.keys() - self._defined:
            better = {1: "max", -1: "min", 0: None}[direction(key)]
            self.experiment.define_metric(key, step_metric="iteration", summary=better)
        self._defined |= metrics.keys()
        super().log_metrics({**metrics, "iteration": step}, step)
