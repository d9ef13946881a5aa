"""Tests of the GPU check, which run it on the CPU at tiny sizes."""

import math

import pytest
import torch
from benchmarks.gpu_cell import compare, distance, load, rates
from benchmarks.gpu_check import NO_GPU, Part, parts, problem

from benchmarks import gpu_cell, gpu_check
from eblvm_lit.core import fast_paths
from eblvm_lit.core.functional import plain_autograd
from helpers.shell import CONF, configure

CPU = torch.device("cpu")
EQUAL = {part.name: part.overrides for part in parts(1) if part.section == "equal"}


@pytest.fixture(autouse=True)
def single(monkeypatch):
    """Use float32, and trace functions without compiling them to machine code."""
    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(fast_paths, "inductor", lambda graph, inputs: graph)


def replayed(run):
    """Return a stand-in for a CUDA graph: each replay writes into the outputs of the first call."""
    outputs = run()
    return lambda: [outputs[name].copy_(x) for name, x in run().items()], outputs


def test_without_a_gpu_it_says_so_and_that_is_no_failure(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main(["--out", str(tmp_path / "gpu.md")]) == 0
    assert capsys.readouterr().out == f"{NO_GPU}\n"
    assert list(tmp_path.iterdir()) == []


def test_every_method_is_in_the_check_and_every_part_is_a_configuration():
    methods = {path.stem for path in (CONF / "method").glob("[!_]*.yaml")}
    assert methods <= EQUAL.keys()
    assert {part.section for part in parts(2)} == {"equal", "compile", "speed", "samples", "devices"}
    for part in parts(2):
        if part.section == "samples":
            configure(*part.overrides)


@pytest.mark.parametrize(
    "name", [name if name == "cd" else pytest.param(name, marks=pytest.mark.slow) for name in EQUAL]
)
def test_all_modes_of_a_method_are_equal(name):
    method, v = load(EQUAL[name])
    found = compare(method, v, CPU, replayed)
    assert found["errors"] == {}
    assert problem(found) is None
    assert 0 < found["rounding"] < 1e-2
    assert found["rounding"] == pytest.approx(found["eager"], rel=1)


def test_a_small_error_of_a_step_is_found_and_a_refused_graph_is_no_error(monkeypatch):
    method, v = load(EQUAL["dsm"])
    right = gpu_cell.step_of

    def step_of(mode, method, capture):
        """Return the step of a mode; in the compiled mode, its learning rates are wrong by a thousandth."""
        step = right(mode, method, capture)

        def off(state, v, noise):
            with plain_autograd():
                return step(state._replace(lrs={name: 1.001 * lr for name, lr in state.lrs.items()}), v, noise)

        return off if mode == "compiled" else step

    def refuse(run):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(gpu_cell, "step_of", step_of)
    found = compare(method, v, CPU, refuse)
    assert [*found["errors"]] == ["graphed"]
    assert problem(found) == "compiled is off"
    assert distance((v, v * math.nan), (v, v)) == math.inf
    found["compiled"] = found["eager"]
    assert problem(found) is None
    assert problem({**found, "errors": {"compiled": "CompilationError: no"}}) == "compiled: CompilationError: no"
    assert problem({**found, "bf16": 0.5}) == "bf16 is off"
    # a large error of bf16 is no problem for a method that precision=auto would run in float32
    assert problem({**found, "bf16": 0.5, "float32_reason": "small differences"}) is None


@pytest.mark.slow
def test_rates_are_measured_in_every_mode(monkeypatch):
    monkeypatch.setattr(gpu_cell, "BLOCK_SECONDS", 0.0)
    rows = list(rates(*load(EQUAL["dsm"]), CPU, "bf16", replayed))
    assert [row["mode"] for row in rows] == ["eager", "compiled", "graphed"]
    assert all(row["range"][0] <= row["per_second"] <= row["range"][1] and row["n"] == 5 for row in rows)


GOOD = {
    **{"rounding": 1e-6, "tolerance": 1e-4, "errors": {}, "float32_reason": None},
    **{"eager": 1e-6, "compiled": 2e-6, "graphed": 2e-6, "bf16": 0.01},
}


@pytest.mark.parametrize(
    ("row", "code", "said"),
    [(GOOD, 0, "equal"), ({**GOOD, "compiled": 1.0}, 1, "compiled is off"), ({"error": "exit code 1. | no"}, 1, "no")],
)
def test_the_page_and_the_exit_code_say_whether_methods_are_equal(row, code, said, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_check, "run", lambda part, *what: row)
    out = tmp_path / "gpu.md"
    assert gpu_check.main(["--device", "cpu", "--only", "equal/dsm", "--out", str(out)]) == code
    (line,) = (line for line in out.read_text().splitlines() if line.startswith("| dsm |"))
    assert said in line


def test_parts_without_time_are_listed_and_no_failure(tmp_path):
    out = tmp_path / "gpu.md"
    assert gpu_check.main(["--device", "cpu", "--only", "equal/nothing", "--out", str(out)]) == 2
    assert gpu_check.main(["--device", "cpu", "--only", "/MDSM", "--minutes", "0", "--out", str(out)]) == 0
    assert "- speed: MDSM, float32" in out.read_text()
    part = Part("equal", "x", "no_such_module", (), ())
    assert gpu_check.run(part, "cpu", 86_400, ())["error"].startswith("exit code 1.")
    assert gpu_check.run(part, "cpu", 0.0, ())["error"].startswith("it was stopped")
