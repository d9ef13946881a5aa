"""Tests of the statistics of sets of images, and of what is said before they take long."""

from types import SimpleNamespace

import pytest
import torch

from eblvm_lit.evaluation.features import sets
from helpers.fake_images import RandomFeatures


@pytest.mark.parametrize("seconds", [1.0, 6.0])
def test_the_time_that_is_told_is_not_that_of_the_first_batch(seconds, monkeypatch, capsys):
    features = RandomFeatures(batch_size=5)
    features.prepare(SimpleNamespace(image_shape=(1, 8, 8)))
    now = 0.0

    def fetch(numbers):
        nonlocal now
        now += 100.0 if numbers[0] == 0 else seconds
        return torch.zeros(len(numbers), 1, 8, 8, dtype=torch.uint8)

    monkeypatch.setattr(sets, "time", SimpleNamespace(monotonic=lambda: now))
    assert sets.collect(features, fetch, 100).n == 100
    line = capsys.readouterr().out
    assert ("take about 2 minutes" in line) == ("minutes" in line) == (seconds == 6.0)
