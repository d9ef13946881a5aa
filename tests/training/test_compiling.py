"""The compiled iteration: the numbers of the eager one, or a sentence that says why there is none."""

import copy
import gc
import logging
import re
import subprocess
import sys
import weakref
from multiprocessing import get_all_start_methods

import pytest
import torch
from torch.torch_version import TorchVersion

from eblvm_lit.cli.build import build
from eblvm_lit.core import fast_paths
from eblvm_lit.core.fast_paths import compile_step
from eblvm_lit.core.functional import plain_autograd
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.errors import ConfigError
from eblvm_lit.training import compiling
from eblvm_lit.training.compiling import choose
from helpers import iterating
from helpers.shell import checkpoint, configured, curves, same, tiny, train
from tolerances import assert_same_iterations, bounded, operations, reordered

CPU = torch.device("cpu")
AUTO = ("method=dsm", "method.compile=auto", "n_validations=1")


def start_of(folder, *overrides, n=3):
    """A method, and some minibatches."""
    parts = build(tiny(folder, *overrides))
    parts.data.setup()
    return parts.method, [parts.data.splits.train[8 * i : 8 * i + 8] for i in range(n)]


def advance(method, batches, step=None):
    """State dict and records after an iteration a minibatch, eager or by a compiled step, in double precision."""
    method.double().keep_examples(24)
    state = iterating.start(method, lr=0.01)
    iteration = method.run_iteration if step is None else step(method.run_iteration)
    records = []
    for i, v in enumerate(batches):
        noise = method.draw_noise(v.double(), keyed_generator(0, "test", i))
        found = state._replace(indices=torch.arange(8 * i, 8 * i + 8)) if method.per_example else state
        records.append(iteration(found, v.double(), noise))
    return method.state_dict(), records


def assert_same(compiled, method, batches):
    """Hold what ``advance`` found with a compiled step to what it finds without; returns the latter."""
    with bounded(method, reordered(operations(method, batches[0], len(batches)))) as bounds:
        eager = advance(method, batches)
    assert_same_iterations(compiled, eager, bounds)
    return eager


def bilevel(k, n):
    return ("method=bidsm", f"method.n_lower_steps={k}", f"method.n_unroll={n}")


def hyper(k, name, *options):
    return ("method=bidsm", f"method.n_lower_steps={k}", f"hypergradient={name}", *options)


def steps(k, *options):
    return (*options, f"method.n_lower_steps={k}")


PARTICLES = ("method=particle_ml", "model=gaussian", "chain=langevin", "chain.n_steps=2", "chain.n_latent_steps=2")
SHARED = ("model=deep_toy", "method.lower_noise=shared")
FEW = ("hypergradient.n_steps=2", "hypergradient.multiplier=100")
TWO_STEPS = ("method.n_upper_steps=2", "method.fresh_minibatches=false")
SLOW = {
    "bidsm-0-1": bilevel(0, 1),
    "bidsm-1-0": bilevel(1, 0),
    "bidsm-2-2": bilevel(2, 2),
    "implicit": ("method=bidsm", "hypergradient=implicit", "hypergradient.n_terms=2"),
    "fixed-point": hyper(1, "fixed_point", "hypergradient.n_particles=2"),
    "fixed-point-phi": hyper(1, "fixed_point", "hypergradient.value=phi", "hypergradient.n_steps=2"),
    "warm": hyper(1, "warm", "hypergradient.reset_every=2"),
    "finite-difference": hyper(1, "finite_difference"),
    "penalty": hyper(1, "penalty", *FEW),
    "bism-sm": steps(1, "method=bism", "objective=sm"),
    "pcd": ("method=pcd",),
    "cd-langevin": ("method=cd", "chain=langevin", "chain.n_steps=2"),
    "nce": ("method=nce", "noise_distribution=fitted_normal"),
    "vnce": steps(1, "method=vnce"),
    "vnce-true": ("method=vnce", "method.posterior=null", "method.divergence=null"),
    "snl": ("method=snl", "method.n_proposals=2"),
    "vsnl": steps(1, "method=vsnl", "model=gaussian"),
    "particle-ml": ("method=particle_ml", "method.n_chains=5"),
    "particle-ml-langevin": (*PARTICLES, "method.n_chains=5"),
    "ed": ("method=ed", "method.noise_std=0.1"),
    "ed-latent": steps(1, "method=ed_latent", "method.noise_std=0.1"),
    "vages-fisher": steps(2, "method=vages_fisher"),
    "deep": steps(1, "method=bimdsm", "model=deep_toy"),
    "deep-shared": steps(2, *SHARED, "method=bimdsm"),
    "vages-shared": steps(2, *SHARED, "method=vages_mdsm"),
    "lebm": (
        *("method=lebm", "model=latent_prior_toy", "latent_langevin.n_steps=2", "method.posterior_langevin.n_steps=2"),
        "method.posterior_langevin.step_size=0.001",
    ),
}


