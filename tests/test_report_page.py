"""The report as one page: complete, well-formed, harmless, and honest about what has not finished."""

import base64
import html.parser
import io
import itertools
import json
import re

import numpy as np
import pytest
from matplotlib.image import imsave
from PIL import Image

from eblvm_lit.reports.__main__ import main, report
from eblvm_lit.reports.groups import group_runs
from eblvm_lit.reports.heat_maps import draw_grid, draw_heat_maps, find_grids
from eblvm_lit.reports.inline import inline
from eblvm_lit.reports.runs import read_runs
from eblvm_lit.reports.table import summarise, tables
from test_reports import Simple, run_folder

VOID = ("meta", "link", "img", "input", "br", "hr")
SPEED = "train/iterations_per_second"


class Page(html.parser.HTMLParser):
    """A page's tags, texts and tables; it refuses what is not nested properly."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.tables = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture
def simple(tmp_path):
    return Simple(tmp_path / "runs")


def make(simple, tmp_path, *metrics):
    """The page of all runs: its text, and what is in it."""
    main([str(simple.root), "--out", str(tmp_path / "out"), "--html", str(tmp_path / "a" / "page.html"), *metrics])
    text = (tmp_path / "a" / "page.html").read_text()
    return text, Page(text)


def say(folder, state, **more):
    (folder / "status.json").write_text(json.dumps({"state": state, **more}))
    if state != "finished":
        (folder / "metrics.json").unlink(missing_ok=True)


def draw(folder, name, width=8):
    (folder / "figures").mkdir(exist_ok=True)
    imsave(folder / "figures" / f"{name}.png", np.random.default_rng(0).random((4, width)))


# --- one file, complete -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Two values of N and three of K with two seeds each, one of which failed, one was killed, one interrupted."""
    simple = Simple(tmp_path_factory.mktemp("sweep") / "runs")
    for n in (0, 5):
        for k in (1, 5, 10):
            for seed in range(2):
                final = {"test/log_likelihood": n + 0.1 * k + 0.01 * seed, "test/fisher": -1.0 * n, "iteration": 9}
                curves = {"val/log_likelihood": {10: 0.0, 20: 1.0 + n}}
                steps = {"method__n_unroll": n, "method__n_lower_steps": k}
                simple(f"{n}_{k}_{seed}", "bidsm", seed=seed, metrics=final, curves=curves, **steps)
    draw(simple.root / "0_1_0", "samples")
    say(
        simple.root / "0_1_0",
        "finished",
        seconds=3661.2,
        device="A device",
        threads=3,
        torch="2.99",
        commit="abc-dirty",
    )
    say(simple.root / "0_5_0", "failed", reason="The loss is nan at iteration 7.", seconds=60)
    say(simple.root / "5_10_0", "running", started="2026-01-01T00:00:00+00:00")
    say(simple.root / "5_10_1", "interrupted", reason="Stopped by SIGTERM after iteration 3.")
    return simple


@pytest.fixture(scope="module")
def reported(sweep):
    """Its report: the page's text, what is in it, and the folder of the other files."""
    folder = sweep.root.parent
    return *make(sweep, folder), folder / "out"


def test_the_page_is_well_formed_and_needs_no_other_file(reported):
    text, page, _ = reported
    assert page.all("html") == [{"lang": "en"}]
    assert not page.all("script")
    sources = [image["src"] for image in page.all("img")]
    assert len(sources) == 4  # two heat maps, curves, a figure of a run
    for source in sources:
        kind, _, content = source.partition(";base64,")
        assert kind == "data:image/webp"
        assert Image.open(io.BytesIO(base64.b64decode(content, validate=True))).size[0] > 4
    assert all(image["alt"].strip() for image in page.all("img"))
    assert [link["href"] for link in page.all("link")] == ["data:,"]
    places = {"#" + attrs["id"] for _, attrs in page.tags if "id" in attrs}
    assert {link["href"] for link in page.all("a")} == places
    for outside in ("http:", "https:", "//", "url(", "@import"):
        assert outside not in re.sub(r'"data:image[^"]*"', "", text)
    headings = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == 1
    assert all(later - earlier <= 1 for earlier, later in itertools.pairwise(headings))


def test_the_page_without_being_asked_for_is_not_written(simple, tmp_path):
    simple("a")
    report([str(simple.root)], str(tmp_path / "out"))
    assert not list(tmp_path.rglob("*.html"))


def test_the_table_of_the_page_is_the_table(sweep, reported):
    groups = group_runs(read_runs([sweep.root])[0])
    (expected,) = tables(groups, summarise(groups, ["test/log_likelihood", "test/fisher"])).values()
    assert reported[1].tables[0] == expected
    assert expected[1][:3] == ["bidsm, n_lower_steps=1, n_unroll=0", "2", "0.1050 ± 0.0071"]


