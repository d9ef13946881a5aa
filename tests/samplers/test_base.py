"""Samples of deep models: known moments of every kind of chain, the cache on disk, and the pictures of them."""

import copy
import math
import threading
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn

from eblvm_lit.cli import run
from eblvm_lit.cli.instantiate import instantiate
from eblvm_lit.core.seeding import derive_seed
from eblvm_lit.data.base import ArrayDataModule, Splits
from eblvm_lit.data.digits import Digits
from eblvm_lit.data.frey_face import TRAIN_MEAN, TRAIN_STD, FreyFace
from eblvm_lit.data.images import ImageDataModule
from eblvm_lit.data.torchvision_sets import MNIST
from eblvm_lit.data.toy import Checkerboard
from eblvm_lit.energies.base import Energy, VisibleEnergy
from eblvm_lit.energies.gaussian_latent import GaussianLatentModel
from eblvm_lit.energies.grbm import GRBM
from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.evaluation.samples import sample_cache as cache_module
from eblvm_lit.evaluation.samples.masks import DrawnMask, LeftHalf
from eblvm_lit.evaluation.samples.sample_cache import SampleCache
from eblvm_lit.figures.conditional_grid import Conditional
from eblvm_lit.figures.examples import labelled_examples
from eblvm_lit.figures.image_grid import tile
from eblvm_lit.figures.inpainting_grid import GREY, Inpainting
from eblvm_lit.figures.interpolation_grid import Interpolation
from eblvm_lit.posteriors.gaussian import LinearGaussianPosterior
from eblvm_lit.samplers.annealed_langevin import AnnealedLangevin
from eblvm_lit.samplers.annealed_samples import AnnealedSamples
from eblvm_lit.samplers.conditional import draw_between, draw_visible, inpaint, interpolate
from eblvm_lit.samplers.eval_mode import eval_mode
from eblvm_lit.samplers.sample_noise import SampleNoise
from eblvm_lit.training.callbacks.figures import Figures
from eblvm_lit.utils.digest import digest
from helpers.shell import configure
from helpers.stand_in import StandIn

N = 2000
STEP = 0.5
DOUBLE = torch.float64


def sampler(n_steps=120, batch_size=N, kind="auto", **options):
    """Dynamics at temperature one, whose stationary distribution is known."""
    options = {"step_size": STEP, "temperature": 1.0, "n_falling": 0, "n_cold": 0, "denoise_std": 0.0, **options}
    return AnnealedSamples(langevin=AnnealedLangevin(n_hot=n_steps, **options), batch_size=batch_size, kind=kind)


def few(batch_size=4, **options):
    """A few steps, hot and cold."""
    return sampler(2, batch_size, temperature=4.0, n_falling=3, n_cold=2, step_size=0.2, denoise_std=0.1, **options)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def gaussian(v_dim=4, h_dim=2):
    model = GaussianLatentModel(v_dim=v_dim, h_dim=h_dim, weight_scale=1.5).double().requires_grad_(False)
    for p in (model.b, model.c, model.log_std):
        p.copy_(0.3 * torch.randn(p.shape, generator=generator(1), dtype=DOUBLE))
    model.W.copy_(0.35 * torch.randn(model.W.shape, generator=generator(2), dtype=DOUBLE))
    return model.requires_grad_(True)


class Hidden(Energy):
    """Another model's joint energy, without its free energy."""

    continuous = True

    def __init__(self, model):
        super().__init__()
        self.model, self.event_shape, self.h_dim = model, model.event_shape, model.h_dim

    def energy(self, v, h):
        return self.model.energy(v, h)


def stationary(precision):
    """Covariance of x <- x - e^2 / 2 P (x - m) + e N: of P^-1, and of the size of the steps."""
    return torch.linalg.inv(precision - STEP**2 / 4 * precision @ precision)


def check_moments(samples, mean, covariance):
    """Every mean and every covariance within five standard errors."""
    n, centred = len(samples), samples - mean
    z_mean = centred.mean(0) / (covariance.diagonal() / n).sqrt()
    products = centred[:, :, None] * centred[:, None, :]
    z_covariance = (products.mean(0) - covariance) / (products.std(0) / math.sqrt(n))
    assert z_mean.abs().max() < 5
    assert z_covariance.abs().max() < 5


# --- chains of every kind ---------------------------------------------------------------------------------


