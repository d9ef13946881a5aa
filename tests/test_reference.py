"""Tests that the pages of docs/reference are up to date with conf/ and the package: they are made again and
compared."""

import re
import runpy

import pytest

from helpers.shell import ROOT

SCRIPT = runpy.run_path(str(ROOT / "docs" / "site" / "reference.py"))
MADE = "run python docs/site/reference.py"


def stored(page):
    return (SCRIPT["PAGES"] / f"{page}.md").read_text(encoding="utf-8")


def rows(text):
    """Return the rows of a page's tables by their first cell, without the marks of code and links."""
    lines = re.findall(r"^\| (.+) \|$", text, re.MULTILINE)
    found = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)] for line in lines]
    return {re.sub(r"^\[?`([\w.]+)`.*", r"\1", first): rest for first, *rest in found}


@pytest.mark.parametrize("page", ["groups", "metrics", "figures"])
def test_the_page_is_what_its_script_makes(page):
    assert SCRIPT["MAKE"][page]() == stored(page), MADE


def test_the_page_of_experiments_is_what_its_script_makes():
    """Compare all of the page except its tables, whose rows need Hydra.

    tests/cli/test_compose.py compares the tables with what Hydra composes.
    """
    known = rows(stored("experiments"))
    assert SCRIPT["experiments"](row=known.get) == stored("experiments"), MADE


def columns():
    """Yield the data sets of each column of the page of keys, and the values of the main keys in this column."""
    for (_, _, members), text in zip(SCRIPT["TABLES"], stored("keys").split("\n## ")[1:-1], strict=True):
        table = rows(text)
        cells = [table[key] if key in table else [""] * len(members) for key in SCRIPT["KEYS"]]
        yield from zip(members, zip(*cells, strict=True), strict=True)


def test_the_page_of_keys_is_what_its_script_makes():
    known = {members: list(values) for members, values in columns()}
    real = ("digits",)
    made = SCRIPT["keys"](
        lambda method, members: SCRIPT["column"](method, *members) if members == real else known[members]
    )
    assert made == stored("keys"), MADE
    # The page has columns for all options of data except array and hub, which take the values of the kind that fits the
    # file.
    named = sorted([*(name for members in known for name in members), "array", "hub"])
    assert named == [path.stem for path in SCRIPT["options"]("data")]


@pytest.mark.slow
@pytest.mark.parametrize("page", ["experiments", "keys"])
def test_the_page_is_what_hydra_composes(page):
    assert SCRIPT["MAKE"][page]() == stored(page), MADE


def test_times_and_results_are_those_of_the_page_they_link_to():
    for path in SCRIPT["options"]("experiment"):
        text = " ".join(SCRIPT["comment"](path))
        said = re.search(r"Time: (.+?) Result: (.+) \(docs/([\w.]+)(?:#([\w-]+))?\)\.$", text)
        assert said, f"{path.stem} has no lines Time: and Result:"
        page = (ROOT / "docs" / said[3]).read_text(encoding="utf-8")
        numbers = re.findall(r"(?<![\w.])[−-]?\d+(?:\.\d+)?(?!\w)", f"{said[1]} {said[2]}")
        assert [number for number in numbers if number not in page] == [], path.stem


def test_every_class_of_a_metric_or_figure_has_what_the_pages_say_of_it():
    for path in SCRIPT["options"]("evaluation"):
        for part in SCRIPT["content"](path).values():
            for cls, _ in SCRIPT["declaring"](part):
                assert all(number.meaning for number in cls.emits.values()), cls.__name__


def test_commands_fit_into_a_block():
    long = "python train.py -m experiment=vages_table3 sizes.h_dim_and_step=[50,1.0e-2] seed=0,1 method.n_lower_steps=5"
    made = SCRIPT["wrapped"](long)
    assert made.replace(" \\\n    ", " ") == long
    assert max(map(len, made.splitlines())) <= SCRIPT["WIDTH"]


def test_prose_marks_code():
    found = SCRIPT["prose"](
        ["As in data.size=8 and init_from= of", "x.yaml:", "  python train.py", "On q(h|v) (method=cd)."]
    )
    assert found == "As in `data.size=8` and `init_from=` of `x.yaml`. On q(h\\|v) (`method=cd`)."
