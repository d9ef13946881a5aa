"""For griffe: docstrings in reStructuredText become Markdown, with formulas and with links between names.

Methods that only the program itself calls are left out: hooks of Lightning, and those whose docstring only refers to
the method of the base class.
"""

import re
import runpy
from pathlib import Path

import griffe

drawn = runpy.run_path(str(Path(__file__).with_name("formulas.py")))["drawn"]

MATH = re.compile(r"^( *)\.\. math::(.*(?:\n(?:\1 +.*| *(?=\n\1 ))$)*)", re.MULTILINE)
ROLE = re.compile(r":(\w+):`([^`]+)`")
# What stays as it is: doctests, code and formulas. Elsewhere a star is a star.
VERBATIM = re.compile(
    r"(^ *>>> [^\n]*(?:\n *\S[^\n]*)*|\[`[^`]+`\]\[[^\]]*\]|``.+?``|`[^`]+`|\$\$.+?\$\$|\$[^$]+\$)",
    re.MULTILINE | re.DOTALL,
)
# Methods that Lightning and torch call.
HOOK = re.compile(
    r"on_\w+|configure_\w+|(training|validation|test)_step|\w+_dataloader|(load_)?state_dict|[gs]et_extra_state|teardown"
)


class Markdown(griffe.Extension):
    """Rewrite every docstring of the package once all of it is read."""

    def on_package(self, *, pkg, **_):
        """Leave out what only the program calls, and rewrite the docstrings of the rest."""
        for member in list(_objects(pkg)):
            if member.is_class:
                for name in [name for name, method in member.members.items() if _inner(name, method)]:
                    del member.members[name]
        for member in _objects(pkg):
            if member.docstring:
                member.docstring.value = _markdown(member.docstring.value, member, pkg)


def _inner(name, method):
    """Whether a method is a hook, or its docstring says no more than where that of the base class is."""
    if method.is_alias or not method.is_function:
        return False
    text = method.docstring.value if method.docstring else ""
    return bool(HOOK.fullmatch(name) or re.fullmatch(rf"[^\n]+see :meth:`~?[\w.]*\.{name}`\.", text))


def _objects(parent):
    yield parent
    for member in parent.members.values():
        if not member.is_alias:
            yield from _objects(member)


def _markdown(text, member, package):
    text = MATH.sub(lambda match: f"\n{match[1]}$$ {' '.join(match[2].split())} $$\n", text)
    text = ROLE.sub(lambda match: _role(*match.groups(), member, package), text)
    text = re.sub(r"^( *)Example:$", r"\1Examples:", text, flags=re.MULTILINE)
    parts = VERBATIM.split(text)
    parts[::2] = [re.sub(r"\*(?=\S)|\[", r"\\\g<0>", part).replace("<", "&lt;") for part in parts[::2]]
    parts[1::2] = [drawn(part) if part.startswith("$") else part for part in parts[1::2]]
    return "".join(parts)


def _role(role, target, member, package):
    """A formula, a link to a name that the site has, or code."""
    if role == "math":
        return f"${' '.join(target.split())}$"
    short = target.startswith("~")
    name = target.removeprefix("~")
    shown = name.rsplit(".", 1)[-1] if short else name
    path = _resolve(name, member, package)
    return f"[`{shown}`][{path}]" if path else f"`{shown}`"


def _resolve(name, member, package):
    """The full path of a public name, looked for from the inside to the outside; None where there is none."""
    if name.startswith(f"{package.name}."):
        scopes = [package]
        name = name.removeprefix(f"{package.name}.")
    else:
        scopes = [member]
        while scopes[-1].parent is not None and not scopes[-1].is_module:
            scopes.append(scopes[-1].parent)
    for scope in scopes:
        found = scope
        for part in name.split("."):
            found = found.members.get(part) if found is not None else None
        while found is not None and found.is_alias:
            if not found.target_path.startswith(f"{package.name}."):
                return None
            found = _find(found.target_path, package)
        if found is not None and not any(part.startswith("_") for part in found.path.split(".")):
            return found.path if _listed(found) else None
    return None


def _find(path, package):
    found = package
    for part in path.split(".")[1:]:
        found = found.members.get(part) if found is not None and not found.is_alias else None
    return found


def _listed(found):
    """Whether a page shows the name: it has a docstring, and its module's ``__all__`` has it or the class it is in."""
    if not found.has_docstring:
        return False
    while found.parent is not None and not found.parent.is_module:
        found = found.parent
    if found.is_module:
        return not found.is_init_module
    return found.parent.exports is None or found.name in {str(name) for name in found.parent.exports}
