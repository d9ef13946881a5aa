"""Tests of the report that compares runs: the rows and cells of its tables, the figures, and the HTML page."""

import base64
import io
import itertools
import json
import math
import os
import re

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imsave
from omegaconf import OmegaConf
from PIL import Image
from scipy import stats

from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.reports.__main__ import main, report
from eblvm_lit.reports.charts import costs, draw_curves, draw_grid, find_grids
from eblvm_lit.reports.runs import read_runs
from eblvm_lit.reports.table import choose_metrics, find_published, footnotes, summarise, tables
from eblvm_lit.utils import quantities
from eblvm_lit.utils.quantities import quantity
from eblvm_lit.utils.run_files import flatten
from helpers.run_folders import Simple, groups_of, run_folder
from helpers.shell import configured

FREY = ("data=frey_face", "method=bidsm")
SPEED = "train/iterations_per_second"


def rows_of(groups, metrics):
    """Return the header and the rows of each table."""
    found = tables(groups, summarise(groups, metrics))
    return {data: [list(table), *table.to_numpy().tolist()] for data, table in found.items()}


def test_runs_that_differ_in_seed_and_folders_alone_are_one_group(simple):
    for seed in range(3):
        simple(f"a{seed}", seed=seed, show_config=bool(seed), ckpt=f"from/{seed}", data__root=f"disk{seed}")
    simple("other_logger", seed=3, logger__wandb=1)
    simple("other_rate", seed=0, optimizer__lr=0.2)
    groups = groups_of(simple.root)
    assert [(group.label, len(group.runs)) for group in groups] == [("dsm, lr=0.1", 4), ("dsm, lr=0.2", 1)]
    assert not any("same seed" in note for note in footnotes(groups, summarise(groups, [])))
    simple("again", seed=0)
    groups = groups_of(simple.root)
    assert any("dsm, lr=0.1 have the same seed" in note for note in footnotes(groups, summarise(groups, [])))


def test_two_seeds_that_differ_in_what_is_incidental_are_one_setting(tmp_path):
    first = run_folder(tmp_path / "0", "method=bidsm", "seed=0", metrics={"test/fisher": 1.0})
    free = ("compile=false", "threads=2", "tf32=true", "iterations_per_batch=7", "trainer.accelerator=cpu")
    free += ("callbacks.checkpoints.keep=3", "cache_dir=elsewhere", "summary=false", "sweep.resume=true")
    run_folder(tmp_path / "1", "method=bidsm", "seed=1", *free, metrics={"test/fisher": 3.0})
    (group,) = groups_of(tmp_path)
    (cell,) = summarise([group], ["test/fisher"]).itertuples()
    assert (group.label, cell.n, cell.mean, cell.best) == ("bidsm", 2, 2.0, "")
    for i, key in enumerate(("trainer.max_steps=9", "eval_weights=ema", "init_from=a", "method.n_lower_steps=2")):
        other = run_folder(tmp_path / f"other{i}", "method=bidsm", key, metrics={"test/fisher": 1.0})
        assert len(groups_of(first, other)) == 2


def test_labels_say_what_tells_groups_apart_and_images_of_two_sizes_are_two_data_sets(simple):
    simple("dsm", "dsm", optimizer__lr=0.2)
    for n in (0, 10, 5):
        simple(f"n{n}", "bidsm", method__n_unroll=n, model__h_dim=4, posterior__h_dim=4, optimizer__lr=0.2)
    for size in (16, 32):
        simple(f"mnist_{size}", data="MNIST", data__size=size, optimizer__lr=0.2)
    found = [(group.data, group.label) for group in groups_of(simple.root)]
    points = ["bidsm, n_unroll=0", "bidsm, n_unroll=5", "bidsm, n_unroll=10", "dsm"]
    assert found == [*(("checkerboard", label) for label in points), ("mnist_16", "dsm"), ("mnist_32", "dsm")]


@pytest.mark.parametrize("hydra", [True, False])
def test_a_setting_from_which_others_are_computed_is_named_once(tmp_path, hydra):
    for h in (3, 5):
        run_folder(tmp_path / str(h), "method=bidsm", f"model.h_dim={h}", metrics={"test/fisher": 1}, hydra=hydra)
    method = "bidsm" if hydra else "BiSM DSM"
    found = [(group.data, group.label) for group in groups_of(tmp_path)]
    assert found == [("checkerboard", f"{method}, h_dim={h}") for h in (3, 5)]


