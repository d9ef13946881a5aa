"""Every private door of torch and Lightning that this package opens: each has a public fallback with the same numbers.

=========================== ================================================= ===============================
entry                       private names                                     fallback
=========================== ================================================= ===============================
:func:`compile_step`        ``torch._dynamo``, ``torch._inductor``, ``_ops``  ``torch.compile`` as it is
:func:`compiler_available`  ``torch._inductor.cpp_builder``                   ``$CXX``, ``g++``, ``clang++`` on the path
:func:`inside_torch_func`   ``torch._C._functorch``                           "yes": nothing is specialised
``innermost_transform``     ``torch._C._functorch``                           "yes": by ``torch.func`` throughout
:func:`without_hooks`       ``torch.optim.Optimizer.step.hooked``             torch's profiled and hooked step
=========================== ================================================= ===============================

docs/concepts.md has the measured gain of each; tests/test_fast_paths.py takes each door away.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

lookup_backend: Any
inductor_config: Any
CustomGraphPass: Any
try:
    from torch._dynamo import lookup_backend
    from torch._inductor import config as inductor_config
    from torch._inductor.custom_graph_pass import CustomGraphPass
except ImportError:  # another torch: torch.compile is used as it is
    lookup_backend, inductor_config, CustomGraphPass = None, None, object

__all__ = [
    "CompilationError",
    "compile_step",
    "compiler_available",
    "innermost_transform",
    "inside_torch_func",
    "without_hooks",
]

# The transform of torch.func that this code is called inside of, or None. A function of C: gradients ask it each time,
# where :func:`inside_torch_func` would take as long again. Where torch does not tell, there is always one.
innermost_transform: Callable[[], Any] = getattr(
    getattr(torch._C, "_functorch", None), "peek_interpreter_stack", lambda: "unknown"
)

# The namespace of operations between processes: (..., the result of the operation before it or None) -> a tensor.
EXCHANGES = "eblvm_lit"


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
    try:
        from torch._inductor.cpp_builder import get_cpp_compiler
        from torch._inductor.exc import InvalidCxxCompiler
    except ImportError:
        names = (os.environ.get("CXX"), "g++", "clang++")
        return next((found for name in names if name and (found := shutil.which(name))), None)
    try:
        return str(get_cpp_compiler())
    except (InvalidCxxCompiler, RuntimeError, OSError):
        return None


class _OnceAndInOrder(CustomGraphPass):
    """Computes each thing once, and keeps the order of exchanges between processes.

    The graph of an iteration repeats what several gradients of one function share. Inductor merges equal nodes only in
    graphs with a backward pass of their own, which this one has not.

    Each exchange is made to wait for the one before it. A compiler orders by sizes, which differ between processes, and
    processes that exchange in different orders wait for each other forever. For the same reason two exchanges that look
    equal in one process are both kept: they need not look equal in another.
    """

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Merge and order, in place."""
        seen: dict[tuple[Any, str, str], torch.fx.Node] = {}
        last: torch.fx.Node | None = None
        for node in list(graph.nodes):
            operator = node.target
            if not isinstance(operator, torch._ops.OpOverload):
                continue
            if operator.namespace == EXCHANGES:
                node.args, last = (*node.args[:-1], last), node
                continue
            if operator._schema.is_mutable or torch.Tag.nondeterministic_seeded in operator.tags:
                continue
            key = (operator, repr(node.args), repr(node.kwargs))
            if key in seen:
                node.replace_all_uses_with(seen[key])
                graph.erase_node(node)
            else:
                seen[key] = node

    def uuid(self) -> bytes:
        """For the compiler's cache: changes with the pass and with the processor's vector width.

        Inductor keeps the source of its kernels, written for one vector width, and does not look at the width when it
        looks for them again. Under another ``ATEN_CPU_CAPABILITY``, or on another processor with the same cache folder,
        AVX512 source was compiled for AVX2 and gave NaN.
        """
        return f"eblvm_lit.once_and_in_order.2 {torch.backends.cpu.get_cpu_capability()}".encode()


class _Graph:
    """What a backend made of a graph; it remembers the tensors of its last call until told to forget them."""

    def __init__(self, run: Callable[..., Sequence[Any]]) -> None:
        self.run, self.remembers = run, True
        self.inputs: Sequence[Any] = ()
        self.outputs: Sequence[Any] = ()

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        outputs = self.run(*inputs)
        if self.remembers:
            self.inputs, self.outputs = inputs, outputs
        return outputs

    def forget(self) -> None:
        """Keep no tensor alive from here on."""
        self.remembers, self.inputs, self.outputs = False, (), ()


def _compile_graph(
    graph: torch.fx.GraphModule, inputs: Sequence[Any], device: torch.device
) -> Callable[..., Sequence[Any]]:
    """What Inductor makes of a graph for inputs like these, on a device."""
    options = {
        "post_grad_custom_pre_pass": _OnceAndInOrder(),
        # The graph has some hundred small kernels: called from C++ they take half the time they take from Python.
        "cpp_wrapper": device.type == "cpu",
    }
    inductor = lookup_backend("inductor")
    if device.type != "cpu":
        return inductor(graph, inputs, config_patches=options)
    # Only Triton's kernels are compiled by worker processes. One would be started all the same, and load torch for some
    # five seconds of processor time beside the first iterations.
    with inductor_config.patch(compile_threads=1):
        return inductor(graph, inputs, config_patches=options)


