"""Terminal output of a run: the configuration tree, the final metrics, and fewer messages of Lightning."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from eblvm_lit.errors import ConfigError

__all__ = ["CheckOutputFolder", "prepare_folder", "quiet", "show_config", "show_results"]


def quiet() -> None:
    """Hide Lightning's hints and deprecation notices; its warnings stay visible."""
    for name in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=r".*treespec.*deprecated", category=FutureWarning)


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
        """Check the folder of a run."""
        self._check(config.hydra.run.dir)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:  # noqa: ARG002
        """Check the folder of a sweep."""
        self._check(config.hydra.sweep.dir)

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
                grow(tree.add(f"[bold]{escape(str(key))}[/]"), value)
            else:
                tree.add(escape(f"{key}: {value}"))

    tree = Tree("[bold]configuration[/]", guide_style="dim")
    grow(tree, OmegaConf.to_container(cfg, resolve=True))
    Console().print(tree)


def show_results(metrics: Mapping[str, float], folder: Path) -> None:
    """Print the final metrics as a table."""
    table = Table("metric", "value", title=escape(str(folder)))
    for name, value in sorted(metrics.items()):
        table.add_row(name, f"{value:,.4f}")
    Console().print(table)
