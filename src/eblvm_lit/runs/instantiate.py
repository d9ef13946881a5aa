"""Build the objects that a configuration describes, by Hydra's ``instantiate`` with an allow-list of classes."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import hydra.utils
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from eblvm_lit.errors import ConfigError, EblvmError
from eblvm_lit.runs.annotations import check_arguments, typed_key
from eblvm_lit.utils.command_line import config_folders

__all__ = [
    *("LIBRARIES", "import_packages", "instantiate", "misfit", "packages_of", "refuse_interpolations"),
    *("resolve_target", "to_plain"),
]

# The exceptions that a class raises if its arguments are invalid.
UNFIT = (TypeError, ValueError, ImportError)
OWN = "eblvm_lit"
# The packages that a configuration from the command line may name in addition to this package. They are only parts of
# torch and Lightning, because both libraries also have classes that start processes, such as SubprocessHandler of
# torch.distributed.elastic.
LIBRARIES = (
    *("torch.nn", "torchvision.models", "torchvision.transforms"),
    *("pytorch_lightning.callbacks", "pytorch_lightning.loggers", "pytorch_lightning.trainer"),
)
# The allow-list for all other configurations, such as the configurations in untrusted checkpoints. It lists folders of
# this package, which are allowed in addition to the modules of torch. Each key is a top-level key of the configuration,
# and "" stands for all top-level keys. Loggers are not allowed, because they can write to any path and connect to
# hosts. Only data, callbacks and samplers may read files.
FOLDERS = {
    "": (
        *(
            "divergences",
            "draws",
            "energies",
            "evaluation",
            "hypergradients",
            "methods",
            "networks",
            "noise_distributions",
        ),
        *("objectives", "optimizers", "posteriors", "samplers", "scores", "core.noise_levels"),
    ),
    "data": ("data",),
    "callbacks": ("data", "figures", "training.callbacks", "runs.trained_energy"),
    "sampler": ("runs.trained_energy",),
}


def instantiate(node: Any, path: str, packages: Sequence[str] = (), kind: type | None = None) -> Any:
    """Build the objects that a configuration node describes.

    All values are checked before any object is built. A ``${...}`` that is left in a string after resolving is refused,
    because Hydra would resolve it a second time, after the check.

    Args:
        node: A configuration node, or a plain container.
        path: The key of the node in the configuration, for messages.
        packages: The packages, in addition to this one, that the node may name; never read from a checkpoint. If they
            do not include :data:`LIBRARIES`, it may name only parts of models, and below ``data`` and ``callbacks``
            also data sets and callbacks.
        kind: The class that the object must be an instance of; None for any.

    Raises:
        ConfigError: For a forbidden or unknown target, an unknown key, a missing value, or a part that does not fit.

    Example:
        >>> instantiate({"_target_": "eblvm_lit.objectives.dsm.DSM", "noise_std": 0.3}, "objective").noise_std
        0.3
        >>> instantiate({"_target_": "eblvm_lit.objectives.dsm.DSM", "noise": 0.3}, "objective")
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: objective (DSM) has no key 'noise'. Did you mean noise_std?
    """
    plain = to_plain(node, path)
    refuse_interpolations(plain, path)
    resolve = _resolver(path, packages)
    checked: dict[str, type] = {}
    key_of = functools.partial(typed_key, node, path)
    part = check_arguments(plain, lambda name: checked.setdefault(name, resolve(name)), key_of)
    if kind is not None and not isinstance(part, kind):
        raise ConfigError(f"{path} must be a {kind.__name__}, not {type(part).__name__}: see {kind.__module__}.")
    # Hydra 1.4 takes a list of what it may build: the classes checked above, each also by the name of its own module
    names = [*checked, *(f"{target.__module__}.{target.__qualname__}" for target in checked.values())]
    whitelist = getattr(hydra.utils, "execution_whitelist", None)  # None in Hydra 1.3
    allowed = {"_execution_whitelist_": whitelist(names, reset=True)} if whitelist else {}
    try:
        return hydra.utils.instantiate(plain, _convert_="all", **allowed) if isinstance(plain, dict | list) else plain
    except (InstantiationException, *UNFIT) as error:
        raise _cause(error, plain, path) from error


def refuse_interpolations(node: Any, path: str) -> None:
    """Refuse ``${...}`` in the keys and values of plain containers, at any depth.

    Raises:
        ConfigError: With the place of the interpolation.

    Example:
        >>> refuse_interpolations({"a": ["${oc.env:HOME}"]}, "config")
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: config.a.0 contains an interpolation, which is not allowed: '${oc.env:HOME}'.
    """
    if isinstance(node, str) and "${" in node:
        raise ConfigError(f"{path} contains an interpolation, which is not allowed: {node!r}.")
    members = dict(enumerate(node)) if isinstance(node, list | tuple) else node
    if isinstance(members, dict):
        for key, value in members.items():
            refuse_interpolations(key, path)
            refuse_interpolations(value, f"{path}.{key}")


def _resolver(path: str, packages: Sequence[str]) -> Callable[[str], type]:
    """Return a function that finds the class of a ``_target_``, and refuses it if it is not allowed at this path."""
    folders = [f"{OWN}.{folder}" for folder in (*FOLDERS[""], *FOLDERS.get(re.split(r"[.[]", path)[0], ()))]
    is_foreign = not {*LIBRARIES} <= {*packages}

    def resolve(name: str) -> type:
        target = resolve_target(name, packages)
        if is_foreign and not _within(target.__module__, ["torch.nn.modules", *folders, *packages]):
            raise ConfigError(f"{path} may not name {name!r}, which is not a part of this kind.")
        return target

    return resolve


def resolve_target(name: str, packages: Sequence[str] = ()) -> type:
    """Return the class that a ``_target_`` names, if it is allowed.

    Only classes are allowed: through functions such as ``eblvm_lit.core.tensors.tree_map``, a configuration could call
    any code. The class must be *defined* in an allowed package: ``eblvm_lit.utils.io.os.system`` is reachable through
    this package, but is not part of it.

    Raises:
        ConfigError: If the name is not allowed or does not exist.

    Example:
        >>> resolve_target("eblvm_lit.objectives.sm.SM").__name__
        'SM'
        >>> resolve_target("os.system")
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: A configuration may not name 'os.system', only classes of eblvm_lit: ...
    """
    is_name = isinstance(name, str) and re.fullmatch(r"[\w.]+", name)
    module, _, attribute = name.rpartition(".") if is_name else ("", "", "")
    allowed = (OWN, *packages, "torch.nn.modules")
    refusal = ConfigError(
        f"A configuration may not name {name!r}, only classes of {', '.join((OWN, *packages))}: add a package of yours "
        "with allow_packages=[...]."
    )
    if not _within(module, (*allowed, "torch.nn")) and name != "pytorch_lightning.Trainer":
        raise refusal
    try:
        target = getattr(importlib.import_module(module), attribute)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ConfigError(f"There is no {name!r} ({error}).") from error
    if not isinstance(target, type) or not _within(target.__module__, allowed):
        raise refusal
    return target


def _within(module: str, packages: Sequence[str]) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


def _cause(error: Exception, plain: Any, path: str) -> BaseException:
    """Return the original cause of an error; if a class refused its arguments, a ConfigError that names the class.

    Hydra 1.3 wraps the cause in its own error, whose text contains the key; 1.4 adds the key as a note.
    """
    cause: BaseException = error
    while cause.__cause__ is not None and not isinstance(cause, EblvmError):
        cause = cause.__cause__
    found = re.search(r"full_key: (.+)", "\n".join([str(error), *getattr(error, "__notes__", ())]))
    key = [found[1]] if found else []
    target = OmegaConf.select(OmegaConf.create(plain), ".".join([*key, "_target_"]))
    if target is None or not isinstance(cause, UNFIT):
        return cause
    return misfit(".".join([path, *key]), hydra.utils.get_class(target), cause)


def misfit(path: str, target: type, error: BaseException) -> ConfigError:
    """Return the error for invalid arguments of a class; if an argument is unknown, suggest the most similar name.

    Example:
        >>> print(misfit("error", ConfigError, ValueError("Too many.")))
        error (ConfigError) does not fit: Too many.
    """
    reason = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, TypeError) and (found := re.search(r"unexpected keyword argument '(\w+)'", reason)):
        near = get_close_matches(found[1], inspect.signature(target).parameters, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        return ConfigError(f"{path} ({target.__name__}) has no key {found[1]!r}.{hint}")
    return ConfigError(f"{path} ({target.__name__}) does not fit: {reason}")


def to_plain(node: Any, path: str = "") -> Any:
    """Convert a configuration node to plain containers and resolve its interpolations.

    Raises:
        ConfigError: If a value is missing or an interpolation cannot be resolved.
    """
    if not isinstance(node, DictConfig | ListConfig):
        return node
    try:
        return OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"{error.full_key or path} has no value: {reason}.") from None


def packages_of(cfg: DictConfig) -> list[str]:
    """Return the packages, in addition to this one, whose classes the user's own configuration may name.

    Example:
        >>> packages_of(OmegaConf.create({"allow_packages": ["json"]}))[:2]
        ['json', 'torch.nn']
    """
    return [*import_packages(cfg.get("allow_packages")), *LIBRARIES]


def import_packages(names: str | Sequence[str] | None, conf: str | Path | None = None) -> list[str]:
    """Import packages so that a configuration can name their classes.

    If Python does not find a package, further folders are appended to ``sys.path``: the working folder, and each
    configuration folder that the command line names, with its parent folder. These folders come last, so that no file
    in them hides an installed package.

    Args:
        names: The value of ``allow_packages``; it must not come from a checkpoint.
        conf: A configuration folder that a function was given, like ``--config-dir`` of the command line.

    Raises:
        ConfigError: If a package does not exist.

    Example:
        >>> import_packages("json"), import_packages(None)
        (['json'], [])
    """
    listed = [names] if isinstance(names, str) else list(names or ())
    cwd = Path(HydraConfig.get().runtime.cwd) if HydraConfig.initialized() else Path.cwd()
    confs = [*([] if conf is None else [Path(conf).resolve()]), *config_folders()]
    folders = [str(folder) for folder in (cwd, *(place for conf in confs for place in (conf.parent, conf)))]
    if any(importlib.util.find_spec(name.partition(".")[0]) is None for name in listed):
        sys.path += [folder for folder in dict.fromkeys(folders) if folder not in sys.path]
    for name in listed:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # the package exists, but another one that it imports does not
            raise ConfigError(
                f"allow_packages names {name!r}, but there is no such package in {', '.join(folders)}: start in the "
                "folder that contains it, or give the configuration folder beside it by --config-dir."
            ) from None
    return listed
