"""Fixtures and settings that all tests share."""

import copy
import dataclasses
import functools
import gc
import os
import pickle
import resource
import signal
from pathlib import Path

# All tensors are small, so that more threads would only wait for one another. The variable is set before torch is
# loaded, and subprocesses inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hydra
import omegaconf
import pytest
import torch
from hydra._internal import config_loader_impl
from hydra._internal import defaults_list as hydra_defaults_list
from hydra.core.config_store import ConfigStore
from lightning_fabric.utilities import registry
from omegaconf import OmegaConf, grammar_parser

from helpers.shell import CONF

# Nothing that is imported becomes garbage: without collections, the import of the tests takes two seconds less.
gc.disable()

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
    gc.unfreeze()  # triton would report frozen objects as leaks at exit
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
def each_file_of_conf_is_parsed_once():
    """Cache the parsed files of conf/, because parsing takes a quarter of the time of a composition.

    A composition reads forty files. The files are kept pickled: loading a pickled configuration is six times faster
    than ``copy.deepcopy``.
    """
    load = OmegaConf.load
    parsed = {}

    def load_once(file):
        path = os.path.abspath(file if isinstance(file, str | Path) else file.name)
        key = path, os.stat(path).st_mtime_ns
        parsed[key] = parsed[key] if key in parsed else pickle.dumps(load(file))
        return pickle.loads(parsed[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OmegaConf, "load", load_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def the_same_options_of_conf_are_composed_once():
    """Cache the results of two steps of Hydra, give each test a copy, and leave out work whose result is not read.

    The results depend on the chosen options of conf/, but not on the values of single keys, which Hydra sets
    afterwards. The tests compose 750 configurations, which took a quarter of the whole time of the tests. A
    configuration that also reads other folders is not cached. Because these steps are private functions of Hydra 1.3,
    nothing is cached with other versions.

    Left out are the copy of Hydra's store of registered configurations, which no composition changes, and the map from
    which interpolations in lists of defaults are resolved, where a list has no interpolation.
    """
    if not hydra.__version__.startswith("1.3."):
        yield
        return
    create = config_loader_impl.create_defaults_list
    merge = config_loader_impl.ConfigLoaderImpl._compose_config_from_defaults_list
    choices = hydra_defaults_list._create_interpolation_map
    lists = {}
    merged = {}

    def files(repo):
        """Return the folders of the configuration, or None if one of them is not conf/ and so may change."""
        paths = tuple(source.path for source in repo.get_sources())
        return paths if {*paths} <= {str(CONF), "hydra.conf", ""} else None

    def create_once(repo, config_name, overrides_list, **options):
        chosen = []
        values = []
        for override in overrides_list:
            of_group = repo.group_exists(override.key_or_group) and not isinstance(override.value(), dict)
            (chosen if override.is_sweep_override() or of_group else values).append(override)
        key = files(repo), config_name, *(override.input_line for override in chosen), *sorted(options.items())
        if key[0] is None:
            return create(repo=repo, config_name=config_name, overrides_list=overrides_list, **options)
        if key not in lists:
            lists[key] = create(repo=repo, config_name=config_name, overrides_list=chosen, **options)
        return dataclasses.replace(lists[key], config_overrides=values)

    def merge_once(self, defaults, repo):
        key = files(repo), *map(repr, defaults)
        if key[0] is None:
            return merge(self, defaults=defaults, repo=repo)
        if key not in merged:
            merged[key] = pickle.dumps(merge(self, defaults=defaults, repo=repo))
        return pickle.loads(merged[key])

    def choices_to_interpolate(overrides, defaults, self_added):
        """Return the map of the chosen options, or None if no entry of a list of defaults contains an interpolation."""
        interpolated = any(entry.is_interpolation() for entry in defaults)
        return choices(overrides, defaults, self_added) if interpolated else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConfigStore, "__deepcopy__", lambda self, memo: self, raising=False)
        patch.setattr(hydra_defaults_list, "_create_interpolation_map", choices_to_interpolate)
        patch.setattr(config_loader_impl, "create_defaults_list", create_once)
        patch.setattr(config_loader_impl.ConfigLoaderImpl, "_compose_config_from_defaults_list", merge_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def installed_packages_are_searched_for_plugins_once():
    """Cache the list of installed plugins of Lightning, which each new Trainer looks for in all installed packages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "entry_points", functools.cache(registry.entry_points))
        yield


@pytest.fixture(scope="session", autouse=True)
def each_interpolation_is_parsed_once():
    """Cache the parse trees of values such as ``${sizes.h_dim}``, which many configurations contain.

    The trees are only read.
    """
    parse = functools.cache(grammar_parser.parse)
    with pytest.MonkeyPatch.context() as patch:
        for module in (omegaconf.base, omegaconf._utils):
            patch.setattr(module, "parse", parse)
        yield


@pytest.fixture(autouse=True)
def seeded():
    """Seed torch before each test, so that its random numbers do not depend on the order of the tests."""
    torch.manual_seed(0)


@pytest.fixture
def float64():
    """Set double precision and a fixed seed.

    In double precision, identities differ from approximations by more than rounding.
    """
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
