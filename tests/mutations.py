"""Makes small errors in the mathematics, one at a time, and checks that the tests listed for each of them fail.

Each error is made in a copy of the package, and its tests run in a fork of this process, so that libraries are loaded
only once. The table is mutations.toml; an entry's name is the equation that it breaks.
"""

import argparse
import importlib
import importlib.util
import os
import re
import shutil
import signal
import sys
import tempfile
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
PACKAGE = ROOT / "src" / "eblvm_lit"
# Libraries that the package and its tests import and that load slowly; none of them imports the package.
LIBRARIES = (
    *("torch", "torch.distributed", "torch.optim.swa_utils", "torchvision", "pytorch_lightning", "torchmetrics"),
    *("hydra", "omegaconf", "scipy.stats", "sklearn.svm", "sklearn.datasets", "pandas", "matplotlib.pyplot"),
    *("rich.progress", "wandb", "yaml", "hypothesis", "pytest"),
)
# These options keep pytest's cache out of the working tree, and the tests in the order of the table. The warning that
# pytest cannot rewrite imported plugins is off, because plugins are loaded earlier.
OPTIONS = ("-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:randomly")
OPTIONS += ("-W", "ignore::pytest.PytestAssertRewriteWarning")
# The time limit in seconds for the tests of one mutation. A mutation that makes tests wait forever does not count as
# caught.
LIMIT = 600
# The exit codes of pytest.
CAUGHT = 1  # a test has failed
ESCAPED = 0  # no test has failed


class Mutation(NamedTuple):
    """A change at one place of a file, and the tests that should fail because of it.

    Attributes:
        name: The equation or the fact that the change breaks.
        file: The file, relative to the package's folder.
        old: The text to be replaced, which occurs once in the file.
        new: The text that replaces it.
        tests: Names of test functions, with parameters in brackets where one set of them is enough, and with
        ``file.py::`` in front where several files have a test of this name.
        slow: Whether the tests take more than about six seconds of processor time; the fast half leaves these out.
    """

    name: str
    file: str
    old: str
    new: str
    tests: list[str]
    slow: bool = False


def table():
    """Return all mutations of the table."""
    return [Mutation(**entry) for entry in tomllib.loads((TESTS / "mutations.toml").read_text())["mutation"]]


def test_files():
    """Return the files that contain each test function, by its name."""
    found = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for name in re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE):
            found.setdefault(name, []).append(path)
    return found


def node(test, files):
    """Return the node id that pytest needs for a test of the table.

    Raises:
        LookupError: If no file contains the test, or several files do.
    """
    file, _, name = test.rpartition("::")
    paths = [path for path in files.get(name.partition("[")[0], []) if not file or str(path).endswith(f"/{file}")]
    if len(paths) != 1:
        raise LookupError(f"{len(paths)} files have the test {test}")
    return f"{paths[0].relative_to(ROOT)}::{name}"


def stale(mutations, files):
    """Return messages about the entries of the table that no longer fit the package.

    Their text does not occur exactly once, or a test of theirs does not exist.
    """
    found = []
    for mutation in mutations:
        path = PACKAGE / mutation.file
        n = path.read_text().count(mutation.old) if path.is_file() else 0
        if n != 1 or mutation.old == mutation.new:
            found.append(f"{mutation.name}: its text occurs {n} times in {mutation.file}")
        for test in mutation.tests:
            try:
                node(test, files)
            except LookupError as error:
                found.append(f"{mutation.name}: {error}")
    return found


def copy_package(source, folder):
    """Copy a package's folder into a new folder, link the configurations beside it, and return the path to import
    from."""
    shutil.copytree(source, folder / "src" / "eblvm_lit")
    (folder / "conf").symlink_to(ROOT / "conf")
    return folder / "src"


