"""The names by which older configurations are read."""

import importlib

from eblvm_lit.utils.moved import DROPPED, MOVED, with_present_names


def test_each_present_name_is_that_of_a_module_or_a_class():
    for name in MOVED.values():
        module, _, last = name.rpartition(".")
        if last[0].isupper():
            assert hasattr(importlib.import_module(f"eblvm_lit.{module}"), last), name
        else:
            importlib.import_module(f"eblvm_lit.{name}")


def test_parts_that_are_gone_are_left_out():
    figures = {"score_bias": {"_target_": DROPPED[0]}, "curves": {"csv_path": "metrics.csv"}}
    assert with_present_names(figures) == {"score_bias": None, "curves": {"csv_path": "metrics.csv"}}
