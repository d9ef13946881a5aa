"""Import of a user's own packages, those that ``allow_packages`` names, from where the user keeps them."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from hydra.core.hydra_config import HydraConfig

from eblvm_lit.errors import ConfigError

__all__ = ["config_folders", "import_module", "import_packages"]


def import_packages(names: str | Sequence[str] | None, conf: str | Path | None = None) -> list[str]:
    """Import packages so that a configuration can name their classes.

    A package that Python does not find by itself is looked for in the working folder, and in and beside each folder of
    configurations that the command line names (``--config-dir``, ``hydra.searchpath``). The folder that holds it is
    added to the end of ``sys.path``; no other folder is.

    Args:
        names: The value of ``allow_packages``; it must not come from a checkpoint.
        conf: A folder of configurations that a function was given, as ``--config-dir`` of the command line.

    Returns:
        The names as a list.

    Raises:
        ConfigError: If a package does not exist or fails to import.

    Example:
        >>> import_packages("json"), import_packages(None)
        (['json'], [])
        >>> import_packages(["no_such_package"])
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: allow_packages names 'no_such_package', and there is no such package in ...
    """
    listed = [names] if isinstance(names, str) else list(names or ())
    for name in listed:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError(f"allow_packages names {name!r}, which is not the name of a package.")
        _find(name, _folders(conf))
        import_module(name)
    return listed


def config_folders() -> list[Path]:
    """The folders of configurations that the command line names besides this package's."""
    if not HydraConfig.initialized():
        return []
    sources = HydraConfig.get().runtime.config_sources
    chosen = (source for source in sources if source.provider not in ("main", "hydra", "schema"))
    return [Path(source.path) for source in chosen if source.schema == "file"]


def _folders(conf: str | Path | None) -> list[str]:
    """Where packages are looked for besides ``sys.path``."""
    confs = [*([] if conf is None else [Path(conf).resolve()]), *config_folders()]
    cwd = Path(HydraConfig.get().runtime.cwd) if HydraConfig.initialized() else Path.cwd()
    return list(dict.fromkeys(map(str, [cwd, *(folder for conf in confs for folder in (conf.parent, conf))])))


def _spec(name: str) -> ModuleSpec | None:
    try:
        return find_spec(name.partition(".")[0])
    except ValueError:  # a module without a specification, such as __main__
        return None


def _find(name: str, folders: list[str]) -> None:
    """Make a package importable.

    Raises:
        ConfigError: If it is nowhere.
    """
    spec = _spec(name)
    if spec is not None and spec.origin is not None:  # more than a folder of that name, which any path may have
        return
    for folder in folders:
        if PathFinder.find_spec(name.partition(".")[0], [folder]) is not None:
            sys.path.append(folder)  # last: nothing beside the package hides what is installed
            return
    if spec is not None:
        return
    raise ConfigError(
        f"allow_packages names {name!r}, and there is no such package in {', '.join(folders)}: start in the folder "
        "that holds it, or name the configurations beside it with --config-dir."
    )


def import_module(name: str) -> ModuleType:
    """Import a module of a package that ``allow_packages`` names.

    Raises:
        ConfigError: If there is no such module, or if it raises an error; names the file and the line.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            spec = _spec(name)
            where = f" ({', '.join(_places(spec))})" if spec is not None else ""
            raise ConfigError(
                f"There is no module {error.name!r} in the package {name.split('.')[0]}{where}."
            ) from None
        failure: BaseException = error
    except (Exception, SystemExit) as error:  # whatever a module may raise
        failure = error
    reason = failure.msg if isinstance(failure, SyntaxError) else " ".join(str(failure).split())
    kind, advice = type(failure).__name__, "correct that line"
    if isinstance(failure, ImportError):
        advice += ", or install what it needs"
    raise ConfigError(
        f"{name} fails to import at {_position(failure, name)} ({kind}: {reason}): {advice}."
    ) from failure


def _places(spec: ModuleSpec) -> list[str]:
    """The folders of a package, or the file of a module."""
    return list(spec.submodule_search_locations or ()) or [str(spec.origin)]


def _position(failure: BaseException, name: str) -> str:
    """The file and the line at which a module has failed: the last one that is the user's own."""
    if isinstance(failure, SyntaxError) and failure.filename:
        return f"{failure.filename}, line {failure.lineno}"
    frames = [frame for frame in traceback.extract_tb(failure.__traceback__) if not frame.filename.startswith("<")]
    spec = _spec(name)
    own = [frame for frame in frames if spec is not None and frame.filename.startswith(tuple(_places(spec)))]
    frame = (own or frames)[-1]
    return f"{frame.filename}, line {frame.lineno}"
