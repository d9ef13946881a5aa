"""The terminal output of a run: a line at its start, the final metrics, and commands for the next steps."""

from __future__ import annotations

import logging
import re
import shlex
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.utilities import rank_zero_only
from rich.box import SIMPLE_HEAD
from rich.syntax import Syntax
from rich.table import Column, Table
from rich.text import Text

from eblvm_lit.errors import escaped
from eblvm_lit.training.provenance import device_name
from eblvm_lit.utils.command_line import config_folders, in_sweep, override
from eblvm_lit.utils.numbers import significant
from eblvm_lit.utils.printing import say, show
from eblvm_lit.utils.quantities import direction, quantity

if TYPE_CHECKING:  # these imports take seconds, and errors in the command should appear earlier
    from eblvm_lit.methods.base import Method
    from eblvm_lit.runs.build import Parts

__all__ = [
    *("next_steps", "quiet", "shortest", "show_config", "show_next_steps", "show_results", "show_start"),
]


def quiet() -> None:
    """Hide Lightning's tips about devices, deprecation warnings, and Pillow's warning about large images."""
    logging.getLogger("pytorch_lightning.utilities.rank_zero").setLevel(logging.WARNING)
    # of Lightning and of torch's own modules
    deprecated = ".*(treespec.*|broadcast_buffers. is |torch.jit.script. is )deprecated"
    warnings.filterwarnings("ignore", message=deprecated, category=FutureWarning)
    # ignoring the warning is safe, because Pillow raises an error for images that are far too large
    warnings.filterwarnings("ignore", message=".*decompression bomb")


@rank_zero_only
def show_config(cfg: DictConfig) -> None:
    """Print the composed configuration."""
    show(Syntax(OmegaConf.to_yaml(cfg, resolve=True), "yaml", background_color="default"))


@rank_zero_only
def show_start(parts: Parts, trainer: pl.Trainer, folder: Path) -> None:
    """Print one line that says what the run trains, on what data, for how long and where.

    Args:
        parts: The parts of the run; its data are set up.
        trainer: The trainer of the run.
        folder: The folder of the results.
    """
    method = parts.method
    data = parts.data
    sizes = {name: sum(p.numel() for p in module.parameters()) for name, module in method.networks().items()}
    networks = ", ".join(f"{n:,} parameters in {name}" for name, n in sizes.items())
    examples = f"{len(data.splits.train):,} examples of {type(data).__name__}"
    say(
        f"{method.title}; {networks}; {examples}; {trainer.max_steps:,} iterations on "
        f"{device_name(trainer.strategy.root_device)}; results in {shortest(folder)}"
    )


@rank_zero_only
def show_results(metrics: Mapping[str, float], folder: Path, estimators: Mapping[str, str] | None = None) -> None:
    """Print a table of the final metrics, with the metrics used for model selection first, and then the run's folder.

    Args:
        metrics: The metrics by name.
        folder: The folder of the results, which is printed on a line of its own.
        estimators: Descriptions of how some metrics were computed, by the metric's name without a split.
    """
    table = Table("metric", Column("value", justify="right"), "unit", box=SIMPLE_HEAD)
    for name in sorted(metrics, key=_place):
        table.add_row(Text(escaped(name)), significant(metrics[name]), quantity(name).unit)
    show(table, *(f"{name}: {how}." for name, how in (estimators or {}).items()), "results in", f"  {shortest(folder)}")


def _place(name: str) -> tuple[bool | str, ...]:
    """Return the sort key that determines the row of a metric in the table of final metrics.

    Example:
        >>> sorted(["train/iterations_per_second", "test/fisher", "test/log_likelihood"], key=_place)
        ['test/log_likelihood', 'test/fisher', 'train/iterations_per_second']
    """
    goal = {"likelihood", "fid"} & set(re.split("[/_]", name))
    return not name.startswith("test"), name.startswith("train/"), not goal, not direction(name), name


@rank_zero_only
def show_next_steps(folder: Path, outputs_dir: str, method: Method, max_steps: int, allow_packages: Any) -> None:
    """Print the commands of :func:`next_steps` at the end of a run, unless it is a job of a sweep."""
    if not in_sweep():
        say("\n".join(next_steps(folder, outputs_dir, method, max_steps, allow_packages)))


def next_steps(folder: Path, outputs_dir: str, method: Method, max_steps: int, allow_packages: Any) -> list[str]:
    """Return the shell commands that evaluate, resume and compare a run, or an empty list for a run from Python.

    The resume command is left out if the learning rate has decayed: the schedule of a longer run would raise it again.

    Args:
        folder: The folder of the run.
        outputs_dir: The folder whose runs are compared, if this run is inside of it.
        method: The method, which knows its learning rates.
        max_steps: The number of iterations of the run.
        allow_packages: The user's own packages that the configuration names.
    """
    if not HydraConfig.initialized():
        return []
    ckpt = override("ckpt", shortest(folder))
    places = [word for folder in config_folders() for word in ("--config-dir", shortest(folder))]
    allowed = [f"allow_packages={allow_packages}".replace(" ", "")] if allow_packages else []
    own = ("ckpt=", "run_dir=", "hydra.run.dir=", "trainer.max_steps=")
    words = [word for word in HydraConfig.get().overrides.task if not word.startswith(own)]
    inside = folder.resolve().is_relative_to(Path(outputs_dir).resolve())
    compared = outputs_dir if inside else shortest(folder)
    resume = shlex.join([*_program("train"), *places, *words, ckpt, f"trainer.max_steps={2 * max_steps}"])
    return [
        f"evaluate {shlex.join([*_program('evaluate'), *places, ckpt, *allowed])}",
        *(
            [f"resume   {resume}"]
            if method.rates_at(max_steps, 2 * max_steps) == method.rates_at(max_steps, max_steps)
            else []
        ),
        f"compare  python -m eblvm_lit.reports {shlex.quote(compared)}",
    ]


def _program(name: str) -> list[str]:
    """Return the words of a command that calls ``train`` or ``evaluate`` in the way this process was called."""
    called = Path(sys.argv[0])
    return [f"eblvm-{name}"] if called.name.startswith("eblvm-") else ["python", str(called.with_name(f"{name}.py"))]


def shortest(path: Path) -> str:
    """Return a path relative to the working folder if it is inside that folder, and unchanged if not.

    Example:
        >>> shortest(Path.cwd() / "outputs" / "a")
        'outputs/a'
    """
    here = Path.cwd()
    return str(path.resolve().relative_to(here)) if path.resolve().is_relative_to(here) else str(path)
