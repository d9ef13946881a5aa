"""Several processes that share each minibatch do what one does with the whole of it."""

import functools
import tempfile
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

from processes import CASES, N_ITERATIONS, in_processes, iterate, make, owned
from shell import CONF, same

pytestmark = pytest.mark.skipif("fork" not in mp.get_all_start_methods(), reason="processes begin where this one is")

# Rounding grows where a system of equations is solved whose matrix is nearly singular, and between adversaries.
LOOSE = {"bidsm fisher": 1e-6, "bidsm cg": 1e-6, "bidsm neumann": 1e-8}
LOOSE |= dict.fromkeys(("bidvl", "bidvl complete N=1", "sngan"), 1e-7)

# Four processes take twice as long on the core they share.
FOUR = ["bidsm N=2", "vages_ksd all", "pcd more chains", "bidvl"]
SLOW = ["bidsm plain N=2", "bidsm clipped", "bidsm fisher", "bidsm neumann", "pcd langevin", "bidvl complete N=1"]
GROUPS = {"fast": {2: [name for name in CASES if name not in SLOW], 4: FOUR}, "slow": {2: SLOW, 4: SLOW}}
PARAMS = [
    pytest.param(group, size, name, marks=[pytest.mark.slow] if group == "slow" else [])
    for group, sizes in GROUPS.items()
    for size, names in sizes.items()
    for name in names
]


def distance(one, other):
    """The largest relative distance of two states' tensors."""
    assert one.keys() == other.keys()
    pairs = [(one[name].double(), other[name].double()) for name in one]
    return max(float((a - b).norm() / a.norm().clamp(min=1e-12)) for a, b in pairs)


@functools.cache
def found(group):
    """Methods, and what iterations make of them, by number of processes and case, of each process."""
    with tempfile.TemporaryDirectory() as folder:
        names = GROUPS[group][2]
        methods = {name: make(name, Path(folder) / "run") for name in names}  # composed once, before processes part

        def work(names):
            return lambda rank: {name: iterate(*methods[name]) for name in names}

        several = {size: in_processes(size, folder, work(names)) for size, names in GROUPS[group].items()}
        return {name: method for name, (method, _) in methods.items()}, {1: [work(names)(0)], **several}


def test_every_method_is_among_the_cases():
    methods = {path.stem for path in (CONF / "method").glob("*.yaml")}
    named = {name.split()[0] for name in CASES}
    assert methods - named == set()


@pytest.mark.parametrize(("group", "size", "name"), PARAMS)
def test_processes_that_share_minibatches_are_one_process(group, size, name):
    methods, results = found(group)
    state, record, *_ = results[1][0][name]
    shared = [rank[name] for rank in results[size]]
    assert distance(methods[name].state_dict(), state) > 1e-3
    assert distance(state, shared[0][0]) < LOOSE.get(name, 1e-10)
    torch.testing.assert_close(shared[0][1], record, rtol=1e-6, atol=1e-9)
    for other in shared[1:]:  # bit by bit
        assert same(other[0], shared[0][0])
        assert same(other[1], shared[0][1])


# Of an iteration: a reduction for each of the K + 1 optimizer steps, and for each gradient inside of one.
EXCHANGES = {
    **{"dsm": 1, "mdsm": 1, "ksd": 1, "nce": 1, "bidsm N=0": 3, "bidsm N=2": 3 + 2 * 2, "bidsm N=5": 3 + 2 * 5},
    **{"vages_dsm": 2, "vages_mdsm": 2, "vages_fisher": 2, "cd": 1},
}


def test_a_step_is_one_reduction_of_the_size_of_the_gradient():
    methods, results = found("fast")
    for name, n in EXCHANGES.items():
        _, record, calls, n_bytes = results[2][0][name]
        assert calls == n * N_ITERATIONS, name
        if n == 1:
            level = methods[name].levels()[0]
            moved = sum(p.numel() for p in owned(methods[name], level).values())
            assert n_bytes == 8 * N_ITERATIONS * (moved + len(record) - 1), name  # the norm is of what came back
