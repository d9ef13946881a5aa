"""Messages of one sentence for command lines that Hydra refuses, which suggest the most similar key or option."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra import compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf

from eblvm_lit.errors import ConfigError
from eblvm_lit.runs.groups import composing, conf_folder, options_of
from eblvm_lit.utils.command_line import nearest, pasteable

__all__ = ["refuse_unread", "sentence"]

# Trainer options of Lightning that runs do not accept, mostly because runs count iterations instead of epochs. Each
# value names the option to use instead.
NOT_TAKEN = {
    **dict.fromkeys(("max_epochs", "min_epochs", "epochs"), "trainer.max_steps, in iterations"),
    **dict.fromkeys(("val_check_interval", "check_val_every_n_epoch"), "n_validations, the number in a whole run"),
    **{
        f"limit_{split}_batches": "max_examples, which limits each split"
        for split in ("train", "val", "test", "predict")
    },
    **dict.fromkeys(("fast_dev_run", "num_sanity_val_steps"), "debug=fast, which runs every stage once"),
    "test": "callbacks=training_only to test nothing",
    "train": "evaluate.py to train nothing",
    "accumulate_grad_batches": "data.batch_size",
    **dict.fromkeys(("gradient_clip_val", "gradient_clip_algorithm"), "optimizer.clip_norm"),
    **dict.fromkeys(("gpus", "num_processes", "device", "strategy"), "trainer.devices and trainer.accelerator"),
    **dict.fromkeys(("checkpoint", "ckpt_path", "resume_from_checkpoint"), "ckpt=PATH"),
    "enable_checkpointing": "callbacks.checkpoints, which every run needs",
}
FILES = ("npy", "npz", "csv", "tsv", "parquet", "mat", "pt")  # suffixes of the files that data=array reads
# Trainer options of Lightning that runs accept, although the configuration does not list them.
TAKEN = ("overfit_batches", "max_time", "benchmark", "detect_anomaly")


def sentence(error: Exception, config_name: str, overrides: Sequence[str]) -> str:
    r"""Return the message that replaces an error raised by Hydra when it composes a configuration.

    Args:
        error: The error of the composition.
        config_name: The name of the composed configuration.
        overrides: The overrides of the command line.

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
    if isinstance(error, OverrideParseException):
        return f"{error.override!r} is not of the form KEY=VALUE, or its value needs quotes: KEY='\"VALUE\"' in bash."
    if isinstance(error, ValueError):  # Hydra's error for a group whose value is a number or null
        return f"A group needs the name of one of its options, not a number or null, in: {' '.join(overrides)}."
    if match := re.search(r"Could not find '(.+)/([^'/]+)'\s+Available options in '[^']+':((?:\n\t\S+)*)", message):
        group, option, listed = match.groups()
        if group.partition("/")[0] == "data" and option.rpartition(".")[2] in FILES:
            path = f"{group}/{option}".removeprefix("data/")
            return f"data={path} is a file, and no option: write data=array {pasteable('data.path', path)}"
        # files whose names begin with _ are not options, but are included by options
        options = [name for name in listed.split() if not name.startswith("_")]
        key = next((text.partition("=")[0] for text in overrides if text.endswith(f"={option}")), group)
        hint = _hint(key, nearest(option, options), config_name, overrides)
        return f"{group} has no option {option!r}.{hint} The options are {', '.join(options)}."
    return " ".join(message.partition("\nSee https")[0].split())


def _no_key(key: str, config_name: str, overrides: Sequence[str]) -> str:
    """Return the error message for an override of a key that does not exist."""
    value = next((text.partition("=")[2] for text in overrides if text.startswith(f"{key}=")), "...")
    name = key.removeprefix("trainer.")
    if name in NOT_TAKEN:
        return f"{key} is not accepted: use {NOT_TAKEN[name]}."
    if name in TAKEN:
        return f"There is no key {key!r}. Add it by +trainer.{name}={value}"
    if key == "data.path":
        return (
            "There is no key 'data.path' here: it belongs to data=array and data=image_folder. If the file of a run "
            "has moved, evaluate.py takes data_root=FOLDER."
        )
    known = _known(config_name, [text for text in overrides if not text.startswith(f"{key}=")])
    if known.get(key, key) == key and (conf_folder() / key).is_dir():
        return f"{key}={value}: the run, or the method and the model, leave no {key} to choose. Leave it out."
    name = nearest({"metrics": "evaluation"}.get(key, key), known)
    hint = _hint(known.get(name or ""), value, config_name, overrides)
    return f"There is no key {key!r}.{hint or ' --cfg job shows all keys.'}"