def test_visible_units_given_latents_have_the_moments_of_the_conditional():
    model = gaussian()
    h = torch.tensor([[1.0, -1.0], [-2.0, 0.5]], dtype=DOUBLE)
    v = draw_visible(sampler(), model, h.repeat_interleave(N, dim=0), seed=0)
    precision = torch.diag(model.visible_std().detach() ** -2)
    for part, mean in zip(v.split(N), model.visible_mean(h).detach(), strict=True):
        check_moments(part, mean, stationary(precision))


def test_the_last_step_takes_the_data_noise_away_from_visible_units():
    model, h = gaussian(), torch.ones(5, 2, dtype=DOUBLE)
    noisy, clean = (draw_visible(sampler(9, denoise_std=s), model, h, seed=0) for s in (0.0, 0.2))
    mean, std = model.visible_mean(h), model.visible_std()
    torch.testing.assert_close(clean - mean, (1 - 0.04 / std**2) * (noisy - mean))


def test_conditional_samples_begin_where_they_are_told():
    model, h, start = gaussian(), torch.ones(5, 2), torch.randn(5, 4, dtype=DOUBLE, generator=generator())
    still = sampler(3, batch_size=2, step_size=1e-12)
    torch.testing.assert_close(draw_visible(still, model, h, seed=3, start=start), start, rtol=0, atol=1e-10)
    own = 0.5 + SampleNoise(3, range(5))((4,), dtype=DOUBLE)
    torch.testing.assert_close(draw_visible(still, model, h, seed=3), own, rtol=0, atol=1e-10)


@pytest.mark.parametrize("size", [1, 3, 64])
def test_no_chain_depends_on_the_batch_it_is_in(size):
    model, whole, part = gaussian(), few(64), few(size)
    h, v = torch.randn(7, 2, generator=generator()), torch.randn(7, 4, generator=generator(1))
    keep = torch.randint(2, (7, 4), generator=generator(2))
    for draw in (
        lambda s: draw_visible(s, model, h, seed=5),
        lambda s: inpaint(s, model, v, keep, seed=5),
    ):
        torch.testing.assert_close(draw(part), draw(whole), rtol=0, atol=1e-10)
        assert not torch.allclose(draw(whole)[0], draw(whole)[1])


def test_interpolation_is_linear_and_row_by_row():
    a, b, c = torch.randn(3, 2, 3, dtype=DOUBLE, generator=generator()).unbind()
    line, square = interpolate(torch.stack([a, b]), 10), interpolate(torch.stack([a, b, c]), 10)
    for i in range(10):
        torch.testing.assert_close(line[i], a + i / 9 * (b - a))
        for j in range(10):
            torch.testing.assert_close(square[10 * i + j], a + i / 9 * (b - a) + j / 9 * (c - a))


def test_with_shared_noise_only_latents_make_a_difference():
    """The dynamics of a Gaussian are linear: chains with one noise lie where their latents do."""
    model, corners = gaussian(), torch.randn(3, 2, dtype=DOUBLE, generator=generator())
    square, line = draw_between(few(7), model, [corners, corners[:2]], 4, seed=1)
    ends = draw_visible(few(), model, corners, seed=1, samples=[0, 0, 0])
    torch.testing.assert_close(square, interpolate(ends, 4))
    torch.testing.assert_close(line, interpolate(ends[:2], 4))
    assert (square[0] - square[-1]).abs().max() > 1e-3


def test_without_shared_noise_chains_begin_between_the_images():
    model, corners = gaussian(), torch.randn(3, 2, dtype=DOUBLE, generator=generator())
    images = torch.randn(3, 4, dtype=DOUBLE, generator=generator(1))
    (square,) = draw_between(sampler(3, step_size=1e-12), model, [corners], 4, seed=0, images=[images])
    torch.testing.assert_close(square, interpolate(images, 4), rtol=0, atol=1e-10)
    equal = torch.zeros(2, 2, dtype=DOUBLE), torch.zeros(2, 4, dtype=DOUBLE)
    (line,) = draw_between(few(), model, [equal[0]], 4, seed=0, images=[equal[1]])
    assert (line[1:] - line[0]).abs().amax(1).min() > 1e-3  # equal but for their noise


KEEP = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=DOUBLE)


