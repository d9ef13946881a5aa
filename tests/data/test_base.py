"""Tests of data modules: their arrays, the order of their batches, and how bad data are refused."""

import itertools

import numpy as np
import pytest
import torch
from hydra.utils import get_class
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from sklearn.datasets import load_digits, make_moons, make_swiss_roll

from eblvm_lit.data.base import ArrayDataModule, BatchStream, OrderedBatches, Splits
from eblvm_lit.data.blobs import DiamondBlobs, LineBlobs, TriangleBlobs, TwentyFiveGaussians, TwoBlobs
from eblvm_lit.data.curves import Circle, Moons, Rings, SwissRoll, TwoSpirals
from eblvm_lit.data.digits import Digits
from eblvm_lit.data.frey_face import TRAIN_MEAN, TRAIN_STD, FreyFace
from eblvm_lit.data.toy import Checkerboard
from eblvm_lit.errors import DataError
from helpers.image_files import write_frey, write_images
from helpers.shell import CONF, SHARED, configure
from helpers.stand_in import loaded

BLOBS = [DiamondBlobs, TriangleBlobs, LineBlobs, TwoBlobs, TwentyFiveGaussians]
TOYS = [Checkerboard, *BLOBS, SwissRoll, Moons, Circle, Rings, TwoSpirals]


class Rows(ArrayDataModule):
    event_shape = (3,)

    def __init__(self, train, val=None, **options):
        super().__init__(**options)
        self.n_loads = 0
        self.arrays = Splits(train, torch.ones(4, 3) if val is None else val, torch.ones(5, 3))

    def load(self):
        self.n_loads += 1
        return self.arrays


def take(stream, n):
    return [batch.tolist() for batch in itertools.islice(stream, n)]


