"""One sentence for what Hydra refuses on a command line, with the nearest key or option there is."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from eblvm_lit.errors import ConfigError

__all__ = ["conf_folder", "nearest", "refuse_unread", "sentence"]


def conf_folder() -> Path:
    """The folder of the configurations: inside of an installed package, or at the top of a clone.

    Example:
        >>> (conf_folder() / "config.yaml").is_file()
        True
    """
    package = Path(__file__).parents[1]
    installed = package / "conf"
    return installed if installed.is_dir() else package.parents[1] / "conf"


def sentence(error: Exception, config_name: str, overrides: Sequence[str]) -> str:
    r"""What to say instead of an error of Hydra's composition.

    Args:
        error: Of the composition.
        config_name: The composed configuration.
        overrides: Of the command line.

    Example:
        >>> sentence(HydraException("Could not override 'metod'.\nTo append ..."), "config", ["metod=dsm"])
        "There is no key 'metod'. Did you mean method=dsm?"
        >>> missing = "Could not find 'method/dsn'\n\nAvailable options in 'method':\n\tdsm\n\tcd"
        >>> sentence(HydraException(missing), "config", ["method=dsn"])
        "method has no option 'dsn'. Did you mean method=dsm? The options are dsm, cd."
    """
    message = str(error)
    if match := re.match(r"Could not override '([^']+)'", message):
        key = match[1]
        value = next((text.partition("=")[2] for text in overrides if text.startswith(f"{key}=")), "...")
        known = _known(config_name, [text for text in overrides if not text.startswith(f"{key}=")])
        if known.get(key, key) == key and (conf_folder() / key).is_dir():
            return f"{key}={value}: this method and model have no {key}. Leave it out, or choose others."
        near = known.get(nearest(key, known) or "")
        return f"There is no key {key!r}. " + (f"Did you mean {near}={value}?" if near else "--cfg job shows all keys.")
    if match := re.search(r"Could not find '(.+)/([^'/]+)'\s+Available options in '[^']+':((?:\n\t\S+)*)", message):
        group, option = match[1], match[2]
        options = [name for name in match[3].split() if not name.startswith("_")]  # the others are parts of these
        key = next((text.partition("=")[0] for text in overrides if text.endswith(f"={option}")), group)
        near = nearest(option, options)
        hint = f" Did you mean {key}={near}?" if near else ""
        return f"{group} has no option {option!r}.{hint} The options are {', '.join(options)}."
    return " ".join(message.partition("\nSee https")[0].split())


def nearest(name: str, names: Collection[str]) -> str | None:
    """The name most like another one, among those of the same last word if there are any; None if none is like it.

    Example:
        >>> nearest("n_lower_steps", ["method.n_lower_steps", "n_validations"])
        'method.n_lower_steps'
        >>> nearest("trainer.max_step", ["trainer.max_steps", "trainer.devices"])
        'trainer.max_steps'
        >>> nearest("dsn", ["dsm", "snl"]), nearest("xyz", ["seed"])
        ('dsm', None)
    """
    same = [known for known in names if known.rpartition(".")[2] == name.rpartition(".")[2]]
    close = get_close_matches(name, same or list(names), n=3, cutoff=0.0 if same else 0.55)

    def likeness(other: str) -> tuple[float, bool]:
        return SequenceMatcher(a=other, b=name).ratio(), other[:2] == name[:2]

    return max(close, key=likeness, default=None)


def _known(config_name: str, overrides: Sequence[str]) -> dict[str, str]:
    """All keys and groups of the configuration with the options that a command line chooses, as they are written there.

    A group that is placed elsewhere is written ``group@place``.
    """
    groups = {path.name for path in conf_folder().iterdir() if path.is_dir()}
    chosen = [text for text in overrides if text.lstrip("+").partition("=")[0].partition("@")[0] in groups]
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_folder())):
        try:
            composed = compose(config_name, overrides=chosen, return_hydra_config=True)
        except HydraException:  # one of them is wrong, too
            composed = compose(config_name, return_hydra_config=True)
    options = list(composed.hydra.runtime.choices)
    del composed.hydra
    return {name.partition("@")[0]: name for name in [*_paths(OmegaConf.to_container(composed)), *options]}


def _paths(node: Any, path: str = "") -> Iterator[str]:
    """The dotted path of every key."""
    for key, value in node.items() if isinstance(node, Mapping) else ():
        here = f"{path}.{key}" if path else str(key)
        yield here
        yield from _paths(value, here)


def refuse_unread(cfg: DictConfig, overrides: Sequence[str]) -> None:
    """Refuse an override of what nothing reads: a part that the method does not have, and keys added by ``+``.

    Args:
        cfg: As composed, with its interpolations.
        overrides: Of the command line.

    Raises:
        ConfigError: Names the first one.

    Example:
        >>> cfg = OmegaConf.create({"method": {"energy": "${model}"}, "model": {"h_dim": 4}, "chain": {"n_steps": 1}})
        >>> refuse_unread(cfg, ["model.h_dim=5", "chain.n_steps=2"])
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: chain.n_steps: nothing reads chain in this run. Leave it out, ...
    """
    plain = OmegaConf.to_container(cfg)
    groups = ("data", "method", "trainer", "callbacks", "logger", "sampler")  # all runs have them
    read = {*OmegaConf.load(conf_folder() / "config.yaml"), *groups}
    read.remove("marginal_model")
    rest = [str(plain.get(name)) for name in read]
    while rest:
        found = set(re.findall(r"\$\{(\w+)", rest.pop())) - read
        read |= found
        rest += [str(plain.get(name)) for name in found]
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        key = override.key_or_group
        top = re.split(r"[./]", override.package or key)[0]  # of GROUP@PLACE the place
        if top not in {*read, "experiment", "debug", "hydra", "published"} and not override.is_delete():
            raise ConfigError(f"{key}: nothing reads {top} in this run. Leave it out, or choose a method that does.")
