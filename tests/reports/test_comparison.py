"""Tests of confidence intervals over seeds, of the comparison of the two best methods, and of the Pareto front."""

import itertools
import math

import pandas as pd
import pytest
from scipy import stats

from eblvm_lit.reports.charts import costs, draw_costs
from eblvm_lit.reports.comparison import compare, difference, interval
from eblvm_lit.reports.runs import SPEED
from eblvm_lit.reports.table import choose_metrics, summarise
from helpers.run_folders import groups_of

# The two-sided 95 % quantile of Student's t with two degrees of freedom, from P(|T| > t) = 1 - t / sqrt(2 + t^2).
QUANTILE = 0.95 * math.sqrt(2 / (1 - 0.95**2))


def test_the_interval_of_a_mean_is_of_all_seeds_that_have_the_metric(simple):
    for seed, value in enumerate((1.0, 2.0, 6.0)):
        simple(str(seed), seed=seed, metrics={"test/fisher": value})
    simple("failed", seed=3, metrics={"test/log_z": 0.0})
    (group,) = groups_of(simple.root)
    half = QUANTILE * math.sqrt(7 / 3)  # the values have the variance (4 + 1 + 9) / 2 = 7
    assert interval(group.pooled("test/fisher")) == pytest.approx((3 - half, 3 + half))


def test_two_settings_are_paired_by_seed_or_compared_by_welch():
    a = pd.Series([1.0, 20.0, 303.0])
    b = pd.Series([0.0, 18.0, 300.0])
    half = QUANTILE / math.sqrt(3)  # the differences 1, 2, 3 have the variance 1
    t = 2 * math.sqrt(3)
    assert difference(a, b)[:4] == pytest.approx((2, 2 - half, 2 + half, 1 - t / math.sqrt(2 + t**2)))
    # Only three of the four seeds of b have a partner in a.
    assert difference(a, pd.concat([b, pd.Series([7.0], [9])]))[-1] == "paired, n = 3"
    value, low, _, p, test = difference(a, b.set_axis([3, 4, 5]))
    of_means = a.var() / 3, b.var() / 3
    freedom = sum(of_means) ** 2 / sum(part**2 / 2 for part in of_means)
    assert (value, low) == pytest.approx((2, 2 - stats.t.ppf(0.975, freedom) * sum(of_means) ** 0.5))
    assert (p > 0.9, test) == (True, "Welch, n = 3, 3")
    assert math.isnan(difference(a[:1], b)[3])


def test_each_method_takes_part_with_its_best_setting(simple):
    settings = (("dsm", 0.1, 3.0), ("dsm", 0.2, 2.5), ("cd", 0.1, 1.0), ("cd", 0.2, 2.0), ("ssm", 0.1, 0.0))
    for (method, lr, value), seed in itertools.product(settings, range(3)):
        metrics = {"test/log_likelihood": value + 0.1 * seed**2, "test/fisher": value + lr * seed, "test/log_z": 0.0}
        simple(f"{method}{lr}{seed}", method, seed, optimizer__lr=lr, metrics=metrics)
    groups = groups_of(simple.root)
    summary = summarise(groups, choose_metrics(groups))
    likelihood, fisher = compare(groups, summary)["checkerboard: the two best"].to_numpy().tolist()
    assert likelihood[:3] == ["test/log_likelihood", "dsm, lr=0.1", "cd, lr=0.2"]
    assert fisher[:3] == ["test/fisher", "ssm", "cd, lr=0.1"]
    marks = summary.loc[summary["metric"] == "test/log_likelihood", ["method", "settings", "best"]].to_numpy().tolist()
    assert [mark for mark in marks if mark[2]] == [["cd", "lr=0.2", " ☆"], ["dsm", "lr=0.1", " ★"]]
    (row,) = compare(groups[2:4], summarise(groups[2:4], ["test/fisher"]))["checkerboard: the two best"].to_numpy()
    assert row[1:3].tolist() == ["dsm, lr=0.2", "dsm, lr=0.1"]


@pytest.mark.parametrize(("metric", "front"), [("test/log_likelihood", "acd"), ("test/fisher", "ab")])
def test_the_pareto_front_has_the_best_methods_for_their_time(simple, metric, front):
    for method, seconds, value in (("a", 1, 2.0), ("b", 2, 1.0), ("c", 3, 3.0), ("d", 9, 4.0), ("e", 10, 4.0)):
        simple(method, method, metrics={metric: value, SPEED: 1.0, "iteration": seconds})
    groups = groups_of(simple.root)
    points = costs(groups, metric)
    assert "".join(groups[i].method for i in points.index[points["front"]]) == front
    (line,) = draw_costs(groups, metric).axes[0].get_lines()[-1:]
    assert line.get_xdata().tolist() == points.loc[points["front"], "seconds"].tolist()
