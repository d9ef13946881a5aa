"""The GPU check on the processor: all of it but the device, at tiny sizes."""

import copy
import math

import pytest
import torch
from benchmarks.gpu_cell import Captured, compare, distance, load, rates, start
from benchmarks.gpu_check import NO_GPU, Part, page, parts, problem

from benchmarks import gpu_cell, gpu_check
from eblvm_lit.core import fast_paths
from eblvm_lit.core.functional import plain_autograd
from eblvm_lit.core.seeding import keyed_generator
from helpers.shell import CONF, configure, same

CPU = torch.device("cpu")
EQUAL = {part.name: part.overrides for part in parts(1) if part.section == "equal"}


@pytest.fixture(autouse=True)
def single(monkeypatch):
    """Float32, and the first stage of compilation alone."""
    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(fast_paths, "inductor", lambda graph, inputs: graph)


def replayed(run):
    """A stand-in for a CUDA graph: each replay writes into the outputs of the first call."""
    outputs = run()
    return lambda: [outputs[name].copy_(x) for name, x in run().items()], outputs


def test_without_a_gpu_it_says_so_and_that_is_no_failure(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main(["--out", str(tmp_path / "gpu.md")]) == 0
    assert capsys.readouterr().out == f"{NO_GPU}\n"
    assert list(tmp_path.iterdir()) == []


def test_every_method_is_in_the_check_and_every_part_is_a_configuration():
    methods = {path.stem for path in (CONF / "method").glob("*.yaml")}
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


def test_a_captured_step_goes_on_where_its_state_was_and_takes_new_noise():
    method, v = load(EQUAL["bidsm"])
    ends = []
    for captured in (False, True):
        own = copy.deepcopy(method)
        state = start(own, CPU)
        step = gpu_cell.eager(own)
        noises = [own.draw_noise(v, keyed_generator(0, "test", i)) for i in range(3)]
        if captured:
            step = Captured(step, state, v, noises[2], replayed)
        records = [step(state, v, noise) for noise in noises]
        ends.append((own.state_dict(), records))
    assert same(*ends)


def test_a_step_that_is_off_by_little_is_found_and_a_graph_that_is_refused_is_no_wrong_number(monkeypatch):
    method, v = load(EQUAL["dsm"])
    right = gpu_cell.step_of

    def step_of(mode, method, capture):
        """By one part in a thousand, in one mode."""
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
    kept = {**found, "float32_reason": "small differences"}  # by precision=auto
    assert problem({**kept, "bf16": 0.5}) is None
    assert problem({**kept, "bf16": math.inf}) == problem({**found, "bf16": 0.5}) == "bf16 is off"


def test_rates_are_measured_in_every_mode(monkeypatch):
    monkeypatch.setattr(gpu_cell, "BLOCK_SECONDS", 0.0)
    rows = list(rates(*load(EQUAL["dsm"]), CPU, "bf16", replayed))
    assert [row["mode"] for row in rows] == ["eager", "compiled", "graphed"]
    assert all(row["range"][0] <= row["per_second"] <= row["range"][1] and row["n"] == 5 for row in rows)


GOOD = {
    **{"rounding": 1e-6, "tolerance": 1e-4, "errors": {}, "float32_reason": None},
    **{"eager": 1e-6, "compiled": 2e-6, "graphed": 2e-6, "bf16": 0.01},
}


def test_the_page_has_a_row_for_everything_and_lists_what_was_left_out():
    equal = {"dsm": GOOD, "cd": {**GOOD, "compiled": 1.0}, "vae": {"error": "exit code 1. | no"}, "sm": "skipped"}
    rate = {"mode": "eager", "per_second": 5.0, "range": [4.0, 6.0], "n": 5, "first_seconds": 2.0, "peak_mib": 100.0}
    text = page({"equal": equal, "speed": {"MDSM, bf16": [rate]}}, "cpu", ["--minutes", "5"], 120.0)
    for row in (
        "python -m benchmarks.gpu_check --minutes 5\n",
        "| dsm | 1.0e-06 | 2.0e-06 | 2.0e-06 | 1.0e-02 | 1.0e-04 | equal |",
        "| cd | 1.0e-06 | 1.0e+00 | 2.0e-06 | 1.0e-02 | 1.0e-04 | **compiled is off** |",
        "| MDSM, bf16 | eager | 5.00 (4.00 to 6.00) | 5 | 2 | 100 |",
    ):
        assert row in text
    assert text.endswith("- equal: sm\n")


@pytest.mark.parametrize(("row", "code"), [(GOOD, 0), ({"error": "exit code 1."}, 1)])
def test_the_exit_code_says_whether_methods_are_equal(row, code, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_check, "run", lambda part, *what: row)
    out = tmp_path / "gpu.md"
    assert gpu_check.main(["--device", "cpu", "--only", "equal/dsm", "--out", str(out)]) == code
    assert "| dsm |" in out.read_text()


def test_what_there_was_no_time_for_is_listed_and_no_failure(tmp_path):
    out = tmp_path / "gpu.md"
    assert gpu_check.main(["--device", "cpu", "--only", "equal/nothing", "--out", str(out)]) == 2
    assert gpu_check.main(["--device", "cpu", "--only", "/MDSM", "--minutes", "0", "--out", str(out)]) == 0
    assert "- speed: MDSM, float32" in out.read_text()


def test_a_process_that_fails_or_takes_too_long_is_a_row():
    part = Part("equal", "x", "no_such_module", (), ())
    assert gpu_check.run(part, "cpu", 86_400, ())["error"].startswith("exit code 1.")
    assert gpu_check.run(part, "cpu", 0.0, ())["error"].startswith("it was stopped")
