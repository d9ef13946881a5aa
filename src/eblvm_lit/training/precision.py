"""The choice of ``trainer.precision=auto``: float32 or bfloat16, by a convolution of the model's size in both."""

from __future__ import annotations

import copy
import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from eblvm_lit.cli.build import Parts, root_device
from eblvm_lit.core.functional import plain_autograd
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.errors import EblvmError
from eblvm_lit.methods.base import Method
from eblvm_lit.training.checkpoint_io import load_checkpoint
from eblvm_lit.training.processes import started_outside
from eblvm_lit.utils.torch_settings import tf32, threads

__all__ = ["AUTO", "Convolution", "Probe", "choose_precision", "largest_convolution", "probe", "stored_precision"]

log = logging.getLogger(__name__)

AUTO, SINGLE, HALF = "auto", "32-true", "bf16-mixed"
CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)
FEW = 2  # examples by which the sizes of convolutions are found
# The share of float32's time below which bfloat16 is chosen: what stands between convolutions gains nothing.
WORTHWHILE = 0.8
SECONDS = 0.4  # of measuring, after the first call in each dtype
# Operations of a forward pass of the probe, at most: some milliseconds. A first look takes far fewer, as a processor
# that emulates bfloat16 is up to fifty times slower in it.
MAX_FLOPS = {"cpu": 1e9, "cuda": 5e10}
LOOK_FLOPS, LOOK_SECONDS = 2e7, 0.1
HOPELESS = 4.0  # times float32's time: from there on the first look is the last one


class Convolution(NamedTuple):
    """A convolution as a model calls it.

    Attributes:
        transposed: Whether it is the transposed one.
        options: Its arguments: channels, kernel_size, stride, ...
        size: Of its input, (channels, height, width).
        flops: Of a forward pass with one example.
    """

    transposed: bool
    options: tuple[tuple[str, Any], ...]
    size: tuple[int, ...]
    flops: int

    def __str__(self) -> str:
        options = dict(self.options)
        kernel = "x".join(map(str, options["kernel_size"]))
        kind = "transposed convolution" if self.transposed else "convolution"
        pixels = "x".join(map(str, self.size[1:]))
        return f"{kernel} {kind} of {options['in_channels']} to {options['out_channels']} channels, {pixels} pixels"

    def module(self, device: torch.device) -> nn.Conv2d | nn.ConvTranspose2d:
        """One with constant weights: no random number is drawn."""
        kind = nn.ConvTranspose2d if self.transposed else nn.Conv2d
        made = nn.utils.skip_init(kind, device=device, **dict(self.options))
        for p in made.parameters():
            nn.init.constant_(p, 0.01)
        return made


class Probe(NamedTuple):
    """Seconds of a forward and a backward pass of one convolution.

    Attributes:
        convolution: What was measured.
        rows: Examples of its minibatch.
        single: In float32.
        half: In bfloat16, casts of the weights included.
    """

    convolution: Convolution
    rows: int
    single: float
    half: float

    def __str__(self) -> str:
        return (
            f"a {self.convolution}, takes {1e3 * self.single:.3g} ms in float32 and {1e3 * self.half:.3g} ms in "
            f"bfloat16 ({self.rows} examples, forward and backward)"
        )


def choose_precision(cfg: DictConfig, parts: Parts, resume_from: Path | None) -> str:
    """The precision of a run with ``trainer.precision=auto``; one line in the log says which, and why.

    A resumed run keeps the precision of its checkpoint. Processes that torchrun or SLURM start could choose
    differently, and stay in float32.

    Args:
        cfg: The configuration of the run.
        parts: Its parts; the data are loaded.
        resume_from: The checkpoint that it goes on from.

    Returns:
        ``32-true`` or ``bf16-mixed``; of a checkpoint, whatever it has.
    """
    device, n_processes = root_device(cfg)
    stored = None if resume_from is None else stored_precision(load_checkpoint(resume_from))
    if stored is not None:
        chosen, reason = stored, "as in the checkpoint that the run goes on from"
    elif n_processes > 1 and started_outside():
        chosen, reason = SINGLE, "processes that were started one by one could choose differently"
    else:
        with tf32(cfg.get("tf32")), threads(cfg.get("threads")):
            chosen, reason = decide(parts, device, n_processes)
    log.info("precision=auto: %s, %s.", chosen, reason)
    return chosen


def stored_precision(checkpoint: dict[str, Any]) -> str | None:
    """``trainer.precision`` in the configuration of a checkpoint; None where it has none.

    Example:
        >>> stored_precision({"eblvm_lit": {"config": {"trainer": {"precision": "bf16-mixed"}}}})
        'bf16-mixed'
    """
    trainer = checkpoint["eblvm_lit"]["config"].get("trainer")
    precision = trainer.get("precision") if isinstance(trainer, dict) else None
    return precision if precision in (SINGLE, HALF, "64-true") else None


