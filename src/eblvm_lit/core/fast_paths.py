"""Workarounds that use internals of PyTorch's compiler and optimizers, and the reason for each of them.

================================ =======================================================================================
``compile_fx``, ``_straight``    The wrapper that torch.compile puts around a graph adds 19 % to an iteration of BiDSM
                                 on the checkerboard (K = N = 5: 485 us with it, 408 us without), and 45 % to an
                                 iteration of DSM (87 and 60 us).
``CustomGraphPass``              Processes that run collectives in different orders would wait for each other forever.
                                 Also, Inductor's cache gave AVX512 kernels to an AVX2 processor, which computed NaN.
``Optimizer.step.hooked``        PyTorch's profiling and hooks add 13 % to that iteration of BiDSM (188 us with them,
                                 167 us without).
================================ =======================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

__all__ = ["compile_step", "without_hooks"]

# The namespace of the custom operators for collective communication. Each operator returns a tensor. Its last argument
# is the result of the preceding operator, or None.
EXCHANGES = "eblvm_lit"


class _ExchangesInOrder:
    """A compiler pass that makes each collective operation depend on the preceding one.

    Otherwise the compiler orders the collectives by tensor sizes, which differ between processes.
    """

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Fix the order of the graph's collective operations, in place."""
        last: torch.fx.Node | None = None
        for node in graph.nodes:
            if getattr(node.target, "namespace", None) == EXCHANGES:
                node.args = (*node.args[:-1], last)
                last = node

    def uuid(self) -> bytes:
        """Return what the compiler's cache key contains for this pass: its version and the processor's vector width."""
        return f"eblvm_lit.exchanges_in_order.1 {torch.backends.cpu.get_cpu_capability()}".encode()


class _Graph:
    """A compiled graph that stores the inputs and outputs of its last call until :meth:`forget` is called."""

    def __init__(self, run: Callable[..., Sequence[Any]]) -> None:
        self.run = run
        self.remembers = True
        self.inputs: Sequence[Any] = ()
        self.outputs: Sequence[Any] = ()

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        outputs = self.run(*inputs)
        if self.remembers:
            self.inputs = inputs
            self.outputs = outputs
        return outputs

    def forget(self) -> None:
        """Drop the stored tensors, and do not store tensors in later calls."""
        self.remembers = False
        self.inputs = ()
        self.outputs = ()


def inductor(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Sequence[Any]]:
    """Compile a graph with Inductor for the given example inputs."""
    from torch._inductor.compile_fx import compile_fx  # the import is slow, and fails in old PyTorch
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Pass(_ExchangesInOrder, CustomGraphPass):
        """The pass ``_ExchangesInOrder`` as a ``CustomGraphPass``, because Inductor's cache accepts no other class."""

    # On a CPU, Inductor generates a C++ wrapper around the kernels. With a Python wrapper, a graph of many small
    # kernels takes four times as long to compile.
    on_cpu = all(x.device.type == "cpu" for x in inputs if isinstance(x, Tensor))
    patches = {"post_grad_custom_pre_pass": Pass(), "cpp_wrapper": on_cpu}
    return cast(Callable[..., Sequence[Any]], compile_fx(graph, inputs, config_patches=patches))


def _paths(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Tensor, tuple[Any, ...]]]:
    """Yield every tensor in nested dicts, lists and tuples, with the path of keys that leads to it."""
    if isinstance(tree, Tensor):
        yield tree, path
        return
    items = tree.items() if isinstance(tree, Mapping) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    for key, value in items:
        yield from _paths(value, (*path, key))


def _straight(graph: _Graph, args: tuple[Any, ...], result: Any) -> Callable[..., dict[str, Tensor]] | None:
    """Return a function that calls the compiled graph directly, without the wrapper of ``torch.compile``.

    The wrapper only selects the graph's inputs from the arguments, and the results from the graph's outputs. It selects
    in the same way in each call, so this function infers the selection from one call.

    Args:
        graph: The compiled graph, after one call.
        args: The arguments of the compiled function in that call.
        result: The value that the compiled function returned.

    Returns:
        The function, or None if the wrapper does more than this selection.
    """
    given = list(_paths(args))
    path_of = {id(tensor): path for tensor, path in given}
    place_of = {id(tensor): i for i, tensor in enumerate(graph.outputs)}
    alone = (
        # This is False if a tensor is passed twice, because the next call may pass two different tensors in its place.
        len(path_of) == len(given)
        and all(id(tensor) in path_of for tensor in graph.inputs)
        and isinstance(result, dict)
        and all(id(tensor) in place_of for tensor in result.values())
    )
    if not alone:
        return None
    run = graph.run
    paths = [path_of[id(tensor)] for tensor in graph.inputs]
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


def compile_step(step: Callable[..., dict[str, Tensor]]) -> Callable[..., dict[str, Tensor]]:
    """Compile a function of tensors as one graph, for the shapes, dtypes and structure of its first call.

    Later calls are not checked: the caller must ensure that they have the same shapes, dtypes and structure.

    Args:
        step: The function, which maps tensors in dicts, lists and tuples to a dict of tensors. It may change the given
            tensors in place, and has no other side effects.

    Returns:
        The compiled function, which is compiled in its first call.
    """
    # The first backward pass of a process starts one autograd thread for each device type. If it ran during
    # compilation, it would also start a thread for the type "meta", and then processes forked from this one could not
    # run backward passes. This backward pass therefore precedes compilation.
    torch.ones((), requires_grad=True).backward()
    graphs: list[_Graph] = []

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> _Graph:
        graphs.append(_Graph(inductor(graph, inputs)))
        return graphs[-1]

    def iteration(*args: Any) -> Any:
        return step(*args)

    # torch.compile caches compiled code by code object. Without guards, a second function compiled in this process
    # would reuse the graph of the first, so each function gets its own code object.
    iteration.__code__ = iteration.__code__.replace()
    options: Any = {"guard_filter_fn": lambda guards: [False] * len(guards)}
    compiled = torch.compile(iteration, fullgraph=True, dynamic=False, backend=backend, options=options)
    settled = None

    def call(*args: Any) -> dict[str, Tensor]:
        nonlocal settled
        if settled is not None:
            return settled(*args)
        result = compiled(*args)
        settled = (_straight(graphs[0], args, result) if len(graphs) == 1 else None) or compiled
        for graph in graphs:
            graph.forget()
        return result

    return call


def without_hooks(step: Callable[..., Any]) -> Callable[..., Any]:
    """Mark an optimizer's ``step`` so that PyTorch neither profiles it nor calls hooks."""
    step.hooked = True
    return step
