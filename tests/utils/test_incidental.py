"""Tests of the list of settings that do not matter to reports, sweeps and resumed runs."""

import pytest

from eblvm_lit.utils.incidental import COPIES, LENGTH_AND_TESTS, is_incidental

# For each key: whether it may differ between two runs that a report pools; between a job of a sweep and a finished job
# whose result is used instead of running the job; and between a run and the checkpoint that it resumes.
KEYS = {
    "threads": (True, True, True),
    "method.compile": (True, True, True),
    "callbacks.checkpoints.keep": (True, True, True),
    "outliers.svhn.root": (True, True, True),
    "method_models.images": (True, True, True),
    "seed": (True, False, False),
    "method.seed": (True, False, False),
    "marginal_model.h_dim": (True, False, False),
    "trainer.max_steps": (False, False, True),
    "callbacks.checkpoints.monitor": (False, False, True),
    "callbacks.ema.decay": (False, False, True),
    "quadrature.n_nodes": (False, False, True),
    "trainer.precision": (False, False, True),
    "optimizer.lr": (False, False, False),
    "init_from": (False, False, False),
    "data.seeds": (False, False, False),
    "thread": (False, False, False),
}


@pytest.mark.parametrize("key", KEYS)
def test_incidental_settings_are_the_same_for_reports_sweeps_and_resumed_runs_with_few_exceptions(key):
    found = is_incidental(key, *COPIES), is_incidental(key), is_incidental(key, *LENGTH_AND_TESTS)
    assert found == KEYS[key]
