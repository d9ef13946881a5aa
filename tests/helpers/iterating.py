"""Functions that run the single steps of a method's iteration.

They return the loss and the gradient of each step, or run some steps without the others.
"""

from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch

from eblvm_lit.methods.base import Method


class Found(NamedTuple):
    """The arguments of one call of ``Method.update``, which makes one optimizer step."""

    loss: Any
    grads: Any
    diagnostics: Any = None
    buffers: Any = None


def start(method, lr=None):
    """Return the state before the first iteration, with fresh optimizers.

    The learning rates are those of the optimizers, unless ``lr`` is given.
    """
    optimizers = dict(zip(method.groups, method.configure_optimizers(), strict=True))
    dtype = next(method.parameters()).dtype
    rates = {name: torch.tensor(group.optimizer.lr if lr is None else lr) for name, (group, _) in method.rates.items()}
    return method.train_state(optimizers, {name: rate.to(dtype) for name, rate in rates.items()})


@contextmanager
def updating(method, update):
    """Replace the update of a method's optimizer steps inside this context."""
    with mock.patch.object(type(method), "update", update):
        yield


def run(method, state, v, noise, only=None, in_place=False):
    """Run an iteration, and return its final state and its record.

    ``only`` names the groups whose steps are made; without it, all steps are made.
    """
    plain = Method.update

    def update(self, state, name, *args, **named):
        return plain(self, state, name, *args, **named) if only is None or name in only else state

    with updating(method, update):
        end = method.iteration(state._replace(in_place=in_place), v, noise)
    return end, end.record()


def found(method, state, v, noise):
    """Return the loss and the gradient that each step of an iteration has at the given state.

    The steps do not change the state, so that no step sees the effect of another.
    """
    steps = {name: [] for name in method.groups}

    def update(self, state, name, *args, **named):
        steps[name].append(Found(*args, **named))
        return state

    with updating(method, update):
        method.iteration(state, v, noise)
    return steps


def live(method):
    """Return the state whose tensors are the method's own parameters, so that autograd differentiates with respect to
    them."""
    params = {name: dict(network.named_parameters()) for name, network in method.networks().items()}
    return method.live_state()._replace(params=params)


def gradient_of(loss, module):
    """Return the gradient of a loss with respect to a module's trainable parameters, by name.

    The gradient is zero for a parameter on which the loss does not depend.
    """
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    grads = torch.autograd.grad(loss, list(named.values()), retain_graph=True, materialize_grads=True)
    return dict(zip(named, grads, strict=True))


def assert_descends(step, loss, module, rtol=1e-9, atol=1e-11):
    """Check that a step's loss is the given one, and that its gradient is the one that autograd computes."""
    expected = gradient_of(loss, module)
    torch.testing.assert_close(step.loss, loss.detach())
    torch.testing.assert_close(step.grads, expected, rtol=rtol, atol=atol)
    assert max(value.abs().max() for value in expected.values()) > 1e-2