def test_parts_are_named_by_their_choice_and_their_own_settings_are_left_out(tmp_path):
    for part in ("unroll", "implicit"):
        run_folder(tmp_path / part, "method=bidsm", f"hypergradient={part}", metrics={"test/fisher": 1})
    labels = [group.label for group in groups_of(tmp_path)]
    assert labels == ["bidsm, hypergradient=implicit", "bidsm, hypergradient=unroll"]


def test_means_and_sample_standard_deviations_by_hand(simple):
    for seed, value in enumerate((1.0, 2.0, 6.0)):
        metrics = {"test/log_likelihood": value, "iteration": 7} | ({"test/fid": 5.0} if seed else {})
        simple(f"{seed}", seed=seed, metrics=metrics)
    simple("alone", "ssm", metrics={"test/log_likelihood": -0.25})
    groups = groups_of(simple.root)
    metrics = choose_metrics(groups)
    assert metrics == ["test/log_likelihood", "test/fid"]
    likelihood, _ = summarise(groups[:1], metrics).itertuples()
    # the variance is (4 + 1 + 9) / 2 = 7
    assert (likelihood.mean, likelihood.std) == (3.0, pytest.approx(7**0.5))
    assert rows_of(groups, metrics) == {
        "checkerboard": [
            ["method", "n", "test/log_likelihood ↑", "test/fid ↓"],
            ["dsm", "3", "3.0 ± 2.6 ★\n[-3.6, 9.6]", "5 ± 0 (n = 2)"],
            ["ssm", "1", "-0.25", ""],
        ]
    }


def test_the_last_three_validations_are_averaged_within_runs_first(simple):
    for seed, offset in enumerate((0.0, 10.0)):
        curve = {100 * i: offset + i for i in range(1, 6)}
        simple(str(seed), seed=seed, curves={"val/log_likelihood": curve, "val/fisher": {1: 2.0, 2: 3.0}})
    simple("short", "ssm", curves={"val/log_likelihood": {1: 0.0, 2: 1.0}})
    dsm, ssm = groups_of(simple.root)
    name = "val/log_likelihood (last 3)"
    assert choose_metrics([dsm, ssm]) == ["test/log_likelihood", name]
    (cell,) = summarise([dsm], [name]).itertuples()
    assert [run.metrics[name] for run in dsm.runs] == [4.0, 14.0]
    assert (cell.mean, cell.std) == (9.0, pytest.approx(50**0.5))
    assert summarise([ssm], [name]).empty


CIFAR = "method=bidvl data=cifar10"
RESIDUAL = "experiment=bidvl_table1 method=bidvl_resnet n_validations=20"


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ("method=bidsm data=frey_face method.n_unroll=0", {"log_likelihood": 107.59, "fisher": -5474.52}),
        ("method=bidsm data=frey_face", {"log_likelihood": 124.0, "fisher": -5780.18}),
        ("method=bidsm data=frey_face model.h_dim=50 method.n_unroll=10", {"fisher": -5609.25}),
        ("method=dsm data=frey_face", {"log_likelihood": 129.23, "fisher": -5885.09}),
        ("method=bidsm data=frey_face method.n_unroll=2", {}),
        ("method=bidsm data=frey_face hypergradient=implicit", {}),
        (CIFAR, {"fid": 20.75, "rmse": 0.168, "auroc_noise": 1.0, "auroc_svhn": 0.76, "auroc_celeba": 0.77}),
        (f"{CIFAR} loss=full_latent", {"fid": 21.54, "rmse": 0.170, "auroc_svhn": 0.81, "auroc_celeba": 0.75}),
        (RESIDUAL, {"fid": 16.37}),
        ("method=vae data=cifar10", {"fid": 109.5, "rmse": 0.192}),
    ],
)
def test_published_numbers_belong_to_data_method_and_settings_and_say_where_ours_differ(words, numbers):
    config = OmegaConf.to_container(configured("run_dir=.", *words.split()), resolve=True)
    found = find_published(flatten(config))
    assert {name.partition("/")[2]: number.value for name, number in found.items()} == numbers
    differs = "published: rectified_shortcut True; this run: False" if words == RESIDUAL else ""
    assert {number.differs for number in found.values()} <= {differs}


