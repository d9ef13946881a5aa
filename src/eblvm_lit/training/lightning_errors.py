"""Errors of Lightning's own callbacks and loggers, as one sentence each."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from eblvm_lit.cli.instantiate import LIGHTNING
from eblvm_lit.errors import ConfigError, EblvmError

__all__ = ["lightning_errors"]


@contextmanager
def lightning_errors() -> Iterator[None]:
    """Turn what Lightning's own callbacks and loggers raise into errors of the user's configuration.

    Many of them do not fit these methods, which step their optimizers themselves, and say so when training starts.

    Raises:
        ConfigError: Names the class and its reason. Errors of everything else pass unchanged.
    """
    try:
        yield
    except EblvmError:
        raise
    except Exception as error:
        name = _raised_by(error)
        if name is None:
            raise
        reason = " ".join(str(error).split())[:300].rstrip(".")
        raise ConfigError(
            f"Lightning's {name} does not work in this run ({type(error).__name__}: {reason}): leave it out, or change "
            "its arguments."
        ) from error


def _raised_by(error: Exception) -> str | None:
    """The class of Lightning in which an error arose; None if it arose in code of this package."""
    name = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = frame.f_globals.get("__name__", "")
        if module.startswith("eblvm_lit."):
            name = None
        elif module.startswith(LIGHTNING):
            kind = type(frame.f_locals.get("self"))
            name = kind.__name__ if kind.__module__.startswith(LIGHTNING) else None
    return name
