"""The configuration: every option composes and builds, and what does not fit is refused by name."""

import importlib.util
import inspect
import re
import shlex

import pytest
import pytorch_lightning as pl
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf

from eblvm_lit.cli import compose, run
from eblvm_lit.cli.build import build, build_trainer
from eblvm_lit.cli.instantiate import LIBRARIES, instantiate, resolve_target, to_plain
from eblvm_lit.cli.sentences import NOT_TAKEN, TAKEN, refuse_unread, sentence
from eblvm_lit.cli.settings import check_config
from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.utils.command_line import override
from helpers.image_files import write_celeba, write_cifar10, write_frey, write_images, write_mnist, write_svhn
from helpers.shell import CONF, composed, configure, configured, save_config, tiny, train, with_values
from helpers.short_runs import (
    GAN,
    NARROW,
    SHORTER,
    SMALL_DEEP,
    first_value,
    names,
    shorter_deep,
)

# Where a group's choice goes, if not under its own name.
PLACES = {
    "schedule": "schedule@optimizer.schedule",
    "evaluation": "evaluation@callbacks.evaluation.metrics",
    "figures": "figures@callbacks.figures.figures",
    "mask": "mask@callbacks.figures.figures.inpainting.mask",
    "outliers": "+outliers@callbacks.evaluation.metrics.out_of_distribution.sets.others",
    "criteria": "+criteria@callbacks.evaluation.metrics.fid.criteria",
    "features": "+features@callbacks.evaluation.metrics.fid.features",
}
VARIATIONAL_PARTS = [
    ("score", "vages"),
    *(("particles", name) for name in ("posterior", "exact")),
    *(("estimate", name) for name in ("vaes", "control_variate")),
    *(("covariance", name) for name in ("unbiased", "biased", "none")),
]
# What an option needs beside it.
COMPANIONS = {
    "divergence=fisher": ["model=gaussian"],
    "posterior=gaussian": ["model=gaussian"],
    "posterior=gaussian_mlp": ["model=gaussian"],
    **{f"model={name}": ["data=mnist", *SMALL_DEEP] for name in ("deep", "deep_small")},
    "posterior=gaussian_conv": ["model=deep", "data=mnist", *SMALL_DEEP],
    "model=deep_mlp": ["data=mnist", "data.size=8", "model.network.widths=[8]"],
    "posterior=gaussian_image_mlp": ["model=deep_mlp", "data=mnist", "data.size=8", "model.network.widths=[8]"],
    **{f"chain={name}": ["method=cd"] for name in ("gibbs", "langevin")},
    **{f"score={name}": [f"method={method}"] for name, method in (("exact", "dsm"), ("importance", "is_dsm"))},
    **{f"{group}={name}": ["method=vages_dsm"] for group, name in VARIATIONAL_PARTS},
    "particles=refined": ["method=vages_dsm", "model=gaussian"],
    **{f"noise_distribution={name}": ["method=nce"] for name in ("standard_normal", "fitted_normal")},
}
ALL_FIGURES = "figures@callbacks.figures.figures=all"
COMPANIONS |= {f"mask={name}": ["data=mnist", *SMALL_DEEP, ALL_FIGURES] for name in ("digits", "left_half", "mnist")}
# Doubly variational learning: any of its parts with narrow others.
DOUBLY = ["method=bidvl", "data=cifar10"]
PARTS = {
    "loss": ("offset_latent", "full_latent", "no_latent"),
    "ratio": ("constant", "sigmoid", "clamped_exponential"),
    "generator": ("conv",),
    "posterior": ("encoder_conv",),
    "model": ("spectral_conv",),
}
RESIDUAL = ["model=spectral_resnet", "posterior=encoder_residual", "generator=residual"]
COMPANIONS |= {f"{group}={name}": [*DOUBLY, *NARROW] for group, found in PARTS.items() for name in found}
COMPANIONS |= {
    option: [*DOUBLY, *RESIDUAL, "model.network.widths=[2,2,2,2]", "generator.widths=[2,2,2,2]"] for option in RESIDUAL
}
COMPANIONS |= {
    f"loss={name}": [*DOUBLY, "model=joint_conv", *NARROW] for name in ("symmetric_joint", "canonical_joint")
}
COMPANIONS |= {
    "model=joint_conv": [*DOUBLY, "loss=symmetric_joint", *NARROW],
    "method=bidvl": ["data=cifar10", *NARROW],
}
COMPANIONS |= {option: ["data=mnist", "data.size=16"] for option in ("method=lebm", "model=latent_prior")}
COMPANIONS["method=vae"] = ["data=cifar10", *NARROW[1:]]  # it reads no model
COMPANIONS |= {"method=sngan": GAN[1:], "method=bidvl_resnet": GAN[1:]}
OUTLIERS = "callbacks.evaluation.metrics.out_of_distribution.sets"
COMPANIONS |= {
    f"outliers={name}": ["data=mnist", *SMALL_DEEP, "evaluation@callbacks.evaluation.metrics=out_of_distribution"]
    for name in names("outliers")
}
FID = "evaluation@callbacks.evaluation.metrics=fid"
WITHOUT_CLASSES = [FID, "callbacks.evaluation.metrics.fid.criteria.inception_score=null"]
COMPANIONS |= {"criteria=coverage": [FID], **{f"features={name}": WITHOUT_CLASSES for name in names("features")}}
COMPANIONS["outliers=image_folder"].append(f"{OUTLIERS}.others.data.path=nowhere")
# What an experiment, or a word of its command, computes, if not what all others do; and what takes too long for a test.
DEEP = ("bism_mnist", "bism_table2", "bism_table4", "vages_cifar10", "vages_table3")
SMALL = ("bimdsm", "bidvl", "vae", "lebm", "latent_prior", "latent_prior_vages", "deep_mlp")
RESULTS = {
    **dict.fromkeys(DEEP, "test/posterior_fisher"),
    **{f"{name}_mnist_small": "test/fd_classifier" for name in SMALL},
    **{f"{name}_mnist": "test/fd_classifier" for name in ("bimdsm", "bidvl")},
    "bidvl_sweeps_small": "test/fd_classifier",
    **{f"bidvl_{name}": "test_best/rmse" for name in ("table1", "table2", "table3", "table5")},
    "model=joint_conv": "test/upper_critic_loss_grad_norm",
    **dict.fromkeys(("model=deep_toy", "model.h_dim=2"), "test/posterior_fisher"),
    "bidvl_table4": "test/auroc_celeba",
    "bism_table2_mdsm": "iteration",  # FID apart
    "bism_table3": "train/iterations_per_second",
    "vages_bias": "test/score_bias_vaes_t0",
    "vages_fisher": "test/fisher_divergence_true",
    "vages_toy_deep": "test/posterior_fisher",
}
ORDER = ["nonfinite", "ema", "curves", "evaluation", "figures", "checkpoints", "preemption", "progress"]
LOWER = "method.lower_optimizer"
NOT_AXES = ("experiment", "hydra", "published")


