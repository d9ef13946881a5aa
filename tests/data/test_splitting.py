"""Tests of splits by content: no change of other examples may change the split of an example."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from eblvm_lit.data.splitting import digests_of, fraction_of, split_of

contents = st.lists(st.binary(max_size=12), unique=True, min_size=1, max_size=40)
sizes = {"seed": st.integers(0, 2**32 - 1), "val": st.floats(0.01, 0.45), "test": st.floats(0.01, 0.45)}


@settings(deadline=None, max_examples=50)
@given(contents, st.randoms(use_true_random=False), *sizes.values())
def test_adding_removing_and_reordering_examples_moves_no_other(digests, random, seed, val, test):
    def splits(some):
        return dict(zip(some, split_of(some, seed=seed, val=val, test=test).tolist(), strict=True))

    shuffled = random.sample(digests, len(digests))
    some = shuffled[: len(shuffled) // 2 + 1]
    added = [*some, b"an example that is certainly new"]
    assert splits(shuffled) == splits(digests)
    assert splits(some) == {one: splits(digests)[one] for one in some}
    assert {one: splits(added)[one] for one in some} == splits(some)


@settings(deadline=None, max_examples=50)
@given(contents, *sizes.values())
def test_equal_examples_land_in_one_split_and_larger_test_splits_only_grow(digests, seed, val, test):
    twice = split_of([*digests, *digests], seed=seed, val=val, test=test)
    assert (twice[: len(digests)] == twice[len(digests) :]).all()
    larger = split_of(digests, seed=seed, val=val, test=test + 0.05)
    assert set(np.flatnonzero(twice[: len(digests)] == 2)) <= set(np.flatnonzero(larger == 2))


def test_splits_have_the_asked_sizes_up_to_their_standard_error():
    digests = digests_of(np.arange(20_000.0))
    counts = np.bincount(split_of(digests, seed=3, val=0.1, test=0.2))
    errors = (counts - 20_000 * np.array([0.7, 0.1, 0.2])) / np.sqrt(20_000 * np.array([0.21, 0.09, 0.16]))
    assert np.abs(errors).max() < 4
    other = np.bincount(
        split_of(digests, seed=4, val=0.1, test=0.2) * 3 + split_of(digests, seed=3, val=0.1, test=0.2), minlength=9
    )
    # Another seed divides the examples independently: a share of 0.2 * 0.2 is for testing with both seeds.
    assert abs(other[8] - 20_000 * 0.04) < 4 * np.sqrt(20_000 * 0.04)


def test_digests_depend_on_the_content_and_not_on_the_layout_in_memory():
    rows = np.random.default_rng(0).normal(size=(5, 3, 4))
    expected = digests_of(rows)
    assert digests_of(np.asfortranarray(rows)) == expected
    assert digests_of(rows.astype(">f8")) == expected
    assert digests_of(rows.astype(np.float32)) != expected
    assert len(set(expected)) == 5
    changed = rows.copy()
    changed[2, 1, 1] = np.nextafter(changed[2, 1, 1], 10)
    assert [a == b for a, b in zip(digests_of(changed), expected, strict=True)] == [True, True, False, True, True]


def test_splits_are_the_same_in_another_process():
    code = (
        "import numpy as np; from eblvm_lit.data.splitting import *;"
        "print(split_of(digests_of(np.arange(30)), seed=1, val=0.3, test=0.3).tolist())"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == str(split_of(digests_of(np.arange(30)), seed=1, val=0.3, test=0.3).tolist())


def test_a_number_of_examples_is_a_fraction_of_all():
    assert fraction_of(3, 12) == 0.25
    assert fraction_of(0.3, 12) == 0.3
