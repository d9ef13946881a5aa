"""Methods to be run by several processes, and a function that forks these processes."""

import copy
import os
import socket
from pathlib import Path

import sklearn.datasets  # noqa: F401 - loaded here, and not by each process
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from pytorch_lightning.utilities import rank_zero_only

from cases import randomise
from eblvm_lit.core.reductions import comm_counter
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.core.shards import minibatch_of, shard_of
from eblvm_lit.data.digits import Digits
from eblvm_lit.energies.spectral import SpectralEnergy
from eblvm_lit.methods.annealed_likelihood import AnnealedLikelihood
from eblvm_lit.methods.bidvl.losses import Adversarial, FullLatentTerm, OffsetLatentTerm
from eblvm_lit.methods.bidvl.method import BiDVL
from eblvm_lit.methods.bidvl.ratios import ConstantRatio, SigmoidRatio
from eblvm_lit.methods.bidvl.sngan import SNGAN
from eblvm_lit.methods.bidvl.vae import VAE
from eblvm_lit.methods.jarzynski import Jarzynski
from eblvm_lit.networks.bidvl_conv import BatchNormEncoder, ConvGenerator, SpectralConv
from eblvm_lit.optimizers.adam import Adam
from eblvm_lit.posteriors.gaussian import EncoderPosterior
from eblvm_lit.runs.build import build
from eblvm_lit.training.callbacks.compiling import for_full_minibatches
from helpers.shell import tiny

__all__ = ["CASES", "in_processes", "iterate", "make"]

IMAGE = (1, 8, 8)
BATCH = 100
SHORT = 62  # the number of examples in a short minibatch, of which two processes take 30 and 32
N_EXAMPLES = 1100
K = "method.n_lower_steps=1"
# The noise is small, because negatives with noise of standard deviation 1 are so far from the digits that the loss is
# constant.
NEAR = "method.noise_std=0.1"
PAIRS = "objective.pairs=all"
LEVELS = ("model.energy.network.widths=[8]", "sizes.h_dim=3", "optimizer.lr=0.01")
WIDE = "objective.bandwidth=3.0"  # this bandwidth suits the distances between digits, which are two to six


def bidsm(n, *options):
    return ("method=bidsm", "method.n_lower_steps=2", f"method.n_unroll={n}", *options)


def implicit(*options):
    return ("method=bidsm", K, "hypergradient=implicit", "hypergradient.n_terms=2", *options)


def hyper(name, *options, model="grbm"):
    return ("method=bidsm", K, f"model={model}", f"hypergradient={name}", *(f"hypergradient.{o}" for o in options))


