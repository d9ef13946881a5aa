"""Tests of joint particles: an iteration by hand, and the stored latents of each training example."""

from contextlib import nullcontext

import pytest
import torch

import eblvm_lit as eb
from cases import V_DIM, make_gaussian_latent
from eblvm_lit.core.functional import plain_autograd
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.samplers.chains.langevin_chain import LangevinChain
from helpers import iterating
from helpers.shell import checkpoint, train

every_backend = pytest.mark.parametrize("backend", [nullcontext, plain_autograd])
LANGEVIN = LangevinChain(n_steps=3, step_size=0.3, noise_std=0.2, n_latent_steps=4)


def make(energy, chain=LANGEVIN, n_chains=5, n_train=9, optimizer=None):
    method = eb.ParticleML(energy=energy, chain=chain, n_chains=n_chains, optimizer=optimizer or eb.SGD(lr=0.1), seed=1)
    method.keep_examples(n_train)
    return method.double()


@every_backend
def test_langevin_particles_of_the_joint_and_of_each_datum_by_hand(backend, float64):
    model = make_gaussian_latent()
    v = torch.randn(4, V_DIM)
    indices = torch.tensor([7, 0, 3, 8])
    method = make(model)
    before = {name: value.clone() for name, value in method.persistent_buffers().items()}
    before |= {"chain_started": torch.tensor(True), "chain_v": torch.randn(5, V_DIM), "chain_h": torch.randn(5, 3)}
    start = iterating.start(method)._replace(buffers=before, indices=indices)
    noise = method.draw_noise(v, keyed_generator(0))
    with backend():
        (found,) = iterating.found(method, start, v, noise)["model"]
        end, _ = iterating.run(method, start, v, noise)

    def slopes(x, h):  # dE/dv and dE/dh, derived by hand
        return (x - model.b) * (-2 * model.log_std).exp() - h @ model.W.T, h - model.c - x @ model.W

    with torch.no_grad():
        h = before["latents"][indices]
        for eps in noise["positive"]["steps"]:
            h = h - 0.15 * slopes(v, h)[1] + 0.2 * eps
        x = before["chain_v"]
        g = before["chain_h"]
        for eps_v, eps_h in zip(noise["negative"]["v"], noise["negative"]["h"], strict=True):
            by_v, by_h = slopes(x, g)
            x = x - 0.15 * by_v + 0.2 * eps_v
            g = g - 0.15 * by_h + 0.2 * eps_h
    loss = model.energy(v, h).mean() - model.energy(x, g).mean()
    iterating.assert_descends(found, loss, model)
    torch.testing.assert_close(end.buffers["chain_v"], x)
    torch.testing.assert_close(end.buffers["chain_h"], g)
    torch.testing.assert_close(end.buffers["latents"][indices], h)
    others = torch.tensor([1, 2, 4, 5, 6])
    assert torch.equal(end.buffers["latents"][others], before["latents"][others])
    assert not torch.isclose(h, before["latents"][indices]).any()


def test_the_indices_of_a_batch_are_those_of_its_rows():
    data = eb.Digits(batch_size=64, seed=3)
    stream = iter(data.train_dataloader())
    seen = []
    # 50 iterations reach into the third epoch of 22 minibatches, of which the last one is short.
    for i, v in zip(range(50), stream, strict=False):
        indices = data.indices_at(i)
        assert torch.equal(data.splits.train[indices], v)
        seen.append(indices)
    assert {len(indices) for indices in seen} == {64, 56}
    assert sorted(torch.cat(seen[:22]).tolist()) == list(range(len(data.splits.train)))
    assert torch.equal(data.indices_at(3), seen[3])  # The indices of an earlier iteration can still be computed.


RUN = (
    *("method=particle_ml", "model=gaussian", "chain=langevin", "chain.n_steps=2", "chain.n_latent_steps=2"),
    *("method.n_chains=30", "trainer.max_steps=60", "n_validations=4", "callbacks.checkpoints.every=7"),
    *("optimizer.lr=0.001", "final_lr=1e-4", "seed=3", "test_checkpoint=last"),
)


def test_in_a_run_each_example_meets_its_own_latents(tmp_path, monkeypatch):
    plain = eb.ParticleML.iteration
    asked = []

    def iteration(self, state, v, noise):
        train_split = self._data.as_float(self._data.splits.train)
        assert torch.equal(train_split[state.indices], v)
        asked.append(state.indices)
        return plain(self, state, v, noise)

    monkeypatch.setattr(eb.ParticleML, "iteration", iteration)
    train(tmp_path, *RUN, "iterations_per_batch=5", "trainer.log_every_n_steps=5", "callbacks.checkpoints.every=10")
    assert len(asked) == 60
    state = checkpoint(tmp_path)["state_dict"]
    start = torch.randn(len(state["latents"]), 3, generator=keyed_generator(3, "latents"))
    moved = (state["latents"] != start).all(1).nonzero().flatten()
    assert torch.equal(moved, torch.cat(asked).unique())
    assert len(moved) == 1400
