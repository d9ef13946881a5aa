"""The commands eblvm-train and eblvm-evaluate, which train.py and evaluate.py run, too."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eblvm_lit.cli.composition import errors_in_sentences
from eblvm_lit.cli.renamed import exit_if_renamed

if TYPE_CHECKING:
    from omegaconf import DictConfig

__all__ = ["conf_folder", "evaluate", "train"]


def conf_folder() -> Path:
    """The folder of the configurations: inside of an installed package, or at the top of a clone.

    Example:
        >>> (conf_folder() / "config.yaml").is_file()
        True
    """
    package = Path(__file__).parents[1]
    installed = package / "conf"
    return installed if installed.is_dir() else package.parents[1] / "conf"


def _train(cfg: DictConfig) -> float | None:
    from eblvm_lit.cli import cli, run  # takes seconds, for which --help and typing errors need not wait

    return cli.main(run.train, cfg)


def _evaluate(cfg: DictConfig) -> float | None:
    from eblvm_lit.cli import cli, run

    return cli.main(run.evaluate, cfg)


# Without one of these there is no run.
REQUIRED = ("method", "model", "data", "trainer", "callbacks")


def null_group(arguments: Sequence[str]) -> str | None:
    """What to say about GROUP=null and ~GROUP where Hydra fails; None where there is no such argument.

    Example:
        >>> null_group(["final_lr=null", "estimate=null"])
        "estimate=null: choose an option of estimate, or leave the whole group out with '~estimate'."
        >>> null_group(["~method"])
        '~method: a run needs a method; choose an option of it by method=... .'
    """
    for argument in arguments:
        group, _, option = argument.lstrip("+~").partition("=")
        if group in REQUIRED and (option == "null" or argument.startswith("~")):
            return f"{argument}: a run needs a {group}; choose an option of it by {group}=... ."
        if group and option == "null" and (conf_folder() / group.partition("@")[0]).is_dir():
            return f"{argument}: choose an option of {group}, or leave the whole group out with '~{group}'."
    return None


def _start(task: Callable[[DictConfig], float | None], config_name: str) -> None:
    """Compose the configuration of the command line, and run a task on it."""
    exit_if_renamed(sys.argv[1:])  # Hydra would only say that there is no such key
    if refused := null_group(sys.argv[1:]):
        sys.exit(f"ERROR: {refused}")
    import hydra

    with errors_in_sentences(conf_folder(), config_name, sys.argv[1:]):
        hydra.main(version_base="1.3", config_path=str(conf_folder()), config_name=config_name)(task)()


def train() -> None:
    """Train a model: eblvm-train [GROUP=OPTION] [KEY=VALUE]; --help lists them."""
    _start(_train, "config")


def evaluate() -> None:
    """Evaluate a checkpoint on the test split: eblvm-evaluate ckpt=PATH."""
    _start(_evaluate, "evaluate")