def test_nothing_is_finished_that_is_not(sweep, reported):
    text, page, folder = reported
    counts = re.findall(r'<li class="(\w+)"><b>(\d+)</b>\1</li>', text)
    assert counts == [("finished", "9"), ("failed", "1"), ("interrupted", "1"), ("unfinished", "1")]
    unfinished = {row[0]: row[1:3] for row in page.tables[1][1:]}  # folded, below the results
    assert text.index("Results") < text.index("<summary>3 runs without results</summary>")
    assert unfinished == {
        "0_5_0": ["failed", "The loss is nan at iteration 7."],
        "5_10_0": ["unfinished", "It was killed, or is still running."],
        "5_10_1": ["interrupted", "Stopped by SIGTERM after iteration 3."],
    }
    assert "method.n_unroll=0" in page.tables[1][1][3]
    header, *runs = page.tables[-1]
    states = {row[0]: row[1] for row in runs}
    assert len(states) == 12
    assert {name for name, state in states.items() if state != "finished"} == unfinished.keys()
    first = dict(zip(header, next(row for row in runs if row[0] == "0_1_0"), strict=True))
    assert (first["time"], first["device"], first["threads"], first["torch"]) == ("1:01:01", "A device", "3", "2.99")
    assert (first["commit"], first["iterations"], first["seed"]) == ("abc-dirty", "9", "0")
    assert "1:02:01 of computing in 2 of the 12 runs" in text
    markdown = (folder / "table.md").read_text()
    assert "- 0_5_0: failed. The loss is nan at iteration 7." in markdown


def test_a_run_that_was_begun_again_and_broke_is_not_finished_by_its_old_results(simple):
    simple("a"), simple("b", seed=1)
    (simple.root / "b" / "status.json").write_text('{"state": "failed", "reason": "No."}')
    runs, unfinished = read_runs([simple.root])
    assert [run.folder.name for run in runs] == ["a"]
    assert [(job.folder.name, job.reason) for job in unfinished] == [("b", "No.")]


def test_a_job_that_failed_before_it_had_a_configuration_is_shown(simple):
    simple("a")
    (simple.root / "b").mkdir()
    say(simple.root / "b", "failed", reason="It cannot work.")
    assert [job.reason for job in read_runs([simple.root])[1]] == ["It cannot work."]


def test_what_is_worse_than_published_is_marked_and_nothing_else(tmp_path):
    metrics = {"test/log_likelihood": 107.0, "test/fisher": -5475.0}
    run_folder(tmp_path / "runs", "data=frey_face", "method=bidsm", "method.n_unroll=0", metrics=metrics)
    main([str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--html", str(tmp_path / "page.html")])
    text = (tmp_path / "page.html").read_text()
    assert re.findall(r'<td class="worse">([^<]*)</td>', text) == ["107.00 †"]
    assert Page(text).tables[0][1][2:] == ["107.00 †", "107.59", "-5475.00", "-5474.52"]


# --- harmless ---------------------------------------------------------------------------------------------

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 7 }}{% raw %}'


def test_what_runs_say_is_text_and_never_markup(simple, tmp_path):
    for value in (HOSTILE, "other"):
        simple(f"a{len(value)}", metrics={f"test/{HOSTILE}": 1.0}, method__name=value)
    say(simple("failed", seed=1), "failed", reason=HOSTILE)
    say(simple.root / "a5", "finished", device=HOSTILE, seconds=HOSTILE, commit=[HOSTILE])
    draw(simple.root / "a5", "x' onload='alert(3)")
    page = make(simple, tmp_path, "--metric", f"test/{HOSTILE}")[1]
    assert not page.all("script")
    assert not [attrs for _, attrs in page.tags if any(name.startswith("on") for name in attrs)]
    assert {image["src"].split(",")[0] for image in page.all("img")} == {"data:image/webp;base64"}
    shown = "".join(cell for table in page.tables for row in table for cell in row)
    assert shown.count(HOSTILE) >= 4
    assert "49" not in shown