# For every method, and every part that exchanges tensors between processes: its overrides, or a function that builds
# it.
CASES = {
    **{f"bidsm N={n}": bidsm(n) for n in (0, 2, 5)},
    "bidsm clipped": bidsm(1, "optimizer.clip_norm=0.5"),
    "bidsm cg": implicit(),
    "bidsm fisher": implicit("hypergradient.curvature=fisher", "hypergradient.damping=1.0"),
    "bidsm fixed point": hyper("fixed_point", "n_steps=2", "n_particles=2", "step_size=0.5"),
    "bidsm fixed point phi": hyper("fixed_point", "value=phi", "precision=stepped", model="gaussian"),
    "bidsm warm": hyper("warm"),
    "bidsm warm descent": hyper("warm", "step_size=0.01", "n_steps=2", "reset_every=2"),
    "bidsm finite difference": hyper("finite_difference"),
    "bidsm penalty": hyper("penalty", "n_steps=2", "multiplier=10.0"),
    "bissm": ("method=bissm", K, "method.n_unroll=1"),
    "bimdsm": ("method=bimdsm", K, "method.n_unroll=1"),
    "bimdsm shared deep": ("method=bimdsm", "model=deep_toy", K, "method.n_unroll=1", "method.lower_noise=shared"),
    "vages_mdsm shared": ("method=vages_mdsm", "model=deep_toy", K, "method.lower_noise=shared"),
    "bism": ("method=bism", "objective=ksd", PAIRS, "objective.bandwidth=median", K, "method.n_unroll=1"),
    "sm": ("method=sm", "model=gaussian"),
    "dual": ("method=dual", *LEVELS),
    "levels": ("method=levels", *LEVELS),
    "bidual": ("method=bidual", *LEVELS, K),
    "vages_dual": ("method=vages_dual", *LEVELS, K),
    **{name: (f"method={name}",) for name in ("ssm", "dsm", "mdsm", "is_dsm")},
    **{name: (f"method={name}", WIDE) for name in ("ksd", "is_ksd")},
    "score_matching": ("method=score_matching", "objective=ksd", PAIRS, WIDE),
    **{name: (f"method={name}", K) for name in ("vages", "vages_dsm", "vages_mdsm", "vages_fisher")},
    "vages_ksd": ("method=vages_ksd", K, WIDE),
    "vages_ksd all": ("method=vages_ksd", K, PAIRS, "objective.bandwidth=median"),
    "vages_dsm refined": (
        *("method=vages_dsm", K, "model=gaussian", "particles=refined"),
        *("particles.n_refine_steps=2", "particles.step_size=0.01"),
    ),
    "cd": ("method=cd",),
    "pcd": ("method=pcd",),
    "pcd more chains": ("method=pcd", "method.n_chains=131"),
    "pcd langevin": ("method=pcd", "chain=langevin", "chain.n_steps=2", "chain.uniform_start=[0,1]"),
    # With the threshold 2.0, the method resamples in every iteration.
    "jarzynski": ("method=jarzynski", "method.n_chains=131", "method.resample_below=2.0"),
    "jarzynski langevin": ("method=jarzynski", "model=gaussian", "chain=langevin", "chain.n_steps=2"),
    "annealed_likelihood": (
        *("method=annealed_likelihood", "model=gaussian", "method.n_chains=37", "method.n_moves=2"),
        *("method.n_falling=3", "method.n_held=3", "method.n_leapfrog=2"),
    ),
    "lebm": (
        *("method=lebm", "model=latent_prior_toy", "latent_langevin.n_steps=3", "optimizer.lr=0.01"),
        *("method.posterior_langevin.n_steps=2", "method.posterior_langevin.step_size=0.001"),
    ),
    "nce": ("method=nce", "method.nu=2"),
    "vnce": ("method=vnce", K, "method.nu=2"),
    "snl": ("method=snl", "method.n_proposals=2", "noise_distribution=standard_normal"),
    "vsnl": ("method=vsnl", K, "model=gaussian", "method.n_proposals=2", "noise_distribution=standard_normal"),
    "particle_ml": ("method=particle_ml", "method.n_chains=37"),
    "particle_ml langevin": (
        *("method=particle_ml", "model=gaussian", "chain=langevin", "chain.n_steps=2", "chain.n_latent_steps=2"),
        "method.n_chains=37",
    ),
    "ed": ("method=ed", NEAR),
    "ed_latent": ("method=ed_latent", K, NEAR, "method.n_negatives=2", "method.n_particles=3"),
    "fisher_critic": ("method=fisher_critic",),
    "bidvl": lambda: bidvl(OffsetLatentTerm(ratio=SigmoidRatio(scale=0.5))),
    "bidvl_resnet": lambda: bidvl(  # this case has the hinge loss, and separate latents for each level
        OffsetLatentTerm(ratio=ConstantRatio(scale=0.05), critic_loss="hinge"), share_latents=False
    ),
    "bidvl complete N=1": lambda: bidvl(FullLatentTerm(ratio=SigmoidRatio(scale=0.5)), n_unroll=1),
    "bidvl complete": lambda: bidvl(FullLatentTerm(ratio=SigmoidRatio(scale=0.5)), encoder_optimizer="shared"),
    "sngan": lambda: baseline(SNGAN, "posterior", loss=Adversarial(), n_upper_steps=1),
    "vae": lambda: baseline(VAE, "energy"),
}