def test_results_worse_than_published_are_marked_for_both_directions(tmp_path):
    metrics = {"test/log_likelihood": 107.0, "test/fisher": -5475.0, "test/log_z": 3.0}
    run_folder(tmp_path / "a", *FREY, "method.n_unroll=0", metrics=metrics)
    run_folder(tmp_path / "b", *FREY, "method.n_unroll=1", metrics={"test/log_likelihood": 111.0, "test/fisher": -5500})
    run_folder(tmp_path / "c", *FREY, "method.n_unroll=2", metrics=metrics)
    groups = groups_of(tmp_path)
    (table,) = rows_of(groups, choose_metrics(groups)).values()
    header, *rows = table
    names = ("test/log_likelihood ↑", "published", "test/fisher ↓", "published", "test/log_z")
    assert tuple(header[2:]) == names
    assert rows[0][2:] == ["107.00 †", "107.59", "-5475.00", "-5474.52", "3"]
    assert rows[1][2:] == ["111.00 ★", "110.65", "-5500.00 † ★", "-5516.07", ""]
    assert rows[2][2:] == ["107.00", "", "-5475.00", "", "3"]
    report([str(tmp_path)], str(tmp_path / "out"))
    written = pd.read_csv(tmp_path / "out" / "table.csv").loc[0, ["metric", "n", "mean", "published", "worse"]]
    assert written.tolist() == ["test/log_likelihood", 1, 107.0, 107.59, True]


def test_runs_of_another_length_are_beside_the_published_number_and_not_compared_with_it(tmp_path):
    for steps in (20000, 300):
        metrics = {"test/log_likelihood": 1.0}
        run_folder(tmp_path / str(steps), *FREY, f"trainer.max_steps={steps}", metrics=metrics)
    groups = groups_of(tmp_path)
    summary = summarise(groups, ["test/log_likelihood"])
    (table,) = rows_of(groups, ["test/log_likelihood"]).values()
    assert [row[2:] for row in table[1:]] == [["1", "124.00 ‡"], ["1 †", "124.00"]]
    assert "‡ Not comparable: published: 20,000 iterations; this run: 300." in footnotes(groups, summary)
    assert summary["worse"].tolist() == [None, True]


def test_multirun_folders_are_searched_and_each_run_counts_once(simple):
    for job in range(3):
        run = simple(f"multirun/2020-01-01/10-00-00/{job}", seed=job)
    (run.parent / "multirun.yaml").write_text("hydra: {}\n")
    for folders in ((simple.root,), (simple.root, run, run.parent / ".." / run.parent.name)):
        runs, unfinished = read_runs(folders)
        assert sorted(run.config["seed"] for run in runs) == [0, 1, 2]
        assert not unfinished


def test_runs_without_results_are_named_in_one_line_and_left_out(simple, tmp_path, capsys):
    simple("done", metrics={"test/log_likelihood": 1.0})
    (simple("broken", seed=1) / "metrics.json").unlink()
    (simple("cut", seed=2) / "metrics.json").write_text('{"test/log_likelihood": 1')
    (simple("code", seed=3) / "config.yaml").write_text("!!python/object/apply:os.system ['touch executed']")
    report([str(simple.root)], str(tmp_path / "out"))
    markdown = (tmp_path / "out" / "table.md").read_text()
    assert "| dsm | 1 | 1 |" in markdown
    for text in (capsys.readouterr().out, markdown):
        for name, state in (("broken", "unfinished"), ("cut", "unreadable"), ("code", "unreadable")):
            assert sum(f"{name}: {state}: " in line for line in text.splitlines()) == 1


def test_mistakes_of_users_are_named(simple, tmp_path, monkeypatch):
    out = str(tmp_path / "out")
    with pytest.raises(ConfigError, match="nowhere"):
        report([str(tmp_path / "nowhere")], out)
    run = simple("run", metrics={"test/fisher": 1.0})
    with pytest.raises(ConfigError, match=r"'test/fischer'.*test/fisher"):
        report([str(simple.root)], out, ["test/fischer"])
    (run / "metrics.json").unlink()
    with pytest.raises(DataError, match=r"run is unfinished"):
        report([str(simple.root)], out)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=r"ERROR: .*outputs"):
        main([])