def _hint(key: str | None, value: str | None, config_name: str, overrides: Sequence[str]) -> str:
    """Return the question "Did you mean KEY=VALUE?" if Hydra accepts this override, and an empty string if not."""
    text = f"{key}={value}"
    others = [other for other in _choices(overrides) if not other.startswith(f"{key}=")]
    works = key and value and any(_composed(config_name, words) for words in ([*others, text], [text]))
    return f" Did you mean {text}?" if works else ""


def _choices(overrides: Sequence[str]) -> list[str]:
    """Return only those overrides of a command line that choose an option of a configuration group."""
    return [text for text in overrides if options_of(text.lstrip("+").partition("=")[0].partition("@")[0])]


def _composed(config_name: str, overrides: Sequence[str]) -> DictConfig | None:
    """Compose a configuration from overrides; return None if Hydra raises an error."""
    try:
        with composing():
            return compose(config_name, overrides=list(overrides), return_hydra_config=True)
    except (HydraException, ValueError):
        return None


def _known(config_name: str, overrides: Sequence[str]) -> dict[str, str]:
    """Return the spelling on the command line of each key and group that a run with the given overrides uses.

    The result is a dict by the name of the key or group. A group that is placed elsewhere is written ``group@place``.
    Keys whose value refers to a whole group, such as ``${model}``, are left out.
    """
    composed: Any = _composed(config_name, _choices(overrides)) or _composed(
        config_name, []
    )  # fall back to the default options if a chosen one is wrong
    options = list(composed.hydra.runtime.choices)
    del composed.hydra
    read = _read(composed, config_name)
    parts = {f"${{{name}}}" for name in (*options, "marginal_model")}
    keys = [key for key, value in _leaves(OmegaConf.to_container(composed)) if value not in parts]
    return {name.partition("@")[0]: name for name in (*keys, *options) if _top(name.rpartition("@")[2]) in read}


def _leaves(node: Mapping[Any, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted path of every key whose value is not a mapping, together with the value as text."""
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", str(value)


def _top(key: str) -> str:
    """Return the part of a key, or of a group's name, before the first dot or slash."""
    return re.split(r"[./]", key)[0]


def _read(cfg: DictConfig, config_name: str) -> set[str]:
    """Return the top-level keys that a run uses, and the groups, as ``experiment``, that only change other keys."""
    plain: Any = OmegaConf.to_container(cfg)
    groups = ("data", "method", "trainer", "callbacks", "logger", "sampler")  # every run uses these keys
    read = {*OmegaConf.load(conf_folder() / f"{config_name}.yaml"), *groups}
    read.discard("marginal_model")
    rest = [str(plain.get(name)) for name in read]
    while rest:
        found = set(re.findall(r"\$\{(\w+)", rest.pop())) - read
        read |= found
        rest += [str(plain.get(name)) for name in found]
    return {*read, "experiment", "debug", "hydra", "kind", "published"}


def refuse_unread(cfg: DictConfig, overrides: Sequence[str]) -> None:
    """Refuse Trainer options that runs do not accept, and overrides of keys that this run does not use.

    Args:
        cfg: The composed configuration, with its interpolations.
        overrides: The overrides of the command line.

    Raises:
        ConfigError: With the first such option or key.

    Example:
        >>> cfg = OmegaConf.create({"method": {"energy": "${model}"}, "model": {"h_dim": 4}, "chain": {"n_steps": 1}})
        >>> refuse_unread(cfg, ["model.h_dim=5", "chain.n_steps=2"])
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: chain.n_steps: nothing reads chain in this run. Leave it out, ...
    """
    trainer: Any = cfg.get("trainer") or {}
    for name in sorted(NOT_TAKEN.keys() & trainer.keys()):
        raise ConfigError(f"trainer.{name} is not accepted: use {NOT_TAKEN[name]}.")
    read = _read(cfg, "config")
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        key = override.key_or_group
        top = _top(override.package or key)  # an override GROUP@PACKAGE=OPTION changes the keys below PACKAGE
        if top not in read and not override.is_delete():
            raise ConfigError(f"{key}: nothing reads {top} in this run. Leave it out, or choose a method that uses it.")
