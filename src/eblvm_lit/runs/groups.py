"""The configuration folder conf/: its location, its groups, and the options of each group."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import hydra
from hydra import initialize_config_dir

__all__ = ["HYDRA", "choice_of", "composing", "conf_folder", "options_of"]

# Hydra 1.3 behaves like Hydra 1.1 unless version_base is given; later versions of Hydra warn if it is given.
HYDRA = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}


def conf_folder() -> Path:
    """Return the configuration folder, which is in the installed package or at the top of the cloned repository.

    Example:
        >>> (conf_folder() / "config.yaml").is_file()
        True
    """
    package = Path(__file__).parents[1]
    installed = package / "conf"
    return installed if installed.is_dir() else package.parents[1] / "conf"


def composing() -> initialize_config_dir:
    """Return a context manager in which Hydra composes configurations from the configuration folder."""
    return initialize_config_dir(config_dir=str(conf_folder()), job_name="train", **HYDRA)


def options_of(group: str) -> list[str]:
    """Return the names of the options of a configuration group.

    Files named ``_*.yaml`` are not options, but are included by options.
    """
    return sorted(path.stem for path in (conf_folder() / (group or "none")).glob("[!_]*.yaml"))


def choice_of(key: str, value: Any) -> str:
    """Return the end of an error message, which lists the options of a key, or is a full stop if the key has none.

    Args:
        key: The key of the part.
        value: The wrong value that was given for it.

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
