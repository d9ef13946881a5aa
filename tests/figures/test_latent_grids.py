"""Tests of the figures that show images given latents, interpolations between latents, and completed images."""

import numpy as np
import pytest
import torch

from eblvm_lit.core.noise_levels import NoiseRange
from eblvm_lit.core.seeding import derive_seed
from eblvm_lit.data.digits import Digits
from eblvm_lit.data.toy import Checkerboard
from eblvm_lit.draws.choice import FittingSampler, as_sampler
from eblvm_lit.draws.masks import LeftHalf
from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
from eblvm_lit.energies.grbm import GRBM
from eblvm_lit.energies.noise_conditional import NoiseConditionalFreeEnergy
from eblvm_lit.figures.conditional_grid import Conditional
from eblvm_lit.figures.examples import labelled_examples
from eblvm_lit.figures.image_grid import tile
from eblvm_lit.figures.inpainting_grid import GREY, Inpainting
from eblvm_lit.figures.interpolation_grid import Interpolation
from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
from eblvm_lit.samplers.annealed_langevin import AnnealedLangevin
from eblvm_lit.samplers.conditional import draw_between, draw_visible
from eblvm_lit.samplers.probability_flow import ProbabilityFlow
from eblvm_lit.samplers.sample_noise import SampleNoise
from helpers.annealing import few
from helpers.known_mixture import Zero
from helpers.models import generator
from helpers.stand_in import StandIn, loaded


def digits(posterior=True):
    torch.manual_seed(0)
    data = Digits()
    q = LinearGaussianPosterior(v_dim=64, h_dim=3) if posterior else None
    data.setup()
    return StandIn(energy=GaussianLatentModel(v_dim=64, h_dim=3), posterior=q, seed=5), data, generator()


def image_of(panel):
    return np.asarray(panel.images[0].get_array()).squeeze()


def board(v, columns=None):
    return tile(Digits().as_bytes(v).float() / 255, (1, 8, 8), columns=columns).squeeze(-1).numpy()


def test_examples_are_the_first_of_their_labels():
    _, data, _ = digits()
    v = labelled_examples(data, (1, 7), n=3)
    test = data.splits.test
    labels = data.labels.test
    assert torch.equal(v[:, 0], test[labels == 1][:3])
    assert torch.equal(v[:, 1], test[labels == 7][:3])
    data.labels = None
    assert torch.equal(labelled_examples(data, (1, 7), n=3).flatten(0, 1), test[:6])


def test_conditional_samples_are_drawn_below_their_images():
    method, data, g = digits()
    panels = Conditional(sampler=few(7), n=9).draw(method, data, g).axes
    given = labelled_examples(data, (0, 1, 4, 9))[0]
    h = method.posterior.mean(given).repeat_interleave(9, dim=0)
    v = draw_visible(few(), method.energy, h, seed=derive_seed(5, "conditional"))
    for i in range(4):
        np.testing.assert_allclose(image_of(panels[i]), board(given[i : i + 1]), atol=1e-6)
        np.testing.assert_allclose(image_of(panels[4 + i]), board(v[9 * i : 9 * i + 9]), atol=1.01 / 255)
    assert image_of(panels[4]).shape == (3 * 9 - 1, 3 * 9 - 1)


def test_interpolations_are_squares_and_lines_between_images():
    method, data, g = digits()
    square, lines = Interpolation(sampler=few(), n=4, n_lines=3).draw(method, data, g).axes
    images = [labelled_examples(data, (0, 1, 4))[0], *labelled_examples(data, (1, 7), 3)]
    latents = [method.posterior.mean(v).detach() for v in images]
    options = {"seed": derive_seed(5, "interpolation"), "images": images}
    first, *rest = draw_between(few(64), method.energy, latents, 4, **options)
    np.testing.assert_allclose(image_of(square), board(first, 4), atol=1.01 / 255)
    np.testing.assert_allclose(image_of(lines), board(torch.cat(rest), 4), atol=1.01 / 255)


def test_inpainting_shows_images_what_is_kept_and_completions():
    method, data, g = digits(posterior=False)
    mask = LeftHalf(inverted=0.5)
    figure = Inpainting(sampler=few(), mask=mask, n=6, n_completions=3).draw(method, data, g)
    shown = np.pad(image_of(figure.axes[0]), ((0, 1), (0, 1))).reshape(5, 9, 6, 9)[:, :8, :, :8].transpose(0, 2, 1, 3)
    pixels = Digits().as_bytes(data.splits.test[:6]).view(6, 8, 8).numpy() / 255
    seed = derive_seed(derive_seed(5, "inpainting"), "mask")
    keep = mask.keep((1, 8, 8), SampleNoise(seed, range(6)))[:, 0].bool().numpy()
    np.testing.assert_allclose(shown[0], pixels, atol=1e-6)
    np.testing.assert_allclose(shown[1], np.where(keep, pixels, GREY / 255), atol=1e-6)
    for row in shown[2:]:
        np.testing.assert_allclose(row[keep], pixels[keep], atol=1e-6)
    assert np.abs(shown[2] - shown[3])[~keep].mean() > 0.1  # each completion is drawn with its own noise
    labels = [text.get_text() for text in figure.axes[0].texts]
    assert labels == ["image", "known pixels", "completion 1", "completion 2", "completion 3"]
    assert [text.get_position()[1] for text in figure.axes[0].texts] == [3.5, 12.5, 21.5, 30.5, 39.5]


def test_a_model_of_every_noise_level_completes_images_by_the_flow_and_has_no_samples_of_given_latents():
    method, data, g = digits()
    levels = NoiseRange(mean=0.3, std=0.4)
    method.energy = NoiseConditionalFreeEnergy(energy=Zero(65), v_shape=[64], noise_range=levels).of_data()
    chosen = FittingSampler(dynamics=AnnealedLangevin())
    flow = as_sampler(ProbabilityFlow(), method.energy)
    boards = []
    for sampler in (chosen, flow):
        figure = Inpainting(sampler=sampler, mask=LeftHalf(), n=2, n_completions=2).draw(method, data, g)
        boards.append(image_of(figure.axes[0]))
    np.testing.assert_array_equal(*boards)
    fixed = Inpainting(sampler=chosen, mask=LeftHalf(), latents="posterior")
    pictures = (Conditional(sampler=chosen), Interpolation(sampler=chosen), fixed)
    assert not any(picture.applies(method, data) for picture in pictures)


PICTURES = [Conditional(sampler=few()), Interpolation(sampler=few(), n=2), Inpainting(sampler=few(), mask=LeftHalf())]


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_pictures_draw_nothing_where_they_do_not_apply(picture):
    points = loaded(Checkerboard())
    method, data, _ = digits()
    assert not picture.applies(method, points)
    assert picture.applies(method, data)
    method.energy = GRBM(v_dim=64, h_dim=3)
    method.posterior = None
    assert picture.applies(method, data) == (picture.name == "inpainting")


@pytest.mark.parametrize("picture", PICTURES[:2], ids=lambda picture: picture.name)
def test_pictures_of_given_latents_use_those_of_an_encoder(picture):
    method, data, g = digits()
    by_posterior = image_of(picture.draw(method, data, g).axes[-1])
    method.encoder = method.posterior
    method.posterior = None
    assert np.array_equal(image_of(picture.draw(method, data, g).axes[-1]), by_posterior)
