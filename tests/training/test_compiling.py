"""The compiled iteration: the numbers of the eager one, or a sentence that says why there is none."""

import copy
import gc
import logging
import multiprocessing
import re
import subprocess
import sys
import weakref

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


PARTICLES = ("method=particle_ml", "model=gaussian", "chain=langevin", "chain.n_steps=2", "chain.n_latent_steps=2")
SHARED = ("model=deep_toy", "method.lower_noise=shared")
LEBM = (
    *("method=lebm", "model=latent_prior_toy", "latent_langevin.n_steps=2", "method.posterior_langevin.n_steps=2"),
    "method.posterior_langevin.step_size=0.001",
)
FEW = ("hypergradient.n_steps=2", "hypergradient.multiplier=100")
TWO_STEPS = ("method.n_upper_steps=2", "method.fresh_minibatches=false")


@pytest.mark.parametrize(
    "overrides",
    [
        bilevel(0, 1),
        pytest.param(("method=dsm",), marks=pytest.mark.slow),
        pytest.param(bilevel(1, 0), marks=pytest.mark.slow),
        pytest.param(bilevel(2, 2), marks=pytest.mark.slow),
        pytest.param(("method=bidsm", "hypergradient=implicit", "hypergradient.n_terms=2"), marks=pytest.mark.slow),
        pytest.param(hyper(1, "fixed_point", "hypergradient.n_particles=2"), marks=pytest.mark.slow),
        pytest.param(
            hyper(1, "fixed_point", "hypergradient.value=phi", "hypergradient.n_steps=2"), marks=pytest.mark.slow
        ),
        pytest.param(hyper(1, "warm", "hypergradient.reset_every=2"), marks=pytest.mark.slow),
        pytest.param(hyper(1, "finite_difference"), marks=pytest.mark.slow),
        pytest.param(hyper(1, "penalty", *FEW), marks=pytest.mark.slow),
        pytest.param(("method=bism", "objective=sm", "method.n_lower_steps=1"), marks=pytest.mark.slow),
        pytest.param(("method=pcd",), marks=pytest.mark.slow),
        pytest.param(("method=cd", "chain=langevin", "chain.n_steps=2"), marks=pytest.mark.slow),
        pytest.param(("method=nce", "noise_distribution=fitted_normal"), marks=pytest.mark.slow),
        pytest.param(("method=vnce", "method.n_lower_steps=1"), marks=pytest.mark.slow),
        pytest.param(("method=vnce", "method.posterior=null", "method.divergence=null"), marks=pytest.mark.slow),
        pytest.param(("method=snl", "method.n_proposals=2"), marks=pytest.mark.slow),
        pytest.param(("method=vsnl", "model=gaussian", "method.n_lower_steps=1"), marks=pytest.mark.slow),
        pytest.param(("method=particle_ml", "method.n_chains=5"), marks=pytest.mark.slow),
        pytest.param((*PARTICLES, "method.n_chains=5"), marks=pytest.mark.slow),
        pytest.param(("method=ed", "method.noise_std=0.1"), marks=pytest.mark.slow),
        pytest.param(("method=ed_latent", "method.n_lower_steps=1", "method.noise_std=0.1"), marks=pytest.mark.slow),
        pytest.param(("method=vages_fisher", "method.n_lower_steps=2"), marks=pytest.mark.slow),
        pytest.param(("method=bimdsm", "model=deep_toy", "method.n_lower_steps=1"), marks=pytest.mark.slow),
        pytest.param((*SHARED, "method=bimdsm", "method.n_lower_steps=2"), marks=pytest.mark.slow),
        pytest.param((*SHARED, "method=vages_mdsm", "method.n_lower_steps=2"), marks=pytest.mark.slow),
        pytest.param(LEBM, marks=pytest.mark.slow),
    ],
    ids=[
        "bidsm-0-1",
        "dsm",
        "bidsm-1-0",
        "bidsm-2-2",
        "implicit",
        "fixed-point",
        "fixed-point-phi",
        "warm",
        "finite-difference",
        "penalty",
        "bism-sm",
        "pcd",
        "cd-langevin",
        "nce",
        "vnce",
        "vnce-true",
        "snl",
        "vsnl",
        "particle-ml",
        "particle-ml-langevin",
        "ed",
        "ed-latent",
        "vages-fisher",
        "deep",
        "deep-shared",
        "vages-shared",
        "lebm",
    ],
)
def test_a_compiled_iteration_is_the_eager_one(overrides, tmp_path):
    method, batches = start_of(tmp_path, *overrides)
    start = copy.deepcopy(method.double().state_dict())
    compiled = advance(copy.deepcopy(method), batches, compile_step)
    eager = assert_same(compiled, method, batches)
    assert not same(start, eager[0])


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


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system does not fork")
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
        (hyper(0, "fixed_point", "model=gaussian", "hypergradient.precision=stepped"), set()),
        ((*PARTICLES, "method.n_chains=5"), {"chain_started", "chain_v", "chain_h", "latents"}),
    ],
    ids=["warm", "penalty", "fixed-point", "particles"],
)
def test_a_compiled_iteration_keeps_what_an_eager_one_keeps(overrides, moved, traced_only, tmp_path):
    method, batches = start_of(tmp_path, *overrides)
    before = {name: value.clone() for name, value in method.double().persistent_buffers().items()}
    assert_same(advance(copy.deepcopy(method), batches, compile_step), method, batches)
    after = method.persistent_buffers()
    assert {name for name, value in before.items() if not torch.equal(value, after[name])} == before.keys() == moved


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15),
    reason="before 2.15 torch does not trace spectral norms: compile=auto runs such methods eagerly",
)
@pytest.mark.parametrize(
    "overrides",
    [
        ("method=bidvl", "loss=full_latent", "posterior.network.width=2"),
        ("method=sngan", "model=spectral_conv", "generator=conv", *TWO_STEPS),
    ],
    ids=["bidvl", "sngan"],
)
def test_a_compiled_iteration_moves_buffers_as_the_eager_one_does(overrides, traced_only, tmp_path):
    """Spectral norms and batch normalisation."""
    small = ("data=cifar10", "data.size=8", "model.network.width=2", "generator.width=2")
    eager = build(configured(*overrides, *small, f"run_dir={tmp_path}", f"outputs_dir={tmp_path}")).method
    compiled, batches = copy.deepcopy(eager), [torch.rand(4, 3, 8, 8) for _ in range(3)]
    before = {name: value.clone() for name, value in eager.double().persistent_buffers().items()}
    assert_same(advance(compiled, batches, compile_step), eager, batches)
    moved = {
        name.rpartition(".")[2]
        for name, value in eager.persistent_buffers().items()
        if not torch.equal(value, before[name])
    }
    assert {"_u", "_v", "running_mean", "running_var"} <= moved


