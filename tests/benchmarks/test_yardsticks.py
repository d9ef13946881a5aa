"""Tests of benchmarks.yardsticks: flow matching of a Gaussian, the sizes of models, and rows of its tables."""

import json
from functools import partial
from importlib.resources import files

import pytest
import torch
from benchmarks.flow_matching import FlowUNet, heun, matching_loss
from torchvision.io import read_image

from benchmarks import yardstick_samplers, yardstick_training, yardsticks
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.runs.instantiate import instantiate
from eblvm_lit.runs.load import load
from helpers.image_files import write_mnist
from helpers.shell import configured
from helpers.short_runs import CLASSIFIER


def test_flow_matching_of_a_gaussian(float64):
    def field(v, t, error=0.0):  # the exact field E[v1 - v0 | v_t = v] plus an error
        t = t.unsqueeze(1)
        return mean + (t * s**2 - (1 - t)) / ((1 - t) ** 2 + t**2 * s**2) * (v - t * mean) + error

    mean = 0.7
    s = 0.5
    n = 100_000
    noise = torch.linspace(-3, 3, 7).unsqueeze(1)
    one, half = ((heun(field, noise, steps) - (mean + s * noise)).abs().max() for steps in (25, 50))
    # Heun's method has order two: half the step size gives a quarter of the error
    assert one / half == pytest.approx(4, rel=0.1)
    v1 = mean + s * torch.randn(n, 1, generator=keyed_generator(0))
    least, other = (matching_loss(partial(field, error=x), v1, keyed_generator(1)).item() for x in (0.0, 0.5))
    # Given v_t, the difference v1 - v0 has the variance s^2 / ((1 - t)^2 + s^2 t^2) <= 1 + s^2. Its mean over t is pi s
    # / 2, the loss of the exact field. The bound is 5 standard errors of the mean of the squares.
    assert least == pytest.approx(torch.pi * s / 2, abs=5 * 3**0.5 * (1 + s**2) / n**0.5)
    assert other - least == pytest.approx(0.25, abs=5 * (1 + s**2) ** 0.5 / n**0.5)


def test_no_model_is_larger_than_the_flagship_by_more_than_a_tenth():
    trained = [instantiate(configured(*overrides).method, "method") for overrides in yardsticks.TRAINED.values()]
    models = (load("bimdsm_mnist").method, *trained, FlowUNet((1, 32, 32)))
    flagship, *others = (sum(map(torch.Tensor.numel, model.parameters())) for model in models)
    assert max(others) <= 1.1 * flagship


@pytest.mark.slow
def test_rows_of_images(tmp_path, monkeypatch, unrendered):
    write_mnist(tmp_path, n_train=40)
    monkeypatch.setenv("EBLVM_DATA", str(tmp_path))
    data = ("data.size=8", "data.val_size=10")
    small = (*data, "data.batch_size=8", "posterior.h_dim=3", "posterior.network.width=2", "generator.width=2")
    monkeypatch.setitem(yardsticks.TRAINED, "vae", (*yardsticks.TRAINED["vae"], *small))
    bench = yardsticks.Images(tmp_path, 1e-6, (*data, *CLASSIFIER, f"{yardsticks.METRIC}.reference.n_max=30"))
    assert bench.row("vae").keys() == {*bench.columns, "seed"}
    assert len(bench.made("real")[0]) == 40 - 30


@pytest.mark.slow
def test_rows_of_samplers(tmp_path, monkeypatch):
    write_mnist(tmp_path, n_train=1010)
    monkeypatch.setenv("EBLVM_DATA", str(tmp_path))
    for of_images, of_points in yardstick_samplers.SAMPLERS.values():
        for overrides in filter(None, (of_images, of_points)):
            assert yardstick_samplers.sampler_of(overrides).dynamics.n_steps > 0
    quick = "sampler.dynamics.n_sweeps=1"
    of_images, of_points = yardstick_samplers.SAMPLERS["diffusive_gibbs"]
    drawn = read_image(str(files("eblvm_lit.pretrained") / "vages_mnist" / "samples.png"))[:1, 1:34, 1:]
    digits = drawn.unfold(2, 32, 33).permute(2, 0, 1, 3)[:, :, :32]
    clean = yardstick_samplers.denoised("vages_mnist", digits)[0] / 255
    # After denoising, less than a quarter of the noise's variance may be left. A step with the wrong sign would
    # increase it.
    assert (clean - digits / 255).square().mean() < 0.2**2 / 4
    images, _, cost = yardstick_samplers.draw_images("vages_mnist", (*of_images, quick), 2)
    assert images.dtype == torch.uint8
    assert len(images) == 2
    # At each of ten levels, the sampler evaluates two energies, the first gradient and four moves. The final jump
    # evaluates once.
    assert cost["evaluations"] == 10 * (2 + 1 + 4) + 1
    energy = yardstick_samplers.UnequalModes()
    n = torch.arange(1, 26)
    assert energy.error(energy.centres.repeat_interleave(n, 0)) < 1e-6
    assert energy.error(energy.centres[:1]) == pytest.approx(324 / 325)
    assert yardstick_samplers.weights_error((*of_points, quick), 10)["weights_evaluations"] == 5 * (2 + 1 + 2)


@pytest.mark.slow
def test_a_row_of_points(tmp_path, monkeypatch):
    monkeypatch.setattr(yardstick_training, "FIRST", 2)
    small = ("marginal_model.base_std=1.0", "marginal_model.widths=[8]")
    monkeypatch.setattr(yardsticks, "DEEP", (*yardsticks.DEEP, *small))
    assert yardsticks.main("points", "--only", "^rings$", "--quick", "--minutes", "1e-6", "--out", str(tmp_path)) == 0
    row = json.loads((tmp_path / "points" / "rings.json").read_text())
    assert row.keys() == {*yardsticks.Points.columns, "name", "seed", "machine"}
    assert row["spline_flow"] < row["exact"]
    assert {"checkerboard", "two_spirals"} < {*yardsticks.Points.names}
