"""One sentence for what Hydra refuses on a command line, with the nearest key or option there is."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf

from eblvm_lit.errors import ConfigError
from eblvm_lit.utils.command_line import pasteable

__all__ = ["HYDRA", "composing", "conf_folder", "nearest", "refuse_unread", "sentence"]

# What Hydra's versions ask for: 1.3 acts as 1.1 unless it is told, and later ones warn of the word.
HYDRA = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}

# Words of Lightning that runs do not take, most because they count iterations, and what does their work.
NOT_TAKEN = {
    **dict.fromkeys(("max_epochs", "min_epochs", "epochs"), "trainer.max_steps, in iterations"),
    **dict.fromkeys(("val_check_interval", "check_val_every_n_epoch"), "n_validations, how many a run has"),
    **{f"limit_{split}_batches": "max_examples, of each split" for split in ("train", "val", "test", "predict")},
    **dict.fromkeys(("fast_dev_run", "num_sanity_val_steps"), "debug=fast, in which every stage runs once"),
    "test": "callbacks=training_only to test nothing",
    "train": "evaluate.py to train nothing",
    "accumulate_grad_batches": "data.batch_size",
    **dict.fromkeys(("gradient_clip_val", "gradient_clip_algorithm"), "optimizer.clip_norm"),
    **dict.fromkeys(("gpus", "num_processes", "device", "strategy"), "trainer.devices and trainer.accelerator"),
    **dict.fromkeys(("checkpoint", "ckpt_path", "resume_from_checkpoint"), "ckpt=PATH"),
    "enable_checkpointing": "callbacks.checkpoints=null",
}
TAKEN = ("overfit_batches", "max_time", "benchmark", "detect_anomaly")  # words of Lightning, not in the configuration
LEAST_LIKENESS = 0.6  # of two words for a hint, by difflib: up to it, likeness is luck


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
        return _no_key(match[1], config_name, overrides)
    if isinstance(error, OverrideParseException) and re.match(r"[^=]+=[^=\[{(\"'].*[=/]", error.override):
        key, _, value = error.override.partition("=")
        return f"{error.override} cannot be read: its value needs quotes. In bash, write {pasteable(key, value)}"
    if match := re.search(r"Could not find '(.+)/([^'/]+)'\s+Available options in '[^']+':((?:\n\t\S+)*)", message):
        group, option = match[1], match[2]
        options = [name for name in match[3].split() if not name.startswith("_")]  # the others are parts of these
        key = next((text.partition("=")[0] for text in overrides if text.endswith(f"={option}")), group)
        near = nearest(option, options)
        hint = f" Did you mean {key}={near}?" if near else ""
        return f"{group} has no option {option!r}.{hint} The options are {', '.join(options)}."
    return " ".join(message.partition("\nSee https")[0].split())


def _no_key(key: str, config_name: str, overrides: Sequence[str]) -> str:
    """What to say of a key that is not there."""
    value = next((text.partition("=")[2] for text in overrides if text.startswith(f"{key}=")), "...")
    name = key.removeprefix("trainer.")
    if name in NOT_TAKEN:
        return f"{key} is not taken: use {NOT_TAKEN[name]}."
    if name in TAKEN:
        return f"There is no key {key!r}. Add it by +trainer.{name}={value}"
    known = _known(config_name, [text for text in overrides if not text.startswith(f"{key}=")])
    if known.get(key, key) == key and (conf_folder() / key).is_dir():
        return f"{key}={value}: this method and model have no {key}. Leave it out, or choose others."
    near = known.get(nearest(key, known) or "")
    return f"There is no key {key!r}. " + (f"Did you mean {near}={value}?" if near else "--cfg job shows all keys.")


def nearest(name: str, names: Collection[str]) -> str | None:
    """The name whose last word is the same as that of another one or most like it; None if none is like it.

    Example:
        >>> nearest("n_lower_steps", ["method.n_lower_steps", "n_validations"])
        'method.n_lower_steps'
        >>> nearest("trainer.max_step", ["trainer.max_steps", "trainer.devices"])
        'trainer.max_steps'
        >>> nearest("dsn", ["dsm", "snl"]), nearest("test", ["threads"]), nearest("trainer.foo", ["schedule.floor"])
        ('dsm', None, None)
    """

    def likeness(known: str) -> tuple[float, float, bool]:
        pairs = ((known.rpartition(".")[2], name.rpartition(".")[2]), (known, name))
        word, whole = (SequenceMatcher(a=a, b=b).ratio() for a, b in pairs)
        return word, whole, known[:2] == name[:2]

    found = {known: likeness(known) for known in names}
    like = [known for known, (word, whole, _) in found.items() if word == 1 or min(word, whole) > LEAST_LIKENESS]
    return max(like, key=found.__getitem__, default=None)


def _known(config_name: str, overrides: Sequence[str]) -> dict[str, str]:
    """The keys and groups that are read with the options that a command line chooses, as they are written there.

    A group that is placed elsewhere is written ``group@place``.
    """
    groups = {path.name for path in conf_folder().iterdir() if path.is_dir()}
    chosen = [text for text in overrides if text.lstrip("+").partition("=")[0].partition("@")[0] in groups]
    with composing():
        try:
            composed = compose(config_name, overrides=chosen, return_hydra_config=True)
        except HydraException:  # one of them is wrong, too
            composed = compose(config_name, return_hydra_config=True)
    options = list(composed.hydra.runtime.choices)
    del composed.hydra
    read = _read(composed, config_name)
    names = [*_paths(OmegaConf.to_container(composed)), *options]
    return {name.partition("@")[0]: name for name in names if _top(name.rpartition("@")[2]) in read}


def _paths(node: Any, path: str = "") -> Iterator[str]:
    """The dotted path of every key."""
    for key, value in node.items() if isinstance(node, Mapping) else ():
        here = f"{path}.{key}" if path else str(key)
        yield here
        yield from _paths(value, here)


def _top(key: str) -> str:
    """The first word of a key, or of a group's name."""
    return re.split(r"[./]", key)[0]


def _read(cfg: DictConfig, config_name: str) -> set[str]:
    """What is read of the keys at the top of a configuration, and the groups that change others."""
    plain: Any = OmegaConf.to_container(cfg)
    groups = ("data", "method", "trainer", "callbacks", "logger", "sampler")  # all runs have them
    read = {*OmegaConf.load(conf_folder() / f"{config_name}.yaml"), *groups}
    read.discard("marginal_model")
    rest = [str(plain.get(name)) for name in read]
    while rest:
        found = set(re.findall(r"\$\{(\w+)", rest.pop())) - read
        read |= found
        rest += [str(plain.get(name)) for name in found]
    return {*read, "experiment", "debug", "hydra", "published"}


def refuse_unread(cfg: DictConfig, overrides: Sequence[str]) -> None:
    """Refuse options of Lightning that runs do not take, and an override of what nothing reads in this run.

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
    trainer: Any = cfg.get("trainer") or {}
    for name in sorted(NOT_TAKEN.keys() & trainer.keys()):
        raise ConfigError(f"trainer.{name} is not taken: use {NOT_TAKEN[name]}.")
    if isinstance(trainer.get("overfit_batches"), float):
        raise ConfigError("trainer.overfit_batches is a number of minibatches, and no fraction of them.")
    read = _read(cfg, "config")
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        key = override.key_or_group
        top = _top(override.package or key)  # of GROUP@PLACE the place
        if top not in read and not override.is_delete():
            raise ConfigError(f"{key}: nothing reads {top} in this run. Leave it out, or choose a method that does.")
