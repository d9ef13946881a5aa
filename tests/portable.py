"""Runs the tests of numbers under other instruction sets, threads, Pythons and versions, and prints a table."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "portable"
OLDEST = (3, 11)
EXTRAS = ("test", "dashboards", "joblib", "optuna", "tensorboard")

# The tests of numbers: what compares numbers that depend on the processor.
NUMBERS = [
    *("core", "divergences", "energies", "hypergradients", "methods", "networks", "objectives", "optimizers"),
    *("posteriors", "samplers", "scores", "evaluation/test_hypergradient_bias.py"),
    *("evaluation/test_out_of_distribution.py", "training/test_compiling.py", "training/callbacks/test_ema.py"),
    *("training/test_equal_numbers.py", "test_tolerances.py"),
]


class Cell(NamedTuple):
    """An environment of packages, and the variables that its tests run with."""

    environment: str
    variables: dict[str, str]


ATEN, ONEDNN, THREADS = "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "OMP_NUM_THREADS"
FOREIGN = {ATEN: "default", ONEDNN: "SSE41", "MKL_CBWR": "COMPATIBLE"}
CELLS = {
    "native": Cell("this", {THREADS: "1"}),
    "native-2": Cell("this", {THREADS: "2"}),
    "aten-avx2": Cell("this", {ATEN: "avx2", THREADS: "1"}),
    "foreign": Cell("this", {**FOREIGN, THREADS: "1"}),
    "foreign-2": Cell("this", {**FOREIGN, THREADS: "2"}),
    "oldest-python": Cell("oldest", {THREADS: "1"}),
    "newest-python": Cell("newest", {THREADS: "1"}),
    "lower-bounds": Cell("lower", {THREADS: "1"}),
    "lower-bounds-foreign": Cell("lower", {**FOREIGN, THREADS: "1"}),
}


def pythons():
    """Each Python from 3.11 on that is on the path or among pyenv's, by version."""
    candidates = [shutil.which(f"python3.{minor}") for minor in range(OLDEST[1], 30)]
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates += sorted(root.glob("versions/3.*/bin/python"))
    found = {}
    for path in filter(None, candidates):
        tell = [path, "-c", "import sys, venv, ensurepip; print(*sys.version_info[:2])"]
        answer = subprocess.run(tell, capture_output=True, text=True, check=False)
        if answer.returncode == 0 and (version := tuple(map(int, answer.stdout.split()))) >= OLDEST:
            found[version] = str(path)
    return found


def lower_bounds():
    """The requirements of pyproject.toml, each at its lower bound.

    A bound of three numbers is taken literally (===): == would prefer a build of it for another index, as 2.13.0+cpu,
    to which the other packages were not built.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = project["dependencies"] + [requirement for name in EXTRAS for requirement in extras[name]]
    bounds = [re.sub(r">=([^,]+).*", r"==\1", r) for r in wanted if not r.startswith(project["name"])]
    return [re.sub(r"==(\d+\.\d+\.\d+)$", r"===\1", bound) for bound in bounds]


def make_environment(name, python, requirements):
    """The interpreter of a virtual environment; made anew where what it should hold has changed."""
    folder = BUILD / name
    stamp, content = folder / "made_of", "\n".join([python, *requirements])
    interpreter = str(folder / "bin" / "python")
    if not (stamp.exists() and stamp.read_text() == content):
        print(f"Setting up {folder.relative_to(ROOT)} with {python}: about 6 GB, some minutes.", flush=True)
        subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
        pip = [interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *requirements], check=True, cwd=ROOT)
        subprocess.run([*pip, "--no-deps", "-e", "."], check=True, cwd=ROOT)
        stamp.write_text(content)
    return interpreter


def interpreter_of(environment, reasons):
    """The interpreter of a cell's environment, or None, with the reason in ``reasons``."""
    tested = ["-c", "constraints.txt", "-e", ".[test]"]
    here, found = sys.version_info[:2], pythons()
    if environment == "this" or (environment == "oldest" and here == OLDEST):
        return sys.executable
    if environment in ("oldest", "lower"):
        if OLDEST not in found:
            reasons[environment] = "no Python 3.11 found"
            return None
        packages = tested if environment == "oldest" else lower_bounds()
        return make_environment(environment, found[OLDEST], packages)
    for version in sorted(found, reverse=True):  # the newest for which all packages have wheels
        if version <= max(here, OLDEST):
            break
        try:
            return make_environment("newest", found[version], tested)
        except subprocess.CalledProcessError:
            print(f"Python {version[0]}.{version[1]}: the packages cannot be installed", flush=True)
    reasons[environment] = f"no Python newer than {here[0]}.{here[1]} found that all packages have wheels for"
    return None


def run(name, cell, interpreter, arguments):
    """Run a cell's tests: what pytest counted, and seconds."""
    BUILD.mkdir(parents=True, exist_ok=True)
    log, start = BUILD / f"{name}.log", time.monotonic()
    command = [interpreter, "-m", "pytest", *arguments, *(f"tests/{name}" for name in NUMBERS)]
    with log.open("w") as file:
        code = subprocess.run(command, cwd=ROOT, env=os.environ | cell.variables, stdout=file, stderr=file).returncode
    text = log.read_text()
    counts = re.findall(r"\d+ (?:passed|failed|skipped|errors?)\b", text[-2000:])
    if code:
        print(text[-6000:], flush=True)
    return code == 0, ", ".join(counts) or f"exit code {code}", time.monotonic() - start


def main():
    """Run the cells, print the table; exit with 1 if a test has failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=[*CELLS], metavar="CELL", help=", ".join(CELLS))
    parser.add_argument("--pytest", default="-n auto --maxprocesses 8 --dist worksteal", help="arguments for pytest")
    options = parser.parse_args()
    rows, reasons, good, interpreters = [], {}, True, {}
    for name in options.cells:
        cell = CELLS[name]
        if cell.environment not in interpreters:
            interpreters[cell.environment] = interpreter_of(cell.environment, reasons)
        interpreter = interpreters[cell.environment]
        if interpreter is None:
            rows.append((name, f"skipped: {reasons[cell.environment]}", ""))
            continue
        passed, counts, seconds = run(name, cell, interpreter, options.pytest.split())
        good &= passed
        rows.append((name, counts, f"{seconds:.0f}"))
        print(" | ".join(rows[-1]), flush=True)
    print("\n| cell | tests | seconds |\n|---|---|---|")
    print("\n".join(f"| {' | '.join(row)} |" for row in rows))
    sys.exit(not good)


if __name__ == "__main__":
    main()