@given(n=st.integers(1, 30), batch_size=st.integers(1, 12), seed=st.integers(0, 2**40))
def test_every_epoch_of_the_stream_is_a_permutation_in_batches(n, batch_size, seed):
    per_epoch = (n + batch_size - 1) // batch_size
    batches = take(BatchStream(torch.arange(n), batch_size=batch_size, seed=seed), 3 * per_epoch)
    for epoch in range(3):
        part = batches[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(itertools.chain(*part)) == list(range(n))
        assert all(len(batch) == batch_size for batch in part[:-1])
        assert len(part[-1]) == n - (per_epoch - 1) * batch_size


def test_stream_order_changes_with_epoch_and_seed_only():
    def epochs(seed):
        batches = take(BatchStream(torch.arange(50), batch_size=7, seed=seed), 3 * 8)
        return [list(itertools.chain(*batches[8 * e : 8 * (e + 1)])) for e in range(3)]

    torch.manual_seed(0)
    first = epochs(1)
    torch.manual_seed(1)
    assert epochs(1) == first
    orders = first + epochs(2) + [list(range(50))]
    assert all(a != b for a, b in itertools.combinations(orders, 2))


@given(n=st.integers(1, 20), batch_size=st.integers(1, 9), position=st.integers(0, 70), more=st.integers(1, 20))
def test_stream_resumed_anywhere_equals_uninterrupted(n, batch_size, position, more):
    whole = take(BatchStream(torch.arange(n), batch_size=batch_size, seed=5), position + more)
    stream = BatchStream(torch.arange(n), batch_size=batch_size, seed=5)
    stream.position = position
    assert take(stream, more) == whole[position:]
    assert stream.position == position + more


def test_streams_do_not_disturb_each_other_and_batches_are_safe_to_keep():
    array = torch.arange(10.0)
    stream = BatchStream(array, batch_size=4, seed=2)
    one = iter(stream)
    other = iter(stream)
    kept = [next(one) for _ in range(3)]
    for batch in (next(other) for _ in range(30)):
        batch.zero_()
    for batch in OrderedBatches(array, batch_size=3):
        batch.zero_()
    assert sorted(torch.cat(kept).tolist()) == array.tolist() == list(range(10))


def test_data_are_loaded_once_and_evaluation_keeps_the_order():
    data = Rows(torch.rand(6, 3), torch.arange(21.0).view(7, 3), eval_batch_size=3)
    for stage in ("fit", "validate", "test", None):
        data.setup(stage)
    val = data.val_dataloader()
    assert data.n_loads == 1
    assert len(val) == 3
    for _ in range(2):
        batches = list(val)
        assert [len(batch) for batch in batches] == [3, 3, 1]
        assert torch.equal(torch.cat(batches), data.arrays.val)
    assert torch.equal(torch.cat(list(data.test_dataloader())), data.arrays.test)


ONES = torch.ones(4, 3)


@pytest.mark.parametrize(
    ("train", "val", "words"),
    [
        (ONES, torch.tensor([[1, torch.nan, 1], [-torch.inf, 1, 1]]), "val split of Rows contains 2 non-finite .* 6"),
        *((wrong, ONES, "train split of Rows") for wrong in (torch.ones(4, 2), ONES[:0], ONES.double())),
    ],
)
def test_bad_splits_are_refused_by_name(train, val, words):
    with pytest.raises(DataError, match=words):
        Rows(train, val).setup()


@pytest.mark.parametrize("toy", TOYS)
def test_toys_are_fixed_samples_inside_their_window(toy):
    splits = toy(seed=1).load()
    n_train = 60_000 if toy is Checkerboard else 50_000
    assert [tuple(v.shape) for v in splits] == [(n_train, 2), (10_000, 2), (10_000, 2)]
    assert all(v.dtype == torch.float32 for v in splits)
    for v, same, other in zip(splits, toy(seed=2).load(), toy(sample_seed=1).load(), strict=True):
        assert torch.equal(v, same)
        assert not torch.equal(v, other)
    assert not torch.equal(splits.val, splits.test)
    assert not torch.equal(splits.train[:10_000], splits.val)
    window = torch.tensor(toy.bounds).T
    (low, high) = torch.aminmax(splits.train, dim=0)
    assert ((window[0] < low) & (high < window[1])).all()
    assert ((high - low) > 0.4 * (window[1] - window[0])).all()


@pytest.mark.parametrize("toy", [Checkerboard, *BLOBS, Rings, TwoSpirals])
def test_densities_are_those_of_the_points(toy):
    data = toy()
    n = 120 if toy is TwoSpirals else 240
    v = data.load().train.double()
    (x0, x1), (y0, y1) = data.bounds
    x, y = ((low + (torch.arange(n).double() + 0.5) * (high - low) / n) for low, high in data.bounds)
    area = (x1 - x0) * (y1 - y0) / n**2
    grid = torch.cartesian_prod(x, y)
    log_p = data.log_density(grid)
    p = log_p.exp()
    assert p.sum() * area == pytest.approx(1, abs=1e-6)
    # Count the points in 400 larger cells, and compare the counts with the density. The mean of Pearson's statistic is
    # smaller than the number of cells that are not empty.
    counts = torch.histogramdd(v, bins=[20, 20], range=[x0, x1, y0, y1]).hist.flatten()
    expected = p.view(20, n // 20, 20, n // 20).sum((1, 3)).flatten() * area * len(v)
    full = expected > 5
    statistic = ((counts - expected)[full].square() / expected[full]).sum().item()
    k = int(full.sum())
    assert k >= 8
    assert statistic < k + 5 * (2 * k) ** 0.5
    assert counts[~full].sum() <= expected[~full].sum() + 5 * expected[~full].sum().sqrt() + 1e-6
    # the density of a row does not depend on the other rows
    torch.testing.assert_close(data.log_density(grid[70:75]), log_p[70:75])


def test_two_spirals_are_the_usual_ones():
    v = TwoSpirals().load().train.double()
    a = 3 * torch.pi * torch.linspace(0, 1, 2_000).double().sqrt()
    # The curve is shifted by 1/4, which is the mean of the uniform noise.
    curve = torch.stack([-a * a.cos() + 0.25, a * a.sin() + 0.25], dim=1) / 3
    both = torch.cat([curve, -curve])
    assert torch.cdist(v[:1000], both).min(1).values.max() < 0.1 * 5 + 1 / 12 * 2**0.5
    assert torch.cdist(both[::200], v[:10_000]).min(1).values.max() < 0.2


def test_swiss_roll_follows_the_law_of_scikit_learn():
    v = SwissRoll().load().train
    reference = torch.from_numpy(make_swiss_roll(50_000, random_state=0)[0][:, [0, 2]])
    grid = [torch.histogramdd(x.double(), bins=[8, 8], range=[-12.0, 15.0, -12.0, 15.0]).hist for x in (v, reference)]
    assert (grid[0] - grid[1]).abs().sum() / 50_000 < 0.05


def test_moons_are_the_points_of_scikit_learn():
    v = Moons().sample(7, torch.Generator().manual_seed(0)).numpy()
    reference = make_moons(7, shuffle=False)[0]
    distance = np.linalg.norm(v[:, None] - reference, axis=2)
    assert distance.min(0).max() < 1e-5
    assert distance.min(1).max() < 1e-5


def test_circle_is_an_even_grid_in_random_order():
    v = Circle().sample(1000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(v.norm(dim=1), torch.ones(1000))
    angles = torch.atan2(v[:, 1], v[:, 0])
    gaps = angles.sort().values.diff()
    torch.testing.assert_close(gaps, torch.full((999,), 2 * torch.pi / 1000), atol=1e-5, rtol=0)
    assert v[:100].mean(0).norm() < 0.4  # the first hundred points are spread over the whole circle


def test_frey_faces_are_the_columns_in_order_standardised_with_the_training_constants(tmp_path):
    faces = write_frey(tmp_path)
    data = loaded(FreyFace(root=tmp_path))
    assert [len(split) for split in data.splits] == [1400, 300, 265]
    for split, first in zip(data.splits, (0, 1400, 1700), strict=True):
        for i in (0, len(split) - 1):
            np.testing.assert_allclose(split[i].numpy() * 255, faces[:, first + i], atol=1e-4)

    for a, b in zip(data.splits, FreyFace(root=tmp_path, standardise=True).load(), strict=True):
        torch.testing.assert_close(b * 0.1763 + 0.6049, a)


def test_a_missing_or_different_frey_file_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr("scipy.io.loadmat", None)
    with pytest.raises(DataError, match=r"none/frey_rawface.mat.*data\.root"):
        FreyFace(root=tmp_path / "none").setup()
    write_frey(tmp_path)
    path = tmp_path / "frey_rawface.mat"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"frey_rawface\.mat"):
        FreyFace(root=tmp_path).setup()


@pytest.mark.skipif(not (SHARED / "frey_rawface.mat").is_file(), reason=f"no frey_rawface.mat in {SHARED}")
def test_real_frey_faces_have_the_published_statistics():
    data = loaded(FreyFace(root=SHARED))
    train = data.splits.train
    assert train.mean().item() == pytest.approx(0.6049, abs=5e-5)
    assert train.std().item() == pytest.approx(0.1763, abs=5e-5)
    # Neighbouring pixels resemble each other only if the picture has the right shape.
    rough = {shape: train.view(-1, *shape).diff(dim=1).abs().mean() for shape in ((28, 20), (20, 28), (14, 40))}
    assert min(rough, key=rough.get) == data.image_shape[1:]


def test_digits_splits_are_a_partition_of_the_set_with_their_labels():
    data = loaded(Digits(seed=3))
    (reference, target) = load_digits(return_X_y=True)
    assert [tuple(split.shape) for split in data.splits] == [(1400, 64), (200, 64), (197, 64)]
    everything = torch.cat(data.splits).numpy() * 16
    labels = torch.cat(data.labels).numpy()
    order = np.lexsort(everything.T)
    by_pixels = np.lexsort(reference.T)
    np.testing.assert_allclose(everything[order], reference[by_pixels])
    np.testing.assert_array_equal(labels[order], target[by_pixels])
    assert not np.array_equal(everything, reference)
    assert all(torch.equal(a, b) for a, b in zip(data.splits, Digits(seed=4).load(), strict=True))


def test_bytes_come_back_from_faces_and_digits():
    x = torch.arange(256, dtype=torch.uint8)
    v = x.float() / 255
    assert torch.equal(FreyFace(root=".").as_bytes(v), x)
    assert torch.equal(FreyFace(root=".", standardise=True).as_bytes((v - TRAIN_MEAN) / TRAIN_STD), x)
    digits = torch.arange(17) / 16
    assert torch.equal(Digits().as_bytes(digits), (digits * 255).round().to(torch.uint8))
    assert Digits().as_bytes(torch.tensor([-0.1, 1.1])).tolist() == [0, 255]


@pytest.mark.parametrize("path", sorted((CONF / "data").glob("[!_]*.yaml")), ids=lambda path: path.stem)
def test_every_data_file_describes_a_module_with_the_seed_and_the_root_of_the_run(path, monkeypatch, tmp_path):
    monkeypatch.setenv("EBLVM_DATA", "elsewhere")
    options = OmegaConf.to_container(configure(f"data={path.stem}", "seed=9").data, resolve=True)
    if path.stem == "image_folder":
        write_images(tmp_path / "set", 2)
        options |= {"path": tmp_path / "set", "size": 8, "channels": 1}
    if "shape" in options:  # with a given shape, the module reads no file
        options |= {"shape": [1, 8, 8]}
    if path.stem == "array":
        options |= {"path": tmp_path / "x.npy"}
    data = get_class(options.pop("_target_"))(**options)
    assert data.seed == 9
    assert options.get("root", "elsewhere") == "elsewhere"
    assert getattr(data, "sample_name", path.stem) == path.stem
    assert (data.bounds is not None) == (data.event_shape == (2,))
