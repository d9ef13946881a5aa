"""Checks of a composed configuration before anything is built."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from eblvm_lit.cli.annotations import check_value
from eblvm_lit.cli.instantiate import chosen, unresolved
from eblvm_lit.cli.renamed import new_name
from eblvm_lit.cli.results import WEIGHTS
from eblvm_lit.errors import ConfigError
from eblvm_lit.utils.io import refuse_url

__all__ = ["check_config", "check_integer", "check_keys", "check_types", "drop_unread", "refuse_unread", "refuse_urls"]

# Keys that name files or folders, at any depth of a configuration.
PATH_KEYS = {"ckpt", "root", "path", "weights", "folder", "save_dir"}
PATH_KEYS |= {"cache_dir", "run_dir", "outputs_dir", "data_root"}

# What not every method reads. A choice nobody reads must not look as if it had been used.
PARTS = (
    *("model", "marginal_model", "objective", "posterior", "divergence", "n_unroll", "hypergradient", "score"),
    *("particles", "estimate", "covariance", "chain", "noise_distribution", "generator", "ratio", "loss", "compile"),
)
# All top-level keys of a run; any other key is an error, because nothing would read it.
TRAIN_KEYS = (
    *PARTS,
    *("allow_packages", "cache_dir", "callbacks", "ckpt", "data", "data_energy", "eval_weights", "final_lr"),
    *("iterations_per_batch", "latent_langevin", "logger", "method", "n_validations", "noise"),
    *("optimized_metric", "optimizer", "outputs_dir", "resume", "run_dir", "sampler", "seed", "show_config", "sizes"),
    *("summary", "sweep", "test_checkpoint", "tf32", "threads", "trainer"),
)
# The types of what no constructor takes, and so no annotation of one says.
TYPES: dict[str, Any] = {
    "run_dir": str,
    **dict.fromkeys(("outputs_dir", "cache_dir", "data_root", "ckpt", "optimized_metric", "device"), str | None),
    **dict.fromkeys(("data", "method", "trainer", "callbacks", "sizes", "sweep"), Mapping),
    **dict.fromkeys(("data_energy", "latent_langevin", "model", "generator"), Mapping | None),
    **dict.fromkeys(("summary", "show_config", "sweep.resume"), bool),
    **{"logger": Mapping | None, "allow_packages": Sequence[str] | str | None, "tf32": bool | None},
    **{"noise": Mapping[str, float | str], "final_lr": float | None},  # a part may read them, or none
    **{"sizes.v_shape": Sequence, "threads": int | None},
}
# More threads than any machine has processors; the library that starts them ends the process where they do not fit.
MAX_THREADS = 1024
EVALUATE_KEYS = (
    *("allow_packages", "cache_dir", "callbacks", "ckpt", "data_root", "logger", "optimized_metric", "run_dir"),
    *("device", "sampler", "seed", "eval_weights"),
)


def check_keys(cfg: DictConfig, known: Collection[str]) -> None:
    """Refuse unknown top-level keys, which ``+key=value`` can add.

    Raises:
        ConfigError: Names the first one and the most similar known key.

    Example:
        >>> check_keys(OmegaConf.create({"treads": 2}), TRAIN_KEYS)
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: There is no key 'treads' (threads?): --cfg job shows all keys.
    """
    for key in cfg:
        if key not in known:
            if sentence := new_name(str(key)):
                raise ConfigError(sentence)
            similar = "".join(f" ({name}?)" for name in get_close_matches(str(key), known, n=1))
            raise ConfigError(f"There is no key {key!r}{similar}: --cfg job shows all keys.")


def check_types(cfg: DictConfig) -> None:
    """Refuse values of a wrong type at the top of a configuration, which no constructor takes.

    Raises:
        ConfigError: Names the first one.

    Example:
        >>> check_types(OmegaConf.create({"run_dir": "outputs/a", "sweep": {"resume": False}}))
        >>> check_types(OmegaConf.create({"run_dir": 10}))
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: run_dir must be str, not 10.
    """
    for path, hint in TYPES.items():
        top = path.partition(".")[0]
        if top not in cfg or OmegaConf.is_missing(cfg, path):
            continue
        try:
            value = OmegaConf.select(cfg, path)
        except OmegaConfBaseException as error:
            raise unresolved(error, path) from None
        check_value(OmegaConf.to_container(value) if OmegaConf.is_config(value) else value, hint, path)


def drop_unread(cfg: DictConfig) -> None:
    """Leave out the parts that neither the method nor anything else of the run reads, such as the posterior of DSM.

    Args:
        cfg: As composed, with its interpolations; changed in place.

    Example:
        >>> cfg = OmegaConf.create({"method": {"energy": "${model}"}, "model": {"h_dim": 4}, "chain": {"n_steps": 1}})
        >>> drop_unread(cfg)
        >>> list(cfg)
        ['method', 'model']
    """
    read = _paths_read(cfg)
    with open_dict(cfg):
        for part in PARTS:
            if part in list(cfg) and not any(_overlap(part, path) for path in read):
                del cfg[part]


def refuse_unread(cfg: DictConfig, overrides: Sequence[str]) -> None:
    """Refuse a choice or a value of a part that nothing reads.

    Args:
        cfg: As composed, with its interpolations.
        overrides: Of the command line.

    Raises:
        ConfigError: Names the first one.

    Example:
        >>> cfg = OmegaConf.create({"method": {"energy": "${model}"}, "model": {"h_dim": 4}, "chain": {"n_steps": 1}})
        >>> refuse_unread(cfg, ["model.h_dim=5", "chain=langevin"])
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: This method has no chain: leave out chain=..., or choose a method that has one.
    """
    read = _paths_read(cfg)
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        key = override.key_or_group
        part = key.partition(".")[0]
        if part not in PARTS or override.is_delete() or any(_overlap(key, path) for path in read):
            continue
        if any(_overlap(part, path) for path in read):
            raise ConfigError(f"This method does not read {key}: leave it out, or choose a method that does.")
        raise ConfigError(f"This method has no {part}: leave out {part}=..., or choose a method that has one.")


def _paths_read(cfg: DictConfig) -> set[str]:
    """The paths that interpolations of a run name: those outside of its parts, and of what these name in turn."""
    plain = OmegaConf.to_container(cfg)
    found: set[str] = set()
    rest = [str(node) for key, node in plain.items() if key not in PARTS]
    while rest:
        named = set(re.findall(r"\$\{(\w[\w.]*)\}", rest.pop())) - found
        found |= named
        rest += [str(_at(plain, path)) for path in named]
    return found


def _at(plain: Any, path: str) -> Any:
    """The unresolved node at a path; None where there is none, or it is a value another node names."""
    for key in path.split("."):
        plain = plain.get(key) if isinstance(plain, dict) else None
    return plain


def _overlap(one: str, other: str) -> bool:
    """Whether a path is above or below another, or the same."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def check_config(cfg: DictConfig) -> None:
    """Refuse a configuration that cannot work, before anything is built.

    Raises:
        ConfigError: Names the first problem.
    """
    _check_shapes(cfg)
    try:
        plain = OmegaConf.to_container(cfg, resolve=True)
    except OmegaConfBaseException as error:
        raise unresolved(error) from None
    check_keys(cfg, TRAIN_KEYS)
    refuse_urls(plain)
    if "generator" in cfg.method:
        _refuse_chains(OmegaConf.to_container(cfg.callbacks, resolve=True), "callbacks")
    if cfg.trainer.get("strategy") not in (None, "auto"):
        raise ConfigError("trainer.strategy follows from trainer.devices: leave it out.")
    check_integer("trainer.num_nodes", cfg.trainer.num_nodes, 1)
    check_integer("seed", cfg.seed, 0, 2**32 - 1)
    check_integer("trainer.max_steps (iterations)", cfg.trainer.max_steps, 1)
    check_integer("trainer.log_every_n_steps", cfg.trainer.log_every_n_steps, 1)
    check_integer("trainer.overfit_batches", cfg.trainer.get("overfit_batches", 0), 0)
    if cfg.get("threads") is not None:
        check_integer("threads", cfg.threads, 1, MAX_THREADS)
    check_integer("iterations_per_batch", cfg.get("iterations_per_batch", 1), 1)
    check_integer("n_validations", cfg.n_validations, 1)  # more than there are iterations: see adapt
    if cfg.test_checkpoint not in ("best", "last", "both"):
        raise ConfigError(f"test_checkpoint is 'best', 'last' or 'both', not {cfg.test_checkpoint!r}.")
    if cfg.eval_weights not in WEIGHTS:
        raise ConfigError(f"eval_weights is raw, ema or both, not {cfg.eval_weights!r}.")


