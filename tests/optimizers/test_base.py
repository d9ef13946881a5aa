"""Tests of optimizers: steps and schedules against torch's, derivatives of an update, and clipping."""

import copy
import math

import pytest
import torch
from lightning_fabric.utilities.optimizer import _optimizer_to_device

from cases import OPTIMIZERS, SCHEDULES
from eblvm_lit.energies.grbm import GRBM
from eblvm_lit.methods.score_matching import ScoreMatching
from eblvm_lit.objectives.sm import SM
from eblvm_lit.optimizers.adam import Adam
from eblvm_lit.optimizers.schedules import Cosine, Warmup
from eblvm_lit.optimizers.sgd import SGD
from eblvm_lit.optimizers.stateful import StatefulOptimizer
from helpers import iterating
from tolerances import reordered

pytestmark = pytest.mark.usefixtures("float64")
every_optimizer = pytest.mark.parametrize("case", OPTIMIZERS, ids=str)


def rounding(n_steps):
    """Return tolerances for the rounding errors of steps with a dozen operations each.

    They hold for numbers of about 1, far from Adam's eps.
    """
    bound = reordered(12 * n_steps)
    return {"rtol": bound, "atol": bound}


def some_params():
    return {"x": torch.randn(2, 3), "y": torch.randn(4)}


@every_optimizer
def test_twenty_steps_are_those_of_torch(case):
    optimizer = case.make()
    params = some_params()
    state = optimizer.init(params)
    twins = {name: p.clone().requires_grad_() for name, p in params.items()}
    twin = case.twin(list(twins.values()))
    for step in range(20):
        grads = {name: p.sin() + math.cos(step) for name, p in params.items()}
        for p in twins.values():
            p.grad = p.detach().sin() + math.cos(step)
        before = {name: p.clone() for name, p in params.items()}
        moved, state = optimizer.update(params, grads, state, optimizer.lr)
        twin.step()
        assert all(torch.equal(params[name], before[name]) for name in params)  # the step is a pure function
        params = moved
        for name in params:
            torch.testing.assert_close(params[name], twins[name].detach(), **rounding(step + 1))
    assert state["step"] == 20
    assert {*state} == {"step", *optimizer.slots}


def awkward_params():
    """Return parameters with unusual memory layouts, and gradients whose layouts differ from theirs."""
    both = {
        "kernel": (torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last), torch.randn(4, 3, 2, 2)),
        "part": (torch.randn(4, 6)[:, ::2], torch.randn(3, 4).t()),  # a tensor with gaps in memory
        "number": (torch.randn(()), torch.tensor(0.0)),
        "none": (torch.randn(0), torch.randn(0)),
        "x": (torch.randn(2, 3), torch.randn(3, 2).t()),
        "y": (torch.randn(4), torch.tensor(0.3).expand(4)),
    }
    return tuple({name: pair[i] for name, pair in both.items()} for i in (0, 1))


@every_optimizer
@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1, dtype=torch.float64)], ids=["number", "tensor"])
@pytest.mark.parametrize("moments", ["as_parameters", "plain"])
@pytest.mark.parametrize("names", ["all", "dense"])
def test_a_step_in_place_is_the_pure_one(case, lr, moments, names):
    optimizer = case.make()
    (params, grads) = awkward_params()
    if names == "dense":
        params = {name: p for name, p in params.items() if name != "part"}
    pure = params
    state = optimizer.init(params)
    if moments == "plain":  # A checkpoint may contain moments with the plain memory layout.
        for slot in optimizer.slots:
            state[slot] = {name: x.contiguous() for name, x in state[slot].items()}
    live = {name: p.clone() for name, p in params.items()}
    live_state = copy.deepcopy(state)
    if names == "all":
        live["part"] = torch.randn(4, 6)[:, ::2].copy_(params["part"])
    places = {path: x.data_ptr() for path, x in flatten((), {"params": live, **live_state}).items()}
    for step in range(4):
        # The first and third steps use the gradients as they are, and the others use multiples of them. A multiple of
        # an expanded tensor is not an expanded tensor.
        now = {name: grads[name] if step % 2 == 0 else -step * grads[name] for name in params}
        kept = {name: g.clone() for name, g in now.items()}
        pure, state = optimizer.update(pure, now, state, lr)
        moved, moved_state = optimizer.update_(live, now, live_state, lr)
        assert all(torch.equal(now[name], kept[name]) for name in params)
    ends = flatten((), {"params": moved, **moved_state})
    assert {path: x.data_ptr() for path, x in ends.items()} == places
    for path, x in flatten((), {"params": pure, **state}).items():
        torch.testing.assert_close(ends[path], x, **rounding(4))