GROUPS = sorted(path.name for path in CONF.iterdir() if path.is_dir() and path.name not in NOT_AXES)
IMAGE_SETS = [name for name in names("data") if "value_range" in composed(f"data={name}").data]
OPTIONS = [f"{group}={name}" for group in GROUPS for name in names(group)]


def targets(node, path=""):
    """All nodes with a target, with their paths."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield path, node
        for key, value in node.items():
            yield from targets(value, f"{path}.{key}" if path else key)
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from targets(value, f"{path}[{i}]")


def mismatches(node):
    """Constructor arguments without a key, and keys without an argument."""
    found = []
    for path, described in targets(node):
        parameters = inspect.signature(resolve_target(described["_target_"], LIBRARIES)).parameters
        keys, ours = described.keys() - {"_target_"}, described["_target_"].startswith("eblvm_lit.")
        found += [f"{path} has no {name}" for name in parameters.keys() - keys if ours]
        if all(p.kind is not p.VAR_KEYWORD for p in parameters.values()):
            found += [f"{path}.{key} is too much" for key in keys - parameters.keys()]
    return found


@pytest.mark.parametrize("option", [option for option in OPTIONS if option.removeprefix("data=") not in IMAGE_SETS])
def test_every_option_composes_builds_and_shows_every_argument(option, tmp_path):
    group, _, name = option.partition("=")
    if name == "wandb" and importlib.util.find_spec("wandb") is None:
        pytest.skip("wandb is not installed")
    place = f"{PLACES.get(group, group)}={name}"
    cfg = configure(place, *COMPANIONS.get(option, ()), f"run_dir={tmp_path}")
    # whatever the choice, the configuration names every argument, and so can be read instead of the code
    assert mismatches(save_config(cfg)) == []
    check_config(cfg)
    parts = build(cfg)
    if option in ("trainer=ddp", "trainer=slurm") and not torch.cuda.is_available():
        with pytest.raises(ConfigError, match=r"^trainer( \(Trainer\) does not fit)?: "):
            build_trainer(cfg, parts)
        return
    trainer = build_trainer(cfg, parts)
    assert len(trainer.loggers) == {"none": 0, "csv": 1}.get(name if group == "logger" else "csv", 2)
    assert list(parts.callbacks) == [name for name in ORDER if name != "ema" or option == "callbacks=ema"]


@pytest.mark.parametrize("name", IMAGE_SETS)
def test_every_image_set_composes_with_the_deep_model_and_shows_every_argument(name, tmp_path):
    write_images(tmp_path, 2, size=(16, 16))
    path = [f"data.path={tmp_path}", "data.channels=3", "data.size=16"] if name == "image_folder" else []
    small = ["model.h_dim=3", "model.network.channels=2", "model.network.n_blocks=1"]
    cfg = configure(f"data={name}", *path, *small, f"run_dir={tmp_path}")
    assert mismatches(save_config(cfg)) == []
    check_config(cfg)
    parts = build(cfg)
    side = {"image_folder": 16, "celeba64": 64, "celeba128": 128}.get(name, 32)
    channels = 1 if "mnist" in name else 3
    assert parts.data.event_shape == parts.method.energy.event_shape == (channels, side, side)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["method=bidvl"],
            "^The model needs images, and the data are vectors: use images, such as data=mnist",
        ),
        (
            ["method=lebm", "data=digits"],
            "^The model needs images, and the data are vectors",
        ),
        (["method=vae", "data=digits"], "^The generator needs images, and the data are vectors"),
        (["method=dsm", "score=vages"], "^score.estimate is taken from estimate, which has no value here: choose one"),
    ],
)
def test_parts_that_do_not_fit_the_data_are_named(overrides, sentence):
    with pytest.raises(ConfigError, match=sentence):
        check_config(configure(*overrides, "run_dir=."))


def test_a_model_of_vectors_does_not_fit_images(tmp_path):
    cfg = configure("data=cifar10", "model=grbm", "model.v_dim=4", "model.h_dim=3", f"run_dir={tmp_path}")
    with pytest.raises(ConfigError, match=r"of shape \(4,\), the data have \(3, 32, 32\)"):
        build(cfg)


def test_a_missing_path_or_value_is_named_once(tmp_path):
    with pytest.raises(ConfigError, match=r"^data.path has no value"):
        train(tmp_path, "data=image_folder")
    with pytest.raises(DataError, match=r"^There is no folder .*/somewhere with images.*: set data.path to one\.$"):
        train(tmp_path, "data=image_folder", "data.path=somewhere")
    with pytest.raises(ConfigError, match=r"^node.a.b has no value"):
        instantiate(OmegaConf.create({"a": {"b": "???"}}), "node")


def test_images_can_have_every_metric_that_needs_no_weights_from_elsewhere(tmp_path):
    chosen = "evaluation@callbacks.evaluation.metrics=[out_of_distribution,probe]"
    metrics = configure("data=mnist", chosen).callbacks.evaluation.metrics
    assert {"log_likelihood", "posterior", "probe", "out_of_distribution"} <= metrics.keys()


@pytest.mark.parametrize(
    ("overrides", "chain"),
    [
        (["method=cd"], "Gibbs"),
        (["method=pcd", "data=digits", "model=gaussian"], "Gibbs"),
        (["method=cd", "data=mnist"], "Langevin"),
        (["method=pcd", "data=cifar10"], "Langevin"),
        (["method=cd", "model=deep_toy"], "Langevin"),
        (["method=cd", "data=mnist", "chain=gibbs"], "Gibbs"),  # which the method will refuse
        (["method=pcd", "chain=langevin"], "Langevin"),
    ],
)
def test_a_model_brings_the_chain_that_fits_and_the_command_line_has_the_last_word(overrides, chain):
    cfg = configure(*overrides)
    assert cfg.method.chain._target_.endswith(f".{chain}Chain")
    assert (cfg.method.n_chains == 100) == ("method=pcd" in overrides)


@pytest.mark.parametrize("name", sorted({*IMAGE_SETS} - {"image_folder"}))
def test_settings_of_image_sets_are_the_published_ones(name):
    cfg = configure(f"data={name}")
    grey, colour = (100_000, 1e-4, 0.1, 3.0, "geometric"), (300_000, 5e-5, 0.05, 1.2, "linear")
    published, noise = grey if "mnist" in name else colour, cfg.noise
    assert (cfg.trainer.max_steps, cfg.optimizer.lr, noise.sigma_min, noise.sigma_max, noise.ladder) == published
    assert (cfg.data.batch_size, noise.sigma0, cfg.optimizer.schedule.floor, cfg.iterations_per_batch) == (
        100,
        0.1,
        1e-6,
        1,
    )
    assert (list(cfg.optimizer.betas), cfg.optimizer.weight_decay) == ([0.9, 0.95], 0)
    assert cfg.trainer.max_steps // cfg.n_validations == (10_000 if "mnist" in name else 5_000)


@pytest.mark.parametrize("name", names("data"))
def test_every_data_set_says_what_models_and_objectives_need_of_it(name):
    path = ["data.path=somewhere", "data.size=32", "data.channels=3"] if name == "image_folder" else []
    cfg = configure(f"data={name}", *path)
    assert OmegaConf.missing_keys(cfg.sizes) == OmegaConf.missing_keys(cfg.noise) == set()
    assert instantiate(cfg.data, "data").event_shape == tuple(to_plain(cfg.sizes)["v_shape"])


def test_what_is_published_is_of_a_method_on_a_data_set():
    for name in names("published"):
        assert any(name == f"{method}_{data}" for method in names("method") for data in names("data")), name


def experiment_commands():
    """What every experiment's file says how it is run: its name, and the other words."""
    for name in names("experiment"):
        found = re.findall(rf"^#   python train.py (.*experiment={name}\b.*)$", text(name), re.MULTILINE)
        assert found, f"{name}.yaml does not say how it is run"
        for words in found:
            yield name, tuple(word for word in shlex.split(words) if word not in ("-m", f"experiment={name}"))