def _check_shapes(cfg: DictConfig) -> None:
    """Refuse a model of images for vectors, and one of vectors for images; of one's own models nothing is known."""
    shape = OmegaConf.select(cfg, "sizes.v_shape")
    nodes = {name: OmegaConf.to_container(cfg[name]) for name in ("model", "generator") if cfg.get(name) is not None}
    for name, node in nodes.items():
        if shape is None or not str(node.get("_target_")).startswith("eblvm_lit."):
            continue
        networks = [part for part in node.values() if isinstance(part, dict)]
        of_images = any("v_shape" in part for part in (node, *networks))
        are_images = len(shape) == 3 and not cfg.data.get("flatten")
        if of_images and not are_images:
            models = "model=grbm, model=deep_toy or " if name == "model" and "generator" not in nodes else ""
            if "generator" in node:
                models = "model=latent_prior_toy or "
            size = f" of size {shape[0]}" if len(shape) == 1 else ""
            raise ConfigError(
                f"{chosen(name)} needs images, and {chosen('data')} has vectors{size}: use {models}data of images, "
                "such as data=mnist."
            )
        if "v_dim" in node and are_images:
            cures = "model=deep_small, model=deep" + (" or data.flatten=true" if "flatten" in cfg.data else "")
            raise ConfigError(f"{chosen(name)} needs vectors, and {chosen('data')} has images: use {cures}.")


