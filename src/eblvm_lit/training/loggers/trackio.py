"""The logger for Trackio, which keeps runs on this machine and shows them in a browser."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_only

from eblvm_lit.training.provenance import Job

__all__ = ["TrackioRun"]


class TrackioRun(Logger):
    """Logs curves, figures and settings to Trackio; Lightning 2.6 has no logger for it.

    Args:
        save_dir: The folder of the run.
        project: The name of the Trackio project.
        name: The name of the run, by which Trackio resumes it; None uses the name of the folder.
        space_id: The Hugging Face Space that shows the run; None keeps the run on this machine.
    """

    def __init__(self, *, save_dir: str, project: str, name: str | None = None, space_id: str | None = None) -> None:
        super().__init__()
        self._trackio = importlib.import_module("trackio")
        self._name = name or " ".join(Path(save_dir).parts[-2:])
        self._options = {"project": project, "group": Job.current().group, "space_id": space_id, "embed": False}
        self._run: Any = None

    @property
    def name(self) -> str:
        """The name of the project, as in Lightning's W&B logger."""
        return self._options["project"]

    @property
    def version(self) -> str:
        """The name of the run."""
        return self._name

    @property
    def experiment(self) -> Any:
        """The Trackio run, which is started when this property is first accessed."""
        if self._run is None:
            hub = vars(importlib.import_module("huggingface_hub.constants"))
            offline = hub["HF_HUB_OFFLINE"]
            # use the offline mode for local runs, because Trackio asks the Hub for the token's owner even then
            try:
                hub["HF_HUB_OFFLINE"] = offline or self._options["space_id"] is None
                self._run = self._trackio.init(name=self._name, **self._options)
            finally:
                hub["HF_HUB_OFFLINE"] = offline
        return self._run

    def resume(self, name: str | None) -> None:
        """Continue an earlier Trackio run; call this method before anything is logged."""
        self._name = name or self._name
        self._options["resume"] = "allow"

    @rank_zero_only
    def log_hyperparams(self, params: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Log the configuration of the run."""
        self.experiment.config.update(params)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log values at an iteration."""
        self.experiment.log(dict(metrics), step=step)

    @rank_zero_only
    def log_image(self, key: str, images: Sequence[str], step: int | None = None) -> None:
        """Log image files; the arguments are the same as in Lightning's W&B logger."""
        for image in images:
            self.log_metrics({key: self._trackio.Image(image)}, step)
