"""The configuration: every option composes and builds, and what does not fit is refused by name."""

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
from eblvm_lit.errors import ConfigError
from helpers.image_files import write_celeba, write_cifar10, write_frey, write_images, write_mnist, write_svhn
from helpers.shell import CONF, configure, configured, save_config, tiny, train, with_values
from helpers.short_runs import GAN, NARROW, SHORTER, SMALL_DEEP, first_value, names, shorter_deep

# Where a group's choice goes, if not under its own name.
PLACES = {
    "schedule": "schedule@optimizer.schedule",
    "evaluation": "evaluation@callbacks.evaluation.metrics",
    "figures": "figures@callbacks.figures.figures",
    "mask": "mask@callbacks.figures.figures.inpainting.mask",
    "outliers": "+outliers@callbacks.evaluation.metrics.out_of_distribution.sets.{name}",
    "criteria": "+criteria@callbacks.evaluation.metrics.fid.criteria",
    "features": "+features@callbacks.evaluation.metrics.fid.features",
}
DEEP_ONE = ["data=mnist", *SMALL_DEEP]
MLP = ["data=mnist", "data.size=8", "model.network.widths=[8]"]
# Doubly variational learning: any of its parts with narrow others.
DOUBLY = ["method=bidvl", "data=cifar10"]
RESIDUAL = ["model=spectral_resnet", "posterior=encoder_residual", "generator=residual"]
WIDTHS = ["model.network.widths=[2,2,2,2]", "generator.widths=[2,2,2,2]"]
FID = "evaluation@callbacks.evaluation.metrics=fid"
OUTLIERS = "evaluation@callbacks.evaluation.metrics=out_of_distribution"
NOWHERE = "callbacks.evaluation.metrics.out_of_distribution.sets.image_folder.data.path=nowhere"
# What an option, or all options of a group, need beside them: parts that fit, and small sizes.
COMPANIONS = {
    "chain": ["method=cd"],
    **{key: ["method=vages_dsm"] for key in ("covariance", "estimate", "particles")},
    "criteria": [FID],
    "divergence=fisher": ["model=gaussian"],
    "features": [FID, "callbacks.evaluation.metrics.fid.criteria.inception_score=null"],
    **{key: [*DOUBLY, *NARROW] for key in ("generator", "loss", "ratio")},
    "loss=symmetric_joint": [*DOUBLY, "model=joint_conv", *NARROW],
    "loss=canonical_joint": [*DOUBLY, "model=joint_conv", *NARROW],
    "mask": [*DEEP_ONE, "figures@callbacks.figures.figures=all"],
    "method=bidvl": ["data=cifar10", *NARROW],
    "method=bidvl_resnet": GAN[1:],
    "method=lebm": ["data=mnist", "data.size=16"],
    "method=sngan": GAN[1:],
    "method=vae": ["data=cifar10", *NARROW[1:]],  # it reads no model
    "model=deep": DEEP_ONE,
    "model=deep_mlp": MLP,
    "model=deep_small": DEEP_ONE,
    "model=joint_conv": [*DOUBLY, "loss=symmetric_joint", *NARROW],
    "model=latent_prior": ["data=mnist", "data.size=16"],
    "model=spectral_conv": [*DOUBLY, *NARROW],
    "noise_distribution": ["method=nce"],
    "outliers": [*DEEP_ONE, OUTLIERS],
    "outliers=image_folder": [*DEEP_ONE, OUTLIERS, NOWHERE],
    "particles=refined": ["method=vages_dsm", "model=gaussian"],
    "posterior=encoder_conv": [*DOUBLY, *NARROW],
    "posterior=gaussian": ["model=gaussian"],
    "posterior=gaussian_conv": ["model=deep", *DEEP_ONE],
    "posterior=gaussian_image_mlp": ["model=deep_mlp", *MLP],
    "posterior=gaussian_mlp": ["model=gaussian"],
    "score=exact": ["method=dsm"],
    "score=importance": ["method=is_dsm"],
    "score=vages": ["method=vages_dsm"],
    **{key: [*DOUBLY, *RESIDUAL, *WIDTHS] for key in RESIDUAL},
}
# What an experiment computes, if not what all others do.
DEEP = ("bism_mnist", "bism_table2", "bism_table4", "vages_cifar10", "vages_table3")
SMALL = ("bimdsm", "bidvl", "vae", "lebm", "latent_prior", "latent_prior_vages", "deep_mlp")
RESULTS = {
    **dict.fromkeys(DEEP, "test/posterior_fisher"),
    **{f"{name}_mnist_small": "test/fd_classifier" for name in SMALL},
    **{f"{name}_mnist": "test/fd_classifier" for name in ("bimdsm", "bidvl")},
    "bidvl_sweeps_small": "test/fd_classifier",
    **{f"bidvl_{name}": "test_best/rmse" for name in ("table1", "table2", "table3", "table5")},
    "bidvl_table4": "test/auroc_celeba",
    "bism_table2_mdsm": "iteration",
    "bism_table3": "train/iterations_per_second",
    "vages_bias": "test/score_bias_vaes_t0",
    "vages_fisher": "test/fisher_divergence_true",
    "vages_toy_deep": "test/posterior_fisher",
}
ORDER = ["nonfinite", "ema", "curves", "evaluation", "figures", "checkpoints", "preemption", "progress"]
NOT_AXES = ("data", "experiment", "hydra", "published")
# Groups whose options have others depend on them.
ALONE = ("callbacks", "debug", "divergence", "method", "model", "particles")
IMAGE_SETS = [name for name in names("data") if re.match("celeba|cifar|image|svhn|(fashion_)?mnist", name)]
GROUPS = sorted(path.name for path in CONF.iterdir() if path.is_dir() and path.name not in NOT_AXES)
OPTIONS = [f"{group}={name}" for group in GROUPS for name in names(group)]


