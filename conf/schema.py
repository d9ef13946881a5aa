"""The script that prints a JSON schema of experiment files, with which editors complete and check the keys.

The schema is made from the YAML files of this folder and from the classes that these files name.
"""

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
    """Return the JSON schema of an argument's type annotation.

    The schema is empty if the argument is an object, because a file describes an object by a mapping of its own.
    """
    try:
        found = TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True)).json_schema()
    except (PydanticUserError, TypeError):
        return {}
    if found == {} or {"$defs", "properties"} & found.keys():
        return {}
    return {"anyOf": [*found.get("anyOf", [found]), INTERPOLATION]}


@functools.cache
def of_class(target: str) -> dict[str, dict[str, Any]]:
    """Return the JSON schema of each argument of a class: its type, and its description in the class's docstring."""
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
    """Add the keys of a mapping in a file to the JSON schema at the mapping's dotted path.

    Options of a group may put different classes at one path. The schema then has the keys of all these classes.

    Args:
        node: The schema at the path, which is changed in place.
        value: The mapping.
        of_classes: Whether to add the arguments of the classes in the mapping, with their types. If false, the keys
            that the mapping itself has are added, without types.
    """
    known = node.setdefault("properties", {})
    for key, schema in of_class(value["_target_"]).items() if of_classes and "_target_" in value else ():
        before = known.setdefault(key, deepcopy(schema))
        if "anyOf" in before and "anyOf" in schema:  # a value is valid if one of the classes accepts it
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
    """Return the text of a YAML file and its parsed content."""
    text = path.read_text()
    return text, yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}


def at(root: dict[str, Any], place: str) -> dict[str, Any]:
    """Return the JSON schema at a dotted path, and create an empty one if there is none."""
    for key in filter(None, place.split(".")):
        root = root.setdefault("properties", {}).setdefault(key, {})
    return root


def choices(places: dict[str, set[str]]) -> dict[str, Any]:
    """Return the JSON schema of a defaults list: the options of each group, for each path that uses the group."""
    entries = {}
    for group in GROUPS:
        options = sorted(path.stem for path in (CONF / group).glob("[!_]*.yaml"))
        choice = {"anyOf": [{"enum": [*options, None]}, {"type": "array", "items": {"enum": options}}]}
        for name in [f"{group}@{place}" for place in sorted(places[group])] or [group]:
            entries |= {f"override /{name}": choice, f"/{name}": choice}
    return {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "object", "properties": entries}]}}


def places_of(path: Path, places: dict[str, set[str]]) -> list[str]:
    """Return the dotted paths under which the keys of a file appear in the configuration.

    These are the paths at which defaults lists put the file or its group. If there are none, it is the group's name.
    """
    package = "" if path.parent == CONF or "@package _global_" in read(path)[0] else path.parent.name
    return sorted(places[f"{path.parent.name}/{path.stem}"] or places[package] or {package})


def comments(text: str) -> list[tuple[str, str]]:
    """Return each top-level key that has a comment, with the comment, which is on the key's line or above it."""
    found = re.findall(r"(?m)^((?:# .*\n)*)(\w+): .+?(?: # (.+))?$", text)
    above = [(key, " ".join(re.findall(r"(?m)^# (.*)$", lines)), behind) for lines, key, behind in found]
    return [(key, behind or lines) for key, lines, behind in above if behind or lines]


def schema() -> dict[str, Any]:
    """Return the JSON schema of experiment files, with every key that exists for some choice of options."""
    root: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"}
    places: dict[str, set[str]] = defaultdict(set)
    files = [path for group in (*GROUPS, "experiment") for path in sorted((CONF / group).glob("*.yaml"))]
    files.insert(0, CONF / "config.yaml")
    for path in files * 3:  # three passes, because a file may put a group at a path below its own path
        for entry in read(path)[1].get("defaults", ()):
            # an entry that is not a mapping names a file of the same folder
            for name in entry if isinstance(entry, dict) else [f"{path.parent.name}/{entry}"]:
                if found := re.fullmatch(r"(?:override )?/?([\w/]+)@([\w.]+)", name):
                    places[found[1]] |= {f"{place}.{found[2]}".lstrip(".") for place in places_of(path, places)}
    for path, of_classes in ((path, of_classes) for of_classes in (True, False) for path in files):
        for place in places_of(path, places):
            content = {key: value for key, value in read(path)[1].items() if key != "defaults"}
            grow(at(root, place), content, of_classes=of_classes)
    trainer = {**TRAINER, "devices": int | str | list[int]}  # a run may use more devices than this machine has
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
