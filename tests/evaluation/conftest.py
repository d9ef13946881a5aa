"""Fixtures that the tests of image metrics share."""

import functools

import pytest
import torch

from eblvm_lit.evaluation.base import Metric
from eblvm_lit.evaluation.criteria.base import SampleCriterion
from eblvm_lit.reports.runs import declare_all
from eblvm_lit.utils.quantities import UNKNOWN, quantity


def no_network(*args, **options):
    raise OSError("no route to host")


@pytest.fixture
def offline(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.hub, "download_url_to_file", no_network)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))


def subclasses(kind):
    """Return all subclasses of a class, direct and indirect."""
    return {below for child in kind.__subclasses__() for below in (child, *subclasses(child))}


def declared(function):
    """Wrap a metric's function in a check that each number in its result is declared."""

    @functools.wraps(function)
    def called(*args, **options):
        found = function(*args, **options)
        assert [name for name in found if quantity(name) is UNKNOWN] == []
        return found

    return called


@pytest.fixture(scope="session", autouse=True)
def every_number_is_declared():
    """Check that each number that a metric returns in these tests is declared.

    A declaration says whether higher or lower values are better, or neither.
    """
    declare_all()
    with pytest.MonkeyPatch.context() as patch:
        for kind in (*subclasses(Metric), *subclasses(SampleCriterion)):
            for name in {"compute", "evaluate"} & vars(kind).keys():
                if kind.__module__.startswith("eblvm_lit."):
                    patch.setattr(kind, name, declared(vars(kind)[name]))
        yield