def together():
    """Options that one configuration can have: their groups' places, their words, and what they need beside them."""
    found = []
    for option in OPTIONS:
        group, _, name = option.partition("=")
        place, needed = PLACES.get(group, group).format(name=name), COMPANIONS.get(option, COMPANIONS.get(group, []))
        fitting = (chosen for chosen, other in found if other == needed and not {place, *ALONE} & chosen.keys())
        chosen = None if group in ALONE else next(fitting, None)
        if chosen is None:
            found.append((chosen := {}, needed))
        chosen[place] = name
    return [([f"{place}={name}" for place, name in chosen.items()], needed) for chosen, needed in found]


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


def built(*overrides):
    """The parts of a configuration that names every argument, and so can be read instead of the code."""
    cfg = configure(*overrides)
    assert mismatches(save_config(cfg)) == []
    check_config(cfg)
    return cfg, build(cfg)


@pytest.mark.parametrize(("options", "needed"), together(), ids=" ".join)
def test_every_option_composes_builds_and_shows_every_argument(options, needed, tmp_path):
    cfg, parts = built(*options, *needed, f"run_dir={tmp_path}")
    assert re.match(r"[A-Za-z-]+: .{10}", parts.method.title)
    assert list(parts.callbacks) == [name for name in ORDER if name != "ema" or options == ["callbacks=ema"]]
    if {"trainer=ddp", "trainer=slurm"} & {*options} and not torch.cuda.is_available():
        with pytest.raises(ConfigError, match=r"^trainer"):
            build_trainer(cfg, parts)
        return
    logger = next((word.partition("=")[2] for word in options if word.startswith("logger=")), "csv")
    assert len(build_trainer(cfg, parts).loggers) == {"none": 0, "csv": 1}.get(logger, 2)


