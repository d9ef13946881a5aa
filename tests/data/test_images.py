"""Tests of images as bytes: their splits, value ranges and flips, and images as flat vectors."""

import itertools

import pytest
import torch

from eblvm_lit.core.shards import Shard
from eblvm_lit.data.images import ImageDataModule, Images
from eblvm_lit.errors import ConfigError
from eblvm_lit.runs.instantiate import instantiate
from helpers.image_files import pixels


class Given(ImageDataModule):
    """A data module of given images, for tests of the behaviour that all image sets share."""

    event_shape = image_shape = (3, 4, 4)

    def __init__(self, n=20, **options):
        super().__init__(root="nowhere", **{"val_size": 3, **options})
        images = torch.from_numpy(pixels(n + 5, 3, 4, 4))
        self.images = Images(images[:n], images[n:], torch.arange(n), torch.arange(n, n + 5))

    def read(self):
        return self.images


@pytest.mark.parametrize(("most", "sizes", "without_val"), [(2, (2, 2, 2), 2), (18, (18, 3, 5), 17)])
def test_max_examples_keeps_the_first_of_each_split_with_their_labels(most, sizes, without_val):
    whole = Given()
    few = Given()
    few.max_examples = most
    whole.setup()
    few.setup()
    for kept, every in zip((*few.splits, *few.labels), (*whole.splits, *whole.labels), strict=True):
        assert torch.equal(kept, every[:most])
    assert tuple(map(len, few.splits)) == sizes
    assert few.n_train_without("val") == without_val
    assert not set(few.labels.train[:without_val].tolist()) & set(few.labels.val.tolist())


def stream(**options):
    data = Given(flip=True, batch_size=6, **options)
    return data, data.train_dataloader()


@pytest.mark.parametrize("train_on_val", [True, False])
def test_validation_images_are_the_last_and_held_out_on_demand(train_on_val):
    data = Given(train_on_val=train_on_val, val_size=0.15)
    data.setup()
    train, test = data.images[:2]
    n = 20 if train_on_val else 17
    for split, expected in zip(data.splits, (train[:n], train[17:], test), strict=True):
        assert torch.equal(split, expected)
        assert split.dtype == torch.uint8
    for labels, expected in zip(data.labels, (range(n), range(17, 20), range(20, 25)), strict=True):
        assert labels.tolist() == list(expected)
    assert data.splits.train.data_ptr() == train.data_ptr()  # the split is a view of the images, not a copy


@pytest.mark.parametrize(("value_range", "low", "high"), [("unit", 0, 1), ("symmetric", -1, 1)])
def test_bytes_become_floats_of_the_range_and_bytes_again(value_range, low, high):
    data = Given(value_range=value_range)
    x = torch.arange(256, dtype=torch.uint8)
    torch.testing.assert_close(data.as_float(x), torch.linspace(low, high, 256))
    assert x.dtype == torch.uint8
    block = data.on_after_batch_transfer([x, x], 0)
    assert all(torch.equal(part, data.as_float(x)) for part in block)
    v = data.as_float(x)
    assert data.as_float(v) is v
    for type_ in (torch.float32, torch.float64):
        assert torch.equal(data.as_bytes(v.to(type_)), x)
    between = v[10] + torch.tensor([0.4, 0.6, -0.4, -0.6]) * (v[11] - v[10])
    assert data.as_bytes(between).tolist() == [10, 11, 10, 9]
    assert data.as_bytes(torch.tensor([-3.0, 3.0])).tolist() == [0, 255]


