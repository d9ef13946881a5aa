"""Tests of the record of splits that a checkpoint keeps.

If the splits have changed when a run is resumed, a message says so, or the run is refused.
"""

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from eblvm_lit.data.array_files import ArrayFile
from eblvm_lit.data.digits import Digits
from eblvm_lit.errors import ConfigError
from eblvm_lit.runs.resume import check_splits


def points(tmp_path, rows):
    """Write some rows of four hundred points to a file, and return the data module of the file."""
    path = tmp_path / "points.npy"
    np.save(path, np.random.default_rng(0).normal(size=(400, 2))[rows])
    return ArrayFile(path=path)


def check(checkpoint, data, *allow):
    content = {"ArrayFile": checkpoint} if checkpoint else {}
    check_splits(content, data, OmegaConf.create({"data": {}, "resume": {"allow": [*allow]}}), "x")


def test_built_in_data_leave_nothing_in_checkpoints_and_are_not_checked():
    assert Digits().state_dict() == {}
    check_splits({}, Digits(), OmegaConf.create({}), "x")


def test_examples_that_come_and_go_are_counted_by_split(tmp_path, caplog):
    before = points(tmp_path, slice(300)).state_dict()
    assert [part.dtype for part in before.values()] == [torch.int64] * 4
    assert [len(before[name]) for name in ("train", "val", "test")] == [
        len(part) for part in points(tmp_path, slice(300)).load()
    ]
    data = points(tmp_path, np.random.default_rng(1).permutation(300))
    check(before, data)
    assert caplog.messages == []  # a new order of the same rows gives no message
    data = points(tmp_path, slice(50, 400))
    check(before, data)
    now = data.state_dict()
    (message,) = caplog.messages
    for name, purpose in (("train", "training"), ("val", "validation"), ("test", "testing")):
        own, old = (set(state[name].tolist()) for state in (now, before))
        assert f"{len(own - old)} added and {len(old - own)} removed for {purpose}" in message


def test_test_examples_that_were_trained_on_are_refused_through_any_number_of_resumptions(tmp_path):
    first = points(tmp_path, slice(300))
    state = first.state_dict()
    for rows in (slice(100, 400), slice(200, 400)):  # each resumed run lacks a hundred more of the first examples
        data = points(tmp_path, rows)
        data.load_state_dict(state)
        state = data.state_dict()
    other = ArrayFile(path=tmp_path / "points.npy", split_seed=1)
    np.save(tmp_path / "points.npy", np.random.default_rng(0).normal(size=(400, 2))[:100])
    seen = set(first.state_dict()["train"].tolist()) & set(other.state_dict()["test"].tolist())
    assert seen
    with pytest.raises(ConfigError, match=f"x was trained on {len(seen)} of the .* resume.allow=.data.splits."):
        check(state, other)
    for allow in ("data.splits", "data"):
        check(state, other, allow)


def test_a_checkpoint_that_does_not_tell_its_examples_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not say what it was trained on"):
        check(None, points(tmp_path, slice(300)))
    check(None, points(tmp_path, slice(300)), "data.splits")