@pytest.mark.parametrize("name", names("data"))
def test_every_data_set_fits_its_model_and_says_what_objectives_need_of_it(name, tmp_path):
    write_images(tmp_path, 2, size=(16, 16))
    small = ["model.h_dim=3", "model.network.channels=2", "model.network.n_blocks=1"] if name in IMAGE_SETS else []
    small += [f"data.path={tmp_path}", "data.size=16", "data.channels=3"] if name == "image_folder" else []
    cfg, parts = built(f"data={name}", *small, f"run_dir={tmp_path}")
    assert OmegaConf.missing_keys(cfg.sizes) == OmegaConf.missing_keys(cfg.noise) == set()
    assert parts.data.event_shape == parts.method.energy.event_shape == tuple(to_plain(cfg.sizes)["v_shape"])


def test_no_interpolation_computes():
    allowed = re.compile(r"\$\{(oc\.env:\w+,\w+|oc\.decode:\$\{oc\.env:\w+,\w+\}|hydra:[\w.]+|now:[%\w:-]+|[\w.]+)\}")
    for path in CONF.rglob("*.yaml"):
        text = re.sub(r"(?m)^\s*#.*$", "", path.read_text())
        assert "${" not in allowed.sub("", text), path


# --- experiments ------------------------------------------------------------------------------------------


def commands(name):
    """What an experiment's file says how it is run: the other words of each command, and whether it resumes."""
    text = (CONF / "experiment" / f"{name}.yaml").read_text()
    axes = OmegaConf.create(text).get("hydra", {}).get("sweeper", {}).get("params", {})
    for words in re.findall(rf"^#   python train.py (.*experiment={name}\b.*)$", text, re.MULTILINE):
        given = dict(word.split("=", 1) for word in shlex.split(words) if word not in ("-m", f"experiment={name}"))
        yield [f"{key}={first_value(values)}" for key, values in {**axes, **given}.items() if key != "ckpt"]


EXPERIMENTS = {name: list(commands(name)) for name in names("experiment")}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_runs_two_iterations(name, tmp_path, files, unrendered, monkeypatch):
    monkeypatch.setenv("EBLVM_DATA", str(files))
    swept, *_ = EXPERIMENTS[name]
    found = [f"experiment={name}", "debug=fast", *swept, *SHORTER.get(name, [])]
    small = ["data.batch_size=20", "trainer.max_steps=2", "n_validations=1", "method.compile=false"]
    small += [f"cache_dir={tmp_path}", f"run_dir={tmp_path}"]
    small += ["model.h_dim=3"] if "h_dim" in (whole := configured(*found, *small)).get("model", {}) else []
    metrics = run.train(with_values(whole, *small, *shorter_deep(whole)))
    assert metrics["iteration"] == 2
    assert RESULTS.get(name, "test/fisher") in metrics


@pytest.mark.parametrize("name", [name for name, found in EXPERIMENTS.items() if len(found) > 1])
def test_the_other_commands_of_an_experiment_compose(name):
    for swept in EXPERIMENTS[name][1:]:
        assert check_config(configured(f"experiment={name}", *swept, "run_dir=.")) is None


# --- published settings -----------------------------------------------------------------------------------


def test_what_is_published_is_of_a_method_on_a_data_set():
    pairs = {f"{method}_{data}" for method in names("method") for data in names("data")}
    assert {*names("published")} <= pairs


@pytest.mark.parametrize("name", sorted({*IMAGE_SETS} - {"image_folder"}))
def test_settings_of_image_sets_are_the_published_ones(name):
    cfg = configured(f"data={name}")
    grey, colour = (100_000, 1e-4, 0.1, 3.0, "geometric"), (300_000, 5e-5, 0.05, 1.2, "linear")
    published, noise = grey if "mnist" in name else colour, cfg.noise
    assert (cfg.trainer.max_steps, cfg.optimizer.lr, noise.sigma_min, noise.sigma_max, noise.ladder) == published
    assert (cfg.data.batch_size, noise.sigma0, cfg.optimizer.schedule.floor) == (100, 0.1, 1e-6)
    assert (list(cfg.optimizer.betas), cfg.optimizer.weight_decay) == ([0.9, 0.95], 0)
    assert cfg.trainer.max_steps // cfg.n_validations == (10_000 if "mnist" in name else 5_000)


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