def text(experiment):
    return (CONF / "experiment" / f"{experiment}.yaml").read_text()


@pytest.mark.parametrize(("experiment", "words"), experiment_commands())
def test_every_experiment_runs_a_few_iterations_with_every_key_it_sweeps(
    experiment, words, tmp_path, files, monkeypatch
):
    sweep = OmegaConf.create(text(experiment)).get("hydra", {}).get("sweeper", {})
    axes = {**sweep.get("params", {}), **dict(word.split("=", 1) for word in words)}
    second = axes.pop("ckpt", None) == "last"
    swept = [f"{key}={first_value(values)}" for key, values in axes.items()]
    monkeypatch.setenv("EBLVM_DATA", str(files))

    def train(folder, n, *swept):
        found = [f"experiment={experiment}", "debug=fast", *swept, *SHORTER.get(experiment, [])]
        small = ["data.batch_size=20", f"trainer.max_steps={n}", "n_validations=1"]
        small += [f"cache_dir={tmp_path}", f"run_dir={folder}"]
        small += ["model.h_dim=3"] if "h_dim" in (whole := configured(*found, *small)).get("model", {}) else []
        return run.train(with_values(whole, *small, *shorter_deep(whole)))

    metrics = train(tmp_path, 2, *([] if second else swept))
    if second:  # a stage that starts where the experiment's first command ends
        metrics = train(tmp_path / "second", 4, *swept, f"ckpt={tmp_path}")
    assert metrics["iteration"] == (4 if second else 2)
    assert next((RESULTS[word] for word in (*words, experiment) if word in RESULTS), "test/fisher") in metrics


