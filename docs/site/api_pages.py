"""The pages of the API: one for each module of the package, one for each folder, and one that lists the public names.

mkdocstrings fills each line ``::: module`` with signatures and docstrings, which it reads without importing anything. A
page begins with the files of conf/ that build its classes.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "eblvm_lit"
STUB = PACKAGE / "__init__.pyi"
TITLES = {"cli": "Command line", "utils": "Utilities"}


def navigation():
    """The pages as the navigation has them: the folders, each with its modules."""
    folders = [
        {
            _title(folder): [
                page_of(folder / "__init__.py"),
                *({_short(path): page_of(path)} for path in _modules(folder)),
            ]
        }
        for folder in _folders()
    ]
    return [{"Public names": "api/index.md"}, *folders, {"Errors": "api/errors.md"}]


def pages():
    """The text of each page by its path in the site."""
    found = {"api/index.md": _index(), "api/errors.md": "# Errors\n\n::: eblvm_lit.errors\n"}
    for folder in _folders():
        found[page_of(folder / "__init__.py")] = _folder_page(folder)
        found |= {page_of(path): _module_page(path) for path in _modules(folder)}
    return found


def page_of(path):
    """The page of a module or of a folder, as a path in the site."""
    inside = path.relative_to(PACKAGE).with_suffix("").as_posix()
    return f"api/{inside.removesuffix('__init__')}{'index' if inside.endswith('__init__') else ''}.md"


def public_names():
    """Each public name and the module that defines it, as ``__init__.pyi`` says."""
    found = {}
    for node in ast.parse(STUB.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            found |= {alias.asname or alias.name: f"eblvm_lit.{node.module}" for alias in node.names}
    return found


def builders():
    """The files of conf/ that name each class of the package as a ``_target_``."""
    found = {}
    for path in sorted((ROOT / "conf").rglob("*.yaml")):
        for target in re.findall(r"_target_: (eblvm_lit\.[\w.]+)", path.read_text(encoding="utf-8")):
            found.setdefault(target, {})[path.relative_to(ROOT / "conf").as_posix()] = None
    return {target: list(files) for target, files in found.items()}


def _index():
    """The public names by folder, each with the first sentence of its docstring."""
    parts = [
        "# Public names\n\nThese names are imported from the package itself: `from eblvm_lit import GRBM`. "
        "The pages beside this one have all modules, folder by folder."
    ]
    names = public_names()
    for folder in [*_folders(), PACKAGE]:
        own = {
            name: module
            for name, module in sorted(names.items(), key=lambda item: item[0].lower())
            if (module.split(".")[1] == folder.name) or (folder == PACKAGE and module.count(".") == 1)
        }
        if own:
            rows = "\n".join(
                f"| [`{name}`][{module}.{name}] | {_describe(module, name)} |" for name, module in own.items()
            )
            title = "Errors" if folder == PACKAGE else _title(folder)
            parts.append(f"## {title}\n\n| name | what it is |\n|---|---|\n{rows}")
    return "\n\n".join(parts) + "\n"


def _folder_page(folder):
    """What a folder is for, and its modules with their first lines."""
    here = Path(page_of(folder / "__init__.py")).parent
    rows = "\n".join(
        f"| [`{_short(path)}`]({Path(page_of(path)).relative_to(here).as_posix()}) | {_first_line(path)} |"
        for path in _modules(folder)
    )
    table = f"| module | what is in it |\n|---|---|\n{rows}"
    return f"# {_title(folder)}\n\n{_first_line(folder / '__init__.py')}\n\n{table}\n"


def _module_page(path):
    """A module: the files of conf/ that build its classes, and what mkdocstrings makes of it."""
    name = ".".join(("eblvm_lit", *path.relative_to(PACKAGE).with_suffix("").parts))
    up = "../" * page_of(path).count("/")
    lines = []
    for target, files in sorted(BUILDERS.items()):
        if target.rpartition(".")[0] == name:
            links = ", ".join(f"[`{file}`]({up}../conf/{file})" for file in files)
            lines.append(f"- `{target.rpartition('.')[2]}`: {links}")
    built = "Files of [conf](" + up + "reference/groups.md) that build these classes:\n\n" + "\n".join(lines) + "\n\n"
    return f"# {_short(path)}\n\n{built if lines else ''}::: {name}\n    options:\n      show_root_heading: false\n"


def _describe(module, name):
    """The first sentence of a definition's docstring, as one cell of a table."""
    path = PACKAGE / "/".join(module.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return _cell((ast.get_docstring(node) or "").split("\n\n")[0].replace("\n", " "))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name and isinstance(after, ast.Expr):
            return _cell(ast.literal_eval(after.value))  # the string below the name
    return ""


def _cell(text):
    """A docstring's sentence as a cell of a table."""
    text = re.sub(r":math:`([^`]*)`", lambda match: "$" + match[1].replace("|", r"\mid ") + "$", text)
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", text).replace("``", "`")
    return re.sub(r"\*(?=\S)", r"\*", text.replace("|", "&#124;"))


def _folders():
    """The folders of the package that have modules; those inside of them belong to them."""
    return sorted(
        path for path in PACKAGE.iterdir() if (path / "__init__.py").exists() and any(path.rglob("[a-z]*.py"))
    )


def _modules(folder):
    """The modules of a folder and of the folders inside it, bases first."""
    paths = [path for path in folder.rglob("*.py") if not path.name.startswith("__")]
    return sorted(paths, key=lambda path: (path.parent != folder, path.parent, path.stem != "base", path))


def _title(folder):
    return TITLES.get(folder.name, folder.name.replace("_", " ").capitalize())


def _short(path):
    """A module's name inside its folder."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts[1:])


def _first_line(path):
    return _cell(
        (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n\n")[0].replace("\n", " ")
    )


BUILDERS = builders()
