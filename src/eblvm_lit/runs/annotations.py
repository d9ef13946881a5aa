"""Checks of a configuration's values against the type annotations of the constructors that receive them."""

from __future__ import annotations

import functools
import itertools
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from typing import Any, get_type_hints

from omegaconf import OmegaConf
from pydantic import ConfigDict, InstanceOf, PydanticUserError, TypeAdapter, ValidationError

from eblvm_lit.errors import ConfigError
from eblvm_lit.runs.groups import choice_of

__all__ = ["Steps", "argument_types", "check_arguments", "check_values", "typed_key"]

Steps = tuple[str | int, ...]  # the keys and indices that lead to a place in a configuration
# The YAML types accepted for each Python type: a number is not accepted as a boolean, nor a string as a number.
TAKEN: dict[type, tuple[type, ...]] = {bool: (bool,), int: (int,), float: (float, int)}
OPTIONS = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False)


@functools.cache
def argument_types(target: type) -> dict[str, Any]:
    """Return a dict from constructor arguments to their types, or an empty dict if the annotations cannot be evaluated.

    Example:
        >>> from eblvm_lit.evaluation.critic_divergence import CriticDivergence
        >>> argument_types(CriticDivergence)["data_energy"]
        eblvm_lit.energies.base.MarginalEnergy | None
    """
    try:
        return get_type_hints(target.__init__, include_extras=True)
    except (AttributeError, NameError, SyntaxError, TypeError):
        return {}


@functools.cache
def _adapter(annotation: Any) -> TypeAdapter[Any] | None:
    """Return pydantic's validator for an annotation, or None if pydantic cannot build one."""
    try:
        # check only the class of a dataclass: by default, pydantic checks each field, and accepts a mapping as instance
        return (
            TypeAdapter(InstanceOf[annotation]) if is_dataclass(annotation) else TypeAdapter(annotation, config=OPTIONS)
        )
    except (NameError, PydanticUserError, TypeError):
        return None


def check_arguments(
    node: Any, resolve: Callable[[str], type], key_of: Callable[[Steps], str], steps: Steps = ()
) -> Any:
    """Check the arguments of all objects that a configuration describes, at any depth, without building them.

    Args:
        node: The configuration as plain containers.
        resolve: Returns the class of a ``_target_``.
        key_of: Returns the name, for messages, of the place that a sequence of keys and indices leads to.
        steps: The keys and indices that lead to the node.

    Returns:
        The node with an empty instance of its class in place of each object.

    Raises:
        ConfigError: If a value does not have the type or range of its annotation, if a class may not be named, or if a
            special key of Hydra, such as ``_partial_``, is used; with the key of the first problem.

    Example:
        >>> from eblvm_lit.optimizers.sgd import SGD
        >>> node = {"upper": {"_target_": "SGD", "lr": 0.1}}
        >>> type(check_arguments(node, lambda name: SGD, str)["upper"]).__name__
        'SGD'
        >>> node["upper"]["lr"] = "high"
        >>> check_arguments(node, lambda name: SGD, lambda steps: ".".join(steps))
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: upper.lr (SGD) must be a valid number, not 'high'.
    """
    if isinstance(node, list | tuple):
        return [check_arguments(part, resolve, key_of, (*steps, i)) for i, part in enumerate(node)]
    if not isinstance(node, dict):
        return node
    target = resolve(node["_target_"]) if "_target_" in node else dict
    if special := [key for key in node if str(key).startswith("_") and key != "_target_"]:
        raise ConfigError(f"{key_of(steps)} has a key {special[0]!r} that is not allowed.")
    parts = {key: check_arguments(part, resolve, key_of, (*steps, key)) for key, part in node.items()}
    if target is dict:
        return parts
    check_values(parts, argument_types(target), lambda within: key_of((*steps, *within)), f" ({target.__name__})")
    try:
        return target.__new__(target)
    except TypeError as error:  # raised if the class is abstract
        raise ConfigError(f"{key_of(steps)} ({target.__name__}) does not fit: {error}.") from None


