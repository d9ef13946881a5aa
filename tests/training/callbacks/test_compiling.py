"""Tests of the compiled iteration: it computes the same numbers as the eager one, or a message says why it is not
used."""

import gc
import re
import weakref

import pytest
import torch
from torch.torch_version import TorchVersion

from eblvm_lit.core import fast_paths
from eblvm_lit.core.fast_paths import compile_step
from eblvm_lit.core.functional import plain_autograd
from eblvm_lit.errors import ConfigError
from eblvm_lit.training.callbacks import compiling
from eblvm_lit.training.callbacks.compiling import choose
from helpers.processes import BATCH, CASES, iterate, make
from helpers.shell import checkpoint, same, train
from tolerances import assert_same_iterations, bounded, operations, reordered

CPU = torch.device("cpu")
N_ITERATIONS = 3  # the last iteration has a short minibatch, which runs eagerly
AUTO = ("method=dsm", "method.compile=auto", "trainer.max_steps=3", "n_validations=1")


def assert_same(compiled, name, folder):
    """Check that iterations of a method have the same results with and without compilation."""
    method, like = make(name, folder)
    n = operations(method, like.expand(BATCH, *like.shape[1:]), N_ITERATIONS)
    with bounded(method, reordered(n)) as bounds:
        eager = iterate(method, like, N_ITERATIONS)
    assert_same_iterations(compiled[:2], eager[:2], bounds)
    assert not same(method.state_dict(), eager[0])


def run_compiled(name, folder):
    return iterate(*make(name, folder), N_ITERATIONS, compiled=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_compiled_iteration_is_the_eager_one(name, tmp_path):
    assert_same(run_compiled(name, tmp_path / "run"), name, tmp_path / "run")


@pytest.fixture
def traced_only(monkeypatch):
    """Trace graphs without compiling them, which only takes a second.

    Traced graphs are cached in the same way as compiled ones.
    """
    monkeypatch.setattr(fast_paths, "inductor", lambda graph, inputs: graph)


def test_traced_iterations_are_eager_ones_and_methods_do_not_share_a_graph(traced_only, tmp_path):
    # torch caches compiled code by code object. Without guards, one method could get the graph of another.
    names = "dsm", "bidsm warm descent"  # the second method keeps an adjoint and its age
    found = [run_compiled(name, tmp_path / "run") for name in names]
    for compiled, name in zip(found, names, strict=True):
        assert_same(compiled, name, tmp_path / "run")


def test_a_function_that_does_more_than_its_graph_is_not_replaced_by_the_graph(traced_only):
    own = [torch.ones(2)]
    x = torch.arange(2.0)
    elsewhere = compile_step(lambda v: {"sum": v + own[0]})  # this function reads a tensor that is not an argument
    for own[0] in (torch.ones(2), torch.zeros(2)):
        assert torch.equal(elsewhere(x)["sum"], x + own[0])
    twice = compile_step(lambda u, v: {"sum": u + v})  # the first call passes one tensor as both arguments
    # this function returns an argument, which no graph computes
    unchanged = compile_step(lambda v: {"sum": v + 1, "v": v})
    for v in (x, x + 1):
        assert torch.equal(twice(v, v)["sum"], 2 * v)
        assert torch.equal(unchanged(v)["v"], v)


def test_a_compiled_step_keeps_no_minibatch_alive(traced_only):
    step = compile_step(lambda v: {"sum": v["v"] + 1})
    minibatches = [torch.zeros(2), torch.zeros(2)]
    kept = [weakref.ref(v) for v in minibatches]
    for v in minibatches:
        step({"v": v})
    del minibatches[:], v
    gc.collect()
    assert [ref() for ref in kept] == [None, None]


@pytest.fixture
def counted(monkeypatch):
    """Replace the compiled step by an eager one that records the sizes of its minibatches."""
    sizes = []

    def compile_counted(step):
        def call(state, v, noise):
            sizes.append(len(v))
            with plain_autograd():
                return step(state, v, noise)

        return call

    monkeypatch.setattr(compiling, "compile_step", compile_counted)
    return sizes


def test_a_short_batch_runs_eagerly_and_the_rest_compiled_also_in_a_resumed_run(counted, tmp_path):
    long = ("method=dsm", "n_validations=1", "data.batch_size=128")
    train(tmp_path / "compiled", *long, "trainer.max_steps=12", "method.compile=true")
    assert counted == [128] * 11  # one of the twelve minibatches is short, because it ends an epoch
    train(tmp_path / "eager", *long, "trainer.max_steps=12")
    assert same(checkpoint(tmp_path / "compiled")["state_dict"], checkpoint(tmp_path / "eager")["state_dict"])
    del counted[:]
    train(tmp_path / "first", *long)
    train(tmp_path / "next", *long, "trainer.max_steps=13", "method.compile=true", "ckpt=last")
    assert counted == [128] * 2  # the first of the three minibatches is short, and runs eagerly
    del counted[:]
    train(tmp_path / "small", *AUTO, "method.compile=true", "data.batch_size=2000", "max_examples=1400")
    assert counted == [1400] * 3  # the data set is smaller than a minibatch, so that no minibatch is short


def test_auto_compiles_long_runs_where_torch_can(monkeypatch, tmp_path):
    assert choose("auto", CPU, compiling.LONG)[0]
    assert not choose("auto", CPU, compiling.LONG - 1)[0]
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        assert not choose("auto", CPU, compiling.LONG)[0]  # this PATH contains no compiler
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.6.0"))
    assert not choose("auto", CPU, 20_000)[0]
    with pytest.raises(ConfigError, match=r"method\.compile=true, but torch 2\.6\.0 cannot"):
        choose(True, CPU, 20_000)


def test_if_compilation_fails_auto_trains_eagerly_and_true_ends_in_a_sentence(monkeypatch, tmp_path, caplog):
    def fail(graph, inputs):  # fails like a compiler that does not find its headers
        raise OSError("Python.h: No such file or directory")

    monkeypatch.setattr(fast_paths, "inductor", fail)
    monkeypatch.setattr(compiling, "LONG", 1)
    train(tmp_path / "auto", *AUTO)
    assert re.search(r"compile=auto: running eagerly, because .*Python\.h: No such file", caplog.text)
    train(tmp_path / "eager", *AUTO, "method.compile=false")
    assert same(checkpoint(tmp_path / "auto")["state_dict"], checkpoint(tmp_path / "eager")["state_dict"])
    with pytest.raises(ConfigError, match=r"method\.compile=true, but .*Python\.h"):
        train(tmp_path / "true", *AUTO, "method.compile=true")


def test_running_out_of_memory_in_a_compiled_iteration_is_not_reported_as_a_failed_compilation(monkeypatch, tmp_path):
    def exhaust(*given):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(compiling, "compile_step", lambda step: exhaust)
    with pytest.raises(ConfigError, match=r"Out of memory .*data\.batch_size"):
        train(tmp_path, "method=dsm", "method.compile=true")