def _paths(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Tensor, tuple[Any, ...]]]:
    """Every tensor in dicts, lists and tuples, and the keys that lead to it."""
    if isinstance(tree, Tensor):
        yield tree, path
        return
    items = tree.items() if isinstance(tree, Mapping) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    for key, value in items:
        yield from _paths(value, (*path, key))


def _straight(graph: _Graph, args: tuple[Any, ...], result: Any) -> Callable[..., dict[str, Tensor]] | None:
    """The function that was compiled, with nothing around its graph; None where that is not all there is to it.

    What ``torch.compile`` does around the graph, in each call, takes a good part of a small iteration, and comes to the
    same each time.

    Args:
        graph: It, after one call.
        args: The arguments the function had in that call.
        result: What it returned.
    """
    given = list(_paths(args))
    path_of = {id(tensor): path for tensor, path in given}
    place_of = {id(tensor): i for i, tensor in enumerate(graph.outputs)}
    alone = (
        len(path_of) == len(given)  # a tensor in two places need not be one in the next call
        and all(id(tensor) in path_of for tensor in graph.inputs)
        and isinstance(result, dict)
        and all(id(tensor) in place_of for tensor in result.values())
    )
    if not alone:
        return None
    run, paths = graph.run, [path_of[id(tensor)] for tensor in graph.inputs]
    places = {name: place_of[id(tensor)] for name, tensor in result.items()}

    def call(*args: Any) -> dict[str, Tensor]:
        inputs = []
        for path in paths:
            found = args
            for key in path:
                found = found[key]
            inputs.append(found)
        outputs = run(*inputs)
        return {name: outputs[i] for name, i in places.items()}

    return call


def compile_step(
    step: Callable[..., dict[str, Tensor]],
    device: torch.device,
    agree: Callable[[str | None], str | None] | None = None,
) -> Callable[..., dict[str, Tensor]]:
    """Compile a function of tensors as one graph, for the shapes, types and structure of its first call.

    These are not checked again, which would cost a tenth of a small iteration: the caller sees to it that they hold.

    Args:
        step: The function, of tensors in dicts, lists and tuples, to tensors in a dict; it may move those it is given,
            and changes nothing else.
        device: Where its tensors are.
        agree: Where several processes compile: maps the reason for which this one could not, or None, to the reason of
            any of them, the same in all. It is asked once, before anything is run.

    Returns:
        The function; its first call compiles, and raises :class:`CompilationError` if that fails in any process.
    """
    # Autograd starts its threads in the first backward pass of a process, one for each kind of device there is. While a
    # compiler runs, its "meta" device counts, too; and processes that are forked from one with such threads cannot
    # differentiate.
    torch.ones((), requires_grad=True).backward()

    def iteration(*args: Any) -> Any:
        return step(*args)

    graphs: list[_Graph] = []
    asked = False

    def reason_of_all(own: str | None) -> str | None:
        nonlocal asked
        if agree is None or asked:
            return own
        asked = True
        return agree(own)

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> _Graph:
        run = _compile_graph(graph, inputs, device)

        def first(*inputs: Any) -> Sequence[Any]:
            reason = reason_of_all(None)
            if reason is not None:
                raise CompilationError(reason)
            graphs[-1].run = run
            return run(*inputs)

        graphs.append(_Graph(first))
        return graphs[-1]

    # Compiled code is cached with the code object. Without guards a second method of this process would be given the
    # first one's graph, so each gets a code object of its own.
    iteration.__code__ = iteration.__code__.replace()
    if lookup_backend is None:
        compiled = torch.compile(iteration, fullgraph=True, dynamic=False)
    else:
        options: Any = {"guard_filter_fn": lambda guards: [False] * len(guards)}
        compiled = torch.compile(iteration, fullgraph=True, dynamic=False, backend=backend, options=options)
    settled = None

    def call(*args: Any) -> dict[str, Tensor]:
        nonlocal settled
        if settled is not None:
            return settled(*args)
        if agree is not None and lookup_backend is None:  # there is no moment between compiling and running to agree in
            raise CompilationError("this version of torch compiles for one process only")
        try:
            result = compiled(*args)
        except Exception as error:
            if isinstance(error, CompilationError | torch.OutOfMemoryError):  # eager code would need no less memory
                raise
            if asked:  # the others run on, and wait for this one
                raise
            # Dynamo, Inductor, the C++ compiler, a full disk: their errors have no base class in common
            cause = getattr(error, "inner_exception", error)
            line = next(iter(str(cause).strip().splitlines()), "no reason was given")
            reason = f"the iteration could not be compiled ({type(cause).__name__}: {line})"
            raise CompilationError(reason_of_all(reason)) from error
        settled = (_straight(graphs[0], args, result) if len(graphs) == 1 else None) or compiled
        for graph in graphs:
            graph.forget()
        return result

    return call


def inside_torch_func() -> bool:
    """Whether this code is called inside of a transform of ``torch.func``; "yes" where torch does not tell.

    Example:
        >>> inside = []
        >>> _ = torch.func.grad(lambda x: inside.append(inside_torch_func()) or x)(torch.tensor(1.0))
        >>> inside, inside_torch_func()
        ([True], False)
    """
    try:
        return torch._C._functorch.peek_interpreter_stack() is not None  # pyright: ignore[reportAttributeAccessIssue]
    except AttributeError:
        return True


def without_hooks(step: Callable[..., Any]) -> Callable[..., Any]:
    """Mark an optimizer's ``step`` so that torch neither profiles it nor calls hooks, a tenth of a small iteration."""
    step.hooked = True
    return step