def test_no_interpolation_computes():
    allowed = re.compile(r"\$\{(oc\.env:\w+,\w+|oc\.decode:\$\{oc\.env:\w+,\w+\}|hydra:[\w.]+|now:[%\w:-]+|[\w.]+)\}")
    for path in CONF.rglob("*.yaml"):
        text = re.sub(r"(?m)^\s*#.*$", "", path.read_text())
        assert "${" not in allowed.sub("", text), path


# --- who wins ---------------------------------------------------------------------------------------------


def test_command_line_beats_experiment_beats_data_set_beats_group(tmp_path):
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\noptimizer:\n  lr: 0.5\nn_validations: 3\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    group = OmegaConf.load(CONF / "optimizer" / "adam.yaml").lr
    of_data = OmegaConf.load(CONF / "data" / "_toy.yaml").optimizer.lr
    mine = [f"hydra.searchpath=[file://{tmp_path}]", "experiment=mine"]
    assert group != of_data
    assert configure().optimizer.lr == of_data
    assert configure(*mine).optimizer.lr == 0.5
    assert configure(*mine).n_validations == 3
    assert configure(*mine, "optimizer.lr=0.25").optimizer.lr == 0.25
    assert configure(*mine, "optimizer.lr=0.25").method.optimizer.lr == 0.25