def test_completions_by_the_free_energy_have_the_moments_of_the_conditional():
    model = gaussian()
    truth = model.marginal()
    precision, mean = truth.precision_matrix.detach(), truth.mean.detach()
    v = torch.tensor([7.0, 7.0, 1.5, -1.0], dtype=DOUBLE)
    full = inpaint(sampler(200), model, v.expand(N, 4), KEEP.expand(N, 4), seed=0)
    inner = precision[:2, :2]
    pull = precision[:2, 2:] @ (v - mean)[2:]
    assert pull.abs().min() > 0.05  # what is kept matters
    check_moments(full[:, :2], mean[:2] - torch.linalg.solve(inner, pull), stationary(inner))
    assert torch.equal(full[:, 2:], v[2:].expand(N, 2))


def test_completions_by_the_joint_energy_have_the_same_moments():
    model = gaussian()
    v = torch.tensor([7.0, 7.0, 1.5, -1.0], dtype=DOUBLE)
    full = inpaint(sampler(200), Hidden(model), v.expand(N, 4), KEEP.expand(N, 4), seed=0)
    with torch.no_grad():
        marginal, W = model.marginal(), model.W
        inner = marginal.precision_matrix[:2, :2]
        pull = marginal.precision_matrix[:2, 2:] @ (v - marginal.mean)[2:]
        mean = marginal.mean[:2] - torch.linalg.solve(inner, pull)
        joint = torch.eye(4, dtype=DOUBLE)
        joint[:2, :2], joint[:2, 2:], joint[2:, :2] = torch.diag(model.visible_std()[:2] ** -2), -W[:2], -W[:2].T
        check_moments(full[:, :2], mean, stationary(joint)[:2, :2])
    assert torch.equal(full[:, 2:], v[2:].expand(N, 2))


def test_completions_at_fixed_latents_have_the_moments_given_these():
    model = gaussian()
    v, h = torch.tensor([7.0, 7.0, 1.5, -1.0], dtype=DOUBLE), torch.tensor([0.8, -1.2], dtype=DOUBLE)
    full = inpaint(sampler(200), model, v.expand(N, 4), KEEP.expand(N, 4), seed=0, h=h.expand(N, 2))
    with torch.no_grad():
        precision = model.visible_std()[:2] ** -2
        check_moments(full[:, :2], model.b[:2] + (model.W @ h)[:2] / precision, stationary(torch.diag(precision)))
    assert torch.equal(full[:, 2:], v[2:].expand(N, 2))


def test_the_last_step_of_joint_chains_moves_latents_on_request():
    model, moved = Hidden(gaussian()), []
    for denoise_latents in (False, True):
        chains = few()
        chains.denoise_latents = denoise_latents
        seen, trajectory = [], chains.langevin.trajectory

        def watched(*args, seen=seen, trajectory=trajectory):
            for x in trajectory(*args):
                seen.append(x)
                yield x

        chains.langevin.trajectory = watched
        chains.kind = "joint"
        chains.draw(model, range(3), seed=0)
        (_, before), (_, after) = seen[-2:]
        moved.append(not torch.equal(before, after))
    assert moved == [False, True]


@pytest.mark.parametrize("model", [gaussian(), Hidden(gaussian())], ids=["free", "joint"])
def test_kept_pixels_stay_bit_by_bit_and_missing_ones_are_not_looked_at(model):
    v = torch.randn(6, 4, generator=generator())
    keep = torch.randint(2, (6, 4), generator=generator(1)).bool()
    full = inpaint(few(), model.float(), v, keep, seed=0)
    assert torch.equal(full[keep], v[keep])
    assert (full[~keep] != v[~keep]).all()
    other = torch.where(keep, v, torch.full_like(v, math.nan))
    assert torch.equal(inpaint(few(), model, other, keep, seed=0), full)
    model.double()


def test_missing_pixels_begin_at_noise_and_are_denoised_in_the_end():
    model, v = gaussian(), torch.randn(5, 4, dtype=DOUBLE, generator=generator())
    keep = KEEP.expand(5, 4)
    still = inpaint(sampler(3, step_size=1e-12), model, v, keep, seed=2)
    noise = SampleNoise(2, range(5))((4,), dtype=DOUBLE)
    torch.testing.assert_close(still, v * KEEP + (0.5 + noise) * (1 - KEEP), rtol=0, atol=1e-10)
    noisy, clean = (inpaint(sampler(9, denoise_std=s), model, v, keep, seed=2) for s in (0, 0.2))
    torch.testing.assert_close(clean, noisy + 0.04 * model.score(noisy) * (1 - KEEP))


