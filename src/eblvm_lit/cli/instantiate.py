"""Safe instantiation: builds the objects of a configuration from an allow-list of classes."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, get_args, get_origin

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, InterpolationToMissingValueError, OmegaConfBaseException

from eblvm_lit.cli.annotations import CONTAINERS, check_value, is_part, options_of
from eblvm_lit.cli.own_packages import import_module
from eblvm_lit.errors import ConfigError, EblvmError

__all__ = [
    *(
        "LIGHTNING",
        "check_arguments",
        "check_class",
        "chosen",
        "instantiate",
        "resolve_target",
        "to_plain",
        "unresolved",
    ),
]

# Packages whose classes a configuration may name.
ALLOWED_PACKAGES = ("eblvm_lit",)
# Single classes of other packages.
ALLOWED_NAMES = ("pytorch_lightning.Trainer",)
# What the command line may name in addition, and a checkpoint may not: some write to places, or send to addresses, of
# their own choice.
LIGHTNING = ("pytorch_lightning.callbacks", "pytorch_lightning.loggers")


def resolve_target(name: str, extra_packages: Sequence[str] = ()) -> type:
    """The class of a ``_target_``, if it is allowed.

    Only classes are allowed: with functions such as ``eblvm_lit.core.tensors.tree_map``, a configuration could call
    anything. The class must be *defined* in an allowed package: ``eblvm_lit.utils.io.os.system`` is reachable through
    this package, but is not part of it.

    Args:
        name: Dotted path.
        extra_packages: Further allowed packages, for user code; never read from a checkpoint.

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
    inside = _within(module_name, packages)
    if not inside and name not in ALLOWED_NAMES:
        raise ConfigError(
            f"A configuration may not name {name!r}; it may name classes of {', '.join(packages)} "
            "(add a package of yours with allow_packages=[...])."
        )
    try:
        module = import_module(module_name) if _within(module_name, extra_packages) else None
        target = getattr(module or importlib.import_module(module_name), attribute)
    except (
        ImportError,
        AttributeError,
        ValueError,
        RecursionError,
    ) as error:  # for impossible names, too
        raise ConfigError(f"There is no {name!r} ({' '.join(str(error).split())}).") from None
    if not isinstance(target, type) or (inside and not _within(target.__module__, packages)):
        kind = type(target).__name__ if not isinstance(target, type) else f"class of {target.__module__}"
        raise ConfigError(f"A configuration may not name {name!r}: it is not a class defined there, but a {kind}.")
    return target


