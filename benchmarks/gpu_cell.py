"""One part of the GPU check, which runs in its own process.

The command is: python -m benchmarks.gpu_cell KIND DEVICE RESULT.json OVERRIDE...
"""

from __future__ import annotations

import copy
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from torch import Tensor

from benchmarks.measure import ROOT, peak_memory, wait
from eblvm_lit.core.fast_paths import compile_step
from eblvm_lit.core.functional import plain_autograd
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.core.tensors import copy_tree, tree_map
from eblvm_lit.methods.base import Method
from eblvm_lit.methods.state import TrainState
from eblvm_lit.runs.build import build
from eblvm_lit.training.callbacks.compiling import missing_compiler
from eblvm_lit.utils.torch_settings import torch_settings

COMPILES = missing_compiler(torch.device("cuda" if torch.cuda.is_available() else "cpu")) is None
MODES = ("eager", "compiled", "graphed") if COMPILES else ("eager", "graphed")
# For each precision: whether TF32 is allowed, and whether autocast to bfloat16 is used.
PRECISIONS = {"float32": (False, False), "TF32": (True, False), "bf16": (True, True)}
N_STEPS = 3
# The largest error on the device that is allowed, as a multiple of the error of float32 on the CPU. Both errors are
# relative to float64. They may differ because sums are computed in another order on the device.
FACTOR = 30.0
FLOOR = 256 * torch.finfo(torch.float32).eps
CLOSE = 0.25  # the largest relative error that is allowed for bfloat16, whose eps is 1/128
N_WARM_UP = 2
N_BLOCKS = 5
BLOCK_SECONDS = 0.4

Step = Callable[[TrainState, Tensor, Any], dict[str, Tensor]]
Capture = Callable[[Callable[[], dict[str, Tensor]]], tuple[Callable[[], None], dict[str, Tensor]]]


def cuda_graph(run: Callable[[], dict[str, Tensor]]) -> tuple[Callable[[], None], dict[str, Tensor]]:
    """Capture a function as a CUDA graph.

    Return a function that replays the graph, and the tensors that a replay writes.
    """
    run()  # a function that is to be compiled is compiled in this first call
    side = torch.cuda.Stream()
    main = torch.cuda.current_stream()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        for _ in range(N_WARM_UP):
            run()
    main.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = run()
    return graph.replay, outputs


class Captured:
    """A training step that is captured as one CUDA graph.

    The graph updates the tensors of one state in place.

    Each call copies its minibatch and its noise into the tensors that the graph reads.

    Args:
        step: The step, which updates the state's tensors in place.
        state: The state; it has its original values again after the graph is captured.
        v: A minibatch, for the shapes of the graph's inputs.
        noise: The noise of a step, also for the shapes.
        capture: The function that captures a graph.
    """

    def __init__(self, step: Step, state: TrainState, v: Tensor, noise: Any, capture: Capture = cuda_graph) -> None:
        self.inputs = tree_map(torch.clone, [v, noise])
        moving = {"params": state.params, "optimizers": state.optimizers, "buffers": state.buffers}
        before = tree_map(torch.clone, moving)
        self.replay, self.outputs = capture(lambda: step(state, *self.inputs))
        with torch.no_grad():
            copy_tree(moving, before)

    def __call__(self, state: TrainState, v: Tensor, noise: Any) -> dict[str, Tensor]:  # noqa: ARG002 - it is captured
        tree_map(lambda place, x: place.copy_(x), self.inputs, [v, noise])
        self.replay()
        return {name: x.clone() for name, x in self.outputs.items()}


def eager(method: Method) -> Step:
    def step(state: TrainState, v: Tensor, noise: Any) -> dict[str, Tensor]:
        with plain_autograd():
            return method.run_iteration(state, v, noise)

    return step


def step_of(mode: str, method: Method, capture: Capture = cuda_graph) -> Step:
    """Return the function that runs one iteration of a method in the given mode.

    The mode ``graphed`` is the compiled iteration as a CUDA graph.

    Without a compiler, ``graphed`` is the eager iteration as a CUDA graph.
    """
    if mode == "eager":
        return eager(method)
    step = compile_step(method.run_iteration) if COMPILES else eager(method)
    if mode == "compiled":
        return step
    made: list[Captured] = []

    def graphed(state: TrainState, v: Tensor, noise: Any) -> dict[str, Tensor]:
        if not made:
            made.append(Captured(step, state, v, noise, capture))
        return made[0](state, v, noise)

    return graphed


def start(method: Method, device: torch.device, dtype: torch.dtype = torch.float32) -> TrainState:
    """Return the state at the start of training, with the learning rate of each group of parameters."""
    method.to(device, dtype).train()
    optimizers = dict(zip(method.groups, method.configure_optimizers(), strict=True))
    rates = {
        name: torch.tensor(group.optimizer.lr, device=device, dtype=dtype) for name, (group, _) in method.rates.items()
    }
    return method.train_state(optimizers, rates)