def assert_compiled_is_eager(overrides, folder):
    method, batches = start_of(folder, *overrides)
    start = copy.deepcopy(method.double().state_dict())
    compiled = advance(copy.deepcopy(method), batches, compile_step)
    eager = assert_same(compiled, method, batches)
    assert not same(start, eager[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_the_compiled_iteration_of_every_method_is_the_eager_one(name, tmp_path):
    assert_compiled_is_eager(SLOW[name], tmp_path)


def test_a_compiled_iteration_is_the_eager_one(tmp_path):
    assert_compiled_is_eager(("method=dsm",), tmp_path)


FORKED = """
import multiprocessing, sys, torch
from eblvm_lit.core.fast_paths import compile_step

def slope(x):
    return torch.func.grad(lambda x: x.square().sum())(x)

compile_step(lambda state: {"slope": slope(state["x"])})({"x": torch.ones(3)})
child = multiprocessing.get_context("fork").Process(target=lambda: slope(torch.ones(3)))
child.start(), child.join()
sys.exit(child.exitcode)
"""


@pytest.mark.slow
@pytest.mark.skipif("fork" not in get_all_start_methods(), reason="this system does not fork")
def test_processes_that_are_forked_after_a_compilation_can_differentiate():
    """As several devices on a CPU are, in a Python session that has trained before."""
    assert subprocess.run([sys.executable, "-c", FORKED], check=False).returncode == 0


@pytest.fixture
def traced_only(monkeypatch):
    """The first stage of compilation alone: takes a second, and keeps graphs as the whole does."""
    monkeypatch.setattr(fast_paths, "inductor", lambda graph, inputs: graph)


@pytest.mark.parametrize(
    ("overrides", "moved"),
    [
        (hyper(0, "warm", "hypergradient.step_size=0.01", "hypergradient.reset_every=2"), {"adjoint", "adjoint_age"}),
        (hyper(0, "penalty", *FEW), {"penalty_shift", "penalty_multiplier"}),
        ((*PARTICLES, "method.n_chains=5"), {"chain_started", "chain_v", "chain_h", "latents"}),
    ],
    ids=["warm", "penalty", "particles"],
)
def test_a_compiled_iteration_keeps_what_an_eager_one_keeps(overrides, moved, traced_only, tmp_path):
    method, batches = start_of(tmp_path, *overrides)
    before = {name: value.clone() for name, value in method.double().persistent_buffers().items()}
    assert_same(advance(copy.deepcopy(method), batches, compile_step), method, batches)
    after = method.persistent_buffers()
    assert {name for name, value in before.items() if not torch.equal(value, after[name])} == before.keys() == moved


@pytest.mark.skipif(
    torch.__version__ < (2, 15), reason="before 2.15 torch does not trace spectral norms: compile=auto runs eagerly"
)
@pytest.mark.parametrize(
    "overrides",
    [
        ("method=sngan", "generator=conv", "model=spectral_conv", *TWO_STEPS),
        pytest.param(("method=bidvl", "loss=full_latent", "posterior.network.width=2"), marks=pytest.mark.slow),
    ],
    ids=["sngan", "bidvl"],
)
def test_a_compiled_iteration_moves_spectral_norms_and_batch_normalisation_as_the_eager_one_does(
    overrides, traced_only, tmp_path
):
    small = ("data=cifar10", "data.size=8", "model.network.width=2", "generator.width=2")
    eager = build(configured(*overrides, *small, f"run_dir={tmp_path}", f"outputs_dir={tmp_path}")).method
    compiled, batches = copy.deepcopy(eager), [torch.rand(4, 3, 8, 8) for _ in range(2)]
    before = {name: value.clone() for name, value in eager.double().persistent_buffers().items()}
    assert_same(advance(compiled, batches, compile_step), eager, batches)
    after = eager.persistent_buffers()
    moved = {name.rpartition(".")[2] for name, value in after.items() if not torch.equal(value, before[name])}
    assert {"_u", "_v", "running_mean", "running_var"} <= moved


def test_methods_compiled_one_after_the_other_do_not_share_a_graph(traced_only, tmp_path):
    # Compiled code is kept by code object, and without guards nothing would tell one method's from another's.
    kinds = {0: bilevel(0, 0), "other noise": (*bilevel(0, 0), "noise.std=1")}
    results = {kind: advance(*start_of(tmp_path, *overrides), compile_step) for kind, overrides in kinds.items()}
    for kind, overrides in kinds.items():
        assert_same(results[kind], *start_of(tmp_path, *overrides))
    assert not torch.equal(results[0][0]["energy.W"], results["other noise"][0]["energy.W"])


def graph_calls(monkeypatch):
    """How often what torch.compile puts around a graph has been run."""
    calls = []

    class Counted(fast_paths._Graph):
        def __call__(self, *inputs):
            calls.append(len(inputs))
            return super().__call__(*inputs)

    monkeypatch.setattr(fast_paths, "_Graph", Counted)
    return calls


def test_after_the_first_call_nothing_is_left_around_the_graph(traced_only, monkeypatch, tmp_path):
    calls = graph_calls(monkeypatch)
    compiled = advance(*start_of(tmp_path, *bilevel(1, 1), n=4), compile_step)
    assert len(calls) == 1
    assert_same(compiled, *start_of(tmp_path, *bilevel(1, 1), n=4))


def test_a_function_that_is_more_than_its_graph_is_called_as_a_whole(traced_only, monkeypatch):
    calls, own = graph_calls(monkeypatch), [torch.ones(2)]
    x = torch.arange(2.0)

    elsewhere = compile_step(lambda v: {"sum": v + own[0]})  # reads a tensor that it is not given
    for own[0] in (torch.ones(2), torch.zeros(2)):
        assert torch.equal(elsewhere(x)["sum"], x + own[0])
    twice = compile_step(lambda u, v: {"sum": u + v})  # the first call has one tensor in two places
    for v in (x, x + 1):
        assert torch.equal(twice(v, v)["sum"], 2 * v)
    assert len(calls) == 4
    unchanged = compile_step(lambda v: {"sum": v + 1, "v": v})  # returns what no graph computes
    for v in (x, x + 1):
        assert torch.equal(unchanged(v)["v"], v)
    assert len(calls) == 6


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
    """Instead of compiling, counts the calls of a compiled step and the sizes of their batches."""
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
    long = ("method=dsm", "trainer.max_steps=44", "n_validations=1")
    train(tmp_path / "compiled", *long, "method.compile=true")
    assert counted == [64] * 42  # two of the 44 are the short ends of epochs
    train(tmp_path / "eager", *long)
    assert same(checkpoint(tmp_path / "compiled")["state_dict"], checkpoint(tmp_path / "eager")["state_dict"])
    del counted[:]
    train(tmp_path / "first", *long, "trainer.max_steps=21")
    train(tmp_path / "next", *long, "trainer.max_steps=30", "method.compile=true", "ckpt=last")
    assert counted == [64] * 8  # the first of the nine is short


def test_a_data_set_smaller_than_a_batch_is_compiled_for_what_there_is(counted, tmp_path):
    train(tmp_path, *AUTO, "method.compile=true", "data.batch_size=2000", "trainer.max_steps=3")
    assert counted == [1400] * 3


def test_auto_compiles_long_runs_where_torch_can(monkeypatch):
    assert choose("auto", CPU, compiling.LONG)[0]
    assert not choose("auto", CPU, compiling.LONG - 1)[0]
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.6.0"))
    assert not choose("auto", CPU, 20_000)[0]
    with pytest.raises(ConfigError, match=r"method\.compile=true, but torch 2\.6\.0 cannot"):
        choose(True, CPU, 20_000)


def test_auto_without_a_compiler_trains_eagerly(counted, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(compiling, "LONG", 1)
    monkeypatch.setenv("PATH", str(tmp_path))
    with caplog.at_level(logging.INFO):
        train(tmp_path / "without", *AUTO)
    assert counted == []
    assert "compile=auto: running eagerly, no compiler for cpu was found." in caplog.text
    with pytest.raises(ConfigError, match=r"method\.compile=true, but no compiler"):
        choose(True, CPU, 1)


def test_a_resumed_run_compiles_as_the_first_one_did(counted, monkeypatch, tmp_path):
    monkeypatch.setattr(compiling, "LONG", 20)
    long = (*AUTO, "callbacks.checkpoints.every=3", "trainer.max_steps=20")
    crash = ("allow_packages=[helpers]", "+callbacks.crash={_target_: helpers.stopping.CrashAt, iteration: 4}")
    with pytest.raises(RuntimeError, match="crashed on purpose"):
        train(tmp_path / "first", *long, *crash)
    del counted[:]
    train(tmp_path / "next", *long, "ckpt=last")
    assert counted == [64] * 17


def test_if_compilation_fails_auto_trains_eagerly_and_true_ends_in_a_sentence(monkeypatch, tmp_path, caplog):
    def fail(graph, inputs):  # as a compiler without its headers does
        raise OSError("Python.h: No such file or directory")

    monkeypatch.setattr(fast_paths, "inductor", fail)
    monkeypatch.setattr(compiling, "LONG", 1)
    train(tmp_path / "auto", *AUTO)
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert re.search(r"compile=auto: running eagerly, because .*Python\.h: No such file", warning)
    train(tmp_path / "eager", *AUTO, "method.compile=false")
    assert same(checkpoint(tmp_path / "auto")["state_dict"], checkpoint(tmp_path / "eager")["state_dict"])
    assert curves(tmp_path / "auto") == curves(tmp_path / "eager")
    with pytest.raises(ConfigError, match=r"method\.compile=true, but .*Python\.h"):
        train(tmp_path / "true", *AUTO, "method.compile=true")


def test_a_compiled_iteration_that_lacks_memory_is_not_taken_for_one_that_cannot_be_compiled(monkeypatch, tmp_path):
    def exhaust(*given):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(compiling, "compile_step", lambda step: exhaust)
    with pytest.raises(ConfigError, match=r"Out of memory .*data\.batch_size"):
        train(tmp_path, "method=dsm", "method.compile=true")