def apply(mutation, src):
    """Make the change of a mutation in a copy of the package."""
    path = src / "eblvm_lit" / mutation.file
    path.write_text(path.read_text().replace(mutation.old, mutation.new))
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def load_libraries():
    """Import the libraries of all tests, but no module of the package."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in LIBRARIES:
        importlib.import_module(name)
    import hypothesis

    hypothesis.settings.register_profile("mutations", database=None, derandomize=True, deadline=None)
    hypothesis.settings.load_profile("mutations")
    assert not any(name.partition(".")[0] == "eblvm_lit" for name in sys.modules)


def run_tests(src, nodes, log, *options):
    """Run tests on a copy of the package in a forked process, and return its process id.

    The process exits with pytest's exit code.
    """
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    code = 70
    try:
        os.setsid()
        signal.alarm(LIMIT)
        out = os.open(log, os.O_WRONLY | os.O_CREAT)
        for standard in (1, 2):
            os.dup2(out, standard)
        os.chdir(ROOT)
        sys.path.insert(0, str(src))
        os.environ.update(PYTHONPATH=str(src), COLUMNS="250")
        import pytest

        code = int(pytest.main([*OPTIONS, f"--basetemp={src.parent / 'tmp'}", *options, *nodes]))
        used = sys.modules.get("eblvm_lit")
        if used is None or not Path(str(used.__file__)).is_relative_to(src):
            print(f"The package that was tested is {used}.")
            code = 71
        sys.stdout.flush()
    finally:
        os._exit(code)


def ended():
    """Wait until a process of tests ends, kill the processes that it has left, and return its id, exit code and
    processor seconds."""
    pid, status, used = os.wait4(-1, 0)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    return pid, os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime


def baseline(src, nodes, log):
    """Run the tests without a mutation, and return whether all pass."""
    run_tests(src, nodes, log)
    _, code, seconds = ended()
    passed = f"{len(nodes)} tests pass without a mutation ({seconds:.0f} s)."
    print(log.read_text()[-4000:] if code else passed, flush=True)
    return code == 0


def verdicts(mutations, files, pristine, scratch, jobs):
    """Yield each mutation with its exit code, processor seconds, first failure and log."""
    waiting = list(enumerate(mutations))
    running = {}
    sys.dont_write_bytecode = True  # the bytecode of a mutated file must not be reused
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                i, mutation = waiting.pop(0)
                src = copy_package(pristine / "eblvm_lit", scratch / str(i))
                log = scratch / f"{i}.log"
                apply(mutation, src)
                pid = run_tests(src, [node(test, files) for test in mutation.tests], log, "-x")
                running[pid] = mutation, log, src
            pid, code, seconds = ended()
            mutation, log, src = running.pop(pid)
            found = re.search(r"^(?:FAILED|ERROR) \S*::(\w+).*? - (\w+)", log.read_text(), re.MULTILINE)
            shutil.rmtree(src.parent, ignore_errors=True)
            yield mutation, code, seconds, " ".join(found.groups()) if found else "", log
    finally:
        for pid in running:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def select(mutations, half, words):
    """Select the mutations of the fast half, the slow half or all whose names or files contain some words."""
    kept = [m for m in mutations if half == "all" or m.slow == (half == "slow")]
    return [m for m in kept if words.lower() in f"{m.name} {m.file}".lower()]


def parse(argv):
    """Parse the options of the command line."""
    parser = argparse.ArgumentParser(prog="make test-mutations", description="Test small errors in the mathematics.")
    parser.add_argument("--jobs", type=int, default=2, help="how many mutations are tested side by side")
    parser.add_argument("--half", choices=("all", "fast", "slow"), default="all", help="the fast ones take 6 s or less")
    parser.add_argument("-k", dest="words", default="", help="only mutations whose name or file has these words")
    parser.add_argument("--list", action="store_true", help="print the mutations, and test none")
    return parser.parse_args(argv)


def main(argv=None):
    """Test the mutations; return 1 if one escaped, and 2 if the table is stale or tests fail without a mutation."""
    options = parse(argv)
    mutations = table()
    files = test_files()
    if found := stale(mutations, files):
        print("The table does not fit the package:", *found, sep="\n  ")
        return 2
    mutations = select(mutations, options.half, options.words)
    if options.list:
        for mutation in mutations:
            print(f"{mutation.file:45} {mutation.name}{' (slow)' if mutation.slow else ''}")
        return 0
    load_libraries()
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        return report(mutations, files, Path(folder), options.jobs)


def report(mutations, files, scratch, jobs):
    """Test mutations, and print the result of each."""
    pristine = copy_package(PACKAGE, scratch / "pristine")
    nodes = sorted({node(test, files) for mutation in mutations for test in mutation.tests})
    if not baseline(pristine, nodes, scratch / "baseline.log"):
        print("Tests fail without any mutation: see above.")
        return 2
    missed = []
    for mutation, code, seconds, failed, log in verdicts(mutations, files, pristine, scratch, jobs):
        verdict = {CAUGHT: "caught", ESCAPED: "ESCAPED"}.get(code, f"ERROR {code}")
        print(f"{verdict:8} {seconds:5.1f} s  {mutation.file}: {mutation.name}  [{failed}]", flush=True)
        if code not in (CAUGHT, ESCAPED):
            print(log.read_text()[-2000:])
        if code != CAUGHT:
            missed.append(mutation.name)
    print(f"{len(mutations) - len(missed)} of {len(mutations)} mutations are caught.", *missed, sep="\n  ")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
