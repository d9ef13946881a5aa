"""Makes schema.json from this folder and from the classes that its files name; editors use it to complete keys."""

import functools
import importlib
import inspect
import json
import re
import sys
from collections import defaultdict
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml
from pydantic import ConfigDict, PydanticUserError, TypeAdapter

from eblvm_lit.runs.annotations import argument_types
from eblvm_lit.runs.settings import RUN, TRAINER

CONF = Path(__file__).parent
INTERPOLATION = {"type": "string", "pattern": r"\$\{"}
GROUPS = sorted({path.parent.name for path in CONF.glob("*/*.yaml")} - {"hydra", "experiment"})


def of_annotation(annotation: Any) -> dict[str, Any]:
    """Return the schema of an argument's annotation; it is empty for objects, which are written as separate parts."""
    try:
        found = TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True)).json_schema()
    except (PydanticUserError, TypeError):
        return {}
    if found == {} or {"$defs", "properties"} & found.keys():
        return {}
    return {"anyOf": [*found.get("anyOf", [found]), INTERPOLATION]}


@functools.cache
def of_class(target: str) -> dict[str, dict[str, Any]]:
    """Return the schema of each argument of a class, with its type and its description from the docstring."""
    module, _, name = target.rpartition(".")
    cls = getattr(importlib.import_module(module), name)
    own = target.startswith("eblvm_lit.")
    text = (inspect.getdoc(cls) or "").partition("Args:\n")[2].partition("\n\n")[0] if own else ""
    lines = re.findall(r"(?ms)^    (\w+): (.*?)(?=^    \w+: |\Z)", text)
    described = {key: " ".join(rest.split()) for key, rest in lines}
    types = argument_types(cls) if own else {}
    found = {}
    for key, parameter in inspect.signature(cls).parameters.items():
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            found[key] = of_annotation(types[key]) if key in types else {}
            found[key] |= {"description": described[key]} if key in described else {}
    return found


def grow(node: dict[str, Any], value: Any, *, of_classes: bool) -> None:
    """Add the keys of a part of a file to the schema of its place, which may have the keys of several classes.

    Args:
        node: The schema of the place.
        value: The part.
        of_classes: Whether to add the arguments of classes, which have types, or the keys of files, which have none.
    """
    known = node.setdefault("properties", {})
    for key, schema in of_class(value["_target_"]).items() if of_classes and "_target_" in value else ():
        before = known.setdefault(key, deepcopy(schema))
        if "anyOf" in before and "anyOf" in schema:  # values that one of the two classes accepts
            before["anyOf"] += [other for other in schema["anyOf"] if other not in before["anyOf"]]
        else:
            before.pop("anyOf", None)
        before |= {"description": schema["description"]} if {"description"} & schema.keys() - before.keys() else {}
    for key, part in value.items():
        if isinstance(part, dict):
            child = known.setdefault(str(key), {})
            child.pop("anyOf", None)
            grow(child, part, of_classes=of_classes)
        elif not of_classes:
            known.setdefault(str(key), {})


@functools.cache
def read(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the text and the content of a file."""
    text = path.read_text()
    return text, yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}


def at(root: dict[str, Any], place: str) -> dict[str, Any]:
    """Return the schema of a dotted place, and create it if there is none."""
    for key in filter(None, place.split(".")):
        root = root.setdefault("properties", {}).setdefault(key, {})
    return root


def choices(places: dict[str, set[str]]) -> dict[str, Any]:
    """Return the schema of a defaults list, which contains the options of each group at each of its places."""
    entries = {}
    for group in GROUPS:
        options = sorted(path.stem for path in (CONF / group).glob("[!_]*.yaml"))
        choice = {"anyOf": [{"enum": [*options, None]}, {"type": "array", "items": {"enum": options}}]}
        for name in [f"{group}@{place}" for place in sorted(places[group])] or [group]:
            entries |= {f"override /{name}": choice, f"/{name}": choice}
    return {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "object", "properties": entries}]}}


def places_of(path: Path, places: dict[str, set[str]]) -> list[str]:
    """Return the places of a file's keys: where defaults lists put the file or its group, or the group's name."""
    package = "" if path.parent == CONF or "@package _global_" in read(path)[0] else path.parent.name
    return sorted(places[f"{path.parent.name}/{path.stem}"] or places[package] or {package})


def comments(text: str) -> list[tuple[str, str]]:
    """Return the top-level keys that have a comment, in the same line or in the lines above, with the comment."""
    found = re.findall(r"(?m)^((?:# .*\n)*)(\w+): .+?(?: # (.+))?$", text)
    above = [(key, " ".join(re.findall(r"(?m)^# (.*)$", lines)), behind) for lines, key, behind in found]
    return [(key, behind or lines) for key, lines, behind in above if behind or lines]


def schema() -> dict[str, Any]:
    """Return the schema of an experiment file, with all keys that some choice of options has."""
    root: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"}
    places: dict[str, set[str]] = defaultdict(set)
    files = [path for group in (*GROUPS, "experiment") for path in sorted((CONF / group).glob("*.yaml"))]
    files.insert(0, CONF / "config.yaml")
    for path in files * 3:  # three passes, because a file may put a group at a place that depends on its own place
        for entry in read(path)[1].get("defaults", ()):
            # an entry that is not a mapping names a file of the same folder
            for name in entry if isinstance(entry, dict) else [f"{path.parent.name}/{entry}"]:
                if found := re.fullmatch(r"(?:override )?/?([\w/]+)@([\w.]+)", name):
                    places[found[1]] |= {f"{place}.{found[2]}".lstrip(".") for place in places_of(path, places)}
    for path, of_classes in ((path, of_classes) for of_classes in (True, False) for path in files):
        for place in places_of(path, places):
            content = {key: value for key, value in read(path)[1].items() if key != "defaults"}
            grow(at(root, place), content, of_classes=of_classes)
    trainer = {**TRAINER, "devices": int | str | list[int]}  # the number of devices may be larger than this machine's
    for node, settings in ((root, RUN), (at(root, "trainer"), trainer)):
        for key, annotation in settings.items():
            child = at(node, key)
            child |= {} if "properties" in child else of_annotation(annotation)
    for key, comment in comments(read(CONF / "config.yaml")[0]):
        at(root, key)["description"] = comment
    at(root, "defaults").update(choices(places))
    return root


if __name__ == "__main__":
    sys.stdout.write(json.dumps(schema(), indent=1, sort_keys=True, ensure_ascii=False) + "\n")
