"""The one place where a configuration becomes objects."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate as hydra_instantiate
from omegaconf import DictConfig, ListConfig, OmegaConf

from eblvm_lit.errors import ConfigError, EblvmError

__all__ = ["instantiate", "resolve_target"]

# Packages whose public classes and functions a configuration may name.
ALLOWED_PACKAGES = ("eblvm_lit",)
# Names from elsewhere, one by one.
ALLOWED_NAMES = (
    "pytorch_lightning.Trainer",
    "pytorch_lightning.callbacks.LearningRateMonitor",
    "pytorch_lightning.callbacks.ModelCheckpoint",
    "pytorch_lightning.loggers.TensorBoardLogger",
    "pytorch_lightning.loggers.WandbLogger",
    "pytorch_lightning.profilers.SimpleProfiler",
)


def resolve_target(name: str, extra_packages: Sequence[str] = ()) -> Any:
    """The class or function a ``_target_`` names, if it may be named.

    A name of an allowed package counts only where the thing was *defined* in that package: ``eblvm_lit.run.os.system``
    is a name inside of ours for something that is not.

    Args:
        name: Dotted path.
        extra_packages: Further allowed packages, for a user's own code; never taken from a checkpoint.

    Raises:
        ConfigError: If the name is not allowed or does not exist.

    Example:
        >>> resolve_target("eblvm_lit.objectives.sm.SM").__name__
        'SM'
        >>> resolve_target("os.system")
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: A configuration may not name 'os.system'; ...
    """
    packages = (*ALLOWED_PACKAGES, *extra_packages)
    module_name, _, attribute = name.rpartition(".") if isinstance(name, str) else ("", "", "")
    inside = any(module_name == package or module_name.startswith(f"{package}.") for package in packages)
    if not inside and name not in ALLOWED_NAMES:
        raise ConfigError(
            f"A configuration may not name {name!r}; it may name classes of {', '.join(packages)} "
            "and a few of pytorch_lightning (add a package of yours with allow_packages=[...])."
        )
    try:
        target = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"There is no {name!r} ({error}).") from None
    origin = getattr(target, "__module__", None) or ""
    own = any(origin == package or origin.startswith(f"{package}.") for package in packages)
    if not callable(target) or (inside and not own):
        raise ConfigError(f"A configuration may not name {name!r}: it is not a class or function defined there.")
    return target


def _check(node: Any, path: str, extra_packages: Sequence[str]) -> None:
    """Refuse forbidden targets, Hydra's other special keys, and arguments the target does not have."""
    if isinstance(node, list):
        for index, item in enumerate(node):
            _check(item, f"{path}[{index}]", extra_packages)
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        _check(value, f"{path}.{key}" if path else str(key), extra_packages)
    special = [key for key in node if isinstance(key, str) and key.startswith("_") and key != "_target_"]
    if special:
        raise ConfigError(f"{path or 'The configuration'} has a key {special[0]!r} that is not allowed.")
    if "_target_" in node:
        signature = inspect.signature(resolve_target(node["_target_"], extra_packages))
        names = [p.name for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        if len(names) == len(signature.parameters):
            unknown = sorted(set(node) - {"_target_"} - set(names))
            if unknown:
                raise ConfigError(
                    f"{path} ({node['_target_']}) has no key {unknown[0]!r}; it has {', '.join(names) or 'none'}."
                )


def instantiate(node: Any, path: str, extra_packages: Sequence[str] = ()) -> Any:
    """Build what a configuration node describes, with everything nested in it.

    Args:
        node: A configuration node, or a plain container.
        path: Where it stands, for messages.
        extra_packages: See :func:`resolve_target`.

    Raises:
        ConfigError: For a forbidden or unknown target, an unknown key, or a missing value.

    Example:
        >>> instantiate({"_target_": "eblvm_lit.objectives.dsm.DSM", "noise_std": 0.3}, "objective").noise_std
        0.3
    """
    if isinstance(node, DictConfig | ListConfig):
        missing = OmegaConf.missing_keys(node)
        if missing:
            raise ConfigError(f"{path}.{min(missing)} has no value: set it on the command line or in a setting file.")
        node = OmegaConf.to_container(node, resolve=True)
    if node is None:
        return None
    _check(node, path, extra_packages)
    try:
        return hydra_instantiate(node, _convert_="all")
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, EblvmError):
            raise cause from None
        if isinstance(cause, TypeError | ValueError):
            raise ConfigError(f"{path} does not fit: {cause}") from cause
        raise