def test_damaged_and_dressed_up_pictures_are_left_out_and_large_ones_made_small(simple, tmp_path):
    folder = simple("a")
    draw(folder, "good", width=1500)
    (folder / "figures" / "script.png").write_text("<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>")
    content = (folder / "figures" / "good.png").read_bytes()
    (folder / "figures" / "cut.png").write_bytes(content[: len(content) // 2])
    page = make(simple, tmp_path)[1]
    (image,) = page.all("img")
    assert image["alt"].startswith("good of checkerboard, dsm")
    assert (image["width"], image["height"]) == ("1200", "3")


def test_the_gallery_shows_the_figures_of_the_end_and_not_those_of_validations(simple, tmp_path):
    for name in ("density_000600", "density", "map_2"):
        draw(simple("a") if name == "density_000600" else simple.root / "a", name)
    page = make(simple, tmp_path)[1]
    assert [image["alt"] for image in page.all("img")] == ["density of checkerboard, dsm", "map 2 of checkerboard, dsm"]


def test_a_picture_keeps_its_pixels(tmp_path):
    pixels = np.random.default_rng(1).integers(0, 256, (6, 5, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    picture = inline(tmp_path / "a.png", "noise", widest=5)
    again = Image.open(io.BytesIO(base64.b64decode(picture.source.split(",")[1])))
    assert np.array_equal(np.asarray(again), pixels)


# --- heat maps --------------------------------------------------------------------------------------------


def grids_of(folder):
    groups = group_runs(read_runs([folder])[0])
    return groups, list(find_grids(groups))


def test_a_heat_map_holds_the_numbers_of_the_table_where_they_belong(sweep):
    groups, (grid,) = grids_of(sweep.root)
    assert (grid.rows, grid.columns, grid.axes) == ("method.n_lower_steps", "method.n_unroll", ([1, 5, 10], [0, 5]))
    axes = draw_grid(grid, "test/log_likelihood").axes[0]
    found = {tuple(text.xy): text.get_text().replace("\n", " ") for text in axes.texts}
    texts = summarise(groups, ["test/log_likelihood"])["text"]
    table = {group.label: text for group, text in zip(groups, texts, strict=True)}
    expected = {
        (column, row): table[f"bidsm, n_lower_steps={k}, n_unroll={n}"]
        for row, k in enumerate((1, 5, 10))
        for column, n in enumerate((0, 5))
        if (k, n) != (10, 5)  # no run of these has finished
    }
    assert found == expected
    shown = axes.images[0].get_array()
    assert shown[1, 1] == pytest.approx(5.505)
    assert shown[1, 0] == pytest.approx(0.51)  # of the one seed that has finished
    assert np.argwhere(shown.mask).tolist() == [[2, 1]]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["1", "5", "10"]


@pytest.mark.parametrize("metric", ["test/log_likelihood", "test/fisher"])
def test_brighter_is_better_whichever_way_is_up(sweep, metric):
    image = draw_grid(grids_of(sweep.root)[1][0], metric).axes[0].images[0]
    colours = image.to_rgba(image.get_array())[..., :3].sum(-1)
    assert colours[0, 1] > colours[0, 0]  # N = 5 has the higher likelihood and the lower divergence


def test_other_swept_settings_part_the_maps(simple):
    for n in (1, 2, 3):
        for k in (1, 2, 4):
            for lr in (0.1, 0.2):
                keys = {
                    "method__n_unroll": n,
                    "method__n_lower_steps": k,
                    "optimizer__lr": lr,
                    "method__exact": lr > 0.1,
                }
                simple(f"{n}{k}{lr}", "bidsm", metrics={"test/fisher": n * k * lr}, **keys)
    maps = grids_of(simple.root)[1]
    assert {(grid.rows, grid.columns) for grid in maps} == {("method.n_lower_steps", "method.n_unroll")}
    assert sorted(grid.label for grid in maps) == ["bidsm, exact=false, lr=0.1", "bidsm, exact=true, lr=0.2"]
    assert [len(grid.cells) for grid in maps] == [9, 9]


def test_maps_are_of_settings_that_say_something_and_of_full_grids(simple, tmp_path):
    for steps in (100, 200):
        for n in (1, 2, 4):
            simple(f"{steps}{n}", "bidsm", trainer__max_steps=steps, n_validations=n)
    assert grids_of(simple.root)[1] == []
    star = Simple(tmp_path / "star")  # one setting at a time
    for i, (n, k) in enumerate([(0, 1), (1, 1), (2, 1), (3, 1), (0, 2), (0, 3), (0, 4)]):
        star(str(i), "bidsm", method__n_unroll=n, method__n_lower_steps=k)
    assert grids_of(star.root)[1] == []


def test_one_swept_number_is_no_map_and_metrics_nobody_has_are_not_drawn(sweep, tmp_path):
    assert draw_heat_maps(grids_of(sweep.root)[0], ["test/fid"], tmp_path) == {}
    other = Simple(tmp_path / "line")
    for n in (1, 2):
        other(str(n), "bidsm", method__n_unroll=n)
    assert grids_of(other.root)[1] == []


def test_no_name_in_a_run_leads_out_of_the_folder_of_the_report(simple, tmp_path):
    curves = {"val/../../escaped": {1: 0.0, 2: 1.0}}
    simple("a", metrics={"test/fisher": 1.0}, curves=curves)
    hydra = simple.root / "a" / ".hydra" / "hydra.yaml"
    hydra.write_text(hydra.read_text().replace("data: checkerboard", "data: ../../escaped"))
    out = tmp_path / "deep" / "out"
    paths = report([str(simple.root)], str(out))
    assert len(paths) == 4
    assert all(path.resolve().parent == out.resolve() for path in paths)
    assert {path.parent for path in tmp_path.glob("**/*escaped*")} == {out}
