"""What the tests share."""

import copy
import gc
import os
import resource
import signal
from pathlib import Path

# Everything here is small: threads only wait for each other. Set before torch is loaded, and inherited by subprocesses.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from omegaconf import OmegaConf

# In the background of nohup SIGHUP is ignored, and a run that is started there ignores it, too: tests of it could not pass.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

PEAKS = {}  # GB, by worker


def peak_memory():
    """The most that this process, or one that it has waited for, has had in memory, in GB."""
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 2**20


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
    """Each run begins with a garbage collection: what was there before the file, all that is imported, is left out."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()  # or triton tells at exit what it thinks has leaked


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk():
    """Nothing here cuts the power, and a run writes a score of files: each would wait for its turn on the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def each_file_of_conf_is_parsed_once():
    """A composition reads forty of them, and to parse them takes a quarter of its time."""
    load = OmegaConf.load
    parsed = {}

    def load_once(file):
        path = os.path.abspath(file if isinstance(file, str | Path) else file.name)
        key = path, os.stat(path).st_mtime_ns
        parsed[key] = parsed[key] if key in parsed else load(file)
        return copy.deepcopy(parsed[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OmegaConf, "load", load_once)
        yield


@pytest.fixture(autouse=True)
def seeded():
    """A test finds the same random numbers in any order of the tests."""
    torch.manual_seed(0)


@pytest.fixture
def float64():
    """Double precision, so that identities are told from approximations; and a fixed seed."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def unrendered(monkeypatch):
    """Figures are drawn, and files of their names written, but not rendered: most of the time of a short run."""
    from matplotlib.figure import Figure
    from PIL import Image

    monkeypatch.setattr(Figure, "savefig", lambda self, file, **options: Image.new("L", (1, 1)).save(file, "PNG"))


@pytest.fixture(scope="session")
def honest(tmp_path_factory):
    """An honest checkpoint's content."""
    from eblvm_lit.training.checkpoint_io import load_checkpoint
    from helpers.shell import train

    folder = tmp_path_factory.mktemp("honest")
    train(folder, "method=dsm", "trainer.max_steps=1", "n_validations=1")
    return load_checkpoint(folder / "checkpoints" / "last.ckpt")


@pytest.fixture
def content(honest):
    """The same, for a test to spoil."""
    return copy.deepcopy(honest)


@pytest.fixture
def sentinel(tmp_path):
    """A file that is there if anything was executed."""
    path = tmp_path / "executed"
    yield path
    assert not path.exists()