def test_curves_are_means_over_seeds_at_common_iterations(simple):
    name = "val/log_likelihood"
    simple("0", seed=0, curves={name: {10: 1.0, 20: 2.0, 25: 9.0, 30: 4.0}})
    simple("1", seed=1, curves={name: {10: 3.0, 20: 2.0, 30: 8.0, 35: 9.0}})
    simple("other", "ssm", curves={name: {15: 0.5, 30: 0.75}})
    axes = draw_curves(groups_of(simple.root), name).axes[0]
    dsm, ssm = (line.get_xydata().tolist() for line in axes.lines)
    assert dsm == [[10, 2], [20, 2], [30, 6]]
    assert ssm == [[15, 0.5], [30, 0.75]]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["dsm (n = 2)", "ssm"]


def test_the_cost_of_a_group_is_the_mean_over_its_seeds(simple):
    name = "test/fisher"
    simple("a", seed=0, metrics={name: 1.0, SPEED: 50.0, "iteration": 100, "train/peak_memory_mib": 10.0})
    simple("b", seed=1, metrics={name: 3.0, SPEED: 100.0, "iteration": 100, "train/peak_memory_mib": 30.0})
    simple("c", method="cd", metrics={name: 5.0, SPEED: 200.0, "iteration": 100})
    simple("d", method="ksd", metrics={name: 5.0})
    groups = groups_of(simple.root)
    points = costs(groups, name)
    assert [groups[i].method for i in points.index] == ["cd", "dsm"]
    assert points["quality"].tolist() == [5.0, 2.0]
    assert points["seconds"].tolist() == [0.5, 1.5]
    assert (math.isnan(points["memory"].iloc[0]), points["memory"].iloc[1]) == (True, 20.0)
    # the values 1 and 3 have the standard error 1
    assert points["high"].iloc[1] == pytest.approx(2 + stats.t.ppf(0.975, 1))


@pytest.fixture
def sweep(simple):
    """Return runs with two values of N, three of K and two seeds each; one pair of values has no results."""
    for n, k, seed in itertools.product((0, 5), (1, 5, 10), range(2)):
        final = {"test/log_likelihood": n + 0.1 * k + 0.01 * seed, "test/fisher": -1.0 * n, "iteration": 9}
        steps = {"method__n_unroll": n, "method__n_lower_steps": k}
        folder = simple(f"{n}_{k}_{seed}", "bidsm", seed=seed, metrics=final, **steps)
        if (n, k) == (5, 10):
            (folder / "metrics.json").unlink()
    return simple.root


def test_a_heat_map_holds_the_numbers_of_the_table_where_they_belong(sweep):
    groups = groups_of(sweep)
    (grid,) = find_grids(groups)
    assert (grid.rows, grid.columns) == ("method.n_unroll", "method.n_lower_steps")
    axes = draw_grid(grid, "test/log_likelihood").axes[0]
    table = summarise(groups, ["test/log_likelihood"])
    by_label = dict(zip(table["settings"], table["text"], strict=True))
    places = {
        (j, i): f"n_unroll={n}, n_lower_steps={k}" for i, n in enumerate((0, 5)) for j, k in enumerate((1, 5, 10))
    }
    expected = {place: by_label[label] for place, label in places.items() if place != (2, 1)}
    assert {tuple(text.xy): text.get_text() for text in axes.texts} == expected
    image = axes.images[0]
    assert np.argwhere(image.get_array().mask).tolist() == [[1, 2]]
    brightness = image.to_rgba(image.get_array())[..., :3].sum(-1)
    assert brightness[1, 0] > brightness[0, 0]  # the cell of N = 5 is brighter, because its likelihood is higher


