"""Tests of the structure of the package: its folders, the imports between them, and the style of its files."""

import ast
import functools
import importlib
import inspect
import re
from collections import Counter
from pathlib import Path

import yaml

from helpers.shell import ROOT

PACKAGE = ROOT / "src" / "eblvm_lit"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
# The folders of the package in an order in which each imports only from itself and from later ones.
FOLDERS = [
    *("cli", "runs", "reports", "training", "evaluation", "figures", "draws", "pretrained", "data", "methods"),
    *(
        "hypergradients",
        "scores",
        "samplers",
        "divergences",
        "objectives",
        "optimizers",
        "noise_distributions",
        "posteriors",
    ),
    *("energies", "networks", "core", "utils"),
]
# Patterns of private interfaces of torch's compiler and hooks, in every notation.
INTERNALS = re.compile(
    r"torch\._(?!_)|\b_dynamo\b|\b_inductor\b|\b_functorch\b|__code__|_current_fx|utils\._|\.hooked\b"
)


def text(path):
    return path.read_text()


@functools.cache
def tree_of(path):
    """Return the syntax tree of a file, which is parsed only once for all tests."""
    return ast.parse(text(path))


@functools.cache
def nodes_of(path):
    """Return all nodes of a file's syntax tree, which is walked only once for all tests."""
    return list(ast.walk(tree_of(path)))


def test_the_package_has_no_further_modules_outside_its_layers():
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", "__main__.py", "errors.py"}


def test_each_folder_has_its_folder_of_tests():
    folders = {path.relative_to(PACKAGE).parts[0] for path in MODULES if path.parent != PACKAGE} - {"pretrained"}
    assert [folder for folder in folders if not any((ROOT / "tests" / folder).glob("**/test_*.py"))] == []


def says(node):
    """Return whether a statement or a call can fail a test."""
    call = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    named = re.fullmatch(r"pytest\.(raises|warns|fail)|torch\.testing\.\w+|(\w+\.)*(assert|check|test)_\w+", call)
    return isinstance(node, ast.Assert) or named is not None


def test_every_test_asserts_something():
    silent = []
    for path in (ROOT / "tests").rglob("test_*.py"):
        tests = (node for node in nodes_of(path) if isinstance(node, ast.FunctionDef))
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
    """Yield the folders of the package from which a module imports, also within functions and for types only."""
    for node in nodes_of(path):
        names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from (name.split(".")[1] for name in names if name.startswith("eblvm_lit."))


def test_folders_stand_on_one_another_in_one_direction():
    wrong = set()
    for path in MODULES:
        folder = path.relative_to(PACKAGE).parts[0]
        allowed = {*FOLDERS[FOLDERS.index(folder) :], "errors"} if folder in FOLDERS else {"errors"}
        wrong |= {f"{path.relative_to(PACKAGE)} imports {other}" for other in set(imports_of(path)) - allowed}
    assert not wrong


def test_mathematics_imports_nothing_of_processes():
    folders = FOLDERS[FOLDERS.index("hypergradients") : -1]
    for path in (path for folder in folders for path in (PACKAGE / folder).rglob("*.py")):
        if path.name not in ("ranks.py", "reductions.py"):
            assert "torch.distributed" not in text(path), path


# The private names of libraries that the package uses, by module, and why no public name would do.
PRIVATE = {
    # The docstring of fast_paths.py gives the reasons, with measured numbers.
    "core/fast_paths.py": {"torch._inductor"},
    # Torch's spectral norm assigns new tensors to its buffers, and the compiler does not follow this in a view of the
    # module.
    "networks/layers.py": {"_SpectralNorm", "_power_method", "_u", "_v"},
    # Lightning's progress bar counts epochs, and ours counts iterations.
    "training/callbacks/progress_bar.py": {"_get_train_description"},
    # Lightning's loggers take the id of the run in their constructors, before the checkpoint that holds it is read
    "training/loggers/mlflow.py": {"_run_id"},
    "training/loggers/wandb.py": {"_id", "_wandb_init"},
    # The documentation of os describes _exit. It runs no exit handlers, which must not run after the parent process has
    # died.
    "utils/orphans.py": {"_exit"},
    "runs/annotations.py": {"_get_root"},  # the root node, from which an interpolation is resolved
    # scikit-learn's documentation of ClassNamePrefixFeaturesOutMixin names the attribute that estimators set
    "cli/estimator.py": {"_n_features_out"},
}
# these names of named tuples are public, in spite of their underscore
NAMED_TUPLE = {"_replace", "_asdict", "_fields", "_make"}


def is_private(name):
    return re.fullmatch(r"_[A-Za-z]\w*(?<!__)", name) is not None


@functools.cache
def private_of(base):
    """Return the private names of a library's class: those in its namespace and those that its methods set or read."""
    if base.__module__.split(".")[0] in {"eblvm_lit", "builtins", "abc", "typing"}:
        return set()
    try:
        source = inspect.getsource(base)
    except (OSError, TypeError):  # a class written in C has no source
        source = ""
    return {*filter(is_private, vars(base)), *re.findall(r"self\.(_[A-Za-z]\w*)", source)}