def check_values(
    values: Mapping[str, Any], types: Mapping[str, Any], key_of: Callable[[Steps], str], taker: str = ""
) -> None:
    """Check each value against its type annotation, if it has one.

    Args:
        values: The values by name; parts are instances of their classes.
        types: The annotations by name.
        key_of: The naming function, as in :func:`check_arguments`.
        taker: The name of the class that receives the values, for messages.

    Raises:
        ConfigError: With the first value that does not fit.

    Example:
        >>> check_values({"seed": 1.5}, {"seed": int | None}, lambda steps: steps[0])
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: seed must be a valid integer, not 1.5.
    """
    for name in [name for name in values if name in types]:
        adapter = _adapter(types[name])
        value = values[name]
        try:
            if adapter is not None and _converted(value, adapter.validate_python(value)):
                adapter.validate_python(value, strict=True)
        except ValidationError as error:
            place, wanted = _misfit(error, value)
            key = key_of((name, *place))
            given = functools.reduce(lambda part, step: part[step], place, value)
            end = choice_of(key, given) if re.search("class|mapping", wanted) else "."
            raise ConfigError(f"{key}{taker} {wanted}, not {_shown(given)}{end}") from None


def _converted(value: Any, taken: Any) -> bool:
    """Return whether pydantic has converted a value, or a value inside it, to a number or boolean.

    Lists may become tuples, and integers may become floats.
    """
    values, takens = ([*part.values()] if isinstance(part, dict) else part for part in (value, taken))
    inside = zip(values, takens, strict=False) if isinstance(value, dict | list) else ()
    return any(itertools.starmap(_converted, inside)) or type(value) not in TAKEN.get(type(taken), (type(value),))


def _misfit(error: ValidationError, value: Any) -> tuple[Steps, str]:
    """Return the path of the invalid part of a value, and a text that describes the values that are valid there.

    The path consists of keys and indices. For a union, the errors are those of the members that match the value most
    deeply.
    """
    found = [(_place(value, item["loc"]), _wanted(item["msg"])) for item in error.errors(include_url=False)]
    deepest = max((place for place, _ in found), key=len)
    wanted = dict.fromkeys(words for place, words in found if place == deepest)
    return deepest, " or ".join(wanted).replace(" or must be ", " or ")


def _place(value: Any, location: Sequence[str | int]) -> Steps:
    """Remove the names of union members, which pydantic adds, from an error's location; keep its keys and indices."""
    steps: Steps = ()
    for step in location:
        if (isinstance(value, dict) and step in value) or (isinstance(value, list) and isinstance(step, int)):
            steps = (*steps, step)
            value = value[step]
    return steps


def _wanted(message: str) -> str:
    """Rewrite an error message of pydantic for users who know YAML but not pydantic.

    Example:
        >>> _wanted("Input should be a valid integer, got a number with a fractional part")
        'must be a valid integer'
    """
    words = re.sub(r"^'str' instances.*|an instance of (Sequence|Mapping)", "must be a list", message)
    words = re.sub(r"^Input is not (a valid \w+).*", r"must be \1", words)
    words = re.sub(
        r"^\w+ should (be|have|match) (must be )?|( after validation)?, (got|not|unable) .*", r"must \1 ", words
    )
    return words.removesuffix("must  ").replace("an instance of", "of class").replace("dictionary", "mapping")


def _shown(value: Any) -> str:
    """Return a value as a short text in the notation of YAML; for an object, return the name of its class."""
    text = reprlib.repr(value) if value is None or isinstance(value, str | int | float | list) else type(value).__name__
    return {"None": "null", "True": "true", "False": "false", "dict": "a mapping"}.get(text, text)


def typed_key(node: Any, path: str, steps: Steps) -> str:
    """Return the key by which a user sets a value: the value's own key, or the key to which its ``${...}`` refers.

    Args:
        node: A node of a configuration, or a plain container.
        path: The key of the node in the configuration.
        steps: The keys and indices that lead from the node to the place.

    Example:
        >>> from omegaconf import OmegaConf
        >>> cfg = OmegaConf.create({"method": {"optimizer": "${optimizer}", "n": [1]}, "optimizer": {"lr": 0.1}})
        >>> typed_key(cfg.method, "method", ("optimizer", "lr")), typed_key(cfg.method, "method", ("n", 0))
        ('optimizer.lr', 'method.n[0]')
    """
    whole = [*filter(None, path.split(".")), *steps]
    with suppress(AttributeError, IndexError, KeyError, TypeError, ValueError):  # a plain container has no root
        whole, _ = _source(OmegaConf.to_container(node._get_root(), resolve=False), whole)
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in whole).lstrip(".")


def _source(root: Any, steps: Sequence[str | int]) -> tuple[list[str | int], Any]:
    """Follow the interpolations ``${...}`` along a path, and return the path and the value to which they lead."""
    found: list[str | int] = []
    value = root
    for step in steps:
        found.append(step)
        value = value[int(step) if isinstance(value, list) else step]
        while isinstance(value, str) and (named := re.fullmatch(r"\$\{(\w[\w.]*)\}", value)):
            found, value = _source(root, named[1].split("."))
    return found, value
