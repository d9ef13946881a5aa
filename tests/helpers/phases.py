"""Signals that a process of a run sends itself in a phase of it."""

import os
import signal

from pytorch_lightning.utilities import rank_zero_only

from eblvm_lit.methods.base import Method

__all__ = ["PHASES", "send_in"]

# What is called in a phase, and when, for runs of 18 iterations with validations at 6, 12 and 18.
PHASES = {
    "first iteration": ("training_step", 0),
    "training": ("training_step", 8),
    "validation": ("validation_step", 12),
}


def send_in(phase, name, rank=0):
    """From here on, this process and those it forks are sent a signal in a phase, once, if they have a rank."""
    attribute, iteration = PHASES[phase]
    function, sent = getattr(Method, attribute), []

    def called(method, *args):
        if rank_zero_only.rank == rank and not sent and method.iterations_done == iteration:
            sent.append(name)
            os.kill(os.getpid(), getattr(signal, name))
        return function(method, *args)

    if hasattr(function, "__signature__"):
        called.__signature__ = function.__signature__
    setattr(Method, attribute, called)
