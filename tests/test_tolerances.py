"""Tests of the bounds of rounding errors: another order of the same arithmetic stays within them, and mutations do
not."""

import copy
import itertools

import pytest
import torch

from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.core.tensors import tree_map
from eblvm_lit.objectives.dsm import DSM
from eblvm_lit.optimizers.adam import Adam
from eblvm_lit.optimizers.base import Optimizer
from eblvm_lit.runs.build import build
from helpers import iterating
from helpers.shell import tiny
from tolerances import adam_step, assert_same_iterations, bounded, gamma, operations, reordered

BILEVEL = ("method=bidsm", "method.n_lower_steps=2", "method.n_unroll=1")
HYPERGRADIENTS = [
    # With eight examples the linear system has rank eight, so that few terms are enough.
    ("implicit", "hypergradient.n_terms=2"),
    ("finite_difference",),
    ("penalty", "hypergradient.multiplier=100"),  # with small multipliers the second posterior diverges
]
HYPERGRADIENTS = [("method=bidsm", f"hypergradient={name}", *options) for name, *options in HYPERGRADIENTS]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sum_in_any_order_is_within_its_bound(dtype):
    x = torch.randn(2000, generator=torch.Generator().manual_seed(0), dtype=dtype)
    sums = [x.sum(), x.flip(0).cumsum(0)[-1], x.sort().values.cumsum(0)[-1], x @ torch.ones_like(x)]
    bound = reordered(len(x), dtype, condition=float(x.abs().sum() / x.sum().abs()))
    for one, other in itertools.combinations(sums, 2):
        assert float((one - other).abs() / x.double().sum().abs()) <= bound
    assert reordered(len(x), dtype) < 2.1 * len(x) * torch.finfo(dtype).eps
    with pytest.raises(AssertionError, match="leave no digit"):
        gamma(10**8, torch.float32)


@pytest.mark.parametrize(("betas", "error"), [((0.9, 0.95), 1e-14), ((0.0, 0.9), 1e-9), ((0.5, 0.999), 1e-3)])
def test_a_step_of_adam_moves_within_its_bound_and_comes_near_it(betas, error, float64):
    """Try gradients from far below Adam's eps to far above it, some of them smaller than the error."""
    rule = Adam(lr=0.1, betas=betas)
    lr = 0.1
    p = {"x": torch.zeros(13)}
    state = other_state = rule.init(p)
    sizes = torch.logspace(-12, 0, 13)
    largest = 0.0
    for _ in range(5):
        g = sizes * torch.randn(13)
        step, state = rule.update(p, {"x": g}, state, lr)
        other, other_state = rule.update(p, {"x": g + error * torch.randn(13).sign()}, other_state, lr)
        far = (step["x"] - other["x"]).abs()
        bound = adam_step(rule, lr, error, state, "x")
        assert (far <= bound + 1e-15).all()
        largest = max(largest, float((far / bound).max()))
    assert largest > 0.1


def iterations(method, batches):
    state = iterating.start(method, lr=0.01)
    records = []
    for i, v in enumerate(batches):
        records.append(method.run_iteration(state, v, method.draw_noise(v, keyed_generator(0, "test", i))))
    return method.state_dict(), records


@pytest.fixture
def subject(tmp_path, request):
    """Return a method before a run, the run's minibatches and results, and the bounds for another order of sums."""
    parts = build(tiny(tmp_path, *getattr(request, "param", BILEVEL)))
    parts.data.setup()
    batches = [parts.data.splits.train[8 * i : 8 * i + 8].double() for i in range(3)]
    method = parts.method.double()
    untouched = copy.deepcopy(method)
    with bounded(method, reordered(operations(method, batches[0], 3))) as bounds:
        expected = iterations(method, batches)
    return untouched, batches, expected, bounds


@pytest.mark.parametrize("subject", [BILEVEL, *HYPERGRADIENTS], ids=lambda options: options[1], indirect=True)
def test_another_order_of_the_same_sums_passes(subject):
    """Reverse the order of the examples in each minibatch and of their noise, and compare the results with the
    bounds."""
    method, batches, expected, bounds = subject
    plain = method.draw_noise

    def flipped(v, generator):
        return tree_map(lambda x: flip_rows(x, len(v)), plain(v, generator))

    method.draw_noise = flipped
    found = iterations(method, [v.flip(0) for v in batches])
    assert not all(torch.equal(found[0][name], x) for name, x in expected[0].items())
    assert_same_iterations(found, expected, bounds)


def flip_rows(x, n):
    (axis,) = (i for i, size in enumerate(x.shape) if size == n)
    return x.flip(axis)


def loss_times(factor):
    def mutate(method, monkeypatch):
        plain = DSM.loss
        monkeypatch.setattr(DSM, "loss", lambda self, *args: factor * plain(self, *args))

    return mutate


def one_row_twice(method, monkeypatch):
    plain = DSM.loss
    monkeypatch.setattr(DSM, "loss", lambda self, *args: plain(self, *args)[[1, *range(1, 8)]])


def steps_scaled_by(factor):
    def mutate(method, monkeypatch):
        def update_(self, params, grads, state, lr):
            return Optimizer.update_(self, params, grads, state, lr * factor(self, int(state["step"]) + 1))

        monkeypatch.setattr(Adam, "update_", update_)

    return mutate


MUTATIONS = {
    "factor of 2": loss_times(2),
    "one part in a million": loss_times(1 + 1e-6),
    "one row twice": one_row_twice,
    "one lower step less": lambda method, _: setattr(method, "n_lower_steps", 1),
    "no unrolled step": lambda method, _: setattr(method.hypergradient, "n_draws", 0),
    "first moment not corrected": steps_scaled_by(lambda adam, t: 1 - adam.betas[0] ** t),
    "second moment not corrected": steps_scaled_by(lambda adam, t: (1 - adam.betas[1] ** t) ** -0.5),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_fails(name, subject, monkeypatch):
    method, batches, expected, bounds = subject
    MUTATIONS[name](method, monkeypatch)
    with pytest.raises(AssertionError, match=r"more than rounding explains|not close"):
        assert_same_iterations(iterations(method, batches), expected, bounds)


def test_what_is_not_mutated_passes(subject):
    method, batches, expected, bounds = subject
    assert_same_iterations(iterations(method, batches), expected, bounds)
