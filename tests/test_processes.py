"""Several processes that share each minibatch do what one does with the whole of it."""

import pytest
import torch
import torch.multiprocessing as mp

from processes import CASES, in_processes, iterate, make
from shell import CONF, same

pytestmark = pytest.mark.skipif("fork" not in mp.get_all_start_methods(), reason="processes begin where this one is")

# Rounding grows where a system of equations is solved whose matrix is nearly singular.
LOOSE = {"bidsm fisher": 1e-6, "bidsm cg": 1e-6, "bidsm neumann": 1e-8}

# Four processes take twice as long on the core they share.
FOUR = ["bidsm N=2", "bism", "vages_ksd all", "pcd more chains", "bidvl"]


def distance(one, other):
    """The largest relative distance of two states' tensors."""
    assert one.keys() == other.keys()
    pairs = [(one[name].double(), other[name].double()) for name in one]
    return max(float((a - b).norm() / a.norm().clamp(min=1e-12)) for a, b in pairs)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """States, records and traffic by number of processes and case, of each process."""
    folder = tmp_path_factory.mktemp("processes")
    cases = {1: list(CASES), 2: list(CASES), 4: FOUR}
    methods = {name: make(name, folder / "run") for name in CASES}  # composed once, before processes part

    def work(size):
        return lambda rank: {name: iterate(*methods[name]) for name in cases[size]}

    results = {size: [work(1)(0)] if size == 1 else in_processes(size, folder, work(size)) for size in cases}
    return {**results, "start": {name: method.state_dict() for name, (method, _) in methods.items()}}


def test_every_method_is_among_the_cases():
    methods = {path.stem for path in (CONF / "method").glob("*.yaml")}
    named = {name.split()[0] for name in CASES}
    assert methods - named == set()


@pytest.mark.parametrize(("size", "name"), [*((2, name) for name in CASES), *((4, name) for name in FOUR)])
def test_processes_that_share_minibatches_are_one_process(size, name, found):
    state, record, *_ = found[1][0][name]
    shared = [rank[name] for rank in found[size]]
    assert distance(found["start"][name], state) > 1e-3
    assert distance(state, shared[0][0]) < LOOSE.get(name, 1e-10)
    torch.testing.assert_close(shared[0][1], record, rtol=1e-6, atol=1e-9)
    for other in shared[1:]:  # bit by bit
        assert same(other[0], shared[0][0])
        assert same(other[1], shared[0][1])
