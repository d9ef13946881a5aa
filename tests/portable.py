"""Runs the numerical tests with other instruction sets, thread counts, Pythons and library versions; prints a table."""

import argparse
import functools
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
EXTRAS = ("test", "dashboards", "joblib", "optuna", "tensorboard", "yardsticks")

# The tests whose numbers depend on the processor.
NUMBERS = [
    *("core", "divergences", "energies", "hypergradients", "methods", "networks", "objectives", "optimizers"),
    *("posteriors", "samplers", "scores", "evaluation/studies"),
    *(
        "evaluation/test_out_of_distribution.py",
        "training/callbacks/test_compiling.py",
        "training/callbacks/test_ema.py",
    ),
    *("training/test_equal_numbers.py", "test_tolerances.py"),
]


# The tests that depend on Hydra and OmegaConf, and the release candidates of both libraries.
SHELL = ["cli", "runs/test_instantiate.py", "runs/test_resume.py", "training/loggers", "test_schema.py"]
CANDIDATES = ("hydra-core>=1.4.0rc3", "omegaconf>=2.4.1rc1")


class Cell(NamedTuple):
    """A configuration of the tests: an environment of packages, environment variables, and the tests that are run."""

    environment: str
    variables: dict[str, str]
    tests: list[str] = NUMBERS


ATEN = "ATEN_CPU_CAPABILITY"
ONEDNN = "ONEDNN_MAX_CPU_ISA"
THREADS = "OMP_NUM_THREADS"
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
    "candidates": Cell("candidates", {THREADS: "1"}, SHELL),
}


def lower_bounds():
    """Return the requirements of pyproject.toml, each pinned to its lower bound.

    A bound of three numbers is taken literally (===): == would prefer a build for another index, such as 2.13.0+cpu,
    with which the other packages do not work.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = project["dependencies"] + [requirement for name in EXTRAS for requirement in extras[name]]
    bounds = [re.sub(r">=([^,]+).*", r"==\1", r) for r in wanted if not r.startswith(project["name"])]
    return [re.sub(r"==(\d+\.\d+\.\d+)$", r"===\1", bound) for bound in bounds]


def make_environment(name, python, requirements):
    """Return the interpreter of a virtual environment, which is created again if its requirements have changed."""
    folder = BUILD / name
    stamp = folder / "made_of"
    content = "\n".join([python, *requirements])
    interpreter = str(folder / "bin" / "python")
    if not (stamp.exists() and stamp.read_text() == content):
        print(f"Setting up {folder.relative_to(ROOT)} with {python}: about 6 GB, some minutes.", flush=True)
        subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
        pip = [interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *requirements], check=True, cwd=ROOT)
        subprocess.run([*pip, "--no-deps", "-e", "."], check=True, cwd=ROOT)
        stamp.write_text(content)
    return interpreter


def pythons():
    """Return each Python from 3.11 on that is on the path or installed by pyenv, by version."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [path for path in root.glob("versions/3.*/bin/python") if path.exists()]
    candidates += [path for minor in range(OLDEST[1], 30) if (path := shutil.which(f"python3.{minor}"))]
    found = {}
    for path in candidates:
        tell = [path, "-c", "import sys, venv, ensurepip; print(*sys.version_info[:2])"]
        answer = subprocess.run(tell, capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            found[tuple(map(int, answer.stdout.split()))] = str(path)
    return {version: path for version, path in found.items() if version >= OLDEST}


@functools.cache
def interpreter_of(environment):
    """Return the interpreter of a cell's environment, or None if its Python is not installed."""
    if environment == "this" or (environment == "oldest" and sys.version_info[:2] == OLDEST):
        return sys.executable
    tested = ["-c", "constraints.txt", "-e", ".[test]"]
    found = pythons()
    if environment == "newest":
        newer = [version for version in found if version > max(sys.version_info[:2], OLDEST)]
        return make_environment("newest", found[max(newer)], tested) if newer else None
    if environment == "candidates":
        pinned = (ROOT / "constraints.txt").read_text().splitlines()
        tested = [*(pin for pin in pinned if not pin.startswith(("hydra-core=", "omegaconf="))), *CANDIDATES]
        return make_environment("candidates", sys.executable, tested)
    packages = tested if environment == "oldest" else lower_bounds()
    return make_environment(environment, found[OLDEST], packages) if OLDEST in found else None


def run(name, arguments):
    """Run the tests of a cell; return whether all passed, and pytest's counts."""
    cell = CELLS[name]
    try:
        interpreter = interpreter_of(cell.environment)
    except subprocess.CalledProcessError:
        # Some packages may not have wheels for the newest Python yet, which is not a failure.
        return cell.environment == "newest", "the packages cannot be installed"
    if interpreter is None:
        return True, "skipped: there is no such Python"
    command = [interpreter, "-m", "pytest", *arguments, *(f"tests/{name}" for name in cell.tests)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | cell.variables, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout[-6000:] + done.stderr[-2000:], flush=True)
    counts = re.findall(r"\d+ (?:passed|failed|skipped|errors?)\b", done.stdout[-2000:])
    return done.returncode == 0, ", ".join(counts) or f"exit code {done.returncode}"


def main():
    """Run the cells and print the table; exit with 1 if a test has failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=[*CELLS], metavar="CELL", help=", ".join(CELLS))
    parser.add_argument("--pytest", default="-n auto --maxprocesses 8 --dist worksteal", help="arguments for pytest")
    options = parser.parse_args()
    good = True
    print("| cell | tests | seconds |\n|---|---|---|")
    for name in options.cells:
        start = time.monotonic()
        passed, counts = run(name, options.pytest.split())
        good &= passed
        print(f"| {name} | {counts} | {time.monotonic() - start:.0f} |", flush=True)
    sys.exit(not good)


if __name__ == "__main__":
    main()
