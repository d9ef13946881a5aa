"""Tests of benchmarks.growth: fits of exact power laws and straight lines, and the command on one axis."""

import json

import pytest
from benchmarks.growth import Axis
from benchmarks.growth_fits import fit_line, fit_power_law

from benchmarks import growth

SIZES = [1, 2, 4, 8, 16, 32, 64]


@pytest.mark.parametrize("exponent", [-1.0, 2.5])
def test_a_power_law_has_its_exponent_and_no_error(exponent):
    fit = fit_power_law(SIZES, [3 * x**exponent for x in SIZES])
    assert fit.exponent == pytest.approx(exponent)
    assert fit.error == pytest.approx(0, abs=1e-12)
    assert list(fit([2, 5])) == pytest.approx([3 * 2**exponent, 3 * 5**exponent])
    # a constant cost at small sizes does not change the fit, which uses only the larger sizes
    fit = fit_power_law(SIZES, [100 if x < 8 else x**2 for x in SIZES])
    assert fit.exponent == pytest.approx(2)
    assert fit.first == 8


def test_a_line_has_its_ratio_and_the_share_of_the_variance_that_it_explains():
    line = fit_line([0, 1, 2, 5], [10.0, 12.0, 14.0, 20.0])
    assert (line.intercept, line.slope, line.ratio, line.r2) == pytest.approx((10, 2, 0.2, 1))
    # The residuals around the line 2 x are +-1, so that their squares sum to 4. The squares of the deviations from the
    # mean sum to 24. So r2 is 1 - 4 / 24.
    line = fit_line([0, 1, 2, 3], [1.0, 1.0, 3.0, 7.0])
    assert (line.slope, line.r2) == pytest.approx((2.0, 20 / 24))


@pytest.mark.slow
def test_a_quick_run_leaves_numbers_a_table_and_a_figure(tmp_path, monkeypatch):
    monkeypatch.setattr(growth, "BLOCK_SECONDS", 0.0)
    narrow = Axis("v_dim", "d", (8, 16, 32), "data.v_dim", growth.BIDSM, 10, 1)
    monkeypatch.setattr(growth, "AXES", (narrow,))
    assert growth.main("--only", "^v_dim$", "--quick", "--out", str(tmp_path)) == 0
    own = json.loads((tmp_path / "growth.json").read_text())["axes"]["v_dim"]
    small, large = own["rows"]
    assert large["products"] == 2 * small["products"]
    assert own["fits"]["products"]["exponent"] == pytest.approx(1)
    assert 0 < small["fastest"] <= small["seconds"] <= small["slowest"]
    assert "| d " in (tmp_path / "growth.md").read_text()
    assert (tmp_path / "speed_v_dim.png").stat().st_size < 60_000


@pytest.mark.parametrize(
    ("overrides", "count"),
    [
        (("method=bidsm", "method.n_lower_steps=2", "method.n_unroll=0"), 6 + 3 * 2),
        (("method=bidsm", "method.n_lower_steps=1", "method.n_unroll=3"), 10 + 6 * 3 + 3 * 1),
        (("method=bidsm", "method.n_lower_steps=0", "hypergradient=fixed_point"), 13),
        (("method=vages_dsm", "method.n_lower_steps=1", "score.n_particles=5"), 8 + 3 * 1),
    ],
)
def test_a_grbm_has_the_products_that_the_formula_says(overrides, count):
    d = 12
    m = 7
    rows = 10
    point = growth.Point(("data=standard_normal", f"data.v_dim={d}", f"sizes.h_dim={m}", *overrides), rows)
    assert point.products() == count * 2 * rows * d * m


def test_a_deep_model_has_the_passes_that_the_formula_says():
    """Count the products of a deep model with one and with two blocks in each stage.

    One more block adds 57 C^2 s^2 products to a pass, and an iteration has 6 + K passes.
    """
    c = 2
    s = 8
    rows = 3
    k = 1
    small = ("data.size=8", f"model.network.channels={c}", "posterior.network.widths=[2,2,2]", "model.head_dim=4")
    base = (*growth.DEEP, *small, f"method.n_lower_steps={k}")
    one, two = (growth.Point((*base, f"model.network.n_blocks={n}"), rows).products() for n in (1, 2))
    assert two - one == (6 + k) * 2 * rows * s**2 * 57 * c**2