EPOCHS = {"mnist": 600, "fashion_mnist": 600, "cifar10": 500, "svhn": 733, "celeba32": 500}  # in minibatches of 100


@pytest.mark.parametrize("method", ["bidvl", "vae", "sngan"])
def test_baselines_of_doubly_variational_learning_have_its_images_and_its_schedule(method):
    for data, epoch in EPOCHS.items():
        cfg = configure(f"method={method}", f"data={data}")
        fivefold = (method, data) == ("sngan", "cifar10")  # published with five minibatches an iteration
        expected = (epoch // 5, 500) if fivefold else (epoch, 100)
        assert (cfg.optimizer.schedule.every, cfg.data.batch_size) == expected
        if data == "celeba32":
            faces = cfg.data
            assert (faces.crop, faces.subset, faces.flip, faces.val_size) == (160, 50000, False, 1000)
            assert faces.value_range == "symmetric"


# --- who wins ---------------------------------------------------------------------------------------------


def test_command_line_beats_experiment_beats_data_set_beats_group(tmp_path):
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\noptimizer:\n  lr: 0.5\nn_validations: 3\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    group = OmegaConf.load(CONF / "optimizer" / "adam.yaml").lr
    of_data = OmegaConf.load(CONF / "data" / "_toy.yaml").optimizer.lr
    mine = [f"hydra.searchpath=[file://{tmp_path}]", "experiment=mine"]
    assert group != of_data == configured().optimizer.lr
    assert (configure(*mine).optimizer.lr, configure(*mine).n_validations) == (0.5, 3)
    cfg = configure(*mine, "optimizer.lr=0.25")
    assert cfg.optimizer.lr == cfg.method.optimizer.lr == 0.25


def test_parts_can_be_composed_anew():
    cfg = configure("method=bism", "objective=mdsm", "hypergradient=implicit", "data=digits")
    method = instantiate(cfg.method, "method")
    assert (type(method.objective).__name__, type(method.hypergradient).__name__) == ("MDSM", "Implicit")
    assert method.objective.sigma_min == cfg.noise.sigma_min == 0.2


@pytest.mark.parametrize(
    ("overrides", "chain"),
    [
        (["method=pcd", "data=digits", "model=gaussian"], "Gibbs"),
        (["method=cd", "data=mnist"], "Langevin"),
        (["method=cd", "data=mnist", "chain=gibbs"], "Gibbs"),  # which the method will refuse
        (["method=pcd", "chain=langevin"], "Langevin"),
    ],
)
def test_a_model_brings_the_chain_that_fits_and_the_command_line_has_the_last_word(overrides, chain):
    assert configure(*overrides).method.chain._target_.endswith(f".{chain}Chain")


@pytest.mark.parametrize("model", ["grbm", "coupled_grbm", "perturbed_grbm", "gaussian", "deep_toy"])
def test_a_model_brings_the_posterior_that_fits_and_a_baseline_has_none(model, tmp_path):
    bidsm, dsm = (build(tiny(tmp_path, f"method={name}", f"model={model}")).method for name in ("bidsm", "dsm"))
    assert bidsm.posterior.continuous == bidsm.energy.continuous
    assert dsm.parts.posterior is None


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typo", "named"), [("method=bidsn", "bidsm"), ("dat=digits", "dat"), ("method.n_unrol=3", "n_unrol")]
)
def test_a_typing_error_is_refused_by_name_at_composition(typo, named):
    with pytest.raises(HydraException, match=named):
        configure(typo)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["+method.n_unrol=3"], r"n_unrol.*n_unroll"),
        (["+trainer.max_epochs=3"], "trainer.max_epochs.*trainer.max_steps"),
        (["+trainer.overfit_batches=0.5"], "overfit_batches"),
        (["data.batch_size=???"], r"data.batch_size"),
        (["data=image_folder"], r"data.path"),
        (["noise.std=???"], "objective.noise_std.*noise.std"),
        (["method=dsm", "posterior=bernoulli"], "posterior"),
        (["method=vae", "data=cifar10", "model=spectral_conv"], "model"),
        (["divergence=fisher"], "divergence=fisher"),
        (["+method.lower_optimizer={_target_: eblvm_lit.optimizers.adam.Adagrad}"], "Adagrad"),
        (["+method.lower_optimizer={_target_: eblvm_lit.optimizers.adam.Adam}"], r"lower_optimizer.*'lr'"),
        (["data._target_=eblvm_lit.objectives.sm.SM"], r"data \(SM\)"),
        (["callbacks.evaluation.at_validation=[fid]"], "at_validation.*'fid'"),
        (["test_checkpoint=first"], "test_checkpoint=first.*best, last, both"),
        (["test_checkpoint=best", "callbacks.checkpoints=null"], "test_checkpoint=best.*callbacks.checkpoints"),
        (["model.v_dim=63"], r"\(63,\).*\(64,\)"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(overrides, named, tmp_path):
    with pytest.raises(ConfigError, match=named) as refusal:
        train(tmp_path, *overrides)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "metrics.json").exists()


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["method=cd", "posterior.temperature=1"], "posterior.temperature"),
        (["method=dsm", "score=vages"], "score.estimate"),
        (["method=bidvl"], "images.*data=mnist"),
        (["method=vae"], "generator.*images"),
    ],
)
def test_parts_that_do_not_fit_are_refused_before_anything_is_built(overrides, named):
    with pytest.raises(ConfigError, match=named):
        check_config(configure(*overrides, "run_dir=."))


