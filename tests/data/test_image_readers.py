"""Tests of images that any program has made: their number formats, channels and sizes, and those that do not fit."""

import numpy as np
import pytest
import torch
from PIL import Image

import eblvm_lit as eb
from eblvm_lit.data.image_readers import given_images

GREY = eb.MNIST(root="nowhere")
COLOUR = eb.CIFAR10(root="nowhere")


def test_images_of_mnist_s_own_size_are_padded_and_reduced_as_mnist_itself():
    images = np.random.default_rng(0).integers(256, size=(3, 28, 28), dtype=np.uint8)
    found = given_images(images, GREY)
    assert found.shape == (3, 1, 32, 32)
    assert np.array_equal(found[:, 0, 2:-2, 2:-2], images)
    assert int(found.sum()) == int(images.sum())
    smaller = given_images(images, eb.MNIST(root="nowhere", size=16))
    means = found.float().view(3, 16, 2, 16, 2).mean((2, 4))
    assert torch.equal(smaller[:, 0], means.round().byte())


def test_floats_are_in_the_range_that_is_named_and_clamped_to_it():
    values = np.full((2, 32, 32), 0.2)
    values[0, 0, :3] = -0.1, 1.2, 1.0
    assert given_images(values, GREY, value_range="unit")[0, 0, 0, :4].tolist() == [0, 255, 255, 51]
    assert given_images(values, GREY, value_range="symmetric")[0, 0, 0, :4].tolist() == [115, 255, 255, 153]
    with pytest.raises(eb.DataError, match=r"images has pixels from -0.1 to 1.2: scale them .* images.range=unit"):
        given_images(values, GREY)


@pytest.mark.parametrize(
    ("values", "data", "message"),
    [
        (np.zeros((2, 30, 30)), GREY, "images: grey images of 30 x 30 pixels, and MNIST has grey images of 32 x 32"),
        (
            np.eye(32) * np.ones((2, 3, 1, 1)) * [[[0]], [[1]], [[0.5]]],
            GREY,
            "colour images of 32 x 32 pixels, and MNIST has",
        ),
        (np.zeros((2, 32, 32)), COLOUR, "grey images of 32 x 32 pixels, and CIFAR10 has colour images"),
        ("/nowhere", GREY, "There is no file or folder /nowhere"),
        (np.zeros((2, 5)), GREY, "images holds vectors of 5 values, which are not grey images of 32 x 32 pixels"),
    ],
)
def test_images_that_do_not_fit_the_data_are_refused_in_a_sentence(values, data, message):
    with pytest.raises(eb.DataError, match=message):
        given_images(values, data)


def test_a_file_with_an_array_for_each_split_needs_the_name_of_one(tmp_path):
    path = tmp_path / "digits.npz"
    np.savez(path, x_train=np.zeros((3, 8, 8)), x_test=np.ones((2, 8, 8)))
    with pytest.raises(eb.DataError, match=r"digits\.npz has an array for each split: set images\.key"):
        given_images(path, eb.Digits())
    assert given_images(path, eb.Digits(), key="x_test").float().mean() == 255


def test_files_of_different_sizes_are_refused(tmp_path):
    for i, size in enumerate([(8, 8), (8, 9)]):
        Image.new("L", size).save(tmp_path / f"{i}.png")
    with pytest.raises(eb.DataError, match=r"1\.png and .*0\.png differ in their size"):
        given_images(tmp_path, eb.Digits())
