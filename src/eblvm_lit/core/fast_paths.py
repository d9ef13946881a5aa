"""The internals of torch's compiler and optimizers that this package opens, and what that gains.

================================ =======================================================================================
``compile_fx``, ``_straight``    What torch.compile puts around a graph in each call takes 19 % of an iteration of BiDSM
                                 on the checkerboard (K = N = 5: 485 and 408 us), 45 % of DSM's (87 and 60 us).
``CustomGraphPass``              Processes that make exchanges in different orders wait for each other forever; and
                                 Inductor's cache gave AVX512 kernels to an AVX2 processor, which computed NaN.
``Optimizer.step.hooked``        Torch's profiling and hooks take 13 % of that iteration of BiDSM (188 and 167 us).
================================ =======================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

__all__ = ["compile_step", "without_hooks"]

# The namespace of operations between processes: (..., the result of the operation before it or None) -> a tensor.
EXCHANGES = "eblvm_lit"


class _ExchangesInOrder:
    """Makes each exchange between processes wait for the one before it.

    A compiler orders by sizes, which differ between processes.
    """

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Order, in place."""
        last: torch.fx.Node | None = None
        for node in graph.nodes:
            if getattr(node.target, "namespace", None) == EXCHANGES:
                node.args = (*node.args[:-1], last)
                last = node

    def uuid(self) -> bytes:
        """For the compiler's cache: changes with the pass and with the processor's vector width."""
        return f"eblvm_lit.exchanges_in_order.1 {torch.backends.cpu.get_cpu_capability()}".encode()


class _Graph:
    """What a backend made of a graph; it remembers the tensors of its last call until told to forget them."""

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
        """Keep no tensor alive from here on."""
        self.remembers = False
        self.inputs = ()
        self.outputs = ()


def inductor(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Sequence[Any]]:
    """What Inductor makes of a graph for inputs like these."""
    from torch._inductor.compile_fx import compile_fx  # takes seconds, and has no place in an old torch
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Pass(_ExchangesInOrder, CustomGraphPass):
        """Inductor caches what it compiles with a pass of this class alone."""

    # of small kernels called from Python a graph is compiled in four times the time
    on_cpu = all(x.device.type == "cpu" for x in inputs if isinstance(x, Tensor))
    patches = {"post_grad_custom_pre_pass": Pass(), "cpp_wrapper": on_cpu}
    return cast(Callable[..., Sequence[Any]], compile_fx(graph, inputs, config_patches=patches))


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

    What ``torch.compile`` does around the graph comes to the same in each call.

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
    """Compile a function of tensors as one graph, for the shapes, types and structure of its first call.

    These are not checked again: the caller sees to it that they hold.

    Args:
        step: The function, of tensors in dicts, lists and tuples, to tensors in a dict; it may move those it is given,
            and changes nothing else.

    Returns:
        The function; its first call compiles.
    """
    # Autograd starts its threads in the first backward pass of a process, one for each kind of device there is. While a
    # compiler runs, its "meta" device counts, too; and processes that are forked from one with such threads cannot
    # differentiate.
    torch.ones((), requires_grad=True).backward()
    graphs: list[_Graph] = []

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> _Graph:
        graphs.append(_Graph(inductor(graph, inputs)))
        return graphs[-1]

    def iteration(*args: Any) -> Any:
        return step(*args)

    # Compiled code is cached with the code object. Without guards a second method of this process would be given the
    # first one's graph, so each gets a code object of its own.
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
    """Mark an optimizer's ``step`` so that torch neither profiles it nor calls hooks."""
    step.hooked = True
    return step