def moved(tree: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Move tensors to another device, and convert floats to another dtype."""
    return tree_map(lambda x: x.to(device, dtype if x.is_floating_point() else x.dtype), tree)


@contextmanager
def precision(name: str, device: torch.device) -> Iterator[None]:
    allowed, half = PRECISIONS[name]
    with torch_settings(tf32=allowed), torch.autocast(device.type, torch.bfloat16, enabled=half, cache_enabled=False):
        yield


def flat(tensors: Any) -> Tensor:
    parts = [x.detach().double().cpu().flatten() for x in tensors if x.is_floating_point()]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def advance(
    method: Method,
    inputs: Sequence[tuple[Tensor, Any]],
    mode: str,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    capture: Capture = cuda_graph,
) -> tuple[Tensor, Tensor]:
    """Run some iterations, and return the changes of the parameters and the recorded losses.

    Args:
        method: The method; it is copied, and so is not changed.
        inputs: The minibatch and the noise of each iteration.
        mode: ``eager``, ``compiled`` or ``graphed``.
        device: Device of the iterations.
        dtype: Floating-point type of the iterations.
        capture: The function that captures a graph.

    Returns:
        The changes of all parameters and buffers, and all losses and gradient norms, as vectors in float64.
    """
    method = copy.deepcopy(method)
    state = start(method, device, dtype)
    begin = flat(method.state_dict().values())
    step = step_of(mode, method, capture)
    records = []
    for v, noise in inputs:
        records.append(step(state, moved(v, device, dtype), moved(noise, device, dtype)))
    wait(device)
    return flat(method.state_dict().values()) - begin, flat(x for record in records for x in record.values())


def distance(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> float:
    """Compute the relative distance between two runs.

    It is the larger of two distances: between the changes of the parameters, and between the recorded losses.

    It is infinite if a value is not finite.
    """
    found = 0.0
    for a, b in zip(one, other, strict=True):
        gap = ((a - b).norm() / b.norm().clamp_min(torch.finfo(torch.float64).tiny)).item()
        found = max(found, gap if math.isfinite(gap) else math.inf)
    return found


def reason(error: BaseException) -> str:
    text = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {text}"[:200]


def compare(method: Method, v: Tensor, device: torch.device, capture: Capture = cuda_graph) -> dict[str, Any]:
    """Compare iterations on the device with iterations in float64 on the CPU.

    On the device, every mode runs in float32, and the eager mode also runs in bfloat16.

    The noise is drawn once, on the CPU. The error of float32 on the CPU determines how large the error on the device
    may be.
    """
    inputs = [(v, method.draw_noise(v, keyed_generator(0, "gpu_check", i))) for i in range(N_STEPS)]
    cpu = torch.device("cpu")
    exact = advance(method, inputs, "eager", cpu, torch.float64)
    rounding = distance(advance(method, inputs, "eager", cpu), exact)
    found: dict[str, Any] = {"rounding": rounding, "tolerance": FACTOR * rounding + FLOOR, "errors": {}}
    for mode in MODES:
        try:
            with precision("float32", device):
                found[mode] = distance(advance(method, inputs, mode, device, capture=capture), exact)
        except Exception as error:  # record the reason for the page, and check the other modes
            found["errors"][mode] = reason(error)
    try:
        with precision("bf16", device):
            found["bf16"] = distance(advance(method, inputs, "eager", device), exact)
    except Exception as error:
        found["errors"]["bf16"] = reason(error)
    found["float32_reason"] = method.float32_reason()
    return found


def rates(method: Method, v: Tensor, device: torch.device, name: str, capture: Capture = cuda_graph) -> Iterator[dict]:
    """Measure the iterations per second in each mode.

    An iteration includes drawing its noise, but not the data loader, the trainer, the log and the progress bar.
    """
    for mode in MODES:
        try:
            with precision(name, device):
                yield {"mode": mode, **rate(copy.deepcopy(method), v, device, mode, capture)}
        except Exception as error:
            yield {"mode": mode, "error": reason(error)}


def rate(method: Method, v: Tensor, device: torch.device, mode: str, capture: Capture) -> dict[str, Any]:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    state = start(method, device)
    v = v.to(device)
    generator = torch.Generator(device)
    step = step_of(mode, method, capture)

    def seconds(n: int) -> float:
        wait(device)
        begin = time.perf_counter()
        for i in range(n):
            step(state, v, method.draw_noise(v, generator.manual_seed(i)))
        wait(device)
        return time.perf_counter() - begin

    first = seconds(1)
    size = max(1, math.ceil(BLOCK_SECONDS / max(seconds(2) / 2, 1e-6)))
    found = sorted(size / seconds(size) for _ in range(N_BLOCKS))
    return {
        "per_second": median(found),
        "range": [found[0], found[-1]],
        "n": N_BLOCKS,
        "first_seconds": first,
        "peak_mib": peak_memory(device),
    }


def load(overrides: Sequence[str]) -> tuple[Method, Tensor]:
    """Build a method from its configuration, and return it with a minibatch of its data."""
    with tempfile.TemporaryDirectory() as folder, initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        own = ("allow_packages=[benchmarks]", "method.compile=false", f"run_dir={folder}")
        cfg = compose("config", [*overrides, *own])
        if "root" in cfg.data:
            cfg.data.root = folder
        parts = build(cfg)
        parts.data.setup()
        parts.method.keep_examples(parts.data.batch_size)
        v = parts.data.as_float(parts.data.splits.train[: parts.data.batch_size].clone())
        if hasattr(parts.method, "start"):  # these methods have chains, which start at training examples
            parts.method.start(v, keyed_generator(0, "gpu_check", "chains"))
        return parts.method, v


def main(kind: str, device: str, result: str, *overrides: str) -> None:
    """Run one part of the check, and write its results to a file.

    The file is written after each measurement, so that results remain if the process is stopped.
    """
    method, v = load(overrides)
    target = torch.device(device)
    path = Path(result)
    if kind == "equal":
        path.write_text(json.dumps(compare(method, v, target)))
        return
    name = kind.removeprefix("compile ").removeprefix("speed ")
    rows = []
    if kind.startswith("compile "):  # run one step, only to fill the compiler's cache
        with precision(name, target):
            state = start(method, target)
            generator = torch.Generator(target)
            v = v.to(target)
            step_of("compiled", method)(state, v, method.draw_noise(v, generator))
        path.write_text("[]")
        return
    for row in rates(method, v, target, name):
        rows.append(row)
        path.write_text(json.dumps(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
