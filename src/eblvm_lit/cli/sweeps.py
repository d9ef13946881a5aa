"""The Hydra callback that resumes sweeps of Hydra's multirun, and prints a table of the jobs when a sweep ends."""

from __future__ import annotations

import json
import logging
import math
import shlex
import sys
from pathlib import Path
from typing import Any

import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from eblvm_lit.errors import escaped
from eblvm_lit.utils.command_line import in_sweep, typed_command
from eblvm_lit.utils.io import write_text
from eblvm_lit.utils.quantities import direction, learn
from eblvm_lit.utils.run_files import COMMAND, read_command
from eblvm_lit.utils.untrusted import read_yaml

__all__ = ["Sweep", "set_key", "worst_value"]

log = logging.getLogger(__name__)

MOST_METRICS = 3  # maximum number of metrics in the table of jobs


def worst_value() -> float | None:
    """Return the objective value that Optuna receives for a diverged run, or None if this is not an Optuna search.

    Without such a value the search would end, because Optuna's plugin stops at the first job without a value, and at
    the first NaN.
    """
    way = HydraConfig.get().sweeper.get("direction") if in_sweep() else None
    return {"minimize": math.inf, "maximize": -math.inf}.get(getattr(way, "name", way))


def set_key(config: DictConfig, key: str, value: str) -> None:
    """Set a key in the configuration of a sweep and in the overrides that Hydra applies to every job."""
    with read_write(config.hydra), open_dict(config.hydra):
        OmegaConf.update(config, key, value)
        config.hydra.overrides.hydra.append(f"{key}='{value}'")


class Sweep(Callback):
    """Resumes an earlier sweep in its own folder if ``sweep.resume`` is true, and shows all jobs at the end.

    Errors end the process by ``sys.exit``, because Hydra turns exceptions of callbacks into warnings.
    """

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:  # noqa: ARG002 - Hydra's signature
        """Set the folder of a resumed sweep, and the direction of a hyperparameter search.

        A seed of Optuna's sampler is refused if several processes share a study.
        """
        given = " ".join(config.hydra.overrides.hydra)
        if config.sweep.resume:
            set_key(config, "hydra.sweep.dir", str(_earlier_sweep(config, named="hydra.sweep.dir=" in given)))
        if "direction" in config.hydra.sweeper and "hydra.sweeper.direction=" not in given:
            # imported here, because the import takes seconds and errors in the command should appear earlier
            from eblvm_lit.reports.runs import declare_all

            declare_all()
            way = direction(config.optimized_metric or "")
            if not way:
                sys.exit(
                    "ERROR: A search needs optimized_metric=NAME, such as val/loss, and hydra.sweeper.direction=... ."
                )
            set_key(config, "hydra.sweeper.direction", "maximize" if way > 0 else "minimize")
        if None not in (config.hydra.sweeper.get("storage"), OmegaConf.select(config, "hydra.sweeper.sampler.seed")):
            sys.exit(
                "ERROR: With hydra.sweeper.sampler.seed, all processes that share the study in hydra.sweeper.storage "
                "would propose the same points: leave the seed out, so that each process draws its own."
            )

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:  # noqa: ARG002
        """Write the command of a job into its folder, unless the job has been started before.

        The table of jobs shows this command.
        """
        folder = Path(config.hydra.runtime.output_dir)
        if in_sweep() and not any(path.suffix != ".log" for path in folder.iterdir()):
            write_text(folder / COMMAND, yaml.safe_dump(typed_command(), sort_keys=False))

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:  # noqa: ARG002
        """Show all jobs of the sweep, and list the jobs without results.

        If there are jobs without results, exit with an error, except in a hyperparameter search.
        """
        root = Path(config.hydra.sweep.dir)
        found = [path.parent for path in root.glob(f"**/{COMMAND}")]
        folders = sorted(found, key=lambda path: (len(path.name), path))
        _show(folders, root, config.get("optimized_metric"))
        missing = [folder for folder in folders if not (folder / "metrics.json").is_file()]
        if missing:
            lines = [
                f"  job {folder.relative_to(root)}: {_reason(folder, config.hydra.job.name)}" for folder in missing
            ]
            text = "\n".join([f"{len(missing)} of {len(folders)} jobs in {root} have not finished:", *lines])
            if "direction" not in config.hydra.sweeper:
                sys.exit(f"ERROR: {text}")
            print(f"WARNING: {text}", file=sys.stderr)


def _asked(task: list[str]) -> list[str]:
    """Remove the overrides of keys ``sweep.*``, which only say how a sweep is started, and return the others."""
    return [text for text in task if not text.lstrip("+").startswith("sweep.")]


def _earlier_sweep(config: DictConfig, named: bool) -> Path:
    """Return the folder of an earlier sweep with this command line: the folder that the user named, or the newest."""
    wanted = _asked(OmegaConf.to_container(config.hydra.overrides.task, resolve=False))
    own = Path(config.hydra.sweep.dir)
    if named and not (own / "multirun.yaml").is_file():
        return own  # there is no sweep to resume yet: start a new one, so that one command can start and resume a sweep
    found = [own / "multirun.yaml"] if named else sorted(own.parent.parent.glob("*/*/multirun.yaml"), reverse=True)
    for path in found:
        if _asked(read_yaml(path)["hydra"]["overrides"]["task"]) == wanted:
            return path.parent
    place = own if named else own.parent.parent
    sys.exit(f"ERROR: sweep.resume=true: {place} has no sweep of this command line; set hydra.sweep.dir=FOLDER.")


def _reason(folder: Path, name: str) -> str:
    """Return the reason why a job has no results: its last logged error, or that it was stopped or is still running."""
    log_file = folder / f"{name}.log"
    lines = log_file.read_text().splitlines() if log_file.is_file() else []
    failed = any("][ERROR] " in line for line in lines)
    return lines[-1].rpartition("][ERROR] ")[2] if failed else "it was stopped, or is still running."


def _show(folders: list[Path], root: Path, optimized: str | None) -> None:
    """Print a table of the jobs, with the overrides in which they differ and some of their final metrics."""
    files = [folder / "metrics.json" for folder in folders]
    # jobs may run in other processes, so read from their files for which metrics higher values are better
    for folder in folders:
        learn(folder)
    metrics = [json.loads(file.read_text()) if file.is_file() else {} for file in files]
    overrides = [_asked(read_command(folder)["overrides"]) for folder in folders]
    common = set.intersection(*map(set, overrides)) if len(overrides) > 1 else set()
    there = {name for found in metrics for name in found}
    tests = sorted((-direction(name), name) for name in there if name.startswith("test/") and direction(name))
    columns = list(dict.fromkeys([optimized] * (optimized in there) + [name for _, name in tests]))[:MOST_METRICS]
    table = Table(*map(escape, ["job", "settings", *columns]), box=SIMPLE_HEAD, show_edge=False)
    for folder, texts, found in zip(folders, overrides, metrics, strict=True):
        settings = " ".join(text for text in texts if text not in common)
        numbers = [f"{found[name]:.5g}" if name in found else "" for name in columns]
        table.add_row(*map(Text, map(escaped, (str(folder.relative_to(root)), settings, *numbers))))
    console = Console(highlight=False)
    console.print(table)
    compare = f"python -m eblvm_lit.reports {shlex.quote(str(root))}"
    console.print(f"\nCompare them by means over seeds, with figures:\n  {escape(compare)}", soft_wrap=True)