@pytest.mark.parametrize("beta2", [0.95, 0.999, 0.9999])
@pytest.mark.parametrize("n_steps", [0, 1, 10])
def test_every_form_of_a_step_of_adam_is_right_to_the_last_digits_of_float32(beta2, n_steps):
    adam = Adam(lr=0.1, betas=(0.9, beta2))
    bound = reordered(12, torch.float32)

    def numbers(dtype):
        torch.manual_seed(0)
        g, m, s = ({"x": torch.rand(5, dtype=torch.float32).to(dtype)} for _ in range(3))
        state = {"step": torch.tensor(float(n_steps), dtype=dtype), "exp_avg": m, "exp_avg_sq": s}
        if n_steps == 0:
            state = {**adam.init(g), "step": state["step"]}
        # The parameters start at zero, so that the new parameters are the step itself.
        zero = {"x": torch.zeros(5, dtype=dtype)}
        moved, after = adam.update(zero, g, state, 0.1)
        forms = {"pure": moved["x"], "root": adam.root(after)["x"]}
        return {**forms, "in place": adam.update_(zero, g, state, 0.1)[0]["x"]}

    exact = numbers(torch.float64)
    for name, x in numbers(torch.float32).items():
        torch.testing.assert_close(x.double(), exact["pure" if name == "in place" else name], rtol=bound, atol=0)


@every_optimizer
def test_an_update_is_differentiable_in_everything(case):
    optimizer = case.make()
    like = {"x": torch.randn(2, 3)}
    slots = [torch.rand(2, 3, requires_grad=True) for _ in optimizer.slots]

    def update(p, g, lr, *slots):
        state = {name: {"x": x} for name, x in zip(optimizer.slots, slots, strict=True)} | {"step": torch.tensor(3.0)}
        params, state = optimizer.update({"x": p}, {"x": g}, state, lr)
        return params["x"], *(state[slot]["x"] for slot in optimizer.slots)

    p = like["x"].clone().requires_grad_()
    g = torch.randn(2, 3, requires_grad=True)
    assert torch.autograd.gradcheck(update, (p, g, torch.tensor(0.1, requires_grad=True), *slots))


def test_adam_is_differentiable_at_a_zero_gradient():
    adam = Adam(lr=0.1)
    p = {"x": torch.zeros(3)}
    g = torch.tensor([0.0, 1.0, 1e-20], requires_grad=True)
    moved = adam.update(p, {"x": g}, adam.init(p), 0.1)[0]["x"]
    torch.testing.assert_close(moved.detach()[:2], torch.tensor([0.0, -0.1]))
    (slope,) = torch.autograd.grad(moved.sum(), g)
    assert torch.isfinite(slope).all()
    torch.testing.assert_close(slope[0], torch.tensor(-0.1 / 1e-8), rtol=1e-6, atol=0)


@pytest.mark.parametrize("case", SCHEDULES, ids=str)
def test_schedules_are_those_of_torch(case):
    schedule = case.make()
    total = 24
    p = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=0.3)
    scheduler = case.twin(optimizer, total)
    rates = []
    for iteration in range(total + 1):
        rates.append(schedule(0.3, iteration, total))
        assert rates[-1] == pytest.approx(scheduler.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        scheduler.step()
    assert (rates[0] == 0.3) == (case.name != "warmup")
    assert (rates[-1] < 0.3 * 0.7) == (case.name != "constant")


@pytest.mark.parametrize("case", SCHEDULES, ids=str)
@pytest.mark.parametrize("lr", [0.0, 1e-9, 0.3])
def test_no_rate_is_above_the_one_that_was_asked_for(case, lr):
    for schedule in (case.make(), Warmup(n_iterations=5, schedule=case.make()), Cosine()):
        rates = [schedule(lr, iteration, 24) for iteration in range(30)]
        assert max(rates) <= lr
        assert min(rates) >= 0


def flatten(prefix, tree):
    if isinstance(tree, dict):
        return {path: x for key, value in tree.items() for path, x in flatten((*prefix, key), value).items()}
    return {prefix: tree}


@pytest.mark.parametrize("scale", [0.01, 100.0])
def test_gradients_are_clipped_over_all_parameters_of_a_step(scale):
    energy = GRBM(v_dim=2, h_dim=3)
    method = ScoreMatching(energy=energy, objective=SM(), optimizer=SGD(lr=1.0, clip_norm=0.5))
    start = iterating.start(method)
    grads = {name: scale * torch.randn_like(p) for name, p in start.theta.items()}
    end = method.update(start, "model", torch.zeros(()), grads)
    for name, p in energy.named_parameters():
        p.grad = grads[name].clone()
    norm = torch.nn.utils.clip_grad_norm_(energy.parameters(), 0.5)
    # the record contains the norm before clipping
    torch.testing.assert_close(end.record()["model_grad_norm"], norm)
    for name, p in energy.named_parameters():
        torch.testing.assert_close(start.theta[name] - end.theta[name], p.grad)
        assert torch.allclose(p.grad, grads[name]) == (scale == 0.01)


def test_a_restored_state_goes_to_the_device_as_a_whole():
    params = {"x": torch.nn.Parameter(torch.zeros(2))}
    optimizer = StatefulOptimizer(params, Adam(lr=0.1))
    optimizer.load_state_dict(optimizer.state_dict())
    _optimizer_to_device(optimizer, torch.device("meta"))
    state = optimizer.functional_state()
    assert {leaf.device.type for leaf in (state["step"], *state["exp_avg"].values())} == {"meta"}