def _refuse_chains(node: Any, path: str) -> None:
    """Refuse annealed Langevin dynamics anywhere below a node: methods with a generator draw images from it."""
    if not isinstance(node, dict):
        return
    if str(node.get("_target_")).endswith(".AnnealedSamples"):
        raise ConfigError(
            f"{path} would draw images by annealed Langevin dynamics, but this method has a generator: leave "
            "sampler=... out, and choose its figures and metrics (figures@callbacks.figures.figures=generator, "
            "evaluation@callbacks.evaluation.metrics=generator)."
        )
    for key, value in node.items():
        _refuse_chains(value, f"{path}.{key}")


def refuse_urls(node: Any, path: str = "") -> None:
    """Refuse URLs in all keys that name files or folders.

    Args:
        node: Plain containers.
        path: The position of the node in the configuration, for the message.

    Raises:
        ConfigError: Names the first such key.

    Example:
        >>> refuse_urls({"data": {"root": "data"}, "title": "see https://example.org"})
    """
    if isinstance(node, Mapping):
        for key, value in node.items():
            here = f"{path}.{key}" if path else str(key)
            if key in PATH_KEYS and isinstance(value, str):
                refuse_url(here, value)
            refuse_urls(value, here)
    elif isinstance(node, Sequence) and not isinstance(node, str):
        for index, value in enumerate(node):
            refuse_urls(value, f"{path}[{index}]")


def check_integer(name: str, value: Any, lowest: int, highest: int | None = None) -> None:
    """Refuse anything but an integer in a range.

    Example:
        >>> check_integer("seed", -1, 0)
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: seed must be an integer of at least 0, not -1.
    """
    if type(value) is int and lowest <= value and (highest is None or value <= highest):
        return
    bounds = f"of at least {lowest}" if highest is None else f"between {lowest} and {highest}"
    raise ConfigError(f"{name} must be an integer {bounds}, not {value!r}.")
