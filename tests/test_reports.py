"""The comparison of runs: what is one row, what stands in it, and what is said about bad input."""

import csv
import itertools
import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Text
from omegaconf import OmegaConf

from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.evaluation.features.classifier import ClassifierFeatures
from eblvm_lit.evaluation.features.clip import CLIPFeatures
from eblvm_lit.evaluation.features.dinov2 import DINOv2Features
from eblvm_lit.evaluation.features.inception import InceptionFeatures
from eblvm_lit.evaluation.features.raw_values import RawValues
from eblvm_lit.reports.__main__ import main, report
from eblvm_lit.reports.costs import Cost, cost, draw_costs, draw_costs_of_data
from eblvm_lit.reports.groups import group_runs
from eblvm_lit.reports.method_curves import band, draw_bands, draw_reports
from eblvm_lit.reports.outlier_table import outlier_tables
from eblvm_lit.reports.published import direction, find_published
from eblvm_lit.reports.runs import read_runs
from eblvm_lit.reports.table import choose_metrics, footnotes, is_worse, summarise, tables, to_csv
from eblvm_lit.reports.terminal import fitting, show
from eblvm_lit.utils.run_files import flatten
from shell import configure

FREY = ("data=frey_face", "method=bidsm")
SPEED = "train/iterations_per_second"


def run_folder(folder, *overrides, metrics=None, curves=None, hydra=True):
    """Write what a run leaves; ``curves`` are values by iteration, by name."""
    return write_run(folder, configure(*overrides, f"run_dir={folder}"), overrides, metrics, curves, hydra)


