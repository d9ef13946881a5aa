"""For mkdocs: one page for each folder of the package, and one page that lists the public names.

mkdocstrings fills the pages with signatures and docstrings, which it reads without importing anything.
"""

import ast
import re
from pathlib import Path

from mkdocs.structure.files import File

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "eblvm_lit"
STUB = PACKAGE / "__init__.pyi"


def on_config(config):
    """The API comes last in the navigation."""
    rooms = [{_title(room): f"api/{room.name}.md"} for room in _rooms()]
    config.nav.append({"API": [{"Public names": "api/index.md"}, *rooms, {"Errors": "api/errors.md"}]})
    return config


def on_files(files, config):
    """Add the pages, before their links are looked at."""
    pages = {"index": _index(), "errors": "# Errors\n\n::: eblvm_lit.errors\n"}
    for room in _rooms():
        modules = [_dotted(path) for path in sorted(room.rglob("*.py")) if path.name != "__init__.py"]
        modules.sort(key=lambda name: (not name.endswith(".base"), name))
        entries = "\n\n".join(f"::: {name}" for name in modules)
        pages[room.name] = f"# {_title(room)}\n\n{_first_sentence(room / '__init__.py')}\n\n{entries}\n"
    for name, text in pages.items():
        files.append(File.generated(config, f"api/{name}.md", content=text))
    return files


def public_names():
    """Each public name and the module that defines it, as ``__init__.pyi`` says."""
    found = {}
    for node in ast.parse(STUB.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            found |= {alias.asname or alias.name: f"eblvm_lit.{node.module}" for alias in node.names}
    return found


def _index():
    rows = [
        f"| [`{name}`][{module}.{name}] | {_describe(module, name)} |"
        for name, module in sorted(public_names().items(), key=lambda item: item[0].lower())
    ]
    head = (
        "# Public names\n\nThese names are imported from the package itself: `from eblvm_lit import GRBM`. "
        "The pages beside this one have all modules, folder by folder.\n\n| name | what it is |\n|---|---|\n"
    )
    return head + "\n".join(rows) + "\n"


def _describe(module, name):
    """The first sentence of a definition's docstring, as one cell of a table."""
    path = PACKAGE / "/".join(module.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            text = (ast.get_docstring(node) or "").split("\n\n")[0].replace("\n", " ")
            text = re.sub(r":math:`([^`]*)`", lambda match: "$" + match[1].replace("|", r"\mid ") + "$", text)
            text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", text).replace("``", "`")
            return re.sub(r"\*(?=\S)", r"\*", text.replace("|", "&#124;"))
    return ""


def _rooms():
    return sorted(
        path for path in PACKAGE.iterdir() if (path / "__init__.py").exists() and any(path.rglob("[a-z]*.py"))
    )


def _title(room):
    return {"bidvl": "BiDVL"}.get(room.name, room.name.replace("_", " ").capitalize())


def _first_sentence(path):
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").replace("``", "`")


def _dotted(path):
    return ".".join(("eblvm_lit", *path.relative_to(PACKAGE).with_suffix("").parts))
