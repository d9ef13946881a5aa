"""The folder of the configurations: its groups, and what each has to choose from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import hydra
from hydra import initialize_config_dir

__all__ = ["HYDRA", "choice_of", "composing", "conf_folder", "options_of"]

# What Hydra's versions ask for: 1.3 acts as 1.1 unless it is told, and later ones warn of the word.
HYDRA = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}


def conf_folder() -> Path:
    """The folder of the configurations: inside of an installed package, or at the top of a clone.

    Example:
        >>> (conf_folder() / "config.yaml").is_file()
        True
    """
    package = Path(__file__).parents[1]
    installed = package / "conf"
    return installed if installed.is_dir() else package.parents[1] / "conf"


def composing() -> initialize_config_dir:
    """The context in which the configurations are composed."""
    return initialize_config_dir(config_dir=str(conf_folder()), job_name="train", **HYDRA)


def options_of(group: str) -> list[str]:
    """What a group of conf/ has to choose from; names that begin with _ are of parts of these."""
    return sorted(path.stem for path in (conf_folder() / (group or "none")).glob("[!_]*.yaml"))


def choice_of(key: str, value: Any) -> str:
    """The end of a sentence on what no part is: how such a part is chosen, if a group of conf/ has some.

    Args:
        key: The place of the part.
        value: What was given there.

    Example:
        >>> choice_of("method.hypergradient", "fixed_point"), choice_of("optimizer.schedule", "linear")
        (': choose it by hypergradient=fixed_point.',
         ': choose one by schedule@optimizer.schedule=cosine, exponential, step, warmup.')
        >>> choice_of("method.lower_optimizer", "adam")
        '.'
    """
    text = "\n".join(path.read_text() for path in sorted(conf_folder().rglob("*.yaml")))
    patterns = (rf"\b(\w+@{re.escape(key)}):", rf"(?m)^ *{key.rpartition('.')[2]}: \$\{{(?:marginal_)?(\w+)\}}")
    group = next((found[1] for found in (re.search(pattern, text) for pattern in patterns) if found), "")
    if not (options := options_of(group.partition("@")[0])):
        return "."
    return f": choose it by {group}={value}." if value in options else f": choose one by {group}={', '.join(options)}."