def test_flips_mirror_half_of_the_images_and_depend_on_seed_and_iteration():
    (data, flipped) = stream()
    plain = Given(batch_size=6).train_dataloader()
    n = 400
    mirrored = 0
    masks = []
    for a, b in itertools.islice(zip(flipped, plain, strict=False), n):
        same = (a == b).flatten(1).all(1)
        other = (a == b.flip(-1)).flatten(1).all(1)
        assert (same ^ other).all()
        mirrored += int(other.sum())
        masks.append(tuple(other.tolist()))
    assert mirrored / (n / 4 * 20) == pytest.approx(0.5, abs=0.05)
    assert len(set(masks)) > 60  # nearly all of the 2^6 + 2^2 possible masks of batches of 6 and of 2 images occur
    assert torch.equal(data.splits.train, data.images.train)  # the flips changed the batches, but not the data
    batch = data.images.train[:20]
    other = Given(flip=True, seed=1)
    assert any(not torch.equal(data.augment(batch.clone(), t), other.augment(batch.clone(), t)) for t in range(3))


@pytest.mark.parametrize("position", [1, 5])
def test_a_resumed_stream_repeats_the_flips_with_and_without_blocks(position):
    whole = list(itertools.islice(stream()[1], 25))
    _, resumed = stream()
    resumed.position = position
    assert all(torch.equal(a, b) for a, b in zip(whole[position:], resumed, strict=False))
    data, _ = stream()
    data.iterations_per_batch = 4
    blocks = data.train_dataloader()
    blocks.stream.position = position
    parts = itertools.chain.from_iterable(blocks)
    assert all(torch.equal(a, b) for a, b in zip(whole[position:], parts, strict=False))


class Flattened(Given):
    """A data module of the same images, which gives flat vectors if ``flatten`` is true."""

    event_shape = ImageDataModule.event_shape


def test_flattened_images_are_vectors_that_are_flipped_as_images_are():
    flat, square = (Flattened(flatten=flatten, flip=True, batch_size=6) for flatten in (True, False))
    flat.setup()
    assert (flat.event_shape, flat.image_shape, square.event_shape) == ((48,), (3, 4, 4), (3, 4, 4))
    # the flat vectors are a view of the images, not a copy
    assert flat.splits.train.data_ptr() == flat.images.train.data_ptr()
    assert flat.labels.test.tolist() == list(range(20, 25))
    for a, b in itertools.islice(zip(flat.train_dataloader(), square.train_dataloader(), strict=False), 8):
        assert torch.equal(a, b.flatten(1))


@pytest.mark.parametrize("options", [{"value_range": "byte"}, {"val_size": 0}, {"val_size": 1.5}], ids=str)
def test_impossible_options_are_refused(options):
    with pytest.raises(ConfigError, match=f"data.{next(iter(options))}"):
        instantiate({"_target_": "eblvm_lit.data.torchvision_sets.MNIST", "root": "nowhere", **options}, "data")


@pytest.mark.parametrize("train_on_val", [True, False])
def test_stochastic_bits_are_drawn_once_with_the_grey_values_as_probabilities(train_on_val):
    n = 3000
    data, again, grey = (Given(n, train_on_val=train_on_val, binarize=kind) for kind in (*["stochastic"] * 2, None))
    shades = torch.tensor([0, 64, 191, 255], dtype=torch.uint8).view(4, 1).expand(4, 4)
    for given in (data, again, grey):
        given.images = given.images._replace(train=shades.expand(n, 3, 4, 4), test=shades.expand(n, 3, 4, 4))
        given.setup()
    assert all(torch.equal(*pair) for pair in zip(data.splits, again.splits, strict=True))
    assert torch.equal(grey.splits.test, grey.images.test)
    assert not torch.equal(data.splits.test, data.images.train)
    for split in data.splits[::2]:
        v = data.as_float(split)
        assert ((v == 0) | (v == 1)).all()
        found = v.mean((0, 1, 3))
        assert (found[0], found[3]) == (0, 1)  # black and white stay so
        p = torch.tensor([64, 191]) / 255
        assert ((found[1:3] - p).abs() < 5 * (p * (1 - p) / (12 * len(v))).sqrt()).all()
    if train_on_val:
        assert torch.equal(data.splits.train[-3:], data.splits.val)  # the same images have the same bits


