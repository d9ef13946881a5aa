"""Methods on tiny images: gradients, passes through the network, memory and mixed precision."""

import pytest
import torch

import eblvm_lit as eb
from cases import IMAGE, POSTERIORS, V_DIM, latent_prior, tiny_resnet
from eblvm_lit.core.functional import plain_autograd
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.networks.heads import SquaredNormHead
from eblvm_lit.networks.smooth_mlp import SmoothMLP
from eblvm_lit.samplers.chains.langevin_chain import LangevinChain
from eblvm_lit.scores.particles import RefinedParticles
from helpers import iterating

OBJECTIVE = eb.MDSM(sigma_min=0.1, sigma_max=1.0, sigma0=0.1)


KINDS = ["mdsm", "cd", "bism", "bism-2", "vages"]


def image_method(kind, energy=None, n_lower_steps=2, **network):
    """Build a method for tiny images, always with the same initial parameters."""
    torch.manual_seed(0)
    rule = eb.Adam(lr=1e-3)
    net = tiny_resnet(**network)
    if kind == "mdsm":
        return eb.ScoreMatching(energy=eb.DeepEnergy(network=net), objective=OBJECTIVE, optimizer=rule)
    if kind == "cd":
        chain = LangevinChain(n_steps=2, step_size=0.01)
        return eb.ContrastiveDivergence(energy=eb.DeepEnergy(network=net), chain=chain, optimizer=rule)
    encoder = eb.ConvEncoder(v_shape=IMAGE, widths=[2, 3, 4])
    parts = {
        "energy": energy or eb.DeepLatentEnergy(network=net, h_dim=3),
        "posterior": eb.NetworkGaussianPosterior(network=encoder, h_dim=3),
        **{"objective": OBJECTIVE, "divergence": eb.Fisher(), "optimizer": rule, "n_lower_steps": n_lower_steps},
    }
    if kind.startswith("bism"):
        return eb.BiSM(**parts, n_unroll=int(kind.removeprefix("bism").removeprefix("-") or 0))
    particles = RefinedParticles(n_refine_steps=3, step_size=1e-2, noise_std=1e-4)
    return eb.VaGES(**parts, score=eb.VariationalScore(n_particles=2, particles=particles))


def model_gradient(method, v):
    noise = method.draw_noise(v, keyed_generator(0))
    (step,) = iterating.found(method, iterating.start(method, 1e-3), v, noise)[list(method.groups)[-1]]
    return step


@pytest.mark.parametrize("kind", KINDS)
def test_an_iteration_on_images_moves_every_network_whoever_differentiates(kind, float64):
    method = image_method(kind)
    v = torch.rand(4, *IMAGE)
    composed = model_gradient(method, v)
    with plain_autograd():
        plain = model_gradient(method, v)
    torch.testing.assert_close((composed.loss, composed.grads), (plain.loss, plain.grads))
    before = iterating.start(method, 1e-3)
    with plain_autograd():
        after, record = iterating.run(method, before, v, method.draw_noise(v, keyed_generator(1)))
    assert all(value.isfinite() for value in record.values())
    for network, params in before.params.items():
        for name, p in params.items():
            # The last bias is an additive constant of the energy. It is not moved, because it changes neither a score
            # nor the difference of two energies.
            assert torch.equal(after.params[network][name], p) == (name == "head.square.bias"), name


def kept_bytes(energy, v):
    """Count the numbers that autograd keeps for the backward pass of an energy at v."""
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.setdefault(x.data_ptr(), x.numel()) and x, lambda x: x
    ):
        energy(v)
    return sum(kept.values())


def test_recomputed_activations_change_no_gradient(float64):
    v = torch.rand(4, *IMAGE)
    passes = {}
    found = {}
    for recompute in (False, True):
        method = image_method("cd", checkpoint=recompute)
        count = passes.setdefault(recompute, [])
        method.energy.network.blocks[1].register_forward_pre_hook(lambda *_, count=count: count.append(1))
        with plain_autograd():
            found[recompute] = model_gradient(method, v).grads
    torch.testing.assert_close(found[True], found[False], rtol=1e-12, atol=1e-12)
    # The network runs four times: for two steps of the chain, and for the energies of both phases. With recomputation
    # each pass is made twice.
    assert (len(passes[False]), len(passes[True])) == (4, 8)
    assert kept_bytes(image_method("cd", checkpoint=True).energy, v) < kept_bytes(image_method("cd").energy, v) / 2


@pytest.mark.parametrize("kind", ["mdsm", "bism", "vages"])
def test_bfloat16_leaves_sums_and_parameters_in_float32(kind):
    v = torch.rand(4, *IMAGE)
    found = {}
    for enabled in (False, True):
        with plain_autograd(), torch.autocast("cpu", torch.bfloat16, enabled=enabled, cache_enabled=False):
            found[enabled] = model_gradient(image_method(kind), v)
    assert found[True].loss.dtype == torch.float32
    torch.testing.assert_close(found[True].loss, found[False].loss, rtol=1e-4, atol=0)
    assert {g.dtype for g in found[True].grads.values()} == {torch.float32}
    half, single = (torch.cat([g.flatten() for g in found[enabled].grads.values()]) for enabled in (True, False))
    assert (half != single).any()
    assert (half - single).norm() < 0.1 * single.norm()


def count_calls(energy):
    calls = []
    energy.network.register_forward_hook(lambda module, args, out: calls.append(args[0].shape))
    return calls


def test_sums_are_float32_under_autocast():
    v = torch.rand(4, *IMAGE)
    h = torch.randn(2, 4, 3)
    q = image_method("bism").posterior
    prior = latent_prior(SmoothMLP(sizes=[3, 5, V_DIM]))
    with torch.autocast("cpu", torch.bfloat16):
        energies = [image_method("bism").energy(v, h), image_method("mdsm").energy(v), prior.tilt(h[0])]
        energies += [q.log_prob(h, v), *q.distribution_params(v)]
        energies += [POSTERIORS[0].make().float().logits(torch.rand(4, V_DIM))]
        assert tiny_resnet()(v).dtype == torch.bfloat16
    assert {e.dtype for e in energies} == {torch.float32}
    # The head sums 1001 equal terms. In bfloat16, whose mantissa has 8 bits, 1001 would be rounded to 1000.
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        head = SquaredNormHead(in_dim=1, width=1001)
        head.weight.zero_(), head.bias.fill_(1.0)
        assert head(torch.zeros(1, 1)).item() == 1001


PASSES = {"bism": 1, "bism-2": 3, "vages": 3, "mdsm": 1}


@pytest.mark.parametrize("kind", PASSES)
def test_passes_of_an_iteration_through_the_trunk(kind):
    # The trunk is passed once for each lower step (unrolled or not), once for all refinement steps together, once for
    # the score, and once for the gradient of the score.
    method = image_method(kind, n_lower_steps=4)
    v = torch.rand(4, *IMAGE)
    noise = method.draw_noise(v, keyed_generator(0))
    calls = count_calls(method.energy)
    with plain_autograd():
        iterating.run(method, iterating.start(method, 1e-3), v, noise)
    assert calls == [(4, *IMAGE)] * (PASSES[kind] + (0 if kind == "mdsm" else 4))