def own_private(path):
    """Return the private names that a module defines or assigns."""
    names = [node.name for node in nodes_of(path) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    stores = [node for node in nodes_of(path) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    return {*names, *(node.attr for node in stores)}


def foreign_private(path, own):
    """Return the private names of libraries that a module uses.

    The module imports them, reads them from an object, or sets or overrides them in a class.
    """
    found = set()
    defined = own | NAMED_TUPLE
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names if any(map(is_private, name.name.split(".")))}
        if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("eblvm_lit"):
            module = [name for name in (node.module or "").split(".") if is_private(name)]
            found |= {f"{node.module.partition('.')[0]}.{name}" for name in module}
            found |= {name.name for name in node.names if is_private(name.name)}
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in defined:
            found.add(node.attr)
    for node in tree_of(path).body:
        if isinstance(node, ast.ClassDef):
            names = {x.attr for x in ast.walk(node) if isinstance(x, ast.Attribute)}
            names |= {x.name for x in node.body if isinstance(x, ast.FunctionDef)}
            names = set(filter(is_private, names)) - NAMED_TUPLE
            if names and node.bases:
                module = importlib.import_module(".".join(path.relative_to(ROOT / "src").with_suffix("").parts))
                found |= names & set().union(*map(private_of, getattr(module, node.name).__mro__))
    return found


def test_private_names_of_libraries_are_those_that_have_a_reason():
    own = set().union(*map(own_private, MODULES))
    found = {path: foreign_private(path, own) for path in MODULES}
    assert {str(path.relative_to(PACKAGE)): names for path, names in found.items() if names} == PRIVATE
    assert [path for path in MODULES if INTERNALS.search(text(path))] == [PACKAGE / "core" / "fast_paths.py"]


def test_a_commit_is_checked_by_the_ruff_of_make_lint():
    (hooks,) = yaml.safe_load(text(ROOT / ".pre-commit-config.yaml"))["repos"]
    assert f"ruff=={hooks['rev'].removeprefix('v')}" in text(ROOT / "constraints.txt").splitlines()


def test_no_module_asks_a_method_for_attributes_by_name():
    for path in MODULES:
        assert not re.search(r"(get|has)attr\(method", text(path)), path


SOURCES = [path for name in ("src", "tests", "benchmarks", "examples") for path in (ROOT / name).rglob("*.py")]
# Words that native readers understood in another way than they were meant: "alone" for only, "less" for minus,
# "released" for the code of a paper's authors, and "rooms" for folders of the package.
AVOIDED = r"(?i)\b(?:released|rooms?|go(?:es|ne)? on with|(?<!stand )(?<!stands )alone|less (?:an?|its|the))\b"


def docstrings(path):
    """Yield the name and the docstring of a file's module, and of all its classes and functions that have one."""
    for node in nodes_of(path):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (found := ast.get_docstring(node)):
            yield getattr(node, "name", "module"), found


def test_a_docstring_begins_with_a_sentence_of_four_words_or_more():
    """Check that first sentences have at least four words, because shorter ones lacked an object or a noun."""
    first = [(path.name, name, re.split(r"(?<=\.)\s", x)[0]) for path in SOURCES for name, x in docstrings(path)]
    assert [sentence for sentence in first if len(sentence[-1].split()) < 4] == []


def test_docstrings_and_comments_use_the_words_that_are_agreed_on():
    found = []
    for path in [*SOURCES, *(ROOT / "conf").rglob("*.yaml")]:
        prose = re.findall(r"(?m)(?:^|\s)# .*$", text(path)) if path != Path(__file__) else []
        prose += [x for _, x in docstrings(path)] if path.suffix == ".py" else []
        found += [f"{path.name}: {x}" for x in prose if re.search(AVOIDED, x)]
    assert found == []


def test_an_assignment_sets_one_value():
    several = []
    for path in SOURCES:
        pairs = [node for node in nodes_of(path) if isinstance(node, ast.Assign)]
        for node in (x for x in pairs if isinstance(x.targets[0], ast.Tuple) and isinstance(x.value, ast.Tuple)):
            names, values = (sorted(map(ast.unparse, part.elts)) for part in (node.targets[0], node.value))
            several += [f"{path}:{node.lineno}"] if names != values else []  # a swap of two values is allowed
    assert several == []


# Classes whose constructors have more than eight arguments, and why.
LONG = {
    **dict.fromkeys(
        ("AnnealedLikelihood", "BiDVL", "BiSM", "FisherCritic", "VaGES"),
        "the parts and the numbers of a paper's algorithm, which are keys of the command line",
    ),
    **dict.fromkeys(
        ("LatentEnergyDiscrepancy", "VNCE", "VSNL", "VaGESFisher"),
        "the arguments of a loss and those of its posterior side by side, as keys of the command line",
    ),
    "EnergyDiscrepancy": "the numbers of the loss for real and for binary v, which are keys of the command line",
    "HypergradientBias": "the numbers of a published figure, which are keys of the command line",
    "WandbRun": "the options of Lightning's logger",
}


def test_constructors_with_more_than_eight_arguments_have_a_reason():
    classes = (x for path in MODULES for x in nodes_of(path) if isinstance(x, ast.ClassDef))
    inits = ((x.name, f) for x in classes for f in x.body if isinstance(f, ast.FunctionDef) and f.name == "__init__")
    assert {name for name, f in inits if len(f.args.kwonlyargs) > 8} <= {*LONG}