def test_methods_compiled_one_after_the_other_do_not_share_a_graph(traced_only, tmp_path):
    # Compiled code is kept by code object, and without guards nothing would tell one method's from another's.
    kinds = {n: bilevel(0, n) for n in (0, 1)} | {"other noise": (*bilevel(0, 0), "noise.std=1")}
    results = {kind: advance(*start_of(tmp_path, *overrides), compile_step) for kind, overrides in kinds.items()}
    for kind, overrides in kinds.items():
        assert_same(results[kind], *start_of(tmp_path, *overrides))
    assert not torch.equal(results[0][0]["energy.c"], results[1][0]["energy.c"])
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


def test_a_short_batch_runs_eagerly_and_the_rest_compiled(counted, tmp_path):
    long = ["method=dsm", "trainer.max_steps=44", "n_validations=1"]
    train(tmp_path / "compiled", *long, "method.compile=true")
    assert counted == [64] * 42  # two of the 44 are the short ends of epochs
    train(tmp_path / "eager", *long)
    assert same(checkpoint(tmp_path / "compiled")["state_dict"], checkpoint(tmp_path / "eager")["state_dict"])


def test_a_run_that_goes_on_with_a_short_batch_still_compiles_for_the_full_one(counted, tmp_path):
    first = ["method=dsm", "n_validations=1"]
    train(tmp_path / "first", *first, "trainer.max_steps=21")
    train(tmp_path / "next", *first, "trainer.max_steps=30", "method.compile=true", "ckpt=last")
    assert counted == [64] * 8