def dynamic(n=400, **options):
    data = Flattened(n, binarize="dynamic", batch_size=100, flatten=True, **options)
    shades = torch.tensor([0, 64, 191, 255], dtype=torch.uint8).view(4, 1).expand(4, 4)
    data.images = data.images._replace(train=shades.expand(n, 3, 4, 4))
    data.setup()
    return data


def batches_of(data, n, start=0):
    loader = data.train_dataloader()
    loader.position = start
    return list(itertools.islice(loader, n))


def test_dynamic_bits_are_drawn_anew_for_each_batch_with_the_grey_values_as_probabilities():
    data = dynamic()
    drawn = batches_of(data, 40)
    values = data.as_float(torch.cat(drawn)).view(-1, 3, 4, 4)
    assert ((values == 0) | (values == 1)).all()
    p = torch.tensor([0, 64, 191, 255]) / 255
    error = (p * (1 - p) / (12 * len(values))).sqrt()
    assert ((values.mean((0, 1, 3)) - p).abs() <= 5 * error).all()
    assert data.streamed().unique().tolist() == [0, 64, 191, 255]
    first, second = (data.augment(data.streamed()[:100], iteration) for iteration in (0, 4))
    grey = first.view(-1, 3, 4, 4)[:, :, 1:3] != second.view(-1, 3, 4, 4)[:, :, 1:3]
    # two draws with the probability p differ with the probability 2 p (1 - p)
    assert grey.float().mean().item() == pytest.approx(2 * 64 * 191 / 255**2, abs=5 * (0.25 / grey.numel()) ** 0.5)
    # the splits have the bits of ``stochastic``
    fixed = dynamic()
    fixed.binarize = "stochastic"
    fixed.splits = None
    fixed.setup()
    assert all(torch.equal(*pair) for pair in zip(data.splits, fixed.splits, strict=True))


def test_dynamic_bits_depend_on_seed_and_iteration_only():
    data = dynamic()
    whole = batches_of(data, 12)
    assert all(torch.equal(a, b) for a, b in zip(whole[5:], batches_of(dynamic(), 7, start=5), strict=True))
    assert not torch.equal(whole[0], batches_of(dynamic(seed=1), 1)[0])
    grey = torch.full((9, 2), 127, dtype=torch.uint8)
    parts = [data.augment(grey[rows], 3, Shard(rows, 9)) for rows in (torch.arange(0, 5), torch.arange(5, 9))]
    assert torch.equal(torch.cat(parts), data.augment(grey, 3))
    # grey values are mirrored before bits are drawn: with a white left half, each image has one white half and one black
    mirrored = dynamic(flip=True)
    half = torch.tensor([255, 255, 0, 0], dtype=torch.uint8).expand(200, 3, 4, 4).flatten(1)
    drawn = mirrored.augment(half.clone(), 0).view(-1, 3, 4, 4)
    assert (drawn[..., :2] != drawn[..., 2:]).all()
    assert 0.35 < (drawn[:, 0, 0, 0] == 255).float().mean() < 0.65


def test_dynamic_bits_of_kept_examples_and_of_floats():
    few = dynamic(held_out_classes=[400, 401])
    assert few.streamed().shape == few.splits.train.shape
    few.max_examples = 7
    few.splits = None
    few.setup()
    assert few.streamed().shape == (7, 48)
    assert few.streamed().unique().tolist() == [0, 64, 191, 255]
    grey = torch.tensor([[-1.0, 0.0, 1.0]]).expand(2000, 3)
    bits = dynamic(value_range="symmetric").augment(grey, 0)
    assert bits.unique().tolist() == [-1, 1]
    assert (bits[:, 0].max(), bits[:, 2].min()) == (-1, 1)
    assert abs(bits[:, 1].mean()) < 5 / 2000**0.5


def test_bits_by_a_threshold():
    data = Given(binarize="threshold", value_range="symmetric")
    data.setup()
    assert torch.equal(data.splits.test, 255 * (data.images.test > 127).to(torch.uint8))
    floats = torch.tensor([[0.2, 0.5, 0.50001]])
    assert data.binarised(floats, "train").tolist() == [[0.0, 0.0, 1.0]]
