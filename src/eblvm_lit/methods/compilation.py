"""Whether an iteration is compiled, and how."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["compile_step", "compiler_available", "worth_compiling"]

log = logging.getLogger(__name__)

# Below this many inner steps (iterations x steps an iteration) the eager run is over before the compiler is.
MIN_INNER_STEPS = 40_000


def compiler_available(device: torch.device) -> str | None:
    """Name of the compiler torch would use on a device; None if there is none.

    Example:
        >>> compiler_available(torch.device("meta"))
    """
    if device.type == "cuda":
        try:
            import triton
        except ImportError:
            return None
        return f"triton {triton.__version__}"
    if device.type != "cpu":
        return None
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        return str(get_cpp_compiler())
    except (InvalidCxxCompiler, RuntimeError, OSError):
        return None


def worth_compiling(n_iterations: int, n_inner_steps: int, device: torch.device) -> bool:
    """The decision of ``compile=auto``, and a line in the log that gives its reason.

    Args:
        n_iterations: Iterations still to run.
        n_inner_steps: Steps in one iteration, unrolled ones included: what compile time grows with.
        device: Where the run is.
    """
    if n_iterations * n_inner_steps < MIN_INNER_STEPS:
        log.info("compile=auto: running eagerly, %d iterations are too few to repay compilation.", n_iterations)
        return False
    compiler = compiler_available(device)
    if compiler is None:
        log.info("compile=auto: running eagerly, no compiler for %s was found.", device.type)
        return False
    log.info("compile=auto: compiling the whole iteration with %s; the first one takes a while.", compiler)
    return True


def compile_step(step: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function of tensors as one graph, for the shapes of its first call."""
    return torch.compile(step, fullgraph=True, dynamic=False)