def test_parts_can_be_composed_anew():
    cfg = configure("method=bism", "objective=mdsm", "hypergradient=implicit", "data=digits")
    method = instantiate(cfg.method, "method")
    assert type(method.objective).__name__ == "MDSM"
    assert type(method.hypergradient).__name__ == "Implicit"
    assert method.objective.sigma_min == cfg.noise.sigma_min == 0.2


# a baseline needs a tractable marginal
OF_IMAGES = ("deep", "deep_mlp", "deep_small", "joint_conv", "latent_prior", "spectral_conv", "spectral_resnet")
FITTING = [("bidsm", model) for model in names("model") if model not in OF_IMAGES]
FITTING += [("dsm", model) for model in names("model") if model not in (*OF_IMAGES, "latent_prior_toy")]


@pytest.mark.parametrize(("method", "model"), FITTING)
def test_a_model_brings_the_posterior_that_fits_and_a_baseline_has_none(method, model, tmp_path):
    parts = build(tiny(tmp_path, f"method={method}", f"model={model}"))
    assert (parts.method.parts.posterior is None) == (method == "dsm")
    if method == "bidsm":
        assert parts.method.posterior.continuous == parts.method.energy.continuous


def test_images_bring_the_published_deep_runs():
    bimdsm, mdsm, vages = (configure(f"method={name}", "data=cifar10") for name in ("bimdsm", "mdsm", "vages_mdsm"))
    for cfg, energy in ((bimdsm, "DeepLatentEnergy"), (mdsm, "DeepEnergy"), (vages, "DeepLatentEnergy")):
        assert cfg.method.energy._target_.endswith(f".{energy}")
        assert (cfg.model.network.n_blocks, cfg.model.network.channels, cfg.noise.sigma0) == (3, 128, 0.1)
        assert cfg.method.get("objective", cfg.objective)._target_.endswith(".MDSM")
    assert (bimdsm.model.h_dim, bimdsm.method.n_lower_steps, bimdsm.method.n_unroll) == (50, 5, 0)
    assert bimdsm.method.hypergradient is None
    assert mdsm.method.energy.head == "quadratic"
    assert (vages.method.n_lower_steps, vages.score.n_particles, vages.particles.n_refine_steps) == (5, 2, 5)
    assert {cfg.divergence._target_.rsplit(".", 1)[1] for cfg in (bimdsm, vages)} == {"Fisher"}
    depth = {name: configure(f"method={name}", "data=celeba64").model for name in ("bimdsm", "vages_mdsm")}
    assert [(model.network.n_blocks, model.h_dim) for model in depth.values()] == [(4, 20), (3, 50)]


def test_images_bring_the_published_doubly_variational_runs():
    cifar10, celeba64 = (configure("method=bidvl", f"data={name}") for name in ("cifar10", "celeba64"))
    for cfg, batch_size, epoch in ((cifar10, 100, 500), (celeba64, 50, 1000)):
        upper, lower = cfg.optimizer, cfg.method.lower_optimizer
        assert (upper.lr, lower.lr, upper.weight_decay, lower.weight_decay) == (1e-4, 3e-4, 0, 1e-4)
        assert list(upper.betas) == list(lower.betas) == [0, 0.9]
        assert lower.schedule == upper.schedule == {**upper.schedule, "factor": 0.998, "every": epoch}
        assert (cfg.data.batch_size, cfg.data.value_range, cfg.trainer.max_steps) == (
            batch_size,
            "symmetric",
            600 * epoch,
        )
        assert (cfg.model.output, cfg.model.network.width, cfg.generator.width, cfg.generator.h_dim) == (
            *("softplus", 64, 48, 100),
        )
        assert cfg.loss._target_.endswith(".OffsetLatentTerm")
        assert (cfg.loss.critic_loss, cfg.loss.latent_weight, cfg.method.n_lower_steps) == ("difference", None, 1)
    assert (cifar10.loss.ratio.scale, celeba64.loss.ratio.scale) == (0.05, 0.1)
    assert (celeba64.data.crop, celeba64.data.subset, celeba64.data.flip) == (160, 50000, False)