def _within(module: str, packages: Sequence[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def to_plain(node: Any, path: str = "") -> Any:
    """Convert a configuration node to plain containers and resolve its interpolations.

    Raises:
        ConfigError: If a value is missing or an interpolation cannot be resolved.
    """
    if not isinstance(node, DictConfig | ListConfig):
        return node
    missing = OmegaConf.missing_keys(node)
    try:
        plain = OmegaConf.to_container(node, resolve=True)
    except OmegaConfBaseException as error:
        raise unresolved(error, path) from None
    if missing:
        name = min(missing)  # relative to the root, which may be the node itself
        name = f"{path}.{name}" if path and node._get_parent() is None else name
        raise ConfigError(f"{name} has no value: set it on the command line or in a file of conf/.")
    return plain


def chosen(group: str) -> str:
    """A group with the option that is chosen, as on the command line; the group alone where Hydra does not run.

    Example:
        >>> chosen("model")
        'model'
    """
    option = HydraConfig.get().runtime.choices.get(group) if HydraConfig.initialized() else None
    return group if option is None else f"{group}={option}"


def _options(group: str) -> list[str]:
    """The options of a group, where Hydra runs; files with an underscore are parts of others."""
    hydra = GlobalHydra.instance()
    found = hydra.config_loader().get_group_options(group) if hydra.is_initialized() else []
    return [name for name in found if not name.startswith("_")]


def unresolved(error: OmegaConfBaseException, path: str = "") -> ConfigError:
    """The sentence for a value that is taken from another one, which is not there.

    Args:
        error: What OmegaConf raised while it resolved a configuration.
        path: The position of the configuration, where the error does not say the key.

    Example:
        >>> cfg = OmegaConf.create({"optimizer": {"lr": "${sizes.lr}"}, "sizes": {"lr": "???"}})
        >>> try:
        ...     OmegaConf.to_container(cfg, resolve=True)
        ... except OmegaConfBaseException as error:
        ...     print(unresolved(error))
        optimizer.lr is taken from sizes.lr, which has no value here: set one of them.
    """
    key, reason = error.full_key or path, " ".join(str(error).split("\n    ")[0].split())
    if isinstance(error, InterpolationKeyError) and (found := re.search(r"key '([\w.]+)' not found", reason)):
        source, part = found[1], key.partition(".")[0]
        if options := _options(source):  # a whole group of which nothing is chosen
            return ConfigError(f"{chosen(part)} needs {' or '.join(f'{source}={name}' for name in options)}.")
        group = source.partition(".")[0]
        if group != source and _options(group) and _options(part):  # two parts that do not fit
            return ConfigError(
                f"{chosen(part)} takes {source}, which {chosen(group)} does not have: choose another {part}, another "
                f"{group}, or set {key}."
            )
        return ConfigError(f"{key} is taken from {source}, which has no value here: set one of them.")
    if isinstance(error, InterpolationToMissingValueError) and (found := re.search(r"([\w.]+)$", reason)):
        return ConfigError(f"{key} is taken from {found[1]}, which has no value here: set one of them.")
    return ConfigError(f"{key} cannot be resolved: {reason}.")


def _check_classes(value: Any, hint: Any, path: str, extra_packages: Sequence[str]) -> None:
    """Refuse an object of another class than an annotation names, also as an element of a container."""
    options = options_of(hint)
    if isinstance(value, dict) and "_target_" in value:
        classes = tuple(option for option in options if isinstance(option, type))
        if any(map(is_part, classes)):
            check_class(resolve_target(value["_target_"], extra_packages), classes, path)
        return
    named = [option for option in options if is_part(option)]
    if isinstance(value, dict) and named:  # for example other keys of a metric that the choice of metrics has left out
        raise ConfigError(
            f"{path} has keys of a {named[0].__name__} and names no class: give it _target_, or leave it out with "
            f"'~{path}'."
        )
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    elements = [get_args(option)[-1] for option in options if get_origin(option) in CONTAINERS]
    for key, item in items if elements else ():
        place = f"{path}.{key}" if isinstance(value, dict) else f"{path}[{key}]"
        _check_classes(item, elements[0], place, extra_packages)


def check_class(target: type, classes: tuple[type, ...], path: str) -> None:
    """Refuse a class that derives from none of some classes.

    Raises:
        ConfigError: Names the class to derive from.

    Example:
        >>> from eblvm_lit.energies.base import Energy
        >>> check_class(dict, (Energy, type(None)), "model")
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: model must be Energy, not builtins.dict: derive it from ...
    """
    if not issubclass(target, classes):
        wanted = [kind for kind in classes if kind is not NoneType]
        raise ConfigError(
            f"{path} must be {' or '.join(kind.__name__ for kind in wanted)}, not {target.__module__}."
            f"{target.__qualname__}: derive it from {wanted[0].__module__}.{wanted[0].__qualname__}."
        )


def check_arguments(target: type, arguments: Mapping[str, Any], path: str, extra_packages: Sequence[str] = ()) -> None:
    """Refuse unknown and missing arguments, and arguments of a wrong type.

    Args:
        target: The class.
        arguments: The arguments in the configuration.
        path: The position in the configuration, for messages.
        extra_packages: See :func:`resolve_target`.

    Raises:
        ConfigError: Names the first wrong argument.

    Example:
        >>> from eblvm_lit.optimizers.sgd import SGD
        >>> check_arguments(SGD, {"lr": "fast"}, "optimizer")
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: optimizer.lr must be float, not 'fast'.
    """
    try:
        signature = inspect.signature(target, eval_str=True)
    except NameError:  # annotations of names that are imported for type checkers only
        signature = inspect.signature(target)
    known = {p.name: p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD}
    unknown = sorted(set(arguments) - set(known), key=str)
    if unknown and len(known) == len(signature.parameters):
        known_names = ", ".join(known) or "none"
        raise ConfigError(f"{path} ({target.__name__}) has no key {unknown[0]!r}; it has {known_names}.")
    for name, parameter in known.items():
        hint = parameter.annotation
        if name not in arguments:
            if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL:
                raise ConfigError(f"{path} ({target.__name__}) lacks the key {name!r}.")
        elif hint is not parameter.empty:
            check_value(arguments[name], hint, f"{path}.{name}")
            _check_classes(arguments[name], hint, f"{path}.{name}", extra_packages)


def _check(node: Any, path: str, extra_packages: Sequence[str]) -> None:
    """Refuse forbidden targets, special keys and wrong arguments, at any depth."""
    if isinstance(node, list):
        for index, item in enumerate(node):
            _check(item, f"{path}[{index}]", extra_packages)
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        _check(value, f"{path}.{key}", extra_packages)
    special = [key for key in node if isinstance(key, str) and key.startswith("_") and key != "_target_"]
    if special:
        raise ConfigError(f"{path} has a key {special[0]!r} that is not allowed.")
    if "_target_" in node:
        target = resolve_target(node["_target_"], extra_packages)
        check_arguments(target, {k: v for k, v in node.items() if k != "_target_"}, path, extra_packages)


def _build(node: Any, path: str, extra_packages: Sequence[str]) -> Any:
    """Build a checked node, innermost objects first."""
    if isinstance(node, list):
        return [_build(item, f"{path}[{index}]", extra_packages) for index, item in enumerate(node)]
    if not isinstance(node, dict):
        return node
    built = {key: _build(value, f"{path}.{key}", extra_packages) for key, value in node.items()}
    if "_target_" not in node:
        return built
    target = resolve_target(built.pop("_target_"), extra_packages)
    try:
        return target(**built)
    except EblvmError:
        raise
    except ImportError as error:
        raise ConfigError(
            f"{path} ({target.__name__}) needs a package that is not installed: {' '.join(str(error).split())}"
        ) from error
    except (TypeError, ValueError, OverflowError, MemoryError, RuntimeError) as error:  # also torch's out-of-memory
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"{path} ({target.__name__}) does not fit: {reason}") from error


def instantiate(node: Any, path: str, extra_packages: Sequence[str] = (), kind: type | None = None) -> Any:
    """Build the objects that a configuration node describes.

    Everything is checked before anything is built. Hydra's ``instantiate`` is not used: it resolves interpolations a
    second time, after the checks.

    Args:
        node: A configuration node, or a plain container.
        path: The position in the configuration, for messages.
        extra_packages: See :func:`resolve_target`.
        kind: The class that the object must be of, if any.

    Raises:
        ConfigError: For a forbidden or unknown target, an unknown key, a missing value, or a wrong type.

    Example:
        >>> instantiate({"_target_": "eblvm_lit.objectives.dsm.DSM", "noise_std": 0.3}, "objective").noise_std
        0.3
    """
    plain = to_plain(node, path)
    _check(plain, path, extra_packages)
    if kind is not None:
        if not isinstance(plain, dict) or "_target_" not in plain:
            raise ConfigError(f"{path} names no class: give it the key _target_.")
        check_class(resolve_target(plain["_target_"], extra_packages), (kind,), path)
    return _build(plain, path, extra_packages)
