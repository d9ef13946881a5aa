"""Tests that several processes that share each minibatch compute what one process computes from all of it."""

import pytest
import torch
import torch.multiprocessing as mp

from eblvm_lit.core import fast_paths
from eblvm_lit.core.fast_paths import compile_step
from eblvm_lit.core.minibatch import WHOLE
from eblvm_lit.core.shards import _shard, minibatch_of, shard_of
from eblvm_lit.errors import ConfigError
from eblvm_lit.networks.layers import BatchNorm2d, statistics_over
from eblvm_lit.training.callbacks.start_checks import refuse_local_statistics
from helpers.processes import BATCH, CASES, SHORT, in_processes, iterate, make
from helpers.shell import CONF, same
from tolerances import assert_same_iterations, bounded, operations, reordered

pytestmark = pytest.mark.skipif("fork" not in mp.get_all_start_methods(), reason="processes begin where this one is")

# One method for each kind of exchange between processes. "pcd more chains" also runs in four processes, which have
# unequal weights. A slow test runs all methods.
FAST = [
    *("dsm", "bidsm N=2", "bidsm fixed point phi", "bidsm warm", "bidsm penalty", "bimdsm shared deep"),
    *(
        "vages_fisher",
        "vages_ksd all",
        "pcd more chains",
        "jarzynski",
        "annealed_likelihood",
        "lebm",
        "particle_ml langevin",
        "ed_latent",
        "bidvl",
    ),
]
# Methods whose chains or statistics must last when an undivided minibatch follows a divided one, and the other way
# round.
WHOLE_TOO = ["dsm", "bimdsm", "pcd more chains", "jarzynski", "particle_ml langevin", "bidvl"]
# The number of exchanges in an iteration: one reduction for each of the K + 1 optimizer steps, and two for each
# gradient inside a step.
EXCHANGES = {
    **{"dsm": 1, "bidsm N=2": 3 + 2 * 2, "vages_fisher": 2, "ed_latent": 2},
    # "warm" also exchanges dJ/dphi and each product with the curvature; "penalty" also exchanges each step of its two
    # posteriors.
    **{"bidsm warm": 2 + 1 + 2, "bidsm penalty": 2 + 2 * 2},
}


def distance(one, other):
    """Compute the largest relative distance between tensors of the same name in two states."""
    assert one.keys() == other.keys()
    pairs = [(one[name].double(), other[name].double()) for name in one]
    return max(float((a - b).norm() / a.norm().clamp(min=1e-12)) for a, b in pairs)