@pytest.mark.parametrize("method", ["bidvl", "vae", "sngan"])
@pytest.mark.parametrize(
    ("data", "epoch"), [("mnist", 600), ("fashion_mnist", 600), ("cifar10", 500), ("svhn", 733), ("celeba32", 500)]
)
def test_baselines_of_doubly_variational_learning_have_its_images_and_its_schedule(method, data, epoch):
    cfg = configure(f"method={method}", f"data={data}")
    n_images = {"svhn": 73257, "celeba32": 50000, "cifar10": 50000}.get(data, 60000)
    every = cfg.optimizer.schedule.every
    if (method, data) == ("sngan", "cifar10"):  # published with five minibatches an iteration
        assert (every, cfg.data.batch_size) == (100, 500)
    else:
        assert (every, cfg.data.batch_size) == (epoch, 100)
    assert every == -(-n_images // cfg.data.batch_size)


@pytest.mark.parametrize("method", ["bidvl", "vae", "sngan"])
@pytest.mark.parametrize("size", [32, 64, 128])
def test_scores_of_faces_are_of_the_same_images_for_doubly_variational_learning_and_its_baselines(method, size):
    data = configure(f"method={method}", f"data=celeba{size}").data
    found = (data.crop, data.subset, data.flip, data.val_size, data.value_range)
    assert found == (160, 50000, False, 1000, "symmetric")


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typo", "named"),
    [
        ("method=bidsn", "bidsm"),  # the options are listed
        ("data=frey", "frey_face"),
        ("dat=digits", "dat"),
        ("method.n_unrol=3", "n_unrol"),
        ("n_validation=3", "n_validation"),
        ("trainer.max_step=3", "max_step"),
        ("experiment=bism_table9", "bism_table9"),
    ],
)
def test_a_typing_error_is_refused_by_name_at_composition(typo, named):
    with pytest.raises(HydraException, match=named):
        configure(typo)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["+method.n_unrol=3"], r"method \(BiSM\) has no key 'n_unrol'\. Did you mean n_unroll\?"),
        (["+trainer.max_step=3"], r"trainer \(Trainer\) has no key 'max_step'\. Did you mean max_steps\?"),
        (["+trainer.max_epochs=3"], "trainer.max_epochs is not taken: use trainer.max_steps"),
        (["+trainer.overfit_batches=0.5"], "overfit_batches is a number of minibatches, and no fraction"),
        (["model.h_dim=???"], r"h_dim"),
        (["data.batch_size=???"], r"^data.batch_size has no value: set it"),
        (["callbacks.evaluation.metrics.posterior.n_particles=???"], r"^callbacks.evaluation.metrics.posterior.n_pa"),
        (["method=dsm", "posterior=bernoulli"], "posterior: nothing reads posterior"),
        (["method=dsm", "divergence=kl"], "nothing reads divergence"),
        (["method=dsm", "hypergradient=implicit"], "nothing reads hypergradient"),
        (["method=vae", "data=cifar10", "model=spectral_conv"], "nothing reads model"),
        (["divergence=fisher"], "divergence=fisher needs continuous latents"),
        (["posterior=gaussian"], "choose a posterior that fits the model"),
        (["objective=mdsm", "noise.ladder=wide"], "ladder"),
        (
            ["+method.lower_optimizer={_target_: eblvm_lit.optimizers.adam.Adagrad}"],
            "There is no 'eblvm_lit.opt.*Adagrad'",
        ),
        (
            ["+method.lower_optimizer={_target_: eblvm_lit.optimizers.adam.Adam}"],
            r"lower_optimizer \(Adam\) does not fit: .*missing 1 required .*'lr'",
        ),
        (["callbacks.evaluation.at_validation=[fid]"], "at_validation names 'fid'"),
        (["test_checkpoint=first"], "test_checkpoint=first is not supported; use one of best, last, both"),
        (["test_checkpoint=best", "callbacks.checkpoints=null"], "test_checkpoint=best needs callbacks.checkpoints"),
        (["model.v_dim=63"], r"takes v of shape \(63,\), the data have \(64,\)"),
        (
            ["model=deep"],
            r"^The model needs images, and the data are vectors: use images, such as data=mnist",
        ),
        (
            ["noise.std=???"],
            "objective.noise_std is taken from noise.std, which has no value here: choose one, or set it",
        ),
        (
            ["optimizer.lr=${sizes.lr}"],
            "^(optimizer|method).*lr is taken from sizes.lr, which has no value here: choose one",
        ),
        (["data._target_=eblvm_lit.objectives.sm.SM"], r"^data \(SM\) does not fit"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(overrides, sentence, tmp_path):
    with pytest.raises(ConfigError, match=sentence) as refusal:
        train(tmp_path, *overrides)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "metrics.json").exists()