def test_heat_maps_are_of_full_grids_of_settings_of_the_method(simple, tmp_path):
    for n, k, lr in itertools.product((1, 2, 3), (1, 2, 4), (0.1, 0.2)):
        keys = {"method__n_unroll": n, "method__n_lower_steps": k, "optimizer__lr": lr}
        simple(f"{n}{k}{lr}", "bidsm", metrics={"test/fisher": n * k * lr}, **keys)
    grids = [(grid.title, len(grid.cells)) for grid in find_grids(groups_of(simple.root))]
    assert grids == [("checkerboard, bidsm, lr=0.1", 9), ("checkerboard, bidsm, lr=0.2", 9)]
    star = Simple(tmp_path / "star")  # These runs vary only one setting at a time, so that they do not fill a grid.
    for i, (n, k) in enumerate([(0, 1), (1, 1), (2, 1), (3, 1), (0, 2), (0, 3), (0, 4)]):
        star(str(i), "bidsm", method__n_unroll=n, method__n_lower_steps=k)
    assert not list(find_grids(groups_of(star.root)))


HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 7777 }}{% raw %}'


def test_the_page_is_one_file_and_shows_texts_of_runs_as_text(sweep, simple, tmp_path):
    for value in (HOSTILE, "other"):
        metrics = {f"test/{HOSTILE}": 1.0, "test/fisher": 2.0}
        curves = {"val/../../escaped": {1: 1.0, 2: 2.0}}
        simple(f"a{len(value)}", metrics=metrics, curves=curves, method__name=value)
    (simple.root / "a5" / "figures").mkdir()
    for name, width in (("density_000600", 8), ("density", 1500)):
        imsave(simple.root / "a5" / "figures" / f"{name}.png", np.random.default_rng(0).random((4, width)))
    main([str(simple.root), "--out", str(tmp_path / "out")])
    assert {path.parent for path in tmp_path.rglob("*escaped*")} == {tmp_path / "out"}
    text = (tmp_path / "out" / "report.html").read_text()
    assert "<script" not in text
    assert "<img src=x" not in text
    assert "54439" not in re.sub(r'"data:image[^"]*"', "", text).replace(str(simple.root), "")
    sources = re.findall(r'<img src="data:image/webp;base64,([^"]*)"', text)
    pictures = [Image.open(io.BytesIO(base64.b64decode(source, validate=True))) for source in sources]
    # The page shows two heat maps, a curve, and the final one of the run's own figures, but not the earlier ones.
    assert len(pictures) == text.count("<img") == 4
    assert pictures[-1].width == 1200
    assert not re.search(r"https?:|url\(|@import", re.sub(r'"data:image[^"]*"', "", text))
    assert "0.1050 ± 0.0071" in text
    assert "5_10_0</code>: unfinished" in text


LARGE = "9" * 400
# Faults that break a run, by name: the file in which the fault is, a text in this file, and the text that replaces it.
STRANGE = {
    "a tree that contains itself": ("config.yaml", "method:", "method: &m\n  again: *m"),
    "a setting of 400 digits": ("config.yaml", "lr: 0.1", f"lr: {LARGE}"),
    "a key that is a list": ("config.yaml", "seed: 7", "? [seed]\n: 7"),
    "a metric of 400 digits": ("metrics.json", "1.0", LARGE),
    "a metric that overflows": ("metrics.json", "1.0", "1e308"),
    "a metric without a value": ("metrics.json", "1.0", "null"),
    "metrics in a list": ("metrics.json", '{"test/fisher": 1.0}', "[1.0]"),
    "no speed": ("metrics.json", "{", '{"iteration": 3, "train/iterations_per_second": 0, '),
    "a direction that is none": ("quantities.json", "1", "7"),
    "curves of words": ("metrics.csv", "2.0", "two"),
    "no text": ("metrics.csv", "iteration", "\x00"),
    "commands that are numbers": ("command.yaml", "- method=dsm", "- 5"),
}
# Changes in the same form that leave a run readable but odd; the page shows their content as text.
ODD = {
    "a date": ("config.yaml", "seed: 7", "seed: 7\nstarted: 2026-01-01"),
    "bytes": ("config.yaml", "seed: 7", "seed: 7\nraw: !!binary AAAA"),
    "a set": ("config.yaml", "seed: 7", "seed: !!set {7}"),
    "a seed in words": ("config.yaml", "seed: 7", "seed: seven"),
    "infinity": ("config.yaml", "lr: 0.1", "lr: .inf"),
    "not a number": ("config.yaml", "lr: 0.1", "lr: .nan"),
    "curves that overflow": ("metrics.csv", "2.0", "1e308"),
    "late curves": ("metrics.csv", "\n2,", "\n1e308,"),
    "a choice that is a number": ("command.yaml", "method: dsm", "method: 5"),
    "control": ("metrics.json", "test/fisher", "test/\\u001b[31mred\\u0007"),
    "half a character": ("metrics.json", "test/fisher", "test/\\ud800"),
    "a formula": ("command.yaml", "method: dsm", "method: '=cmd(1)'"),
    "markup": ("command.yaml", "method: dsm", "method: '<b>|[x](y)'"),
    "a long name": ("metrics.json", "test/fisher", f"test/{'long' * 99}"),
}