def test_a_data_set_smaller_than_a_batch_is_compiled_for_what_there_is(counted, tmp_path):
    train(
        tmp_path, "method=dsm", "method.compile=true", "data.batch_size=2000", "trainer.max_steps=3", "n_validations=1"
    )
    assert counted == [1400] * 3


CPU = torch.device("cpu")
AUTO = ("method=dsm", "method.compile=auto", "n_validations=1")


def test_auto_compiles_long_runs():
    assert choose("auto", CPU, compiling.LONG)[0]
    assert choose("auto", CPU, compiling.LONG - 1) == (
        False,
        "compile=auto: running eagerly, which is faster below 5,000 iterations.",
    )


def test_a_torch_that_cannot_compile_trains_eagerly(monkeypatch):
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.6.0"))
    said = "compile=auto: running eagerly, torch 2.6.0 cannot compile an iteration, and 2.14 can."
    assert choose("auto", CPU, 20_000) == (False, said)
    with pytest.raises(
        ConfigError, match=r"^method\.compile=true, but torch 2\.6\.0 cannot .*: use method\.compile=auto"
    ):
        choose(True, CPU, 20_000)


def test_auto_without_a_compiler_trains_eagerly(counted, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(compiling, "LONG", 1)
    monkeypatch.setenv("PATH", str(tmp_path))
    with caplog.at_level(logging.INFO):
        train(tmp_path / "without", *AUTO)
    assert counted == []
    assert "compile=auto: running eagerly, no compiler for cpu was found." in caplog.text
    with pytest.raises(ConfigError, match=r"method\.compile=true, but no compiler for cpu was found"):
        choose(True, CPU, 1)


def test_a_resumed_run_compiles_as_the_first_one_did(counted, monkeypatch, tmp_path):
    monkeypatch.setattr(compiling, "LONG", 20)
    crash = ("allow_packages=[helpers]", "+callbacks.crash._target_=helpers.stopping.CrashAt", "trainer.max_steps=20")
    with pytest.raises(RuntimeError, match="crashed on purpose"):
        train(tmp_path / "first", *AUTO, *crash, "callbacks.checkpoints.every=3", "+callbacks.crash.iteration=4")
    del counted[:]
    train(tmp_path / "next", *AUTO, "callbacks.checkpoints.every=3", "trainer.max_steps=20", "ckpt=last")
    assert counted == [64] * 17


@pytest.fixture
def broken_compiler(monkeypatch):
    """A compiler that is there and fails, as one without its headers does."""
    monkeypatch.setattr(compiling, "LONG", 1)

    def fail(graph, inputs):
        raise OSError("Python.h: No such file or directory")

    monkeypatch.setattr(fast_paths, "inductor", fail)


def test_auto_falls_back_to_the_eager_run_if_compilation_fails(broken_compiler, tmp_path, caplog):
    train(tmp_path / "auto", *AUTO)
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert re.search(r"compile=auto: running eagerly, because .*Python\.h: No such file", warnings[0])
    train(tmp_path / "eager", "method=dsm", "n_validations=1")
    assert same(checkpoint(tmp_path / "auto")["state_dict"], checkpoint(tmp_path / "eager")["state_dict"])
    assert curves(tmp_path / "auto") == curves(tmp_path / "eager")


def test_true_ends_in_a_sentence_if_compilation_fails(broken_compiler, tmp_path):
    with pytest.raises(
        ConfigError, match=r"method.compile=true, but .*Python\.h: .*: use method.compile=false"
    ) as refusal:
        train(tmp_path, "method=dsm", "method.compile=true")
    assert "\n" not in str(refusal.value)


def test_a_compiled_iteration_that_lacks_memory_is_not_taken_for_one_that_cannot_be_compiled(monkeypatch, tmp_path):
    def exhaust(*given):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(compiling, "compile_step", lambda step: exhaust)
    with pytest.raises(
        ConfigError, match=r"^Out of memory \(2.00 GiB more were asked for\): lower data.batch_size, or .*$"
    ):
        train(tmp_path, "method=dsm", "method.compile=true")
