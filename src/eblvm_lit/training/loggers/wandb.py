"""The logger for Weights & Biases."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytorch_lightning.utilities import rank_zero_only

from eblvm_lit.errors import ConfigError
from eblvm_lit.evaluation.directions import direction
from eblvm_lit.training.loggers.base import RunLogger, figure_tag
from eblvm_lit.training.provenance import Job, code_version

__all__ = ["WandbRun"]

SUMMARIES = {1: "max", -1: "min"}


class WandbRun(RunLogger):
    """One W&B run per training run: curves over ``iteration``, figures, final metrics, configuration and code version.

    The runs of one experiment and one sweep form a group. The summary of a metric is its best value: the maximum if
    higher is better, the minimum if lower is. A resumed run continues the same W&B run, whose points beyond the
    checkpoint stay: W&B rewinds a run only online and by its own count of steps. Lightning's W&B logger is not used: it
    gives all jobs of a process one run, and its x axis is not the iteration.

    Args:
        save_dir: The run folder.
        project: The W&B project.
        entity: User or team; None uses the default of the user.
        name: Name of the run; None uses the overrides of the command line.
        group: Group of the run; None uses the experiment and the sweep.
        tags: Tags in addition to experiment, method, data and model.
        offline: Write to ``save_dir`` only, for a later ``wandb sync``.
        log_checkpoints: Whether to upload the last and the best checkpoint as an artifact.

    Raises:
        ConfigError: At :meth:`begin`, if W&B rejects the run.

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
        log_checkpoints: bool = False,
    ) -> None:
        super().__init__()
        import wandb  # slow to import, and optional

        self._wandb, self._run, self._id = wandb, None, None
        self._place = {"project": project, "entity": entity, "dir": save_dir}
        self._labels, self._tags = {"name": name, "group": group}, list(tags)
        self.offline, self.log_checkpoints = offline, log_checkpoints
        self._defined: set[str] = set()

    @property
    def name(self) -> str:
        """The key of this logger in a checkpoint."""
        return "wandb"

    @property
    def version(self) -> str | None:
        """The id of the W&B run."""
        return self._id

    def resume(self, checkpoint: Mapping[str, Any], path: Path) -> None:
        """Continue the W&B run whose id the checkpoint holds.

        Raises:
            ConfigError: If the id is malformed; it becomes the name of a folder, so it is validated.
        """
        known = checkpoint.get("loggers")
        found = known.get(self.name) if isinstance(known, dict) else None
        if found is not None and not (isinstance(found, str) and re.fullmatch(r"[A-Za-z0-9_-]{1,64}", found)):
            raise ConfigError(f"{path} names a W&B run {found!r}, which is none: resume without logger=wandb.")
        self._id = found

    @rank_zero_only
    def begin(self, job: Job, config: Mapping[str, Any]) -> None:
        """Open the W&B run."""
        labels = {"name": job.name and job.name[:128], "group": job.group}
        labels |= {key: value for key, value in self._labels.items() if value is not None}
        tags = dict.fromkeys([*self._tags, *filter(None, [job.experiment, *job.choices.values()])])
        try:
            self._run = self._wandb.init(
                **self._place,
                **labels,
                job_type=job.kind,
                tags=[tag[:64] for tag in tags],
                config={**config, "job": {**job._asdict(), "group": labels["group"]}, "code": dict(code_version())},
                id=self._id,
                mode="offline" if self.offline else None,  # an environment variable would outlive this run
                resume="allow" if self._id and not self.offline else None,
                reinit="create_new",
                settings=self._wandb.Settings(console="off"),
            )
        except (self._wandb.Error, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"W&B did not accept the run ({reason}): logger.wandb.offline=true needs none."
            ) from error
        self._id = self._run.id
        self._run.define_metric("iteration")
        self._run.define_metric("*", step_metric="iteration", step_sync=True)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log values at an iteration."""
        kept = {key: float(value) for key, value in metrics.items() if key != "epoch"}
        if self._run is None or not kept or step is None:
            return
        for key in kept.keys() - self._defined:
            if direction(key):
                summary = SUMMARIES[direction(key)]
                self._run.define_metric(key, step_metric="iteration", step_sync=True, summary=summary)
        self._defined |= kept.keys()
        self._run.log({**kept, "iteration": int(step)})

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Ignored: :meth:`begin` logs the configuration."""

    @rank_zero_only
    def log_figures(self, paths: Sequence[Path], iteration: int) -> None:
        """Log figures."""
        if self._run is not None and paths:
            images = {figure_tag(path, iteration): self._wandb.Image(str(path)) for path in paths}
            self._run.log({**images, "iteration": iteration})

    @rank_zero_only
    def conclude(self, metrics: Mapping[str, float], checkpoints: Sequence[Path]) -> None:
        """Log the final metrics as a table, and the checkpoints if requested."""
        if self._run is None:
            return
        rows = [[name, float(value)] for name, value in sorted(metrics.items())]
        table = self._wandb.Table(columns=["metric", "value"], data=rows)
        self._run.log({"results": table, "iteration": metrics["iteration"]})
        if self.log_checkpoints:
            artifact = self._wandb.Artifact(f"checkpoint-{self._id}", type="model", metadata=dict(metrics))
            for path in checkpoints:
                artifact.add_file(str(path), name=path.name)
            self._run.log_artifact(artifact)

    @rank_zero_only
    def close(self, *, failed: bool) -> None:
        """Finish the W&B run and record whether it failed."""
        if self._run is not None:
            self._run.finish(exit_code=int(failed))
            self._run = None
