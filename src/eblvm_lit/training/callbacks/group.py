"""One callback that calls several, which costs less per iteration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ProgressBar

from eblvm_lit.errors import DataError

__all__ = ["CallbackGroup", "each", "grouped", "state_in"]

HOOKS = ("setup", "teardown", *(name for name in dir(pl.Callback) if name.startswith("on_")))


def _overrides(member: pl.Callback, hook: str) -> bool:
    return getattr(type(member), hook) is not getattr(pl.Callback, hook)


class CallbackGroup(pl.Callback):
    """Calls its members' hooks in their order, only those that they override.

    Lightning calls every hook of every callback in a profiling context, three times an iteration, even if the hook does
    nothing: with eight callbacks that takes longer than a small iteration.

    Args:
        members: The callbacks, by name.

    Example:
        >>> class Greeter(pl.Callback):
        ...     def on_train_start(self, trainer, pl_module):
        ...         print("hello")
        >>> CallbackGroup({"a": Greeter(), "b": Greeter()}).on_train_start(None, None)
        hello
        hello
    """

    def __init__(self, members: Mapping[str, pl.Callback]) -> None:
        self.members = dict(members)
        for hook in HOOKS:
            bound = [getattr(member, hook) for member in self.members.values() if _overrides(member, hook)]
            if bound:
                setattr(self, hook, _in_turn(bound))

    def state_dict(self) -> dict[str, Any]:
        """The members' states, by name."""
        states = {name: member.state_dict() for name, member in self.members.items()}
        return {name: state for name, state in states.items() if state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the states of :meth:`state_dict`; members that are missing or new are skipped.

        Raises:
            DataError: It holds no states.
        """
        if not isinstance(state_dict, dict):
            raise DataError("The checkpoint's states of callbacks are damaged: start a new run.")
        for name, state in state_dict.items():
            if name in self.members:
                self.members[name].load_state_dict(state)


def _in_turn(functions: list[Callable[..., None]]) -> Callable[..., None]:
    def call(*args: Any, **kwargs: Any) -> None:
        for function in functions:
            function(*args, **kwargs)

    return call


def grouped(callbacks: Mapping[str, pl.Callback]) -> list[pl.Callback]:
    """This package's callbacks as one group, besides those that Lightning finds by their class.

    Args:
        callbacks: By name, in the order their hooks run.
    """
    own = {
        name: callback
        for name, callback in callbacks.items()
        if type(callback).__module__.startswith("eblvm_lit.") and not isinstance(callback, ProgressBar)
    }
    return [CallbackGroup(own), *(callback for name, callback in callbacks.items() if name not in own)]


def each(callbacks: Sequence[pl.Callback]) -> Iterator[pl.Callback]:
    """The callbacks of a trainer, those of groups one by one.

    Example:
        >>> one, two = pl.Callback(), pl.Callback()
        >>> list(each([CallbackGroup({"one": one}), two])) == [one, two]
        True
    """
    for callback in callbacks:
        if isinstance(callback, CallbackGroup):
            yield from callback.members.values()
        else:
            yield callback


def state_in(checkpoint: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """The state that a checkpoint has of one of the group's callbacks, by its name; None if it has none.

    Example:
        >>> state_in({"callbacks": {"CallbackGroup": {"checkpoints": {"best": None}}}}, "checkpoints")
        {'best': None}
    """
    states = checkpoint["callbacks"].get(CallbackGroup.__qualname__)
    return states.get(name) if isinstance(states, dict) else None