def test_what_lightning_counts_in_epochs_and_batches_is_refused_by_name_or_taken(tmp_path):
    named = {name for name in inspect.signature(pl.Trainer).parameters if re.search("epoch|batches|val_|dev_run", name)}
    assert named - {"reload_dataloaders_every_n_epochs"} <= {*NOT_TAKEN, *TAKEN}  # the only epoch never ends
    for name in NOT_TAKEN:
        with pytest.raises(ConfigError, match=f"trainer.{name} .*{NOT_TAKEN[name].split()[0]}"):
            refuse_unread(OmegaConf.create({"trainer": {name: 0}}), [])
    values = {"overfit_batches": "1", "max_time": "00:01:00:00"}
    words = {f"trainer.{name}": values.get(name, "true") for name in TAKEN}
    errors = {f"{key}={value}": HydraException(f"Could not override '{key}'.") for key, value in words.items()}
    suggested = [sentence(error, "config", [word]).split()[-1] for word, error in errors.items()]
    assert train(tmp_path, *suggested)["iteration"] == 10


def test_a_path_that_needs_quotes_is_shown_as_it_is_pasted():
    path = "it's/lr=0.1 b/last.ckpt"
    with pytest.raises(ConfigError) as refusal:
        compose.composed([f"ckpt={path}"])
    *_, word = shlex.split(str(refusal.value).partition("In bash, write ")[2].partition(" (in ")[0])
    assert OverridesParser.create().parse_override(word).value() == path


def test_users_own_package_is_named_only_with_leave(tmp_path):
    pause = "+callbacks.crash={_target_: helpers.stopping.CrashAt, iteration: 99}"
    with pytest.raises(ConfigError, match=r"helpers.stopping.CrashAt.*allow_packages"):
        train(tmp_path, pause)
    assert train(tmp_path, pause, "allow_packages=[helpers]")["iteration"] == 10


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with random images in the forms that they are published in."""
    folder = tmp_path_factory.mktemp("files")
    for write in (write_frey, write_mnist, write_cifar10, write_celeba, write_svhn):
        write(folder)
    return folder
