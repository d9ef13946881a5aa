"""One sentence where Hydra cannot compose a configuration, with the nearest key or choice there is."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from eblvm_lit.errors import ConfigError

__all__ = ["errors_in_sentences", "known_keys", "nearest", "own_folder", "sentence", "stop_raising"]

# With this variable Hydra raises the errors that it would otherwise print in its own words.
RAISE = "HYDRA_FULL_ERROR"
# Nodes that may have keys which no file of conf/ lists: arguments of Lightning's classes, and parts of the user's own.
OPEN = ("trainer", "logger", "callbacks")
_raising = False


def own_folder(config_dir: str | Path) -> Path:
    """A folder of configurations that a function is given, as ``--config-dir`` of the command line.

    Raises:
        ConfigError: If there is none.

    Example:
        >>> own_folder("confx")
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: There is no folder confx, which config_dir names: ...
    """
    folder = Path(config_dir)
    if not folder.is_dir():
        raise ConfigError(f"There is no folder {folder}, which config_dir names: give that of your configurations.")
    return folder.resolve()


@contextmanager
def errors_in_sentences(config_dir: Path, config_name: str, arguments: Sequence[str]) -> Iterator[None]:
    """Inside the block, an error of the composition ends the process with one sentence and exit code 1.

    Args:
        config_dir: The folder of the configurations.
        config_name: The name of the composed one.
        arguments: Of the command line.
    """
    from hydra.errors import HydraException

    if RAISE in os.environ:  # whoever sets it wants Hydra's own words
        yield
        return
    _raise(True)
    try:
        yield
    except HydraException as error:
        sys.exit(f"ERROR: {sentence(str(error), arguments, lambda: known_keys(config_dir, config_name, arguments))}")
    finally:
        stop_raising()


def stop_raising() -> None:
    """End the block early: the configuration is composed, and Hydra prints what a job raises."""
    if _raising:
        _raise(False)


def _raise(on: bool) -> None:
    global _raising
    _raising = on
    if on:
        os.environ[RAISE] = "1"
    else:
        os.environ.pop(RAISE, None)


def sentence(message: str, arguments: Sequence[str], keys: Callable[[], Collection[str]]) -> str:
    r"""What to say instead of a message of Hydra.

    Args:
        message: Of Hydra's error.
        arguments: Of the command line.
        keys: Gives the keys and groups that there are; a group that is placed elsewhere as ``group@place``.

    Example:
        >>> sentence("Could not override 'metod'.\nTo append ...", ["metod=dsm"], lambda: ["method", "model"])
        "There is no key 'metod'. Did you mean method=dsm?"
        >>> sentence("Could not override 'figures'.\n...", ["figures=all"], lambda: ["figures@callbacks.figures"])
        "There is no key 'figures'. Did you mean figures@callbacks.figures=all?"
        >>> sentence("Could not find 'method/dsn'\n\nAvailable options in 'method':\n\tdsm\n\tcd", [], list)
        "method has no choice 'dsn'. Did you mean method=dsm? The choices are dsm, cd."
    """
    if match := re.match(r"Could not override '([^']+)'", message):
        key = match[1]
        value = next((text.partition("=")[2] for text in arguments if text.startswith(f"{key}=")), "...")
        known = {name.partition("@")[0]: name for name in keys()}
        if known.get(key) == key:  # a group that no default places
            return f"{key!r} is a group that is added at a key: +{key}@KEY={value}; docs/options.md names the key."
        return f"There is no key {key!r}. {_hint(key, value, known)}"
    if match := re.search(r"Could not find '(.+)/([^'/]+)'\s+Available options in '[^']+':((?:\n\t\S+)*)", message):
        group, choice = match[1], match[2]
        choices = [name for name in match[3].split() if not name.startswith("_")]  # the others are parts of these
        key = next((text.partition("=")[0] for text in arguments if text.endswith(f"={choice}")), group)
        found = nearest(choice, choices)
        hint = f" Did you mean {key}={found}?" if found else ""
        return f"{group} has no choice {choice!r}.{hint} The choices are {', '.join(choices)}."
    return " ".join(message.split())


def _hint(key: str, value: str, known: Mapping[str, str]) -> str:
    """The nearest of the known keys, or those beside it."""
    parent, _, name = key.rpartition(".")
    beside = [other.rpartition(".")[2] for other in known if parent and other.rpartition(".")[0] == parent]
    if beside:
        if close := get_close_matches(name, beside, n=1, cutoff=0.75):
            return f"Did you mean {parent}.{close[0]}={value}?"
        more = f"; +{key}={value} adds one" if parent.partition(".")[0] in OPEN else ""
        return f"{parent} has {', '.join(sorted(beside))}{more}."
    found = known.get(nearest(key, known) or "")
    return f"Did you mean {found}={value}?" if found else f"--cfg job shows all keys; +{key}={value} adds one."


def nearest(name: str, names: Collection[str]) -> str | None:
    """The name most like another one: a key of the same last word, or one of similar letters.

    Example:
        >>> nearest("n_lower_steps", ["method.n_lower_steps", "n_validations"])
        'method.n_lower_steps'
        >>> nearest("trainer.max_step", ["trainer.max_steps", "trainer.devices"])
        'trainer.max_steps'
        >>> nearest("xyz", ["seed"]) is None
        True
    """
    same = [known for known in names if known.rpartition(".")[2] == name.rpartition(".")[2]]
    close = get_close_matches(name, same or list(names), n=1, cutoff=0.0 if same else 0.5)
    return close[0] if close else None


def known_keys(config_dir: Path, config_name: str, arguments: Sequence[str] = ()) -> list[str]:
    """All keys and groups of the configuration with the choices of groups that a command line makes."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    names = [text.partition("=")[0].partition("@")[0].lstrip("+") for text in arguments]
    groups = {path.name for path in config_dir.iterdir() if path.is_dir()}
    choices = [text for text, name in zip(arguments, names, strict=True) if "=" in text and name in groups]
    with initialize_config_dir(version_base="1.3", config_dir=str(config_dir)):
        try:
            composed = compose(config_name, overrides=choices, return_hydra_config=True)
        except HydraException:  # among them an option of the user's own folder
            composed = compose(config_name, return_hydra_config=True)
    made = list(composed.hydra.runtime.choices)
    del composed.hydra
    placed = {name.partition("@")[0] for name in made}
    return list(dict.fromkeys([*_paths(OmegaConf.to_container(composed)), *made, *sorted(groups - placed)]))


def _paths(node: Any, path: str = "") -> Iterator[str]:
    """The dotted path of every key."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            here = f"{path}.{key}" if path else str(key)
            if not str(key).startswith("_"):  # _target_ and such are nobody's typing error
                yield here
            yield from _paths(value, here)