def test_masks_are_halves_inverted_by_the_samples_own_noise():
    noise = range(400)
    keep = LeftHalf(inverted=0.5).keep((3, 2, 5), SampleNoise(0, noise))
    right = torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0]).expand(3, 2, 5)
    inverted = (keep == 1 - right).flatten(1).all(1)
    assert ((keep == right).flatten(1).all(1) ^ inverted).all()
    assert abs(inverted.float().mean() - 0.5) < 5 * 0.5 / 400**0.5
    assert torch.equal(LeftHalf(inverted=0.5).keep((3, 2, 5), SampleNoise(0, [7, 3])), keep[[7, 3]])
    assert torch.equal(LeftHalf(inverted=1.0).keep((3, 2, 5), SampleNoise(0, [7]))[0], 1 - right)
    assert torch.equal(LeftHalf().keep((3, 2, 5), SampleNoise(0, [7]))[0], right)


def test_masks_of_digits_keep_what_is_bright_or_all_else():
    data, noise = Digits(), range(60)
    keep = DrawnMask(data=data, inverted=0.5).keep((3, 8, 8), SampleNoise(0, noise))
    assert torch.equal(keep[:, 0], keep[:, 2])
    bright = (data.splits.test.view(-1, 8, 8) > 0.5).float().flatten(1)
    rows = keep[:, 0].flatten(1)
    plain, inverted = ((rows[:, None] == shapes).all(2).any(1) for shapes in (bright, 1 - bright))
    assert (plain ^ inverted).all()
    assert 10 < int(inverted.sum()) < 50
    assert len(rows.unique(dim=0)) > 40  # each its own
    assert torch.equal(DrawnMask(data=data, inverted=0.5).keep((3, 8, 8), SampleNoise(0, [7, 3])), keep[[7, 3]])