def write_run(folder, cfg, overrides, metrics, curves, hydra):
    (folder / ".hydra").mkdir(parents=True)
    OmegaConf.save(cfg, folder / "config.yaml", resolve=True)
    if hydra:
        OmegaConf.save(cfg, folder / ".hydra" / "config.yaml")
        OmegaConf.save(list(overrides), folder / ".hydra" / "overrides.yaml")
        chosen = dict(override.split("=", 1) for override in ("data=checkerboard", "method=bidsm", *overrides))
        choices = {key: value for key, value in chosen.items() if "." not in key}
        OmegaConf.save({"hydra": {"runtime": {"choices": choices}}}, folder / ".hydra" / "hydra.yaml")
    if metrics is not None:
        (folder / "metrics.json").write_text(json.dumps(metrics))
    if curves is not None:
        rows = [{"iteration": i} for i in sorted({i for curve in curves.values() for i in curve})]
        for row in rows:
            row |= {name: curve[row["iteration"]] for name, curve in curves.items() if row["iteration"] in curve}
        with open(folder / "metrics.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, ["iteration", *curves])
            writer.writeheader()
            writer.writerows(rows)
    return folder


class Simple:
    """Run folders whose configuration is small and written at once, without composing."""

    def __init__(self, root):
        self.root = root

    def __call__(self, name, method="dsm", seed=0, data="Checkerboard", metrics=None, curves=None, hydra=True, **keys):
        cfg = {
            "seed": seed,
            "run_dir": str(self.root / name),
            "ckpt": None,
            "data": {"_target_": f"x.{data}", "seed": seed},
            "optimizer": {"lr": 0.1},
            "method": {"_target_": f"x.{method}", "seed": seed, "optimizer": "${optimizer}"},
            "logger": {"csv": {"save_dir": str(self.root / name)}},
        }
        cfg = OmegaConf.create(cfg)
        overrides = [f"method={method}", f"data={data.lower()}"]
        for key, value in keys.items():
            path = key.replace("__", ".")
            OmegaConf.update(cfg, path, value, force_add=True)
            overrides.append(f"{path}={value}")
        metrics = {"test/log_likelihood": 0.0} if metrics is None else metrics
        return write_run(self.root / name, cfg, overrides, metrics, curves, hydra)


@pytest.fixture
def simple(tmp_path):
    return Simple(tmp_path / "runs")


def groups_of(*folders):
    return group_runs(read_runs(folders)[0])


def labels(*folders):
    return [group.label for group in groups_of(*folders)]


# ---------------------------------------------------------------------- groups


def test_runs_that_differ_in_seed_and_folders_alone_are_one_group(simple):
    for seed in range(3):
        simple(f"a{seed}", seed=seed, show_config=bool(seed), ckpt=f"from/{seed}", data__root=f"disk{seed}")
    simple("other_logger", seed=3, logger__wandb=1)
    simple("other_rate", seed=0, optimizer__lr=0.2)
    groups = groups_of(simple.root)
    assert [(group.label, len(group.runs)) for group in groups] == [("dsm, lr=0.1", 4), ("dsm, lr=0.2", 1)]
    assert not any(group.repeats_a_seed for group in groups)


def test_labels_say_what_tells_groups_apart_and_nothing_more(simple):
    simple("dsm", "dsm")
    for n in (0, 10, 5):
        simple(f"n{n}", "bidsm", method__n_unroll=n, model__h_dim=4, posterior__h_dim=4)
    assert labels(simple.root) == ["bidsm, n_unroll=0", "bidsm, n_unroll=5", "bidsm, n_unroll=10", "dsm"]


def test_a_setting_of_the_command_line_is_named_even_where_one_group_of_the_method_is_there(simple):
    simple("dsm", "dsm", optimizer__lr=0.2)
    simple("n", "bidsm", method__n_unroll=0, optimizer__lr=0.2)
    assert labels(simple.root) == ["bidsm, n_unroll=0", "dsm"]


@pytest.mark.parametrize("hydra", [True, False])
def test_a_setting_that_others_are_computed_from_is_named_once(tmp_path, hydra):
    for h in (3, 5):
        run_folder(tmp_path / str(h), f"model.h_dim={h}", metrics={"test/fisher": 1}, hydra=hydra)
    method = "bidsm" if hydra else "BiSM DSM"
    assert labels(tmp_path) == [f"{method}, h_dim=3", f"{method}, h_dim=5"]
    assert [group.data for group in groups_of(tmp_path)] == ["checkerboard"] * 2


def test_parts_are_named_by_their_choice_and_their_own_settings_are_left_out(tmp_path):
    for i, part in enumerate(("unroll", "implicit", "unroll_plain")):
        run_folder(tmp_path / str(i), f"hypergradient={part}", metrics={"test/fisher": 1})
    run_folder(tmp_path / "3", "method=bism", "objective=mdsm", metrics={"test/fisher": 1})
    run_folder(tmp_path / "4", "method=bism", "objective=ssm", metrics={"test/fisher": 1})
    assert labels(tmp_path) == [
        "bidsm, hypergradient=implicit",
        "bidsm, hypergradient=unroll_plain",
        "bidsm, n_unroll=5",
        "bism, objective=mdsm",
        "bism, objective=ssm",
    ]


def test_images_of_two_sizes_are_two_data_sets(simple):
    metrics = {"test/fd_classifier": 1.0}
    for name, size in (("a", 16), ("b", 32)):
        simple(name, data="MNIST", data__size=size, metrics=metrics)
    simple("c", "ssm", data="MNIST", data__size=16, metrics=metrics)
    simple("d", data="CIFAR10", data__size=32, metrics=metrics)
    found = [(group.data, group.label) for group in groups_of(simple.root)]
    assert found == [("cifar10", "dsm"), ("mnist_16", "dsm"), ("mnist_16", "ssm"), ("mnist_32", "dsm")]


def test_null_is_as_good_as_absent():
    assert flatten({"a": None, "b": {"c": {}, "d": False}}) == {"b.d": False}


# ---------------------------------------------------------------------- numbers


def test_means_and_sample_standard_deviations_by_hand(simple):
    for seed, value in enumerate((1.0, 2.0, 6.0)):
        metrics = {"test/log_likelihood": value, "iteration": 7} | ({"test/fid": 5.0} if seed else {})
        simple(f"{seed}", seed=seed, metrics=metrics)
    simple("alone", "ssm", metrics={"test/log_likelihood": -0.25})
    groups = groups_of(simple.root)
    metrics = choose_metrics(groups)
    assert metrics == ["test/log_likelihood", "test/fid"]
    likelihood, _ = summarise(groups[:1], metrics).itertuples()
    assert (likelihood.mean, likelihood.std) == (3.0, pytest.approx(7**0.5))  # (4 + 1 + 9) / 2
    assert tables(groups, summarise(groups, metrics)) == {
        "checkerboard": [
            ["method", "n", "test/log_likelihood ↑", "test/fid ↓"],
            ["dsm", "3", "3.0 ± 2.6", "5 ± 0 (n = 2)"],
            ["ssm", "1", "-0.25", ""],
        ]
    }


def test_each_data_set_has_a_table_of_the_metrics_that_its_runs_have(simple):
    simple("a", metrics={"test/log_likelihood": 1.0, "test/fid": 2.0})
    simple("b", data="Digits", metrics={"test/log_likelihood": 3.0})
    groups = groups_of(simple.root)
    assert tables(groups, summarise(groups, choose_metrics(groups))) == {
        "checkerboard": [["method", "n", "test/log_likelihood ↑", "test/fid ↓"], ["dsm", "1", "1", "2"]],
        "digits": [["method", "n", "test/log_likelihood ↑"], ["dsm", "1", "3"]],
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
    assert summarise([ssm], [name])["text"].item() == ""


def test_the_rate_is_the_median_of_the_curve_where_the_final_metrics_lack_it(simple):
    simple("a", curves={SPEED: {100: 1.0, 200: 900.0, 300: 7.0}})
    simple("b", "ssm", metrics={SPEED: 5.0}, curves={SPEED: {100: 1.0, 200: 1.0}})
    assert summarise(groups_of(simple.root), [SPEED])["mean"].tolist() == [7.0, 5.0]


@pytest.mark.parametrize(
    ("name", "way"),
    [
        *[("test/log_likelihood", 1), ("test/auroc_svhn", 1), ("test/probe_accuracy", 1), ("test/inception_score", 1)],
        *[("test/fisher", -1), ("test/fid", -1), ("test/rmse", -1), ("test/ksd", -1), ("val/posterior_fisher", -1)],
        *[("val/log_likelihood (last 3)", 1), (SPEED, 1), ("test/log_z", 0), ("test/ais_effective_sample_size", 0)],
        *[("val/fisher_divergence", 0), ("test/fisher_divergence_true", 0), ("test/fisher_divergence_error", -1)],
        *[("test/upper_critic_loss_grad_norm", 0), ("test/log_z_standard_error", 0)],
        *[("test/log_z_lower", 0), ("test/log_z_upper_standard_error", 0), ("test/quadrature_log_likelihood", 1)],
        # c less log Z has a sign
        *[("test/learned_log_z", 0), ("test/learned_log_z_error", 0), ("test/learned_log_likelihood", 1)],
        *[("test/hypergradient_error", -1), ("test/hypergradient_cosine", 1), ("test/posterior_kl", -1)],
    ],
)
def test_directions(name, way):
    assert direction(name) == way


TITLES = [kind.titles for kind in (InceptionFeatures, ClassifierFeatures, DINOv2Features, CLIPFeatures, RawValues)]


@pytest.mark.parametrize("titles", TITLES, ids=lambda titles: titles.frechet)
def test_distances_of_samples_are_the_better_the_lower_and_their_spreads_have_no_direction(titles):
    found = {name: direction(f"test/{name}") for name in (titles.frechet, titles.kernel, f"{titles.kernel}_std")}
    assert found == {titles.frechet: -1, titles.kernel: -1, f"{titles.kernel}_std": 0}
    assert [direction(titles.of(name)) for name in ("mmd", "precision", "recall", "coverage")] == [-1, 1, 1, 1]


@pytest.mark.parametrize("titles", [InceptionFeatures.titles, ClassifierFeatures.titles], ids=lambda titles: titles[2])
def test_scores_by_classes_are_the_better_the_higher_and_their_spreads_have_no_direction(titles):
    score = titles.inception_score
    assert [direction(f"test/{name}") for name in (score, f"{score}_std")] == [1, 0]


# ---------------------------------------------------------------------- published numbers


def published(*overrides):
    config = flatten(OmegaConf.to_container(configure("run_dir=.", *overrides), resolve=True))
    return {name: (number.value, number.source.split(", ")[1]) for name, number in find_published(config).items()}


@pytest.mark.parametrize(
    ("overrides", "numbers"),
    [
        (("method.n_unroll=0",), {"test/log_likelihood": (107.59, "Table 1"), "test/fisher": (-5474.52, "Table 1")}),
        (("hypergradient=none",), {"test/log_likelihood": (107.59, "Table 1"), "test/fisher": (-5474.52, "Table 1")}),
        ((), {"test/log_likelihood": (124.0, "Table 1"), "test/fisher": (-5780.18, "Table 1")}),
        (("method.n_unroll=2",), {}),
        (("method.n_lower_steps=0",), {"test/fisher": (-3775.31, "Fig. 7")}),
        (("method.n_lower_steps=10",), {"test/fisher": (-5795.52, "Fig. 7")}),
        (("method.n_lower_steps=10", "method.n_unroll=10"), {}),
        (("model.h_dim=50", "method.n_unroll=10"), {"test/fisher": (-5609.25, "Fig. 8")}),
        (("model.h_dim=50",), {}),
        (("method=dsm",), {"test/log_likelihood": (129.23, "Table 1"), "test/fisher": (-5885.09, "Table 1")}),
        (("method=dsm", "model.h_dim=500"), {"test/fisher": (-5895.96, "Fig. 8")}),
        (("method=ssm",), {}),
        (("method=bissm",), {}),
        (("hypergradient=implicit",), {}),
        (("data.standardise=true",), {}),
        (("divergence=fisher", "posterior=gaussian"), {}),
    ],
)
def test_published_numbers_belong_to_data_method_and_settings(overrides, numbers):
    assert published(*FREY, *overrides) == numbers


BEST = ("test/", "test_best/")
CIFAR = ("method=bidvl", "data=cifar10")
RESIDUAL = ("experiment=bidvl_table1", "method=bidvl_resnet", "n_validations=20")


def of_generators(fid=None, rmse=None, **others):
    """Published numbers, of the checkpoint at the end and of the best one."""
    found = {f"{split}{name}": x for split in BEST for name, x in (("fid", fid), ("rmse", rmse)) if x is not None}
    return {**found, **{f"test/auroc_{name}": x for name, x in others.items()}}


@pytest.mark.parametrize(
    ("overrides", "numbers"),
    [
        (CIFAR, of_generators(20.75, 0.168, noise=1.0, svhn=0.76, celeba=0.77)),
        ((*CIFAR, "ratio.scale=0.5"), of_generators(26.82)),
        ((*CIFAR, "loss=no_latent"), of_generators(20.24, 0.175)),
        ((*CIFAR, "loss=full_latent"), of_generators(21.54, 0.170, svhn=0.81, celeba=0.75)),
        ((*CIFAR, "loss=symmetric_joint", "model=joint_conv"), of_generators(32.10)),
        (RESIDUAL, of_generators(16.37)),
        ((*RESIDUAL, "data=celeba128"), {}),
        ((*CIFAR, "method.n_unroll=1"), {}),
        ((*CIFAR, "ratio=sigmoid"), {}),
        (("method=bidvl", "data=celeba64"), of_generators(17.24, 0.187)),
        (("method=bidvl", "data=celeba32"), of_generators(4.47)),
        (("experiment=bidvl_mnist_small",), {}),
        (("method=vae", "data=cifar10"), of_generators(109.5, 0.192)),
        (("method=vae", "data=celeba64"), of_generators(99.09, 0.197)),
        (("method=sngan", "data=cifar10"), of_generators(21.7)),
    ],
)
def test_published_numbers_of_doubly_variational_learning(overrides, numbers):
    assert {name: value for name, (value, _) in published(*overrides).items()} == numbers


def test_published_residual_networks_rectified_their_shortcuts():
    def differs(*overrides):
        config = flatten(OmegaConf.to_container(configure("run_dir=.", *RESIDUAL, *overrides), resolve=True))
        return {number.differs for number in find_published(config).values()}

    assert differs() == {"published: rectified_shortcut True; this run: False"}
    assert differs("model.network.rectified_shortcut=true") == {""}


def test_there_are_no_published_numbers_of_other_data():
    assert published("data=digits", "method=dsm", "model.h_dim=400") == {}


def test_the_mark_is_where_ours_is_worse_whichever_way_is_up(tmp_path):
    metrics = {"test/log_likelihood": 107.0, "test/fisher": -5475.0, "test/log_z": 3.0}
    run_folder(tmp_path / "a", *FREY, "method.n_unroll=0", metrics=metrics)
    run_folder(tmp_path / "b", *FREY, "method.n_unroll=1", metrics={"test/log_likelihood": 111.0, "test/fisher": -5500})
    run_folder(tmp_path / "c", *FREY, "method.n_unroll=2", metrics=metrics)
    groups = groups_of(tmp_path)
    (table,) = tables(groups, summarise(groups, choose_metrics(groups))).values()
    header, *rows = table
    names = ("test/log_likelihood ↑", "published", "test/fisher ↓", "published", "test/log_z")
    assert tuple(header[2:]) == names
    assert rows[0][2:] == ["107.00 †", "107.59", "-5475.00", "-5474.52", "3"]
    assert rows[1][2:] == ["111.00", "110.65", "-5500.00 †", "-5516.07", ""]
    assert rows[2][2:] == ["107.00", "", "-5475.00", "", "3"]


@pytest.mark.parametrize(
    ("overrides", "differs"),
    [
        ((), ""),
        (("trainer.max_steps=300",), "published: 20,000 iterations; this run: 300"),
        (("optimizer.lr=1e-3",), "published: learning rate 0.0002; this run: 0.001"),
        (
            ("trainer.max_steps=300", "optimizer.lr=1e-3"),
            "published: 20,000 iterations, learning rate 0.0002; this run: 300, 0.001",
        ),
    ],
)
def test_a_published_number_says_where_it_was_trained_otherwise(overrides, differs):
    config = flatten(OmegaConf.to_container(configure("run_dir=.", *FREY, *overrides), resolve=True))
    assert {number.differs for number in find_published(config).values()} == {differs}


@pytest.mark.parametrize(
    "overrides",
    [
        ("method=dsm", "data=frey_face"),
        *[("method=bidvl", f"data={data}") for data in ("cifar10", "celeba32", "celeba64")],
        *[("method=vae", f"data={data}") for data in ("cifar10", "celeba32", "celeba64")],
        ("method=sngan", "data=cifar10"),
        (*RESIDUAL, "model.network.rectified_shortcut=true"),
        ("experiment=bidvl_table1", "model=joint_conv", "loss=symmetric_joint"),
    ],
)
def test_the_published_runs_are_as_long_and_as_fast_as_published(overrides):
    config = flatten(OmegaConf.to_container(configure("run_dir=.", *overrides), resolve=True))
    assert {number.differs for number in find_published(config).values()} == {""}


def test_runs_of_another_length_are_beside_the_published_number_and_not_compared_with_it(tmp_path):
    for steps in (20000, 300):
        metrics = {"test/log_likelihood": 1.0}
        run_folder(tmp_path / str(steps), *FREY, f"trainer.max_steps={steps}", metrics=metrics)
    groups = groups_of(tmp_path)
    summary = summarise(groups, ["test/log_likelihood"])
    (table,) = tables(groups, summary).values()
    assert [row[2:] for row in table[1:]] == [["1", "124.00 ‡"], ["1 †", "124.00"]]
    short = groups[0].label
    assert f"‡ Not comparable: published: 20,000 iterations; this run: 300 (frey_face, {short})." in footnotes(
        groups, summary
    )
    rows = list(csv.DictReader(to_csv(summary).splitlines()))
    assert [(row["worse"], row["differs"]) for row in rows] == [
        ("", "published: 20,000 iterations; this run: 300"),
        ("True", ""),
    ]


def test_without_a_direction_nothing_is_marked():
    assert [is_worse(name, 1.0, 2.0) for name in ("test/log_z", "test/auroc")] == [None, True]
    assert is_worse("test/auroc", math.nan, 2.0) is None


# ---------------------------------------------------------------------- folders


def test_multirun_folders_are_searched_and_each_run_counts_once(simple):
    for job in range(3):
        run = simple(f"multirun/2020-01-01/10-00-00/{job}", seed=job)
    (run.parent / "multirun.yaml").write_text("hydra: {}\n")
    (simple.root / "conf").mkdir()
    (simple.root / "conf" / "config.yaml").write_text("defaults:\n  - data: checkerboard\nseed: 0\n")
    for folders in ((simple.root,), (run.parent,), (simple.root, run, run.parent / ".." / run.parent.name)):
        runs, unfinished = read_runs(folders)
        assert sorted(run.config["seed"] for run in runs) == [0, 1, 2]
        assert not unfinished


def test_unfinished_runs_are_named_and_left_out(simple, tmp_path, capsys):
    simple("done", metrics={"test/log_likelihood": 1.0})
    (simple("broken", seed=1) / "metrics.json").unlink()
    report([str(simple.root)], str(tmp_path / "out"))
    markdown = (tmp_path / "out" / "table.md").read_text()
    assert "| dsm | 1 | 1 |" in markdown
    for text in (capsys.readouterr().out, markdown):
        count = text.index(f"1 run without results in {simple.root.resolve()}: 1 unfinished.")
        assert text.index("dsm") < count < text.index("broken: unfinished.")
    assert "<details><summary>1 run without results" in markdown


def test_a_report_of_many_runs_is_short(simple, tmp_path, capsys, monkeypatch):
    """Rows, and a few lines more; failed runs have one line each, whatever their reason, and ten of them at most."""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "80")
    for i, data in enumerate(("Checkerboard", "Digits", "FreyFace")):
        for lr in range(6):
            metrics = {f"test/{name}_{i}": 1.5 for name in ("fid", "rmse", "fisher", "log_z", "auroc")}
            simple(f"{data}{lr}", data=data, optimizer__lr=lr, metrics=metrics, curves={"val/loss": {1: 1.0, 2: 2.0}})
    for i in range(15):
        folder = simple(f"failed{i}", seed=i)
        (folder / "metrics.json").unlink()
        (folder / "status.json").write_text(json.dumps({"state": "failed", "reason": "It cannot work. " * 20}))
    main([str(simple.root), "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) <= 18 + 3 * 7 + 11 + 8
    assert sum(": failed. It cannot" in line for line in printed) == 10
    assert any(line.startswith("... and 5 more") for line in printed)
    assert "table.md, table.csv and 3 figures as PNG and PDF" in printed[-1]


def test_repeated_seeds_are_pointed_out(simple, tmp_path):
    simple("a"), simple("b")
    report([str(simple.root)], str(tmp_path / "out"))
    note = "Some runs have the same seed, so that their spread is too small: checkerboard, dsm."
    assert note in (tmp_path / "out" / "table.md").read_text()


def overwritten(name, text):
    def damage(simple):
        (simple("run") / name).write_text(text)
        return simple.root

    return damage


def missing(simple):
    return simple.root / "nowhere"


def empty(simple):
    (simple.root / "child").mkdir(parents=True)
    return simple.root


def a_file(simple):
    return simple("run") / "metrics.json"


def none_finished(simple):
    (simple("run") / "metrics.json").unlink()
    return simple.root


@pytest.mark.parametrize(
    ("make", "kind", "sentence"),
    [
        (missing, ConfigError, "nowhere does not exist"),
        (a_file, ConfigError, "metrics.json is not a folder"),
        (empty, DataError, "holds no run"),
        (none_finished, DataError, "has finished: there is no metrics.json"),
        (overwritten("metrics.json", '{"test/fisher": 1'), DataError, r"metrics.json is damaged.*delimiter"),
        (overwritten("metrics.json", ""), DataError, r"metrics.json is damaged"),
        (overwritten("metrics.json", "[1]"), DataError, "not a mapping"),
        (overwritten("metrics.json", '{"test/fisher": "low"}'), DataError, "test/fisher is 'low', not a finite number"),
        (overwritten("metrics.json", '{"test/fisher": NaN}'), DataError, "test/fisher is nan, not a finite number"),
        (overwritten("metrics.csv", "val/loss\n1\n"), DataError, "metrics.csv is damaged.*'iteration'"),
        (overwritten("metrics.csv", "iteration,val/loss\n1,low\n"), DataError, "metrics.csv is damaged.*'low'"),
        (overwritten("metrics.csv", "iteration,val/loss\n1,2,3\n"), DataError, "metrics.csv is damaged"),
        (overwritten("config.yaml", "a: [1\n"), DataError, "config.yaml is damaged"),
        (overwritten(".hydra/hydra.yaml", "[1]\n"), DataError, "hydra.yaml is damaged"),
    ],
)
def test_bad_input_gives_one_sentence(simple, tmp_path, capsys, make, kind, sentence):
    folder = make(simple)
    with pytest.raises(kind, match=sentence):
        report([str(folder)], str(tmp_path / "out"))
    with pytest.raises(SystemExit) as stopped:
        main([str(folder), "--out", str(tmp_path / "out")])
    assert stopped.value.code.startswith("ERROR: ")  # a text as the code is printed, and exits with 1
    assert "\n" not in stopped.value.code
    assert not (tmp_path / "out").exists()


def test_unknown_metrics_and_folders_that_cannot_be_written(simple, tmp_path):
    simple("run", metrics={"test/fisher": 1.0, "test/log_likelihood": 2.0})
    with pytest.raises(ConfigError, match="'test/fischer'; there are test/fisher, test/log_likelihood"):
        report([str(simple.root)], str(tmp_path / "out"), ["test/fischer"])
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        report([str(simple.root)], str(tmp_path / "file"))


# ---------------------------------------------------------------------- files


def test_a_narrow_terminal_gets_the_first_columns_whole_and_is_told_of_the_others(capsys, monkeypatch):
    names = [f"test/metric_{i}" for i in range(6)]
    table = [["method", "n", names[0], "published", *names[1:]], ["d" * 30, "1", *["1.0 ± 0.5"] * 7]]
    assert fitting(table, 200) == list(range(9))
    assert fitting(table, 80) == [0, 1, 2, 3, 4]
    assert fitting(table, 20) == [0, 1, 2, 3]  # one metric, and the published number beside it
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "80")
    show({"digits": table}, ["A note."])
    printed = capsys.readouterr().out
    assert printed.count("1.0 ± 0.5") == 3
    assert "table.md has all: test/metric_2, test/metric_3, test/metric_4, test/metric_5." in printed


def test_what_is_printed_to_a_file_is_not_cut(simple, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    simple("a", metrics={f"test/metric_{i}": 123.456 for i in range(9)})
    report([str(simple.root)], str(tmp_path))
    (row,) = (line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["dsm"])
    assert row.count("123.46") == 9


def test_csv_keeps_every_digit(tmp_path):
    values = {"test/log_likelihood": (107.1, 107.3000000000001), "test/fisher": (-5400.0, -5401.0)}
    for seed in range(2):
        metrics = {name: pair[seed] for name, pair in values.items()}
        run_folder(tmp_path / str(seed), *FREY, "method.n_unroll=0", f"seed={seed}", metrics=metrics)
    run_folder(tmp_path / "dsm", "data=frey_face", "method=dsm", metrics={"test/fisher": -5900.0})
    groups = groups_of(tmp_path)
    rows = list(csv.DictReader(to_csv(summarise(groups, choose_metrics(groups))).splitlines()))
    assert [(row["method"], row["settings"], row["metric"], row["n"]) for row in rows] == [
        ("bidsm", "n_unroll=0", "test/log_likelihood", "2"),
        ("bidsm", "n_unroll=0", "test/fisher", "2"),
        ("dsm", "", "test/log_likelihood", "0"),
        ("dsm", "", "test/fisher", "1"),
    ]
    for row in rows[:2]:
        assert float(row["mean"]) == statistics.fmean(values[row["metric"]])
        assert float(row["std"]) == statistics.stdev(values[row["metric"]])
    assert [row["published"] for row in rows] == ["107.59", "-5474.52", "129.23", "-5885.09"]
    assert [row["worse"] for row in rows] == ["True", "True", "", "False"]
    assert (rows[2]["mean"], rows[3]["mean"], rows[3]["std"]) == ("", "-5900.0", "")


def test_curves_are_means_over_seeds_at_common_iterations(simple):
    name = "val/log_likelihood"
    simple("0", seed=0, curves={name: {10: 1.0, 20: 2.0, 25: 9.0, 30: 4.0}})
    simple("1", seed=1, curves={name: {10: 3.0, 20: 2.0, 30: 8.0, 35: 9.0}})
    simple("other", "ssm", curves={name: {15: 0.5, 30: 0.75}, "val/fisher": {15: 1.0, 30: 2.0}})
    simple("without", "sm", curves={name: {10: 1.0}})
    groups = groups_of(simple.root)
    bands = [band(group, name) for group in groups]
    assert [curve and curve.label for curve in bands] == ["dsm", None, "ssm"]
    axes = draw_bands(bands, "checkerboard", name).axes[0]
    dsm, ssm = (line.get_xydata().tolist() for line in axes.lines)
    assert dsm == [[10, 2], [20, 2], [30, 6]]
    assert ssm == [[15, 0.5], [30, 0.75]]
    (area,) = axes.collections  # a single run has no band
    corners = {(x, round(y, 6)) for x, y in area.get_paths()[0].vertices.tolist()}
    spread = 2**0.5  # of 1 and 3; of 4 and 8 twice as much
    expected = [(10, 2 - spread), (10, 2 + spread), (20, 2), (30, 6 - 2 * spread), (30, 6 + 2 * spread)]
    assert corners == {(x, round(y, 6)) for x, y in expected}
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["dsm (n = 2)", "ssm (n = 1)"]


def test_a_group_has_one_look_in_all_figures_and_no_two_share_it(simple):
    for i in range(15):
        curves = {"val/fisher": {1: i, 2: i}} | ({"val/log_likelihood": {1: i, 2: i}} if i % 2 else {})
        simple(str(i), optimizer__lr=i, curves=curves)
    groups = groups_of(simple.root)

    def looks(metric):
        axes = draw_bands([band(group, metric) for group in groups], "x", metric).axes[0]
        return {line.get_ydata()[0]: (line.get_color(), str(line._unscaled_dash_pattern)) for line in axes.lines}

    everything, some = looks("val/fisher"), looks("val/log_likelihood")
    assert len(set(everything.values())) == 15
    assert len(some) == 7
    assert all(everything[i] == look for i, look in some.items())


def test_the_legend_lies_beside_the_curves_and_leaves_the_axes_their_size(simple):
    for i in range(15):
        simple(str(i), optimizer__lr=i, method__a_setting_of_a_long_name=i, curves={"val/loss": {1: i, 2: i}})
    groups = groups_of(simple.root)
    figure = draw_bands([band(group, "val/loss") for group in groups], "x", "val/loss")
    figure.draw_without_rendering()
    axes, legend = figure.axes[0].get_window_extent(), figure.axes[0].get_legend().get_window_extent()
    assert legend.x0 >= axes.x1
    assert axes.width > 0.75 * figure.bbox.width


def test_a_report_leaves_tables_and_figures(simple, tmp_path, capsys):
    curves = {"val/log_likelihood": {10: 1.0, 20: 2.0, 30: 4.0}, "train/upper_loss": {10: 1.0, 20: 2.0}}
    simple("a", curves=curves), simple("b", data="Digits", curves=curves)
    out = tmp_path / "deep" / "out"
    main([str(simple.root), "--out", str(out), "--metric", "test/log_likelihood"])
    stems = [f"{data}_val_log_likelihood.{kind}" for data in ("checkerboard", "digits") for kind in ("png", "pdf")]
    assert sorted(path.name for path in out.iterdir()) == sorted([*stems, "table.csv", "table.md"])
    assert (out / stems[0]).read_bytes().startswith(b"\x89PNG")
    assert (out / stems[1]).read_bytes().startswith(b"%PDF")
    printed = capsys.readouterr().out
    assert f"Written to {out}: table.md, table.csv and 2 figures as PNG and PDF." in printed
    assert (out / "table.md").read_text().splitlines()[:5] == [
        "## checkerboard",
        "",
        "| method | n | test/log_likelihood ↑ |",
        "| --- | ---: | ---: |",
        "| dsm | 1 | 0 |",
    ]


def test_drawing_touches_nothing_global(simple, tmp_path):
    import matplotlib
    from matplotlib import pyplot

    simple("a", curves={"val/loss": {10: 1.0, 20: 2.0}})
    before = dict(matplotlib.rcParams), pyplot.get_fignums()
    draw_reports(groups_of(simple.root), tmp_path)
    assert (dict(matplotlib.rcParams), pyplot.get_fignums()) == before
    assert np.all([path.stat().st_size for path in Path(tmp_path).glob("checkerboard_val_loss.*")])


# --- cost -------------------------------------------------------------------------------------------------


def test_the_cost_of_a_group_is_the_mean_over_its_seeds(simple):
    final = {"test/log_likelihood": 1.0, SPEED: 50.0, "train/peak_memory_mib": 10.0}
    simple("a", seed=0, metrics=final)
    simple("b", seed=1, metrics={"test/log_likelihood": 3.0, SPEED: 100.0, "train/peak_memory_mib": 30.0})
    simple("c", method="cd", metrics={"test/log_likelihood": 5.0, SPEED: 200.0})
    simple("d", method="ksd", metrics={"test/log_likelihood": 5.0})
    costs = {group.method: cost(group, "test/log_likelihood") for group in groups_of(simple.root)}
    assert costs == {
        "dsm": Cost("dsm", "dsm", quality=2.0, seconds=1.5, memory=20.0),
        "cd": Cost("cd", "cd", quality=5.0, seconds=0.5, memory=None),
        "ksd": None,
    }


def test_quality_is_drawn_against_time_and_memory_where_there_is_something_to_compare(simple, tmp_path):
    final = {"test/log_likelihood": 1.0, SPEED: 50.0}
    simple("a", metrics=final)
    assert draw_costs(groups_of(simple.root), tmp_path) == []
    simple("b", method="cd", metrics={**final, "train/peak_memory_mib": 5.0})
    paths = draw_costs(groups_of(simple.root), tmp_path)
    assert [path.name for path in paths] == [f"checkerboard_test_log_likelihood_cost.{kind}" for kind in ("png", "pdf")]
    points = [Cost("dsm", "dsm", 1.0, 2.0, None), Cost("cd", "cd", 3.0, 4.0, 5.0)]
    time, memory = draw_costs_of_data(points, "checkerboard", "test/log_likelihood").axes
    assert [tuple(dots.get_offsets()[0]) for dots in time.collections] == [(2.0, 1.0), (4.0, 3.0)]
    assert [tuple(dots.get_offsets()[0]) for dots in memory.collections] == [(5.0, 3.0)]
    assert [text.get_text() for text in time.texts] == ["DSM", "CD"]  # words beside the points
    assert [text.get_text() for text in memory.texts] == ["CD"]
    assert len(draw_costs_of_data(points[:1] * 2, "checkerboard", "test/log_likelihood").axes) == 1


def test_labels_cover_neither_points_nor_each_other():
    points = [Cost("bidsm", f"bidsm, n_unroll={i}", 1.0 + 0.01 * (i % 3), 1.0 + 0.02 * i, None) for i in range(9)]
    points.append(Cost("dsm", "dsm", 3.0, 5.0, None))
    figure = draw_costs_of_data(points, "checkerboard", "test/log_likelihood")
    figure.draw_without_rendering()
    (axes,) = figure.axes
    boxes = [Text.get_window_extent(label) for label in axes.texts]  # without the line to the point
    dots = axes.transData.transform([dots.get_offsets()[0] for dots in axes.collections])
    assert len(boxes) == 10
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    assert not any(box.contains(*dot) for box in boxes for dot in dots)
    inside = axes.get_window_extent().padded(1)
    assert all(inside.containsx(x) and inside.containsy(y) for box in boxes for x, y in box.get_points())


def test_of_many_points_those_are_named_that_none_beats():
    points = [Cost("bidsm", f"bidsm, n_unroll={i}", float(i % 5), 1.0 + i, None) for i in range(20)]
    (axes,) = draw_costs_of_data(points, "checkerboard", "test/log_likelihood").axes
    assert [label.get_text() for label in axes.texts] == [f"BiDSM N = {i}" for i in range(5)]
    assert axes.get_xscale() == "log"  # costs from 1 to 20


def test_iterations_per_batch_and_threads_do_not_part_runs(simple):
    simple("a", seed=0, iterations_per_batch=1)
    simple("b", seed=1, iterations_per_batch=10, threads=2)
    assert len(groups_of(simple.root)) == 1


def test_without_folders_the_report_is_of_those_that_runs_are_written_to(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no folder outputs or multirun here"):
        report([], str(tmp_path / "report"))
    (tmp_path / "multirun").mkdir()
    with pytest.raises(DataError, match="multirun"):  # nothing is in it
        report([], str(tmp_path / "report"))


# ---------------------------------------------------------------------- outlier sets, and estimators


def outliers_of(simple):
    for seed, noise in ((0, 0.9), (1, 0.7)):
        metrics = {"test/auroc_noise": noise, "test/auroc_svhn": 0.6, "test/aupr_svhn": 0.1, "test/log_likelihood": 0.0}
        simple(f"a{seed}", seed=seed, metrics=metrics)
    simple("b", method="pcd", metrics={"test/auroc_noise": 0.5, "test/log_likelihood": 0.0})
    simple("c", method="cd", data="Digits", metrics={"test/auroc_noise": 0.5})
    return groups_of(simple.root)


def test_one_table_has_all_outlier_sets(simple, tmp_path):
    groups = outliers_of(simple)
    found = outlier_tables(groups, summarise(groups, choose_metrics(groups)))
    assert list(found) == ["checkerboard: AUROC of outlier sets"]  # one set alone is in the other table
    header, *rows = found["checkerboard: AUROC of outlier sets"]
    assert header == ["method", "n", "noise ↑", "svhn ↑", "mean ↑"]
    assert rows == [["dsm", "2", "0.80 ± 0.14", "0.6 ± 0", "0.7"], ["pcd", "1", "0.5", "", ""]]
    paths = report([str(simple.root)], str(tmp_path / "out"), html=str(tmp_path / "out" / "page.html"))
    assert "| dsm | 2 | 0.80 ± 0.14 | 0.6 ± 0 | 0.7 |" in paths[0].read_text()
    assert "AUROC of outlier sets" in paths[-1].read_text()


def test_a_note_says_how_metrics_were_computed(simple):
    for name, method, how in (("a", "dsm", "enumeration"), ("b", "pcd", "AIS"), ("c", "cd", "AIS")):
        folder = simple(name, method=method)
        status = {"state": "finished", "estimators": {"log_likelihood": f"log Z by {how}", "log_z": "AIS"}}
        (folder / "status.json").write_text(json.dumps(status))
    groups = groups_of(simple.root)
    notes = footnotes(groups, summarise(groups, ["test/log_likelihood"]))
    note = (
        "log_likelihood: log Z by AIS (checkerboard, cd; checkerboard, pcd); log Z by enumeration (checkerboard, dsm)."
    )
    assert note in notes
    assert not any("log_z:" in note for note in notes)  # no such metric is shown
    alone = [group for group in groups if group.method == "dsm"]
    assert "log_likelihood: log Z by enumeration." in footnotes(alone, summarise(alone, ["test/log_likelihood"]))
