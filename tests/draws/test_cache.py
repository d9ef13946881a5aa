"""Tests of the cache of samples on disk: its content, its file names, and its use by several processes."""

import threading

import numpy as np
import pytest
import torch

import eblvm_lit as eb
from eblvm_lit.core.noise_levels import NoiseRange
from eblvm_lit.data.base import ArrayDataModule, Splits
from eblvm_lit.draws import cache as cache_module
from eblvm_lit.draws.cache import SampleCache
from eblvm_lit.draws.choice import draws_of
from eblvm_lit.energies.noise_conditional import NoiseConditionalEnergy
from eblvm_lit.posteriors.at_every_level import NoiseConditionalPosterior
from eblvm_lit.samplers.probability_flow import ProbabilityFlow
from helpers.annealing import Hidden, few, gaussian, sampler
from helpers.models import generator
from helpers.stand_in import StandIn, loaded


class Tiny(ArrayDataModule):
    """A data module of tiny colour images, as flat vectors of six numbers."""

    event_shape = (6,)
    image_shape = (3, 1, 2)

    def load(self):
        v = torch.rand(40, 6, generator=generator())
        return Splits(v[:20], v[20:30], v[30:])


def setting(seed=5):
    torch.manual_seed(0)
    data = loaded(Tiny())
    posterior = eb.LinearGaussianPosterior(v_dim=6, h_dim=2).double()
    return StandIn(energy=Hidden(gaussian(6, 2)), posterior=posterior, seed=seed), data


class Counted(eb.Sampler):
    """A sampler that records which samples it draws, and that may be interrupted at one of them."""

    def __init__(self, batch_size=4, stop_at=None, **options):
        short = few(batch_size, **options)
        super().__init__(dynamics=short.dynamics, kind=short.kind, batch_size=batch_size)
        self.drawn = []
        self.stop_at = stop_at

    def run(self, energy, prepare, samples, **options):
        if self.stop_at in samples:
            raise KeyboardInterrupt
        self.drawn += samples
        return super().run(energy, prepare, samples, **options)


def test_a_cache_holds_the_samplers_own_samples_as_bytes(tmp_path):
    method, data = setting()
    images = SampleCache(sampler=few(), cache_dir=tmp_path).images(method, data, 10)
    expected = draws_of(method, data, few(64)).draw(10, seed=5)
    assert images.dtype == torch.uint8
    assert torch.equal(images, data.as_bytes(expected).view(10, 3, 1, 2))
    assert len(images.unique()) > 10
    # the files can be read with NumPy, without this package
    parts = [np.load(file) for file in sorted(tmp_path.glob("samples/*/*.npz"))]
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
    cache = SampleCache(sampler=more, cache_dir=tmp_path / "b")  # a resumed cache may use another batch size
    longer = cache.images(method, data, 14)
    assert more.drawn == [10, 11, 12, 13]
    assert torch.equal(longer, whole)
    assert torch.equal(first, whole[:10])
    assert torch.equal(cache.images(method, data, 3), whole[:3])
    assert len(more.drawn) == 4  # no sample was drawn twice


def test_a_damaged_batch_is_drawn_again(tmp_path, caplog):
    method, data = setting()
    whole = SampleCache(sampler=few(), cache_dir=tmp_path).images(method, data, 10)
    file = sorted(tmp_path.glob("samples/*/*.npz"))[1]
    flipped = bytearray(file.read_bytes())
    flipped[-len(flipped) // 2] ^= 1
    for content in (file.read_bytes()[:-1], b"", bytes(flipped)):
        file.write_bytes(content)
        again = Counted()
        assert torch.equal(SampleCache(sampler=again, cache_dir=tmp_path).images(method, data, 10), whole)
        assert again.drawn == [4, 5, 6, 7]
    assert caplog.text.count(f"{file} is damaged") == 3


def test_processes_wait_for_one_another_before_and_after_drawing(tmp_path, monkeypatch):
    local = threading.local()
    barrier = threading.Barrier(2)
    monkeypatch.setattr(cache_module, "rank_and_size", lambda: (local.rank, 2))
    monkeypatch.setattr(cache_module, "barrier", barrier.wait)
    found = {}
    samplers = [Counted(), Counted()]
    pairs = [setting(), setting()]

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


def test_the_file_of_samples_is_named_by_all_that_they_depend_on(tmp_path):
    def folder(change=None, sampler=None, seed=5):
        method, data = setting(seed=seed)
        if change is not None:
            change(method, data)
        return SampleCache(sampler=few(), cache_dir=tmp_path).folder(draws_of(method, data, sampler or few()))

    def shift(method, data):
        method.posterior.linear.bias.data[0].add_(1e-7)

    others = [
        folder(lambda method, data: method.energy.model.W.data[0, 0].add_(1e-7)),
        folder(shift),
        folder(lambda method, data: data.splits.train[3].mul_(0.5)),
        folder(seed=6),
        folder(sampler=few(kind="joint")),
        *(folder(move_posterior, few(kind="mean")) for move_posterior in (None, shift)),
        folder(sampler=few(bfloat16=True)),
        *(folder(sampler=sampler(2, **option)) for option in ({}, {"step_size": 0.1}, {"denoise_std": 0.1})),
    ]
    assert len({folder(), *others}) == 1 + len(others)
    boxed = eb.Sampler(dynamics=eb.Langevin(n_steps=2, step_size=0.1))
    widths = [1.0, 0.3]
    boxes = [folder(lambda method, data, w=w: data.splits.train.mul_(w), boxed) for w in widths]
    assert boxes[0] != boxes[1]
    assert folder() == folder(sampler=few(batch_size=9)) == folder(lambda method, data: method.energy.eval())


def test_samples_of_every_noise_level_depend_on_the_posterior_of_the_latents(tmp_path):
    noise_range = NoiseRange(mean=0.5, std=0.4)
    torch.manual_seed(0)
    inner = eb.DeepVectorEnergy(v_dim=7, h_dim=2)
    energy = NoiseConditionalEnergy(energy=inner, v_shape=[6], noise_range=noise_range).of_data()
    data = loaded(Tiny())
    folders = set()
    for scale in (1.0, 30.0):
        torch.manual_seed(1)
        q = eb.LinearGaussianPosterior(v_dim=7, h_dim=2)
        with torch.no_grad():
            q.linear.weight.mul_(scale)
        posterior = NoiseConditionalPosterior(posterior=q, noise_range=noise_range).of_data()
        method = StandIn(energy=energy, posterior=posterior)
        draws = draws_of(method, data, eb.Sampler(dynamics=ProbabilityFlow(n_steps=2)))
        assert draws.kind == "levels"
        folders.add(SampleCache(sampler=few(), cache_dir=tmp_path).folder(draws))
    assert len(folders) == 2
