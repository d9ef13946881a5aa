"""Terminal output of a run: the configuration tree, the final metrics, and fewer messages of libraries."""

from __future__ import annotations

import itertools
import logging
import re
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, flag_override
from rich.box import SIMPLE_HEAD
from rich.table import Column, Table
from rich.text import Text
from rich.tree import Tree

from eblvm_lit.errors import ConfigError
from eblvm_lit.utils.numbers import significant
from eblvm_lit.utils.printing import show

__all__ = ["CheckOutputFolder", "prepare_folder", "quiet", "shortest", "show_config", "show_results", "unit"]

# Warnings of what Lightning and torch call themselves.
DEPRECATED = (r".*treespec.*deprecated", r"`torch\.jit\.script` is deprecated")
AFTER_TIME = re.compile(r"/\d\d-\d\d-\d\d$")  # a folder that nobody has named
# Units of metrics, by words of their names.
UNITS = {
    "second": "iterations/s",
    "mib": "MiB above the parameters",
    "likelihood": "nats",
    "kl": "nats",
    "z": "nats",
}


def quiet() -> None:
    """Hide what libraries say that tells the user nothing; their other warnings stay visible."""
    for name in ("pytorch_lightning", "lightning_fabric"):  # hints and deprecation notices
        logging.getLogger(name).setLevel(logging.WARNING)
    for words in DEPRECATED:
        warnings.filterwarnings("ignore", message=words, category=FutureWarning)
    # a machine with CUDA's tools and without a GPU: the compiler of CPU code looks for them
    logging.getLogger("torch.utils.cpp_extension").addFilter(_is_not_about_cuda)


def _is_not_about_cuda(record: logging.LogRecord) -> bool:
    return "No CUDA runtime is found" not in record.getMessage()


def prepare_folder(path: str | Path) -> Path:
    """Create a folder and check that it is writable.

    Raises:
        ConfigError: If it is not writable.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        try:
            probe.write_bytes(bytes(4096))  # a full disk still allows empty files
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"The output folder {folder} cannot be written to ({error.strerror}).") from None
    return folder


class CheckOutputFolder(Callback):
    """A Hydra callback that checks the output folder first: Hydra itself would fail with a traceback."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:  # noqa: ARG002 - Hydra's signature
        """Check the folder of a run; Hydra would write its files beside those of another run that is in it."""
        from eblvm_lit.training.processes import is_first  # takes seconds, for which --help need not wait

        if AFTER_TIME.search(config.hydra.run.dir) and is_first():
            self._take_free_folder(config)
        self._check(config.hydra.run.dir)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:  # noqa: ARG002
        """Check the folder of a sweep."""
        self._check(config.hydra.sweep.dir)

    def _take_free_folder(self, config: DictConfig) -> None:
        """Number a folder that is named after the time, where another run of the same second has it."""
        first = Path(config.hydra.run.dir)
        for i in itertools.count():
            folder = first.with_name(f"{first.name}_{i}") if i else first
            try:
                folder.parent.mkdir(parents=True, exist_ok=True)
                folder.mkdir()  # one process alone can
            except FileExistsError:
                continue
            except OSError:  # the check says which folder it is
                return
            with flag_override(config, ["struct", "readonly"], False):
                config.hydra.run.dir = str(folder)
            return

    def _check(self, path: str) -> None:
        try:
            prepare_folder(path)
        except ConfigError as error:
            sys.exit(f"ERROR: {error}")


def show_config(cfg: DictConfig) -> None:
    """Print the composed configuration as a tree."""

    def grow(tree: Tree, node: Mapping[str, Any]) -> None:
        for key, value in node.items():
            if isinstance(value, dict) and value:
                grow(tree.add(Text(str(key), style="bold")), value)
            else:
                tree.add(Text(f"{key}: {value}"))

    tree = Tree(Text("configuration", style="bold"), guide_style="dim")
    grow(tree, OmegaConf.to_container(cfg, resolve=True))
    show(tree)


def show_results(metrics: Mapping[str, float], folder: Path, estimators: Mapping[str, str] | None = None) -> None:
    """Print the final metrics as a table, those of the test split first, and the folder on a line of its own.

    Args:
        metrics: Numbers by name.
        folder: Where the results are.
        estimators: How some of them were computed, by the name without a split.
    """
    table = Table("metric", Column("value", justify="right"), "unit", box=SIMPLE_HEAD)
    for name in sorted(metrics, key=lambda name: (not name.startswith("test"), name.startswith("train/"), name)):
        table.add_row(Text(name), significant(metrics[name]), unit(name))
    computed = [f"{name}: {how}." for name, how in (estimators or {}).items()]
    show(table, *computed, "results in", f"  {shortest(folder)}")


def unit(metric: str) -> str:
    """The unit of a metric, by the words of its name; empty for what has none, or another one for each data set.

    Example:
        >>> [unit(name) for name in ("test/log_likelihood", "train/iterations_per_second", "test/fid")]
        ['nats', 'iterations/s', '']
    """
    words = set(metric.rpartition("/")[2].split("_"))
    return next((name for word, name in UNITS.items() if word in words), "")


def shortest(path: Path) -> str:
    """A path as it is typed in the current folder.

    Example:
        >>> shortest(Path.cwd() / "outputs" / "a")
        'outputs/a'
    """
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:  # elsewhere
        return str(path)