def make(name, folder):
    """Build a method in double precision, and return it with the shape of its data."""
    parts = CASES[name]
    torch.manual_seed(0)
    if isinstance(parts, tuple):
        method = build(tiny(folder, "method.compile=false", f"data.batch_size={BATCH}", *parts)).method
        like = torch.zeros(1, *method.event_shape)
    else:
        method = parts()
        like = torch.zeros(1, *IMAGE)
    method.keep_examples(N_EXAMPLES)
    if isinstance(method, Jarzynski):
        method.start(torch.rand(BATCH, *like.shape[1:]), keyed_generator(0))
    if isinstance(method, AnnealedLikelihood):
        method.start(torch.rand(method.n_chains, *like.shape[1:]), keyed_generator(0))
    return method.double().train(), like.double()


def networks():
    """Build an energy, an encoder and a generator of small images, with batch normalisation and spectral norms.

    The energy's parameters are random instead of the published initial N(0, 0.02^2), with which the energy is nearly
    linear: data and samples then cancel in the first gradient of its last bias, and Adam divides the remaining rounding
    error by its eps.
    """
    energy = SpectralEnergy(network=SpectralConv(v_shape=IMAGE, width=2), output="identity")
    posterior = EncoderPosterior(network=BatchNormEncoder(v_shape=IMAGE, width=2), h_dim=3)
    return {
        "energy": randomise(energy, 0.3),
        "posterior": randomise(posterior, 0.3),
        "generator": ConvGenerator(v_shape=IMAGE, h_dim=3, width=2),
    }


def bidvl(loss, **options):
    options = {"encoder_optimizer": "own", **options}
    return BiDVL(**networks(), loss=loss, optimizer=Adam(lr=1e-3), compile=False, **options)


def baseline(kind, without, **options):
    parts = {name: part for name, part in networks().items() if name != without}
    return kind(**parts, optimizer=Adam(lr=1e-3), compile=False, **options)


def iterate(method, like, n_iterations, compiled=False, short=SHORT):
    """Run iterations of a method on real data, and count the reductions between processes.

    Return the state dict, the last record, and the numbers of reductions and of the reduced bytes.
    """
    method = copy.deepcopy(method)
    if compiled:
        method.compiled = for_full_minibatches(method, BATCH, may_fail=False)
    data = Digits(batch_size=BATCH)
    data.setup()
    examples = data.splits.train.double().view(-1, *like.shape[1:])
    optimizers = dict(zip(method.groups, method.configure_optimizers(), strict=True))
    lrs = {name: torch.tensor(0.01, dtype=torch.float64) for name in method.rates}
    before = comm_counter.copy()
    for i in range(n_iterations):
        indices = torch.arange((BATCH * i) % 1000, N_EXAMPLES)[: short if i == 2 else BATCH]
        whole = examples[indices]
        shard = shard_of(len(whole))
        v = whole if shard is None else whole[shard.rows]
        state = method.train_state(optimizers, lrs)._replace(indices=indices)
        record = method.step(state, minibatch_of(v, len(whole)), v, keyed_generator(0, "test", i))
    return method.state_dict(), record, comm_counter["calls"] - before["calls"], comm_counter["bytes"] - before["bytes"]


def _enter(rank, size, port, folder, work):
    torch.set_num_threads(1)
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0"}
    os.environ.update({**own, "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)})
    rank_zero_only.rank = rank
    dist.init_process_group("gloo", rank=rank, world_size=size)
    torch.save(work(rank), Path(folder) / f"found_{rank}.pt")
    dist.destroy_process_group()


def in_processes(size, folder, work):
    """Return the results of ``work(rank)`` from several processes of one group."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.start_processes(_enter, (size, port, folder, work), nprocs=size, start_method="fork")
    return [torch.load(Path(folder) / f"found_{rank}.pt", weights_only=False) for rank in range(size)]