def test_what_lightning_counts_in_epochs_and_batches_is_refused_by_name_or_taken():
    named = {name for name in inspect.signature(pl.Trainer).parameters if re.search("epoch|batches|val_|dev_run", name)}
    assert named - {"reload_dataloaders_every_n_epochs"} <= {*NOT_TAKEN, *TAKEN}  # the only epoch never ends
    for name in NOT_TAKEN:
        refusals = [sentence(HydraException(f"Could not override 'trainer.{name}'."), "config", [])]
        with pytest.raises(ConfigError) as refusal:
            refuse_unread(OmegaConf.create({"trainer": {name: 0}}), [])
        refusals.append(str(refusal.value))
        assert refusals == [f"trainer.{name} is not taken: use {NOT_TAKEN[name]}."] * 2


def test_what_is_suggested_of_lightning_is_taken(tmp_path):
    words = {f"trainer.{name}": {"overfit_batches": "1", "max_time": "00:01:00:00"}.get(name, "true") for name in TAKEN}
    found = [
        sentence(HydraException(f"Could not override '{key}'."), "config", [f"{key}={words[key]}"]) for key in words
    ]
    assert train(tmp_path, *(text.split()[-1] for text in found))["iteration"] == 10


@pytest.mark.parametrize("path", ["/runs/lr=0.1/last.ckpt", "a b=c", "it's=1"])
def test_a_path_that_needs_quotes_is_shown_as_it_is_pasted(path):
    with pytest.raises(ConfigError) as refusal:
        compose.composed([f"ckpt={path}"])
    *_, word = shlex.split(str(refusal.value).partition("In bash, write ")[2].partition(" (in ")[0])
    assert OverridesParser.create().parse_override(word).value() == path
    assert override("ckpt", "a b") == "ckpt=a b"


@pytest.mark.parametrize("word", ["test", "train", "trainer.foo", "steps"])
def test_what_is_like_no_key_gets_no_hint_by_luck(word):
    assert "Did you mean" not in sentence(HydraException(f"Could not override '{word}'."), "config", [f"{word}=1"])


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["method=cd", "posterior.temperature=1"], "posterior.temperature: nothing reads posterior"),
        (["method=vages_dsm", "hypergradient=implicit"], "nothing reads hypergradient"),
    ],
)
def test_a_value_that_nothing_reads_is_refused(overrides, sentence):
    with pytest.raises(ConfigError, match=sentence):
        configure(*overrides)


def test_users_own_package_is_named_only_with_leave(tmp_path):
    pause = "+callbacks.crash={_target_: helpers.stopping.CrashAt, iteration: 99}"
    with pytest.raises(ConfigError, match=r"may not name 'helpers.stopping.CrashAt'.*allow_packages"):
        train(tmp_path, pause)
    assert train(tmp_path, pause, "allow_packages=[helpers]")["iteration"] == 10


@pytest.fixture(scope="session")
def faces(tmp_path_factory):
    """A folder with random bytes in the form of the Frey faces."""
    folder = tmp_path_factory.mktemp("faces")
    write_frey(folder)
    return folder


@pytest.fixture(scope="module")
def files(faces):
    """The same folder, and small image sets in the forms they are published in."""
    write_mnist(faces)
    write_cifar10(faces)
    write_celeba(faces)
    write_svhn(faces)
    return faces
