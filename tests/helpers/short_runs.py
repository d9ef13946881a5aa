"""Overrides that shorten the runs of experiments and of the documentation's commands."""

import re

from helpers.shell import CONF

NARROW = [f"{part}.width=2" for part in ("model.network", "posterior.network", "generator")]

SMALL_DEEP = ["model.network.n_blocks=1", "model.network.channels=2"]
GAN = ["method=sngan", "data=cifar10", "model.network.widths=[2,2,2,2]", "generator.widths=[2,2,2,2]"]
BIAS = "callbacks.evaluation.metrics.hypergradient_bias"
ERROR = "callbacks.evaluation.metrics.hypergradient_error"
PLANE = {"quadrature.n_cells": 6, "quadrature.n_nodes": 5}
FD = "callbacks.evaluation.metrics.fd_classifier"
FEW_IMAGES = ["data.val_size=2", f"{FD}.n_samples=20", f"{FD}.n_samples_at_validation=20"]
SHORTER = {
    "dual_mnist_small": FEW_IMAGES,
    "dual_mnist_guide": FEW_IMAGES,
    "bidual_mnist_small": FEW_IMAGES,
    "harmonium_mnist_small": FEW_IMAGES,
    "toy_comparison": [
        "sampler.n_steps=2",
        *(f"callbacks.evaluation.metrics.{key}={value}" for key, value in PLANE.items()),
    ],
    "vages_toy_deep": ["callbacks.figures.figures.samples.n_points=2", "sampler.n_steps=2"],
    "hypergradient_comparison": [f"{ERROR}.{k}=3" for k in ("batch_size", "n_repeats", "n_reference_steps")],
    "bism_fig1": [
        *(f"{BIAS}.n_unrolls=[0,1]", f"{BIAS}.n_lower_steps=[0,1]", f"{BIAS}.n_reference_steps=3"),
        *(f"{BIAS}.n_terms=3", f"{BIAS}.n_series=3", f"{BIAS}.batch_size=600"),
    ],
}
CLASSIFIER = [
    f"callbacks.evaluation.metrics.fd_classifier.{option}"
    for option in ("features.n_steps=2", "n_samples=8", "n_samples_at_validation=8")
]
SHORT_CHAINS = [f"sampler.dynamics.{name}=1" for name in ("n_hot", "n_falling", "n_cold")]


def names(group):
    """Return the options of a configuration group, without files that are only parts of options.

    The names of such parts begin with an underscore.
    """
    return sorted(path.stem for path in (CONF / group).glob("[!_]*.yaml"))


def first_value(values):
    """Return the first of the values that a sweep gives to a key.

    The values are a range, or numbers, names or lists with commas between them.
    """
    return re.match(r"range\((\d+)|(\[.*?\]|[^,(]+)", str(values)).expand(r"\1\2")


def shorter_deep(cfg):
    """Return overrides that shorten an experiment with images: a small network, short chains, few samples and no
    FID."""
    if "generator" in cfg.method:
        return shorter_generator(cfg)
    if "prior" in cfg.model:
        short = ["data.val_size=2", "data.batch_size=3", "model.generator.width=2", "latent_langevin.n_steps=2"]
        return [*CLASSIFIER, *short, *SHORT_CHAINS]
    if "network" not in cfg.model:
        return []
    short = list(SHORT_CHAINS)
    narrow = "model.network.widths=[4]" if "widths" in cfg.model.network else "model.network.channels=2"
    short += ["data.val_size=2", "data.batch_size=3", narrow]
    # Only models with a posterior have a head for latents, whose size is reduced here.
    short += ["model.head_dim=4"] if cfg.model.get("head_dim") and "posterior" in cfg.method else []
    if "fid" in cfg.callbacks.evaluation.metrics:
        short += ["callbacks.evaluation.metrics.fid=null", "callbacks.checkpoints.monitor=val/loss"]
        short += ["callbacks.evaluation.at_validation=[]"]
    if "fd_classifier" in cfg.callbacks.evaluation.metrics:
        short += CLASSIFIER
        short += [f"callbacks.evaluation.intervals.{name}=2" for name in cfg.callbacks.evaluation.intervals]
        values = {"samples.n": 4, "conditional.n": 4, "interpolation.n": 2, "interpolation.n_lines": 2}
        values |= {"inpainting.n": 2, "tsne.n": 4, "energies.n": 4}
        drawn = {name: value for name, value in values.items() if name.split(".")[0] in cfg.callbacks.figures.figures}
        short += [f"callbacks.figures.figures.{name}={value}" for name, value in drawn.items()]
    else:
        short += ["callbacks.figures=null"]
    return short


def shorter_generator(cfg):
    """Return overrides that shorten an experiment whose method has a generator."""
    residual = "widths" in cfg.generator
    widths = [f"{part}.widths={[2] * len(cfg.generator.widths)}" for part in ("model.network", "generator") if residual]
    short = widths or (NARROW if "energy" in cfg.method else NARROW[1:])
    short = [*short, "data.val_size=2", "data.batch_size=3", "posterior.h_dim=3", "callbacks.figures=null"]
    short += ["data.subset=null"] if "subset" in cfg.data else []
    metrics = cfg.callbacks.evaluation.metrics
    at = "callbacks.evaluation.metrics"
    if "fid" in metrics:
        short += [f"{at}.fid=null", "callbacks.checkpoints.monitor=val/rmse"]
        short += ["callbacks.evaluation.at_validation=[reconstruction]"]
    if "fd_classifier" in metrics:
        short += CLASSIFIER
    return short