def test_every_method_is_among_the_cases():
    methods = {path.stem for path in (CONF / "method").glob("[!_]*.yaml")}
    named = {name.split()[0] for name in CASES}
    assert methods - named == set()


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("n", [16, 17])
def test_every_row_belongs_to_one_process_and_pairs_stay_together(n, size):
    shards = [_shard(n, rank, size, torch.device("cpu")) for rank in range(size)]
    assert sorted(torch.cat([shard.rows for shard in shards]).tolist()) == list(range(n))
    assert sum(shard.weight for shard in shards) == pytest.approx(1)
    for shard in shards:
        first, second = (shard.rows[inside] for inside in (shard.rows < n // 2, shard.rows >= n // 2))
        assert (second[: len(first)] - first == n // 2).all()
        assert max(len(other.rows) for other in shards) - len(shard.rows) <= 3


def test_means_and_gathered_rows_have_the_derivatives_of_one_process(tmp_path):
    x = torch.linspace(-1, 2, 9, dtype=torch.float64)
    theta = torch.tensor(0.7, dtype=torch.float64)

    def work(rank):
        shard = shard_of(len(x))  # the two processes get 4 and 5 rows
        own = x[shard.rows]
        grad = torch.func.grad
        minibatch = minibatch_of(x[shard.rows], len(x))
        assert torch.equal(minibatch.gather(own), x)
        assert minibatch.size(own) == len(x)

        def square(theta):  # a function of the mean, which is the same in all processes
            return minibatch.mean((theta * own).mean()) ** 2

        def pairs(theta):  # a function of all pairs of a row of this process and a row of any process
            return ((theta * own).sin().unsqueeze(1) * minibatch.gather((theta * own).exp())).mean()

        def derivatives(f):
            first = lambda t: minibatch.mean(grad(f)(t))  # noqa: E731
            return torch.stack([first(theta), minibatch.mean(grad(first)(theta))])

        return derivatives(square), derivatives(pairs)

    def derivatives(f):
        return torch.stack([torch.func.grad(f)(theta), torch.func.grad(torch.func.grad(f))(theta)])

    expected = (
        derivatives(lambda t: (t * x).mean() ** 2),
        derivatives(lambda t: ((t * x).sin().unsqueeze(1) * (t * x).exp()).mean()),
    )
    for found in in_processes(2, tmp_path, work):
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-14)


def test_statistics_of_one_process_are_refused(tmp_path):
    method = make("bidvl", tmp_path)[0]
    refuse_local_statistics(method)
    method.omega["generator"].extra = torch.nn.BatchNorm1d(3)
    with pytest.raises(ConfigError, match="extra is torch's BatchNorm1d"):
        refuse_local_statistics(method)


def test_batch_statistics_are_of_the_shared_minibatch_only_inside_of_the_context():
    norm = BatchNorm2d(3)
    minibatch = object()
    with statistics_over(torch.nn.Sequential(norm), minibatch):
        assert norm.minibatch is minibatch
    assert norm.minibatch is WHOLE


def compare(groups, folder, n_iterations=3, compiled=False, short=SHORT):
    """Run iterations of methods in one process and in several, and compare the results.

    ``groups`` has a list of methods for each number of processes. Return the methods, the results of the first of two
    processes, and the differences that are too large.

    The third iteration has a short minibatch.
    """
    # the methods are composed only once, before the processes are forked
    methods = {name: make(name, folder / "run") for name in groups[2]}

    def work(names):
        def iterated(name):
            if compiled:
                torch.compiler.reset()
            return iterate(*methods[name], n_iterations, compiled, short)

        return lambda rank: {name: iterated(name) for name in names}

    one = {}
    bounds = {}
    wrong = {}
    for name, (method, like) in methods.items():
        n = operations(method, like.expand(BATCH, *like.shape[1:]), n_iterations)
        with bounded(method, reordered(n)) as bounds[name]:
            one[name] = iterate(method, like, n_iterations, short=short)
        if distance(method.state_dict(), one[name][0]) < 1e-3:
            wrong[name] = "has not moved"
    several = {size: in_processes(size, folder, work(names)) for size, names in groups.items()}
    for size, ranks in several.items():
        for name, first in ranks[0].items():
            try:
                assert_same_iterations(first[:2], one[name][:2], bounds[name])
            except AssertionError as error:
                wrong[name, size] = str(error)
            if not all(same(other[name][:2], first[:2]) for other in ranks[1:]):
                wrong[name, size] = "processes differ"
    return methods, several[2][0], wrong


def test_processes_that_share_minibatches_are_one_process(tmp_path):
    methods, first, wrong = compare({2: FAST, 4: ["pcd more chains"]}, tmp_path)
    assert wrong == {}
    assert {name: first[name][2] for name in EXCHANGES} == {name: 3 * n for name, n in EXCHANGES.items()}
    _, record, _, n_bytes = first["dsm"]
    moved = sum(p.numel() for p in methods["dsm"][0].energy.parameters())
    # All numbers of the record are exchanged except the gradient's norm, which is computed after the exchange.
    assert n_bytes == 8 * 3 * (moved + len(record) - 1)


@pytest.mark.slow
def test_every_method_computes_the_same_in_one_two_and_four_processes(tmp_path):
    assert compare({2: [*CASES], 4: [*CASES]}, tmp_path, 20)[2] == {}


def test_a_minibatch_too_small_to_be_divided_is_computed_whole_by_every_process(tmp_path):
    _, first, wrong = compare({2: WHOLE_TOO, 3: ["dsm", "pcd more chains"]}, tmp_path, 4, short=3)
    assert wrong == {}
    assert first["dsm"][2] == 3  # the third of the four iterations is not divided and has no exchange


@pytest.fixture
def traced_only(monkeypatch):
    """Use only the first stage of compilation, and load its modules before the processes are forked."""
    monkeypatch.setattr(fast_paths, "inductor", lambda graph, inputs: graph)
    compile_step(lambda v: {"grad": torch.func.grad(torch.sum)(v)})(torch.ones(2))


def test_compiled_processes_are_one_process(traced_only, tmp_path):
    name = "score_matching"  # this method gathers the rows of all processes
    _, first, wrong = compare({2: [name]}, tmp_path, compiled=True)
    assert wrong == {}
    assert first[name][2] > 0  # the processes have exchanged tensors


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_and_four_compiled_processes_are_one(name, tmp_path):
    assert compare({2: [name], 4: [name]}, tmp_path, 20, compiled=True)[2] == {}


def test_exchanges_keep_their_order_and_are_never_merged():
    exchange = torch.ops.eblvm_lit.sum_over_processes.default
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    sums = [graph.call_function(exchange, ([x], 0.5, None)) for _ in range(3)]
    sines = [graph.call_function(torch.ops.aten.sin.default, (y,)) for y in (x, x)]
    graph.output((*sums, *sines))
    fast_paths._ExchangesInOrder()(graph)
    left = [node for node in graph.nodes if node.op == "call_function"]
    assert [node.target for node in left] == [exchange] * 3 + [torch.ops.aten.sin.default] * 2
    assert [node.args for node in left[:3]] == [([x], 0.5, None), ([x], 0.5, left[0]), ([x], 0.5, left[1])]
