"""Tests of options of BiSM: several latents for each v, and the learning rate of the unrolled steps."""

import pytest
import torch

import eblvm_lit as eb
from cases import V_DIM, randomise
from eblvm_lit.core.functional import plain_autograd
from eblvm_lit.core.seeding import keyed_generator
from helpers import iterating
from helpers.shell import train


def make(**options):
    torch.manual_seed(0)
    return eb.BiSM(
        energy=randomise(eb.GRBM(v_dim=V_DIM, h_dim=3)),
        posterior=randomise(eb.BernoulliPosterior(v_dim=V_DIM, h_dim=3)),
        objective=eb.DSM(noise_std=0.3),
        divergence=eb.KL(),
        optimizer=eb.Adam(lr=1e-2),
        n_lower_steps=1,
        **{"n_unroll": 2, **options},
    )


def test_several_latents_average_the_loss_and_its_hypergradient(float64):
    several = make(n_particles=3)
    one = make()
    v = torch.randn(7, V_DIM)
    noise = several.draw_noise(v, keyed_generator(0))
    (whole,) = iterating.found(several, iterating.start(several), v, noise)["upper"]
    single = []
    for eps in noise["upper"]["latent"]:
        upper = {**noise["upper"], "latent": eps.unsqueeze(0)}
        (step,) = iterating.found(one, iterating.start(one), v, {**noise, "upper": upper})["upper"]
        single.append(step)
    assert len({step.loss.item() for step in single}) == 3
    torch.testing.assert_close(whole.loss, torch.stack([step.loss for step in single]).mean())
    for name, g in whole.grads.items():
        torch.testing.assert_close(g, torch.stack([step.grads[name] for step in single]).mean(0))
    with plain_autograd():
        (plain,) = iterating.found(several, iterating.start(several), v, noise)["upper"]
    torch.testing.assert_close(plain.grads, whole.grads)


@pytest.mark.parametrize(("lr", "ahead"), [("current", 0), ("next", 1)])
def test_unrolled_steps_have_the_rate_of_this_iteration_or_of_the_next(lr, ahead, tmp_path, monkeypatch):
    seen = []
    problem = eb.BiSM.bilevel_problem

    def watched(self, state, v, noise):
        found = problem(self, state, v, noise)
        seen.append((state.lrs["lower"].item(), float(found.lr)))
        return found

    monkeypatch.setattr(eb.BiSM, "bilevel_problem", watched)
    halved = ("schedule@optimizer.schedule=exponential", "optimizer.schedule.every=1", "optimizer.schedule.factor=0.5")
    unrolled = ("hypergradient=unroll_next", "hypergradient.n_unroll=1", f"hypergradient.lr={lr}")
    short = ("trainer.max_steps=3", "n_validations=1", "method.compile=false", "callbacks.evaluation=null")
    train(tmp_path, "method=bidsm", "optimizer.lr=0.1", *halved, *unrolled, *short)
    expected = [(0.1 * 0.5**i, 0.1 * 0.5 ** (i + ahead)) for i in range(3)]
    torch.testing.assert_close(torch.tensor(seen), torch.tensor(expected))