def test_files_of_a_mask_are_looked_for_before_the_first_iteration(tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            (raw / f"{part}-{kind}-ubyte").write_bytes(b"cut off")
    picture = Inpainting(sampler=few(), mask=DrawnMask(data=MNIST(root=str(tmp_path))))
    with pytest.raises(DataError, match="damaged or cut off"):
        Figures(figures={"inpainting": picture}, save_dir=str(tmp_path)).on_fit_start(None, None)


# --- the model meanwhile ----------------------------------------------------------------------------------


class Watched(VisibleEnergy):
    """Notes the state it is evaluated in; one half of it is in evaluation mode for good."""

    event_shape = (4,)

    def __init__(self):
        super().__init__()
        self.a, self.b, self.seen = nn.Linear(4, 4), nn.Linear(4, 4).eval().requires_grad_(False), set()

    def free_energy(self, v):
        parts = (self, self.a, self.b)
        self.seen.add((*(part.training for part in parts), any(p.requires_grad for p in self.parameters())))
        return v.square().sum(-1) + (self.a(v) - self.b(v)).square().sum(-1)

    def state(self):
        return [m.training for m in self.modules()], [p.requires_grad for p in self.parameters()]


def test_models_are_in_eval_mode_while_chains_move_and_as_before_after_them():
    model = Watched()
    before = model.state()
    assert before == ([True, True, False], [True, True, False, False])
    few(2).draw(model, range(6), seed=0)
    assert model.state() == before
    assert model.seen == {(False, False, False, False)}
    assert all(p.grad is None for p in model.parameters())
    with suppress(RuntimeError), eval_mode(model):
        raise RuntimeError
    assert model.state() == before


def test_chains_run_where_gradients_are_switched_off_and_leave_no_graph():
    model = gaussian()
    with torch.no_grad():
        one = few().draw(model, range(3), seed=0)
    other = few().draw(model, range(3), seed=0)
    assert torch.equal(one, other)
    assert not other.requires_grad
    assert not draw_visible(few(), model, torch.zeros(2, 2), seed=0).requires_grad


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
def test_a_captured_gradient_gives_the_same_samples():
    model = gaussian().cuda()
    plain, captured = (few(2, capture=capture).draw(model, range(5), seed=0) for capture in (False, True))
    torch.testing.assert_close(captured, plain, rtol=0, atol=1e-10)


# --- bytes ------------------------------------------------------------------------------------------------


class Squares(ImageDataModule):
    event_shape = image_shape = (1, 2, 2)

    def read(self):
        raise NotImplementedError


@pytest.mark.parametrize("value_range", ["unit", "symmetric"])
def test_bytes_come_back_from_floats(value_range):
    data, x = Squares(root=".", value_range=value_range), torch.arange(256, dtype=torch.uint8)
    v = data.as_float(x)
    for type_ in (torch.float32, torch.float64):
        assert torch.equal(data.as_bytes(v.to(type_)), x)
    between = v[10] + torch.tensor([0.4, 0.6, -0.4, -0.6]) * (v[11] - v[10])
    assert data.as_bytes(between).tolist() == [10, 11, 10, 9]
    assert data.as_bytes(torch.tensor([-3.0, 3.0])).tolist() == [0, 255]
    assert torch.equal(v, data.as_float(x))  # nothing was changed in place


@pytest.mark.parametrize("standardise", [False, True])
def test_bytes_come_back_from_faces_and_digits(standardise):
    data, x = FreyFace(root=".", standardise=standardise), torch.arange(256, dtype=torch.uint8)
    v = x.float() / 255
    assert torch.equal(data.as_bytes((v - TRAIN_MEAN) / TRAIN_STD if standardise else v), x)
    digits = torch.arange(17) / 16
    assert torch.equal(Digits().as_bytes(digits), (digits * 255).round().to(torch.uint8))
    assert Digits().as_bytes(torch.tensor([-0.1, 1.1])).tolist() == [0, 255]


# --- the cache ------------------------------------------------------------------------------------------


class Tiny(ArrayDataModule):
    """Coloured images of six numbers, as flat vectors."""

    event_shape, image_shape = (6,), (3, 1, 2)

    def load(self):
        v = torch.rand(40, 6, generator=generator())
        return Splits(v[:20], v[20:30], v[30:])


class Plain(Tiny):
    image_shape = None


def setting(data=Tiny, seed=5):
    torch.manual_seed(0)
    method, data = StandIn(), data()
    data.setup()
    method.energy, method.posterior = Hidden(gaussian(6, 2)), LinearGaussianPosterior(v_dim=6, h_dim=2).double()
    method.seed = seed
    return method, data


class Counted(AnnealedSamples):
    """Notes which samples were drawn, and may stop at one of them."""

    def __init__(self, batch_size=4, stop_at=None, **options):
        short = few(batch_size, **options)
        super().__init__(langevin=short.langevin, kind=short.kind, batch_size=batch_size)
        self.drawn, self.stop_at = [], stop_at

    def draw(self, energy, samples, **options):
        if self.stop_at in samples:
            raise KeyboardInterrupt
        self.drawn += samples
        return super().draw(energy, samples, **options)


def test_a_cache_holds_the_samplers_own_samples_as_bytes(tmp_path):
    method, data = setting()
    images = SampleCache(sampler=few(), cache_dir=tmp_path).images(method, data, 10)
    options = {"posterior": method.posterior, "examples": data.splits.train, "as_float": data.as_float}
    expected = few(64).draw(method.energy, range(10), seed=5, **options)
    assert images.dtype == torch.uint8
    assert torch.equal(images, data.as_bytes(expected).view(10, 3, 1, 2))
    assert len(images.unique()) > 10
    files = sorted(tmp_path.glob("samples/*/*.npz"))
    parts = [np.load(file) for file in files]  # as anyone may read them
    assert np.concatenate([part["indices"] for part in parts]).tolist() == list(range(10))
    assert np.array_equal(np.concatenate([part["images"] for part in parts]), images)


def test_a_cache_resumes_where_it_was_interrupted(tmp_path):
    method, data = setting()
    whole = SampleCache(sampler=few(), cache_dir=tmp_path / "a").images(method, data, 14)
    interrupted = Counted(stop_at=9)
    with pytest.raises(KeyboardInterrupt):
        SampleCache(sampler=interrupted, cache_dir=tmp_path / "b").images(method, data, 10)
    again = Counted()
    first = SampleCache(sampler=again, cache_dir=tmp_path / "b").images(method, data, 10)
    assert (interrupted.drawn, again.drawn) == (list(range(8)), [8, 9])
    more = Counted(batch_size=3)
    cache = SampleCache(sampler=more, cache_dir=tmp_path / "b")  # the batch size may change
    longer = cache.images(method, data, 14)
    assert more.drawn == [10, 11, 12, 13]
    assert torch.equal(longer, whole)
    assert torch.equal(first, whole[:10])
    assert torch.equal(cache.images(method, data, 3), whole[:3])
    assert len(more.drawn) == 4  # nothing was drawn again
    longer[:] = 0  # what is done to images does not reach the disk
    assert torch.equal(cache.images(method, data, 14), whole)


def test_processes_share_the_work_and_make_the_same_file(tmp_path):
    method, data = setting()
    whole = SampleCache(sampler=few(), cache_dir=tmp_path / "a").images(method, data, 19)
    shares, caches = [Counted() for _ in range(3)], []
    for share in shares:
        caches.append(SampleCache(sampler=share, cache_dir=tmp_path / "b"))
    for rank in (2, 0, 1):
        caches[rank].fill(method, data, 19, rank=rank, world=3)
    assert torch.equal(caches[0].images(method, data, 19), whole)
    assert sorted(sum((share.drawn for share in shares), [])) == list(range(19))  # noqa: RUF017 - three short lists
    assert [len(share.drawn) for share in shares] == [8, 7, 4]


def test_shares_of_samples_are_those_of_the_whole_in_double_precision():
    method, data = setting()
    options = {"seed": 5, "posterior": method.posterior, "examples": data.splits.train}
    whole = few(32).draw(method.energy, range(16), **options)
    for rank in range(2):
        own = [i for i in range(16) if i // 4 % 2 == rank]
        torch.testing.assert_close(few().draw(method.energy, own, **options), whole[own], rtol=0, atol=1e-8)


def test_a_group_of_processes_meets_before_and_after(tmp_path, monkeypatch):
    local, barrier = threading.local(), threading.Barrier(2)
    monkeypatch.setattr(cache_module, "rank_and_size", lambda: (local.rank, 2))
    monkeypatch.setattr(cache_module, "barrier", barrier.wait)
    found, samplers, pairs = {}, [Counted(), Counted()], [setting(), setting()]

    def work(rank):
        local.rank = rank
        found[rank] = SampleCache(sampler=samplers[rank], cache_dir=tmp_path).images(*pairs[rank], 14)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.undo()
    whole = SampleCache(sampler=few(), cache_dir=tmp_path / "alone").images(*setting(), 14)
    assert torch.equal(found[0], whole)
    assert torch.equal(found[1], whole)
    assert [share.drawn for share in samplers] == [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13]]


def test_whatever_samples_depend_on_names_their_file(tmp_path):
    def folder(change=None, sampler=None, data=Tiny, seed=5):
        method, data = setting(data, seed)
        if change is not None:
            change(method, data)
        return SampleCache(sampler=sampler or few(), cache_dir=tmp_path).folder(method, data)

    class Symmetric(Tiny):
        def as_bytes(self, batch):
            return super().as_bytes((batch + 1) / 2)

    def nudge(parameter):
        parameter.data.view(-1)[0] += 1e-7

    others = [
        folder(lambda method, data: nudge(method.energy.model.W)),
        folder(lambda method, data: nudge(method.posterior.linear.bias)),
        folder(lambda method, data: method.energy.float()),
        folder(lambda method, data: data.splits.train[3].mul_(0.5)),
        folder(seed=6),
        folder(data=Symmetric),
        folder(sampler=few(kind="joint")),
        *(folder(sampler=sampler(2, **option)) for option in ({}, {"step_size": 0.1}, {"denoise_std": 0.1})),
        folder(sampler=sampler(3)),
    ]
    assert len({folder(), *others}) == 1 + len(others)
    assert folder() == folder(sampler=few(batch_size=9)) == folder(lambda method, data: method.energy.eval())


def test_models_that_differ_by_a_setting_alone_have_other_digests():
    code, paper = (GRBM(v_dim=1, h_dim=3, parametrisation=p) for p in ("code", "paper"))
    paper.load_state_dict(code.state_dict())
    assert digest(code) != digest(paper)
    assert digest(code) == digest(copy.deepcopy(code).eval())
    assert digest(torch.zeros(2, 3)) != digest(torch.zeros(3, 2))
    assert digest("a", "b") != digest("ab")
    assert digest(torch.zeros(2, dtype=torch.bfloat16)) != digest(torch.zeros(1, dtype=torch.float32))


def test_a_file_that_is_not_whole_does_not_count(tmp_path, monkeypatch):
    """A process that is killed while it writes leaves a file under another name."""
    method, data = setting()
    cache = SampleCache(sampler=few(), cache_dir=tmp_path)
    whole = cache.images(method, data, 8)
    file, _ = sorted(cache.folder(method, data).iterdir())
    file.rename(file.with_name(f".{file.name}.123.tmp"))
    again = Counted()
    assert torch.equal(SampleCache(sampler=again, cache_dir=tmp_path).images(method, data, 8), whole)
    assert again.drawn == [0, 1, 2, 3]


def test_what_cannot_be_cached_is_refused(tmp_path):
    cache = SampleCache(sampler=few(), cache_dir=tmp_path)
    method, data = setting()
    method.posterior = None
    with pytest.raises(ConfigError, match="of kind posterior"):
        SampleCache(sampler=few(kind="posterior"), cache_dir=tmp_path).images(method, data, 5)
    method.energy.model.b.data.fill_(math.nan)
    with pytest.raises(ConfigError, match="diverge"):
        cache.images(method, data, 5)


# --- pictures ---------------------------------------------------------------------------------------------


def digits(posterior=True):
    torch.manual_seed(0)
    method, data = StandIn(), Digits()
    data.setup()
    method.energy, method.seed = GaussianLatentModel(v_dim=64, h_dim=3), 5
    method.posterior = LinearGaussianPosterior(v_dim=64, h_dim=3) if posterior else None
    return method, data, generator()


def image_of(panel):
    return np.asarray(panel.images[0].get_array()).squeeze()


def board(v, columns=None):
    return tile(Digits().as_bytes(v).float() / 255, (1, 8, 8), columns=columns).squeeze(-1).numpy()


def test_examples_are_the_first_of_their_labels():
    _, data, _ = digits()
    v = labelled_examples(data, (1, 7, 1), n=3)
    test, labels = data.splits.test, data.labels.test
    assert torch.equal(v[:, 0], test[labels == 1][:3])
    assert torch.equal(v[:, 1], test[labels == 7][:3])
    assert torch.equal(v[:, 2], test[labels == 1][3:6])  # not the same images again
    data.labels = None
    assert torch.equal(labelled_examples(data, (1, 7), n=3).flatten(0, 1), test[:6])
    data.labels = Splits(*(torch.zeros(len(split), 2) for split in data.splits))  # attributes, not classes
    assert torch.equal(labelled_examples(data, (1, 7))[0], test[:2])
    tiny = Tiny()
    tiny.setup()
    assert labelled_examples(tiny, (0, 1, 4), n=9).shape == (9, 3, 6)  # more than there are


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


def test_lines_through_the_origin_end_at_opposite_latents():
    method, data, g = digits()
    picture = Interpolation(sampler=few(), n=3, n_lines=2, shared_noise=True, rho=2.0)
    lines = image_of(picture.draw(method, data, g).axes[1])
    assert lines.shape == (2 * 9 - 1, 3 * 9 - 1)
    f = method.posterior.mean(data.splits.train[torch.randint(1400, (2, 1), generator=generator()).flatten()]).detach()
    h = torch.stack([2 * f, 0 * f, -2 * f], dim=1).flatten(0, 1)
    options = {"seed": derive_seed(5, "interpolation"), "samples": [0] * 6}
    v = draw_visible(few(), method.energy, h, **options)
    np.testing.assert_allclose(lines, board(v, 3), atol=1.01 / 255)


def test_inpainting_shows_images_what_is_kept_and_completions():
    method, data, g = digits(posterior=False)
    mask = LeftHalf(inverted=0.5)
    figure = Inpainting(sampler=few(), mask=mask, n=6, n_completions=3).draw(method, data, g)
    shown = np.pad(image_of(figure.axes[0]), ((0, 1), (0, 1))).reshape(5, 9, 6, 9)[:, :8, :, :8].transpose(0, 2, 1, 3)
    pixels = Digits().as_bytes(data.splits.test[:6]).view(6, 8, 8).numpy() / 255
    seed = derive_seed(derive_seed(5, "inpainting"), "mask")
    keep = mask.keep((1, 8, 8), SampleNoise(seed, range(6)))[:, 0].bool().numpy()
    assert keep[:, 0, 0].any()
    assert not keep[:, 0, 0].all()
    np.testing.assert_allclose(shown[0], pixels, atol=1e-6)
    np.testing.assert_allclose(shown[1], np.where(keep, pixels, GREY / 255), atol=1e-6)
    for row in shown[2:]:
        np.testing.assert_allclose(row[keep], pixels[keep], atol=1e-6)
    assert np.abs(shown[2] - shown[3])[~keep].mean() > 0.1  # by noise of their own


PICTURES = [Conditional(sampler=few()), Interpolation(sampler=few(), n=2), Inpainting(sampler=few(), mask=LeftHalf())]


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_pictures_draw_nothing_where_they_do_not_apply(picture):
    points = Checkerboard()
    points.setup()
    method, data, g = digits()
    assert picture.draw(method, points, g) is None
    method.energy = None
    assert picture.draw(method, data, g) is None
    method.energy = GRBM(v_dim=64, h_dim=3)
    method.posterior = None
    assert (picture.draw(method, data, g) is None) == (picture.name != "inpainting")


@pytest.mark.parametrize("picture", PICTURES[:2], ids=lambda picture: picture.name)
def test_pictures_of_given_latents_take_those_of_an_encoder(picture):
    method, data, g = digits()
    by_posterior = image_of(picture.draw(method, data, g).axes[-1])
    method.posterior, method.encoder = None, method.posterior
    assert np.array_equal(image_of(picture.draw(method, data, g).axes[-1]), by_posterior)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_pictures_change_nothing(picture):
    method, data, g = digits()
    method.energy.b.requires_grad_(False)
    before, state = digest(method.energy, method.posterior, data.splits.test), torch.get_rng_state()
    assert picture.draw(method, data, g) is not None
    assert digest(method.energy, method.posterior, data.splits.test) == before
    assert torch.equal(torch.get_rng_state(), state)
    parts = [method.energy, method.posterior]
    assert all(part.training for part in parts)
    assert [p.requires_grad for part in parts for p in part.parameters()].count(False) == 1


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Interpolation(sampler=few(), rho=1.0), "shared_noise=true"),
    ],
)
def test_refusals(make, sentence):
    with pytest.raises(ConfigError, match=sentence):
        make()