def decide(parts: Parts, device: torch.device, n_processes: int = 1) -> tuple[str, str]:
    """The precision that is faster on a device and accurate enough for the method, and the reason in words."""
    method, data = parts.method, parts.data
    if (reason := method.float32_reason()) is not None:
        return SINGLE, reason
    v = data.as_float(data.splits.train[:FEW].clone())
    convolution = largest_convolution(method, v)
    if convolution is None:
        return SINGLE, "as the model has no convolutions"
    rows = max(1, min(data.batch_size, len(data.splits.train)) // n_processes)
    try:
        found = probe(convolution, rows, device)
    except RuntimeError as error:  # no such dtype on this device, or no memory left
        return SINGLE, f"as {device.type} ran no convolution in bfloat16 ({next(iter(str(error).splitlines()), '')})"
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return (HALF if found.half < WORTHWHILE * found.single else SINGLE), str(found)


def largest_convolution(method: Method, v: Tensor) -> Convolution | None:
    """The kind of convolution that a method's networks spend most operations on; None if they have none.

    It is found in the validation loss of a copy of the method, which leaves the method and all random states alone.

    Args:
        method: On the CPU.
        v: A few examples, shape (B, *event).
    """
    if not any(isinstance(module, CONVOLUTIONS) for module in method.modules()):
        return None
    method, work, seen = copy.deepcopy(method).eval(), Counter[Convolution](), set[Any]()
    convolutions = {module for module in method.modules() if isinstance(module, CONVOLUTIONS)}

    def note(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        transposed = isinstance(module, nn.ConvTranspose2d)
        names = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")
        options = {name: getattr(module, name) for name in (*names, *(["output_padding"] if transposed else []))}
        x = inputs[0]
        # each element of the weight is used once at each place of the input, or of the output
        places = (x if transposed else output).shape[-2:].numel()
        flops = 2 * places * module.weight.numel()
        kind = Convolution(transposed, (*options.items(), ("bias", module.bias is not None)), tuple(x.shape[1:]), flops)
        work[kind] += flops * len(x)
        seen.add(module.weight)
        if len(seen) == len(convolutions):
            raise _AllSeenError

    for module in convolutions:
        module.register_forward_hook(note)
    try:
        with plain_autograd():
            method.validation_loss(v, keyed_generator(0, "precision"))
    except _AllSeenError:  # what comes after is of no interest
        pass
    except (EblvmError, RuntimeError, TypeError, ValueError) as error:  # the run itself will say what is wrong
        log.debug("The convolutions of the model could not be looked at (%s).", error)
    return max(work, key=work.__getitem__, default=None)


class _AllSeenError(Exception):
    """Every convolution has been called once."""


def probe(convolution: Convolution, rows: int, device: torch.device) -> Probe:
    """Time a forward and a backward pass in float32 and in bfloat16, in turn.

    Args:
        convolution: What to run.
        rows: Examples of a minibatch; fewer are taken where so many would take long.
        device: Where to run it.

    Raises:
        RuntimeError: If the device has no bfloat16, or no memory.

    Example:
        >>> options = {"in_channels": 8, "out_channels": 8, "kernel_size": (3, 3), "stride": (1, 1), "padding": (1, 1)}
        >>> found = probe(Convolution(False, tuple(options.items()), (8, 8, 8), 73728), 10, torch.device("cpu"))
        >>> found.rows, found.single > 0, found.half > 0
        (10, True, True)
    """
    module = convolution.module(device)
    look = _times(module, _shape(convolution, rows, LOOK_FLOPS), LOOK_SECONDS)
    if look[1] > HOPELESS * look[0]:
        return Probe(convolution, 1, *look)
    shape = _shape(convolution, rows, MAX_FLOPS.get(device.type, MAX_FLOPS["cpu"]))
    return Probe(convolution, shape[0], *_times(module, shape, SECONDS))


def _shape(convolution: Convolution, rows: int, flops: float) -> tuple[int, ...]:
    """That of an input of at most ``rows`` examples for about so many operations; of a part of one for very few."""
    channels, *size = convolution.size
    share = flops / max(convolution.flops, 1)
    if share >= 1:
        return (min(rows, int(share)), channels, *size)
    kernel = dict(convolution.options)["kernel_size"]
    return (1, channels, *(min(n, max(k, int(n * share**0.5))) for n, k in zip(size, kernel, strict=True)))


def _times(module: nn.Module, shape: tuple[int, ...], seconds: float) -> tuple[float, float]:
    """The shortest times in float32 and in bfloat16, measured in turn for so many seconds, and at least once."""
    passes = [_pass(module, shape, dtype) for dtype in (torch.float32, torch.bfloat16)]
    for run in passes:  # libraries choose their kernels
        run()
    single, half = (run() for run in passes)
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        single, half = min(single, passes[0]()), min(half, passes[1]())
    return single, half


def _pass(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> Callable[[], float]:
    """A forward and a backward pass, as inside of a network: its input has the dtype already. Returns seconds."""
    weights = list(module.parameters())
    device = weights[0].device
    x = torch.full(shape, 0.5, dtype=dtype, device=device, requires_grad=True)
    half = dtype == torch.bfloat16

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def run() -> float:
        wait()
        begin = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=half, cache_enabled=False):  # as Lightning has it
            y = module(x)
        torch.autograd.grad(y, [x, *weights], torch.ones_like(y))
        wait()
        return time.perf_counter() - begin

    return run
