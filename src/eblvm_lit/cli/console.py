"""What a run prints: a line at its start, the final metrics and the next commands; and its folder, which is checked."""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, flag_override
from rich.box import SIMPLE_HEAD
from rich.syntax import Syntax
from rich.table import Column, Table
from rich.text import Text

from eblvm_lit.cli.instantiate import config_folders
from eblvm_lit.cli.sweeps import set_key
from eblvm_lit.errors import ConfigError, escaped
from eblvm_lit.utils.command_line import override
from eblvm_lit.utils.folders import claimed, new_folder, prepare_folder
from eblvm_lit.utils.numbers import significant
from eblvm_lit.utils.printing import show
from eblvm_lit.utils.quantities import direction, quantity

if TYPE_CHECKING:  # they take seconds, for which errors in the command need not wait
    from eblvm_lit.cli.build import Parts
    from eblvm_lit.methods.base import Method

__all__ = [
    *("CheckOutputFolder", "next_steps", "quiet", "shortest", "show_config", "show_results", "start_line"),
]


def quiet() -> None:
    """Hide Lightning's tips about devices, two deprecated calls, and Pillow's doubts about large images."""
    logging.getLogger("pytorch_lightning.utilities.rank_zero").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*(treespec.*|broadcast_buffers. is )deprecated", category=FutureWarning)
    warnings.filterwarnings("ignore", message=".*decompression bomb")  # there is an error for what is too large


class CheckOutputFolder(Callback):
    """A Hydra callback that makes the output folder first: Hydra itself would fail with a traceback."""

    claims = ExitStack()  # to the end of the process; of the class, because launchers pickle callbacks

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:  # noqa: ARG002 - Hydra's signature
        """Make the folder of a run; one named after the time is numbered where a run of the same second has it."""
        with _exiting(), flag_override(config, ["struct", "readonly"], False):
            config.hydra.run.dir = str(_make(config, "run"))

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:  # noqa: ARG002
        """Make the folder of a sweep in the same way, and keep other processes out of it to the end.

        Hydra writes ``multirun.yaml`` next, by which a sweep is resumed: that of another sweep stays.
        """
        with _exiting():
            folder = _make(config, "sweep")
            set_key(config, "hydra.sweep.dir", str(folder))
            self.claims.enter_context(claimed(folder))
            if (folder / "multirun.yaml").is_file() and not OmegaConf.select(config, "sweep.resume"):
                raise ConfigError(
                    f"{folder} holds a sweep already: resume it with sweep.resume=true, or choose another folder by "
                    "hydra.sweep.dir=... ."
                )


def _make(config: DictConfig, kind: str) -> Path:
    """Make the folder of a ``run`` or ``sweep``: a new one, unless it was named or another process has made it."""
    typed = OmegaConf.select(config, "hydra.overrides.hydra") or []
    named = any(text.startswith(f"hydra.{kind}.dir=") for text in typed)
    # Lightning's rank_zero_only reads the same, but takes seconds to import
    later = any(int(os.environ.get(name, 0)) for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"))
    return (prepare_folder if named or later else new_folder)(config.hydra[kind].dir)


@contextmanager
def _exiting() -> Iterator[None]:
    """End the process for an error: Hydra turns exceptions of callbacks into warnings and continues."""
    try:
        yield
    except ConfigError as error:
        sys.exit(f"ERROR: {error}")


def show_config(cfg: DictConfig) -> None:
    """Print the composed configuration."""
    show(Syntax(OmegaConf.to_yaml(cfg, resolve=True), "yaml", background_color="default"))


def start_line(cfg: DictConfig, parts: Parts, device: str) -> str:
    """What will run, in one line.

    Args:
        cfg: The configuration of the run.
        parts: Its parts; the data are set up.
        device: Where it runs.
    """
    method, data = parts.method, parts.data
    sizes = {name: sum(p.numel() for p in module.parameters()) for name, module in method.networks().items()}
    networks = ", ".join(f"{n:,} parameters in {name}" for name, n in sizes.items())
    examples = f"{len(data.splits.train):,} examples of {type(data).__name__}"
    return (
        f"{method.title}; {networks}; {examples}; {cfg.trainer.max_steps:,} iterations on {device}; "
        f"results in {shortest(Path(cfg.run_dir))}"
    )


def show_results(metrics: Mapping[str, float], folder: Path, estimators: Mapping[str, str] | None = None) -> None:
    """Print the final metrics as a table, what a run is chosen by first, and the folder on a line of its own.

    Args:
        metrics: Numbers by name.
        folder: Where the results are.
        estimators: How some of them were computed, by the name without a split.
    """
    table = Table("metric", Column("value", justify="right"), "unit", box=SIMPLE_HEAD)
    for name in sorted(metrics, key=_place):
        table.add_row(Text(escaped(name)), significant(metrics[name]), quantity(name).unit)
    show(table, *(f"{name}: {how}." for name, how in (estimators or {}).items()), "results in", f"  {shortest(folder)}")


def _place(name: str) -> tuple[bool | str, ...]:
    """The place of a metric in a table.

    Example:
        >>> from eblvm_lit.evaluation.fisher_score import FisherScore  # declares fisher
        >>> names = ["ais_effective_sample_size", "fisher", "fid", "log_likelihood_standard_error", "log_likelihood"]
        >>> sorted(names, key=_place)[:4]
        ['fid', 'log_likelihood', 'log_likelihood_standard_error', 'fisher']
    """
    goal = {"likelihood", "fid"} & set(re.split("[/_]", name))
    return not name.startswith("test"), name.startswith("train/"), not goal, not direction(name), name


def next_steps(cfg: DictConfig, method: Method) -> list[str]:
    """The commands that evaluate, resume and compare the run of a command line; none in Python.

    None resumes a run whose learning rates have come down to its end: in a longer run they would be high again.
    """
    if not HydraConfig.initialized():
        return []
    ckpt = override("ckpt", shortest(Path(cfg.run_dir)))
    places = [word for folder in config_folders() for word in ("--config-dir", shortest(folder))]
    allowed = [f"allow_packages={cfg.allow_packages}".replace(" ", "")] if cfg.allow_packages else []
    own = ("ckpt=", "run_dir=", "hydra.run.dir=", "trainer.max_steps=")
    words = [word for word in HydraConfig.get().overrides.task if not word.startswith(own)]
    inside = Path(cfg.run_dir).resolve().is_relative_to(Path(cfg.outputs_dir).resolve())
    folder = cfg.outputs_dir if inside else shortest(Path(cfg.run_dir))
    n = cfg.trainer.max_steps
    resume = shlex.join([*_program("train"), *places, *words, ckpt, f"trainer.max_steps={2 * n}"])
    return [
        f"evaluate {shlex.join([*_program('evaluate'), *places, ckpt, *allowed])}",
        *([f"resume   {resume}"] if method.rates_at(n, 2 * n) == method.rates_at(n, n) else []),
        f"compare  python -m eblvm_lit.reports {shlex.quote(folder)}",
    ]


def _program(name: str) -> list[str]:
    """How this installation calls ``train`` or ``evaluate``, by how it was called itself."""
    called = Path(sys.argv[0])
    return [f"eblvm-{name}"] if called.name.startswith("eblvm-") else ["python", str(called.with_name(f"{name}.py"))]


def shortest(path: Path) -> str:
    """A path as it is typed in the current folder.

    Example:
        >>> shortest(Path.cwd() / "outputs" / "a")
        'outputs/a'
    """
    here = Path.cwd()
    return str(path.resolve().relative_to(here)) if path.resolve().is_relative_to(here) else str(path)