# --- configuration ----------------------------------------------------------------------------------------

ALL = "figures@callbacks.figures.figures=all"


def test_one_sampler_serves_all_figures():
    cfg = configure(ALL, "sampler=annealed_short", "sampler.batch_size=7")
    figures = cfg.callbacks.figures.figures
    used = [
        figures.samples.annealed,
        *(figures[name].sampler for name in ("conditional", "interpolation", "inpainting")),
    ]
    assert all(node == cfg.sampler for node in used)
    short, published = instantiate(cfg.sampler, "sampler"), instantiate(configure().sampler, "sampler")
    assert (short.batch_size, short.langevin.n_steps, published.langevin.n_steps) == (7, 800, 2700)
    t, u = short.langevin.temperatures, published.langevin.temperatures
    assert (t[0], t[-1], u[0], u[-1]) == (100, 0, 100, 0)
    shares = [[float((x == 100).double().mean()), float((x <= 1).double().mean())] for x in (t, u)]
    np.testing.assert_allclose(*shares, atol=0.005)  # the same shape


def test_a_published_run_may_set_sizes_of_the_sampler(tmp_path):
    folder = tmp_path / "published"
    folder.mkdir(parents=True)
    (folder / "bidsm_checkerboard.yaml").write_text("# @package _global_\nsampler:\n  batch_size: 5\n")
    mine = f"hydra.searchpath=[file://{tmp_path}]"
    assert configure(mine).sampler.batch_size == 5
    assert configure(mine, "sampler.batch_size=6").sampler.batch_size == 6


def test_a_run_leaves_all_pictures(tmp_path):
    steps = [f"sampler.langevin.{name}=1" for name in ("n_hot", "n_falling", "n_cold")]
    small = ["callbacks.figures.figures.samples.n_steps=2", "trainer.max_steps=1", "n_validations=1", *steps]
    run.train(configure("debug=fast", "data=digits", "model=gaussian", ALL, *small, f"run_dir={tmp_path}"))
    left = {path.stem for path in (tmp_path / "figures").glob("*.png")}
    assert {"samples", "conditional", "interpolation", "inpainting"} <= left
