"""Whether an iteration is compiled, and how."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass

from eblvm_lit.errors import ConfigError
from eblvm_lit.ranks import rank_and_size

__all__ = ["CompilationError", "compile_step", "compiler_available", "is_compiled", "worth_compiling"]

log = logging.getLogger(__name__)

# Below this many inner steps (iterations x steps an iteration) the eager run is over before the compiler is.
MIN_INNER_STEPS = 60_000


class CompilationError(Exception):
    """The first call of a compiled function failed, before it changed anything."""


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


def _mode_of_processes(mode: bool | Literal["auto"]) -> bool | Literal["auto"]:
    """``method.compile`` as it is for one process; several run eagerly, as their exchanges are not compiled.

    Raises:
        ConfigError: Where several were told to compile.
    """
    n = rank_and_size()[1]
    if n > 1 and mode is True:
        raise ConfigError(
            "method.compile=true needs trainer.devices=1, as exchanges between processes are not compiled: "
            "use method.compile=auto or false."
        )
    if n > 1 and mode == "auto":
        log.info("compile=auto: running eagerly, exchanges between %d processes are not compiled.", n)
    return mode if n == 1 else False


def is_compiled(mode: bool | Literal["auto"], n_iterations: int, n_inner_steps: int, device: torch.device) -> bool:
    """Whether ``method.compile`` comes to compiling in this run.

    Args:
        mode: Its value.
        n_iterations: Of the run.
        n_inner_steps: How many gradients follow one another in an iteration.
        device: Where it runs.

    Raises:
        ConfigError: Where it is true, and there is no compiler, or there are several processes.

    Example:
        >>> is_compiled(False, 100_000, 10, torch.device("cpu"))
        False
    """
    mode = _mode_of_processes(mode)
    if mode is True and compiler_available(device) is None:
        raise ConfigError(
            f"method.compile=true, but no compiler for {device.type} was found: use method.compile=auto or false."
        )
    return mode is True or (mode == "auto" and worth_compiling(n_iterations, n_inner_steps, device))


class _MergeEqualNodes(CustomGraphPass):
    """Computes each thing once: the graph of an iteration repeats what several gradients of one function share.

    Inductor merges equal nodes only in graphs with a backward pass of their own, which this one has not.
    """

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Merge, in place."""
        seen: dict[tuple[Any, str, str], torch.fx.Node] = {}
        for node in list(graph.nodes):
            operator = node.target
            pure = (
                isinstance(operator, torch._ops.OpOverload)
                and not operator._schema.is_mutable
                and torch.Tag.nondeterministic_seeded not in operator.tags
            )
            if not pure:
                continue
            key = (operator, repr(node.args), repr(node.kwargs))
            if key in seen:
                node.replace_all_uses_with(seen[key])
                graph.erase_node(node)
            else:
                seen[key] = node

    def uuid(self) -> bytes:
        """For the compiler's cache: changes with the pass."""
        return b"eblvm_lit.merge_equal_nodes.1"


def compile_step(step: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Compile a function of tensors as one graph, for the shapes, types and structure of its first call.

    These are not checked again, which would cost a tenth of a small iteration: the caller sees to it that they hold.

    Args:
        step: The function.
        device: Where its tensors are.

    Returns:
        The function; its first call compiles, and raises :class:`CompilationError` if that fails.
    """

    def iteration(*args: Any) -> Any:
        return step(*args)

    # Compiled code is cached with the code object. Without guards a second method of this process would be given the
    # first one's graph, so each gets a code object of its own.
    iteration.__code__ = iteration.__code__.replace()
    options = {
        "guard_filter_fn": lambda guards: [False] * len(guards),
        "post_grad_custom_pre_pass": _MergeEqualNodes(),
        # The graph has some hundred small kernels: called from C++ they take half the time they take from Python.
        "cpp_wrapper": device.type == "cpu",
    }
    compiled = torch.compile(iteration, fullgraph=True, dynamic=False, options=options)
    is_first = True

    def call(*args: Any) -> Any:
        nonlocal is_first
        if not is_first:
            return compiled(*args)
        try:
            result = compiled(*args)
        except torch.OutOfMemoryError:  # eager code would need no less
            raise
        except Exception as error:
            # Dynamo, Inductor, the C++ compiler, a full disk: their errors have no base class in common
            cause = getattr(error, "inner_exception", error)
            reason = next(iter(str(cause).strip().splitlines()), "no reason was given")
            raise CompilationError(f"the iteration could not be compiled ({type(cause).__name__}: {reason})") from error
        is_first = False
        return result

    return call