def test_baselines_are_not_starred_and_own_metrics_have_the_stored_direction(simple, monkeypatch):
    for method, value in (("dsm", 1.0), ("ssm", 2.0)):
        metrics = {f"test/{name}": value for name in ("probe_accuracy", "probe_accuracy_pixels", "own", "accuracy")}
        folder = simple(method, method, metrics=metrics)
        known = {name: quantity(name)[:2] for name in metrics} | {"test/own": [-1, "K"], "test/probe_accuracy": [1, ""]}
        (folder / "quantities.json").write_text(json.dumps(known))
    monkeypatch.setattr(quantities, "STORED", {})
    # A report does not import the metrics, so that it knows no directions from their classes.
    monkeypatch.setattr(quantities, "KNOWN", {})
    groups = groups_of(simple.root)
    best = summarise(groups, choose_metrics(groups)).set_index(["metric", "method"])["best"]
    starred = {metric: method for (metric, method), mark in best.items() if mark}
    assert starred == {"test/probe_accuracy": "ssm", "test/own": "dsm"}


@pytest.fixture
def odd_runs(simple):
    """Return the folder that holds all runs of STRANGE and ODD, and two good runs."""
    curves = {"val/loss": {1: 2.0, 2: 2.0, 3: 2.0}}
    for i, (name, (file, before, after)) in enumerate((STRANGE | ODD).items()):
        folder = simple(name, seed=7, metrics={"test/fisher": 1.0}, curves=curves, method__n=i)
        (folder / "quantities.json").write_text('{"test/fisher": [-1, ""]}')
        path = folder / file
        assert before in path.read_text(), name
        path.write_text(path.read_text().replace(before, after, 1))
    simple("good", "cd", metrics={"test/fisher": 3.0})
    latin = simple("latin", "cd", metrics={"test/fisher": 5.0}, seed=1)
    os.rename(os.fsencode(latin), os.fsencode(latin) + b"-\xe9\x1b[31m")
    return simple.root


def test_strange_runs_are_named_and_left_out_and_what_odd_ones_say_is_text(odd_runs, tmp_path, capsys):
    main([str(odd_runs), "--out", str(tmp_path / "out")])
    markdown, page = ((tmp_path / "out" / name).read_text() for name in ("table.md", "report.html"))
    said = capsys.readouterr().out
    for text in (said, markdown, page):
        assert all(c.isprintable() or c == "\n" for c in text)
    for name in STRANGE:
        assert f"{name}: unreadable: " in said, name
        assert f"{name}</code>: unreadable: " in page, name
    assert not [name for name in ODD if f"{name}: un" in said]
    assert "| cd | 2 | 4.0 ± 1.4" in markdown
    assert r"\x1b[31mred\x07" in said
    assert r"test/\\x1b[31mred\\x07" in markdown
    assert r"&lt;b&gt;\|[x]\(y)" in markdown
    assert "<b>" not in markdown
    rows = pd.read_csv(tmp_path / "out" / "table.csv", keep_default_na=False)
    assert "'=cmd(1)" in set(rows["method"])
    assert not [cell for cell in rows.select_dtypes(object).to_numpy().ravel() if str(cell).startswith(("=", "+", "@"))]


def test_a_report_that_cannot_be_written_is_one_sentence(simple, tmp_path):
    simple("run")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "taken" / "table.csv").mkdir(parents=True)
    for place in ("file", "file/below", "taken"):
        with pytest.raises(SystemExit, match=r"^ERROR: .*could not be written \(.*\): choose a folder"):
            main([str(simple.root), "--out", str(tmp_path / place)])
    assert (tmp_path / "file").read_text() == "mine"
