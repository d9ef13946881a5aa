"""The schema written by `make schema`, with which editors complete the keys of experiments."""

import json
import re
import runpy

import pytest

from helpers.shell import CONF


@pytest.fixture(scope="module")
def known():
    return runpy.run_path(str(CONF / "schema.py"))["schema"]()


def test_the_schema_contains_keys_types_and_options(known):
    method = known["properties"]["method"]["properties"]
    assert {"type": "integer", "minimum": 0} in method["n_lower_steps"]["anyOf"]
    assert {"enum": ["raw", "ema", "both"], "type": "string"} in known["properties"]["eval_weights"]["anyOf"]
    assert {"type": "integer", "exclusiveMinimum": 0} in known["properties"]["trainer"]["properties"]["max_steps"][
        "anyOf"
    ]
    assert {"raw", "ema", "both"} <= {*re.findall(r"\w+", known["properties"]["eval_weights"]["description"])}
    choices = known["properties"]["defaults"]["items"]["anyOf"][1]["properties"]
    assert "bidsm" in choices["override /method"]["anyOf"][0]["enum"]
    assert "fid" in choices["override /evaluation@callbacks.evaluation.metrics"]["anyOf"][0]["enum"]
    metrics = known["properties"]["callbacks"]["properties"]["evaluation"]["properties"]["metrics"]["properties"]
    assert "n_betas" in json.dumps(metrics["log_likelihood"]["properties"]["hamiltonian_ais"])


def test_each_experiment_names_the_schema():
    for path in (CONF / "experiment").glob("*.yaml"):
        assert "# yaml-language-server: $schema=../schema.json\n" in path.read_text(), path
