"""Small errors in the mathematics, one at a time, and whether the tests that are named for each of them fail.

Each error is made in a copy of the package, whose tests run in a fork of this process: the libraries are loaded once.
The table is mutations.toml: an error is named by the equation that it breaks.
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
# What the package and its tests load, and takes long; none of these loads the package.
LIBRARIES = (
    *("torch", "torch.distributed", "torch.optim.swa_utils", "torchvision", "pytorch_lightning", "torchmetrics"),
    *("hydra", "omegaconf", "scipy.stats", "sklearn.svm", "sklearn.datasets", "pandas", "matplotlib.pyplot"),
    *("rich.progress", "wandb", "yaml", "hypothesis", "pytest"),
)
# Nothing is left in the working tree, the order is that of the table, and plugins are loaded before pytest is.
OPTIONS = ("-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:randomly")
OPTIONS += ("-W", "ignore::pytest.PytestAssertRewriteWarning")
LIMIT = 600  # seconds of one mutation's tests: one that makes them wait forever is no mutation that they find
# The exit codes of pytest.
CAUGHT = 1  # a test has failed
ESCAPED = 0  # no test has failed


class Mutation(NamedTuple):
    """A change of one place of a file, and the tests that should fail by it.

    Attributes:
        name: The equation or the fact that it breaks.
        file: Below the package.
        old: The text there, which occurs once.
        new: What stands there instead.
        tests: Names of test functions, with the parameters in brackets where one set of them is enough, and with
            ``file.py::`` before a name that several files have.
        slow: Whether its tests take more than about six seconds of the CPU: not in the fast half.
    """

    name: str
    file: str
    old: str
    new: str
    tests: list[str]
    slow: bool = False


def table():
    """All mutations."""
    return [Mutation(**entry) for entry in tomllib.loads((TESTS / "mutations.toml").read_text())["mutation"]]


def test_files():
    """The files that hold a test function, by its name: wherever below tests/ they are."""
    found = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for name in re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE):
            found.setdefault(name, []).append(path)
    return found


def node(test, files):
    """pytest's name of a test of the table.

    Raises:
        LookupError: If no file has it, or several.
    """
    file, _, name = test.rpartition("::")
    paths = [path for path in files.get(name.partition("[")[0], []) if not file or str(path).endswith(f"/{file}")]
    if len(paths) != 1:
        raise LookupError(f"{len(paths)} files have the test {test}")
    return f"{paths[0].relative_to(ROOT)}::{name}"


def stale(mutations, files):
    """What no longer fits the package and its tests: texts that do not occur once, and tests that are not there."""
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
    """A copy of a package's folder, beside the configurations, in a new folder; its place."""
    shutil.copytree(source, folder / "src" / "eblvm_lit")
    (folder / "conf").symlink_to(ROOT / "conf")
    return folder / "src"


def apply(mutation, src):
    """Make the change in a copy."""
    path = src / "eblvm_lit" / mutation.file
    path.write_text(path.read_text().replace(mutation.old, mutation.new))
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def load_libraries():
    """Load what all tests need, and nothing of the package."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in LIBRARIES:
        importlib.import_module(name)
    import hypothesis

    hypothesis.settings.register_profile("mutations", database=None, derandomize=True, deadline=None)
    hypothesis.settings.load_profile("mutations")
    assert not any(name.partition(".")[0] == "eblvm_lit" for name in sys.modules)


def run_tests(src, nodes, log, *options):
    """Run tests with the package of a copy, in a process of its own that ends with pytest's exit code; its number."""
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
    """Wait for a process of tests to end, with all that it started: its number, exit code and seconds of the CPU."""
    pid, status, used = os.wait4(-1, 0)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    return pid, os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime


def baseline(src, nodes, log):
    """Whether the tests pass without any mutation."""
    run_tests(src, nodes, log)
    _, code, seconds = ended()
    passed = f"{len(nodes)} tests pass without a mutation ({seconds:.0f} s)."
    print(log.read_text()[-4000:] if code else passed, flush=True)
    return code == 0


def verdicts(mutations, files, pristine, scratch, jobs):
    """Each mutation with how its tests ended, the seconds of the CPU, the first that failed and why, and the log."""
    waiting = list(enumerate(mutations))
    running = {}
    sys.dont_write_bytecode = True  # of a mutated file, that is
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
    """Those of a half whose names or files have some words."""
    kept = [m for m in mutations if half == "all" or m.slow == (half == "slow")]
    return [m for m in kept if words.lower() in f"{m.name} {m.file}".lower()]


def parse(argv):
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="make test-mutations", description="Test small errors in the mathematics.")
    parser.add_argument("--jobs", type=int, default=2, help="how many mutations are tested side by side")
    parser.add_argument("--half", choices=("all", "fast", "slow"), default="all", help="the fast ones take 6 s or less")
    parser.add_argument("-k", dest="words", default="", help="only mutations whose name or file has these words")
    parser.add_argument("--list", action="store_true", help="print the mutations, and test none")
    return parser.parse_args(argv)


def main(argv=None):
    """Test the mutations; 1 if one has escaped, 2 if the table is stale or tests fail without a mutation."""
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
    """Test mutations, and print how each has ended."""
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
