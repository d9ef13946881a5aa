"""Tests of the adversarial network: the loss of each step, and the examples and samples that it uses."""

import pytest
import torch

from eblvm_lit.core.functional import plain_autograd
from eblvm_lit.core.shards import _shard
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.bidvl.losses import Adversarial, non_saturating
from helpers import iterating
from helpers.bidvl_images import changed, minibatch, sngan
from helpers.iterating import start


@pytest.mark.parametrize("critic_loss", ["hinge", "softplus"])
def test_each_step_of_the_adversarial_network_moves_one_network_down_its_loss(critic_loss, float64):
    method = sngan(loss=Adversarial(critic_loss=critic_loss), n_upper_steps=1)
    v, noise = minibatch(method)
    noise["upper"] = [noise["lower"]]

    def step_of(name, state):
        (found,) = iterating.found(method, state, v, noise)[name]
        return found

    def gap(state):
        return step_of("upper", state).diagnostics["energy_gap"]

    begin = start(method)
    with plain_autograd():
        middle, _ = iterating.run(method, begin, v, noise, only=["upper"])
        end, record = iterating.run(method, middle, v, noise, only=["lower"])
        assert gap(middle) < gap(begin)  # the critic's step lowers E(v) - E(v_hat)
        assert step_of("lower", end).loss < record["lower_loss"]  # the generator's step lowers E(v_hat)
    assert {name.split(".")[0] for name in changed(begin, middle)} == {"theta"}
    assert {name.split(".")[0] for name in changed(middle, end)} == {"omega"}


def test_the_critic_has_n_upper_steps_each_with_fresh_samples():
    method = sngan(n_upper_steps=3)
    v, noise = minibatch(method)
    steps = iterating.found(method, start(method), v, noise)
    assert {name: len(found) for name, found in steps.items()} == {"upper": 3, "lower": 1}
    assert len({tuple(draw["h_hat"].flatten().tolist()) for draw in [*noise["upper"], noise["lower"]]}) == 4


def test_fresh_minibatches_deal_the_rows_out_to_the_steps_of_the_critic(float64):
    method = sngan(n_upper_steps=3, fresh_minibatches=True)
    alone = sngan(n_upper_steps=1)
    alone.load_state_dict(method.state_dict())
    v, noise = minibatch(method)
    assert len(v) == 6
    steps = iterating.found(method, start(method), v, noise)
    for k, step in enumerate(steps["upper"]):
        own = {name: x[k::3] for name, x in noise["upper"][k].items()}
        lower = {name: x[::3] for name, x in noise["lower"].items()}
        expected = iterating.found(alone, start(alone), v[k::3], {"upper": [own], "lower": lower})
        torch.testing.assert_close(step.grads, expected["upper"][0].grads, rtol=0, atol=0)
        torch.testing.assert_close(steps["lower"][0].grads, expected["lower"][0].grads, rtol=0, atol=0)


@pytest.mark.parametrize("n", [12, 24, 18, 30, 60])
@pytest.mark.parametrize("size", [2, 4])
def test_several_processes_deal_out_the_rows_of_one_process_or_are_refused(n, size):
    method = sngan(n_upper_steps=3, fresh_minibatches=True)
    shards = [_shard(n, rank, size, torch.device("cpu")).rows for rank in range(size)]
    parts = [sorted(torch.cat([rows[k::3] for rows in shards]).tolist()) for k in range(3)]
    alike = parts == [list(range(k, n, 3)) for k in range(3)]
    even = all(len(rows) % 3 == 0 for rows in shards)
    if n % (2 * size * 3) == 0:
        method.check_shared_batch(n, size)
        assert alike
        assert even
    else:
        with pytest.raises(
            ConfigError, match=f"{size} devices cannot divide a batch of {n} .* multiples of {6 * size}"
        ):
            method.check_shared_batch(n, size)


def test_the_logistic_gap_is_the_cross_entropy_of_a_classifier_by_the_energy(float64):
    real = torch.randn(5)
    fake = torch.randn(5)
    is_data = [torch.sigmoid(-e) for e in (real, fake)]
    torch.testing.assert_close(non_saturating(real, fake), -is_data[0].log() - (1 - is_data[1]).log())
