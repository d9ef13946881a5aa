"""The steps of a method's iteration, one by one: what each descends, and some of them without the others."""

from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch

from eblvm_lit.methods.base import Method


class Found(NamedTuple):
    """What a step was given: see ``Method.update``."""

    loss: Any
    grads: Any
    diagnostics: Any = None
    buffers: Any = None


def start(method, lr=None):
    """Where a first iteration starts: live tensors, fresh optimizers, each at its own rate if not at this one."""
    optimizers = dict(zip(method.groups, method.configure_optimizers(), strict=True))
    dtype = next(method.parameters()).dtype
    rates = {name: torch.tensor(group.optimizer.lr if lr is None else lr) for name, (group, _) in method.rates.items()}
    return method.train_state(optimizers, {name: rate.to(dtype) for name, rate in rates.items()})


@contextmanager
def updating(method, update):
    """Inside, the steps of the method end in another update."""
    with mock.patch.object(type(method), "update", update):
        yield


def run(method, state, v, noise, only=None, in_place=False):
    """Where an iteration ends, and its record; ``only`` names the groups whose steps are made."""
    plain = Method.update

    def update(self, state, name, *args, **named):
        return plain(self, state, name, *args, **named) if only is None or name in only else state

    with updating(method, update):
        end = method.iteration(state._replace(in_place=in_place), v, noise)
    return end, end.record()


def found(method, state, v, noise):
    """What each step of an iteration would descend from this state, if no step before it moved anything."""
    steps = {name: [] for name in method.groups}

    def update(self, state, name, *args, **named):
        steps[name].append(Found(*args, **named))
        return state

    with updating(method, update):
        method.iteration(state, v, noise)
    return steps


def live(method):
    """The state of the live parameters, through which autograd differentiates what the method computes."""
    params = {name: dict(network.named_parameters()) for name, network in method.networks().items()}
    return method.live_state()._replace(params=params)


def gradient_of(loss, module):
    """Gradient of a loss by a module's trainable parameters, by name; zero where the loss does not depend on one."""
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    grads = torch.autograd.grad(loss, list(named.values()), retain_graph=True, materialize_grads=True)
    return dict(zip(named, grads, strict=True))


def assert_descends(step, loss, module, rtol=1e-9, atol=1e-11):
    """Hold what a step descends to a loss, and its gradient to that loss's by autograd."""
    expected = gradient_of(loss, module)
    torch.testing.assert_close(step.loss, loss.detach())
    torch.testing.assert_close(step.grads, expected, rtol=rtol, atol=atol)
    assert max(value.abs().max() for value in expected.values()) > 1e-2
