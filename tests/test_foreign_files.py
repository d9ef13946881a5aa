"""Checkpoints from elsewhere: none runs anything, ends the process or is read beyond its bounds."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from eblvm_lit.utils.tensor_files import check_tensors, load_tensors
from hostile_worker import CPU

TESTS = Path(__file__).parent
GIGABYTE = 1 << 30


def test_every_hostile_file_ends_in_a_sentence_or_is_accepted_for_a_reason(honest, tmp_path):
    torch.save(honest, tmp_path / "honest.ckpt")
    (tmp_path / "cases").mkdir()
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(TESTS / "hostile_worker.py"), str(tmp_path / "honest.ckpt")],
        cwd=tmp_path / "cases",
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) >= 100
    wrong = {
        name: case for name, case in found.items() if case["outcome"] != ("accepted" if case["right"] else "sentence")
    }
    assert not wrong
    assert set(Counter(case["outcome"] for case in found.values())) == {"sentence", "accepted"}
    assert not [name for name, case in found.items() if case["executed"]]
    assert not [name for name, case in found.items() if case["seconds"] > CPU or case["memory"] > GIGABYTE]
    assert not [name for name, case in found.items() if not case["text"].isprintable()]
    assert not [name for name, case in found.items() if case["outcome"] == "sentence" and case["text"][-1] not in ".:"]


# --- what tensors may be ----------------------------------------------------------------------------------


def test_dense_tensors_of_any_layout_are_read(tmp_path):
    whole = torch.arange(60.0).view(3, 4, 5)
    tensors = {
        "transposed": whole.permute(2, 0, 1),
        "a column": whole[:, 1],
        "every second": whole[::2],
        "one row, expanded along nothing": whole[:1].expand(1, 4, 5),
        "a number": torch.tensor(1.5, dtype=torch.float64),
        "none": torch.zeros(0, 5),
        "counts": torch.arange(4),
        "images": torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last),
    }
    torch.save(tensors, tmp_path / "a.pt")
    found = load_tensors(tmp_path / "a.pt")
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize(("size", "stride"), [((2, 2), (1, 1)), ((2, 3), (2, 1)), ((3,), (0,)), ((2, 2), (3, 3))])
def test_overlapping_rows_are_refused(size, stride):
    with pytest.raises(ValueError, match=r"a\.0 repeats its numbers"):
        check_tensors({"a": [torch.as_strided(torch.zeros(9), size, stride)]})


def test_a_tensor_is_within_its_memory_to_the_last_number():
    x = torch.zeros(6)[1:]
    check_tensors({"x": x})
    x.untyped_storage().resize_(20)  # of the 24 bytes that it ends at
    with pytest.raises(ValueError, match="x lies beyond its memory"):
        check_tensors({"x": x})
