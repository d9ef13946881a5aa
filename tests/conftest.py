"""Fixtures and settings that all tests share.

The process that distributes the tests to the workers of pytest-xdist reads this file as well. It must not import torch
or Hydra, which takes seconds before the first worker begins: the fixtures import them.
"""

import atexit
import copy
import gc
import os
import resource
import signal

# All tensors are small, so that more threads would only wait for one another. The variable is set before torch is
# loaded, and subprocesses inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

# Garbage is not collected before all test files have been imported: imports leave hardly any garbage, and looking for it
# takes two seconds.
gc.disable()
atexit.register(gc.unfreeze)  # triton would report frozen objects as leaks at exit

# The default effect of SIGHUP is restored, because tests of SIGHUP would fail under nohup. There the process ignores
# this signal, and so do the runs that it starts.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

PEAKS = {}  # the peak memory in GB of each pytest worker


def peak_memory():
    """Return the peak memory of this process or of its largest child that has ended, in GB."""
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 2**20


def pytest_collection_finish():
    gc.enable()


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["peak_memory"] = peak_memory()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    PEAKS[node.gateway.id] = node.workeroutput["peak_memory"] if hasattr(node, "workeroutput") else float("nan")


def pytest_terminal_summary(terminalreporter):
    peaks = PEAKS or {"alone": peak_memory()}
    figures = ", ".join(f"{worker} {peak:.2f} GB" for worker, peak in sorted(peaks.items()))
    terminalreporter.write_line(f"peak memory of a worker and its largest child: {figures}")


@pytest.fixture(scope="module", autouse=True)
def nothing_old_is_looked_through():
    """Exclude all existing objects from garbage collection before the tests of a file.

    Each run begins with a garbage collection, which is faster without them. They stay excluded for the rest of the
    session: looking through all of them again before each file took a second.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk():
    """Replace ``os.fsync`` by a function that does nothing.

    No test cuts the power, and a run would wait for the disk at each of its 20 files.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def what_is_done_repeatedly_is_done_once():
    """Cache compositions of Hydra, parsed files and expressions, and the list of installed plugins."""
    from helpers import caches

    with (
        caches.each_file_of_conf_is_parsed_once(),
        caches.the_same_options_of_conf_are_composed_once(),
        caches.installed_packages_are_searched_for_plugins_once(),
        caches.each_interpolation_is_parsed_once(),
    ):
        yield


@pytest.fixture(autouse=True)
def seeded():
    """Seed torch before each test, so that its random numbers do not depend on the order of the tests."""
    import torch

    torch.manual_seed(0)


@pytest.fixture
def float64():
    """Set double precision and a fixed seed.

    In double precision, identities differ from approximations by more than rounding.
    """
    import torch

    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def unrendered(monkeypatch):
    """Write empty pictures instead of rendered ones.

    Figures are still drawn, but rendering would take most of a short run's time.
    """
    from matplotlib.figure import Figure
    from PIL import Image

    monkeypatch.setattr(Figure, "savefig", lambda self, file, **options: Image.new("L", (1, 1)).save(file, "PNG"))


@pytest.fixture(scope="session")
def honest(tmp_path_factory):
    """Return the content of a valid checkpoint, from a run of one iteration."""
    from eblvm_lit.training.checkpoint_io import load_checkpoint
    from helpers.shell import train

    folder = tmp_path_factory.mktemp("honest")
    train(folder, "method=dsm", "trainer.max_steps=1", "n_validations=1")
    return load_checkpoint(folder / "checkpoints" / "last.ckpt")


@pytest.fixture
def content(honest):
    """Return a copy of the valid checkpoint's content, which a test may change."""
    return copy.deepcopy(honest)


@pytest.fixture
def sentinel(tmp_path):
    """Return the path of a file that malicious code would create, and fail if it exists after the test."""
    path = tmp_path / "executed"
    yield path
    assert not path.exists()
