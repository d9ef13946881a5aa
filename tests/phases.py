"""Signals that a process of a run sends itself in a phase of it, and what a run should leave behind then."""

import os
import signal
import threading
import time

from pytorch_lightning.utilities import rank_zero_only

from eblvm_lit.cli import run
from eblvm_lit.methods.base import Method
from eblvm_lit.training.callbacks.checkpoints import Checkpoints
from eblvm_lit.training.checkpoint_io import AtomicCheckpointIO

__all__ = ["BURST", "PHASES", "SIGNALS", "send_in"]

BURST = "burst of SIGTERM"
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGKILL", BURST)


def _any(*args):
    return True


# What is called in a phase, and when, for runs of 18 iterations with validations at 6, 12 and 18.
PHASES = {
    "before training": (run, "build", _any),
    "start of training": (Checkpoints, "on_train_start", _any),
    "first iteration": (Method, "training_step", lambda method, *args: method.iterations_done == 0),
    "training": (Method, "training_step", lambda method, *args: method.iterations_done == 8),
    "checkpoint": (AtomicCheckpointIO, "save_checkpoint", _any),
    "validation": (Method, "validation_step", lambda method, *args: method.iterations_done == 12),
    "final evaluation": (run, "final_metrics", _any),
}


def send_in(phase, name, rank=0):
    """From here on, this process and those it forks are sent a signal in a phase, once, if they have a rank."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup
    owner, attribute, due = PHASES[phase]
    function, sent = getattr(owner, attribute), []

    def called(*args, **kwargs):
        if rank_zero_only.rank == rank and not sent and due(*args):
            sent.append(name)
            _send(name)
        return function(*args, **kwargs)

    if hasattr(function, "__signature__"):
        called.__signature__ = function.__signature__
    setattr(owner, attribute, called)


def _send(name):
    if name == BURST:
        threading.Thread(target=_burst, daemon=True).start()
        time.sleep(0.05)
    else:
        os.kill(os.getpid(), getattr(signal, name))


def _burst():
    """To the end of the process, at every moment of what it still does."""
    while True:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.0005)
