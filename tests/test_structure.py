"""The structure of the package: where things are, and what may import what."""

import ast
import re
from collections import Counter

import yaml

from helpers.shell import ROOT

PACKAGE = ROOT / "src" / "eblvm_lit"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
# Each room, and those that it stands on; none imports what comes before it.
ROOMS = [
    *("cli", "reports", "training", "figures", "evaluation", "pretrained", "data", "methods", "hypergradients"),
    *("scores", "samplers", "divergences", "objectives", "optimizers", "noise_distributions", "posteriors"),
    *("energies", "networks", "core", "utils"),
]
PRIVATE = re.compile(r"torch\._(?!_)|\b_dynamo\b|\b_inductor\b|\b_functorch\b|__code__|_current_fx|utils\._|\.hooked\b")


def text(path):
    return path.read_text()


def test_nothing_lies_loose_in_the_package():
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", "__main__.py", "errors.py"}


def test_each_room_has_its_folder_of_tests():
    rooms = {path.relative_to(PACKAGE).parts[0] for path in MODULES if path.parent != PACKAGE} - {"pretrained"}
    assert [room for room in rooms if not any((ROOT / "tests" / room).glob("**/test_*.py"))] == []


def says(node):
    """Whether a statement or a call can fail a test."""
    call = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    named = re.fullmatch(r"pytest\.(raises|warns|fail)|torch\.testing\.\w+|(\w+\.)*(assert|check|test)_\w+", call)
    return isinstance(node, ast.Assert) or named is not None


def test_every_test_asserts_something():
    silent = []
    for path in (ROOT / "tests").rglob("test_*.py"):
        tests = (node for node in ast.walk(ast.parse(text(path))) if isinstance(node, ast.FunctionDef))
        silent += [test.name for test in tests if test.name.startswith("test_") and not any(map(says, ast.walk(test)))]
    assert silent == []


def test_no_two_modules_have_one_name():
    names = Counter(path.name for path in MODULES)
    assert [name for name, n in names.items() if n > 1 and name not in ("base.py", "__main__.py")] == []


def test_the_first_line_of_a_module_says_what_is_in_it():
    for path in MODULES:
        first = text(path).splitlines()[0]
        assert re.match(r'^r?"""[A-Z`].*[.:]("""$|$)', first), f"{path}: {first}"


def imports_of(path):
    """The rooms of the package that a module imports from, also within functions and for types."""
    for node in ast.walk(ast.parse(text(path))):
        names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from (name.split(".")[1] for name in names if name.startswith("eblvm_lit."))


def test_rooms_stand_on_one_another_in_one_direction():
    wrong = set()
    for path in MODULES:
        room = path.relative_to(PACKAGE).parts[0]
        allowed = {*ROOMS[ROOMS.index(room) :], "errors"} if room in ROOMS else {"errors"}
        wrong |= {f"{path.relative_to(PACKAGE)} imports {other}" for other in set(imports_of(path)) - allowed}
    assert not wrong


def test_mathematics_imports_nothing_of_processes():
    for path in (path for room in ROOMS[ROOMS.index("hypergradients") : -1] for path in (PACKAGE / room).rglob("*.py")):
        if path.name not in ("ranks.py", "reductions.py"):
            assert "torch.distributed" not in text(path), path


def test_private_names_of_torch_and_lightning_are_in_one_module():
    found = [path for path in MODULES if PRIVATE.search(text(path))]
    assert found == [PACKAGE / "core" / "fast_paths.py"]


def test_a_commit_is_checked_by_the_ruff_of_make_lint():
    (hooks,) = yaml.safe_load(text(ROOT / ".pre-commit-config.yaml"))["repos"]
    assert f"ruff=={hooks['rev'].removeprefix('v')}" in text(ROOT / "constraints.txt").splitlines()


def test_what_a_method_has_is_asked_of_its_parts():
    for path in MODULES:
        assert not re.search(r"(get|has)attr\(method", text(path)), path
