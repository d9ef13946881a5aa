"""Tests of the configuration: every option composes and builds, and options that do not fit are refused."""

import inspect
import re
import runpy
import shlex

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from omegaconf import OmegaConf

from eblvm_lit.cli.hints import NOT_TAKEN, TAKEN, refuse_unread
from eblvm_lit.errors import ConfigError
from eblvm_lit.runs import run
from eblvm_lit.runs.build import build, build_trainer
from eblvm_lit.runs.instantiate import LIBRARIES, resolve_target, to_plain
from eblvm_lit.runs.settings import check_config
from helpers.image_files import write_celeba, write_cifar10, write_frey, write_mnist, write_svhn
from helpers.shell import CONF, checkpoint, configure, configured, save_config, with_values
from helpers.short_runs import GAN, NARROW, SHORTER, SMALL_DEEP, first_value, names, shorter_deep

ONE = "method.n_lower_steps=1"
SMALL = "data.val_size=2 data.batch_size=4"
DEEP = f"{SMALL} model.h_dim=3 {' '.join(SMALL_DEEP)}"
DOUBLY = f"method=bidvl data=mnist {SMALL} {' '.join(NARROW)}"
MIXER = [f"model.energy.network.{size}" for size in ("width=4", "dense_width=5", "n_rounds=1", "fine_width=4")]
# Each option of each group is in one of these runs, with the settings that it needs, or in BUILDS below.
RUNS = [
    f"method=bidsm {ONE} data=circle model=coupled_grbm model.h_dim=3 posterior=bernoulli hypergradient=unroll",
    f"method=bism {ONE} data=diamond_blobs objective=sm hypergradient=finite_difference divergence=kl",
    f"method=bissm {ONE} data=moons objective=ssm hypergradient=fixed_point callbacks=ema",
    f"method=bimdsm {DEEP} data=celeba32 model=deep posterior=gaussian_conv hypergradient=none",
    "method=cd data=digits model=perturbed_grbm model.h_dim=3 chain=langevin",
    "method=dsm data=line_blobs model=grbm score=exact optimizer=sgd schedule@optimizer.schedule=step",
    "method=dual data=two_spirals objective=dual",
    "method=dual data=moons model=harmonium",
    f"method=dual data=mnist {SMALL} data.size=8 model=harmonium_mixer {' '.join(MIXER)}",
    "method=levels data=rings",
    f"method=dual data=mnist {SMALL} data.size=32 sampler=guided_flow sampler.dynamics.guide.path=dual_mnist",
    f"method=levels data=mnist {SMALL} data.size=32 sampler=guided_mnist",
    f"method=bidual {ONE} data=swiss_roll model=noise_conditional",
    f"method=vages_dual {ONE} data=moons posterior=noise_conditional sampler=probability_flow",
    f"method=vages_dual {ONE} data=mnist {SMALL} data.size=8 model=noise_conditional_mixer {' '.join(MIXER)}",
    "method=ed data=rings schedule@optimizer.schedule=exponential",
    f"method=ed_latent {ONE} data=two_blobs schedule@optimizer.schedule=warmup",
    "method=fisher_critic data=triangle_blobs schedule@optimizer.schedule=cosine",
    "method=is_dsm score=importance",
    "method=is_ksd data=swiss_roll objective=ksd",
    "method=ksd data=twenty_five_gaussians callbacks=training_only",
    "method=nce data=two_spirals noise_distribution=fitted_normal",
    "method=particle_ml data=standard_normal model=gaussian chain=gibbs",
    "method=pcd",
    "method=pcd data=digits data.binarize=stochastic model=bernoulli_rbm",
    "method=jarzynski data=digits data.binarize=threshold model=dbm model.h_dim=5 model.h1_dim=3",
    "method=nce data=digits data.binarize=threshold model=bernoulli_rbm noise_distribution=bernoulli",
    "method=jarzynski",
    "method=annealed_likelihood model=gaussian",
    "method=score_matching data=checkerboard objective=dsm",
    "method=sm",
    "method=snl noise_distribution=standard_normal",
    "method=ssm data=frey_face model.h_dim=3",
    f"method=vages {ONE} model=latent_prior_toy objective=mdsm particles=refined",
    f"method=vages_dsm {ONE} model=deep_toy posterior=gaussian_mlp score=vages estimate=control_variate "
    "covariance=biased particles=posterior",
    f"method=vages_dsm {ONE} particles=exact",
    f"method=vages_fisher {ONE}",
    f"method=vages_ksd {ONE} estimate=vaes covariance=none",
    f"method=vages_mdsm data=mnist data.size=8 {SMALL} model=deep_mlp model.network.widths=[8] "
    "posterior=gaussian_image_mlp covariance=unbiased",
    f"method=vnce {ONE} divergence=iwae",
    f"method=vsnl {ONE} model=gaussian posterior=gaussian divergence=fisher",
    f"method=mdsm data=fashion_mnist {SMALL} model=deep_small {' '.join(SMALL_DEEP)}",
    f"method=lebm data=mnist data.size=16 {SMALL} model=latent_prior latent_langevin.n_steps=2",
    f"{DOUBLY} model=joint_conv loss=symmetric_joint generator=conv posterior=encoder_conv",
    f"method=bidvl_resnet {SMALL} {' '.join(GAN[1:])} model=spectral_resnet generator=residual "
    "posterior=encoder_residual loss=offset_latent ratio=sigmoid",
    "method=snl kind=points data=array data.path={files}/points.npy",
    f"method=vae data=svhn {SMALL} {' '.join(NARROW[1:])}",
    f"method=sngan data=mnist {SMALL} {' '.join(NARROW[::2])} generator=conv model=spectral_conv",
]
METRICS = "callbacks.evaluation.metrics"
FIGURES = "callbacks.figures.figures"
SETS = f"{METRICS}.out_of_distribution.sets"
FID = f"evaluation@{METRICS}=fid {METRICS}.fid.criteria.inception_score=null"
BUILDS = [
    f"debug=fast evaluation@{METRICS}=default figures@{FIGURES}=default logger=csv optimizer=adam trainer=default "
    "callbacks=default eval_weights=raw",
    f"method=bidsm debug=profile evaluation@{METRICS}=classifier sampler=diffusive_gibbs hypergradient=implicit trainer=ddp",
    f"method=bidsm debug=overfit evaluation@{METRICS}=fid +criteria@{METRICS}.fid.criteria=coverage figures@{FIGURES}=annealed "
    "hypergradient=penalty logger=wandb",
    f"method=bidsm {FID} +features@{METRICS}.fid.features=dinov2 sampler=walk_jump hypergradient=unroll_next logger=none "
    "trainer=slurm",
    f"method=bidsm {FID} +features@{METRICS}.fid.features=dinov2 hypergradient=unroll_plain logger=tensorboard",
    f"method=bidsm evaluation@{METRICS}=plane hypergradient=warm sampler=annealed_short",
    f"{DOUBLY} evaluation@{METRICS}=generator figures@{FIGURES}=generator loss=full_latent ratio=clamped_exponential",
    f"{DOUBLY} evaluation@{METRICS}=generator_fid figures@{FIGURES}=none loss=canonical_joint model=joint_conv",
    f"{DOUBLY} evaluation@{METRICS}=reconstruction sampler=annealed loss=no_latent ratio=constant",
    f"method=bidsm {DEEP} data=mnist evaluation@{METRICS}=out_of_distribution figures@{FIGURES}=all "
    f"mask@{FIGURES}.inpainting.mask=digits {SETS}.image_folder.data.path=nowhere "
    + " ".join(f"+outliers@{SETS}.{name}={name}" for name in names("outliers")),
    f"method=bidsm {DEEP} data=celeba64 evaluation@{METRICS}=points figures@{FIGURES}=all "
    f"mask@{FIGURES}.inpainting.mask=mnist",
    f"method=bidsm {DEEP} data=celeba128 evaluation@{METRICS}=probe figures@{FIGURES}=all "
    f"mask@{FIGURES}.inpainting.mask=left_half",
    f"method=bidsm {DEEP} data=image_folder data.path={{files}}/celeba/img_align_celeba data.size=16 data.channels=3 "
    f"evaluation@{METRICS}=likelihood figures@{FIGURES}=representation",
    f"evaluation@{METRICS}=ksd sampler=parallel_tempering",
    f"kind=points data=array data.path={{files}}/points.npy figures@{FIGURES}=points",
    "method=bidsm kind=vectors data=array data.path={files}/vectors.npy",
    "method=bidsm kind=small_images data=array data.path={files}/x_32.npy",
    f"method=bidsm kind=large_images data=array data.path={{files}}/x_64.npy sizes.v_shape=[1,64,64] "
    f"evaluation@{METRICS}=images",
    "method=bidsm kind=odd_images data=array data.path={files}/x_28.npy sizes.v_shape=[1,28,28]",
    "kind=bits data=array data.path={files}/x_28.npy sizes.v_shape=[784]",
]
# The order of the callbacks. Only runs that evaluate averages of the parameters have the callback ema.
ORDER = ["nonfinite", "ema", "curves", "evaluation", "figures", "checkpoints", "preemption", "progress"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return the folder from which runs read their data, with random images in the formats of published sets."""
    folder = tmp_path_factory.mktemp("files")
    for write in (write_frey, write_mnist, write_cifar10, write_celeba, write_svhn):
        write(folder)
    write_mnist(folder, folder="FashionMNIST")
    numbers = np.random.default_rng(0)
    np.save(folder / "points.npy", numbers.normal(size=(200, 2)))
    np.save(folder / "vectors.npy", numbers.normal(size=(200, 4)))
    for side in (28, 32, 64):
        np.save(folder / f"x_{side}.npy", numbers.integers(0, 256, (40, side, side), dtype=np.uint8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EBLVM_DATA", str(folder))
        yield folder


def mismatches(node, path="config"):
    """Return the constructor arguments without a key in the configuration, and the keys that are no argument."""
    if not isinstance(node, dict):
        return [found for x in node for found in mismatches(x, path)] if isinstance(node, list) else []
    found = [problem for key, value in node.items() for problem in mismatches(value, f"{path}.{key}")]
    if target := node.get("_target_"):
        parameters = inspect.signature(resolve_target(target, LIBRARIES)).parameters
        keys = node.keys() - {"_target_"}
        found += [f"{path} has no {name}" for name in parameters.keys() - keys if target.startswith("eblvm_lit.")]
        if all(p.kind is not p.VAR_KEYWORD for p in parameters.values()):
            found += [f"{path}.{key} is too much" for key in keys - parameters.keys()]
    return found


def composed(words, folder, files):
    """Return a configuration, after checking that it has a key for every constructor argument.

    So users need not read the code to find the arguments.
    """
    cfg = configured(*words.format(files=files).split(), f"run_dir={folder}", f"cache_dir={folder}")
    assert mismatches(save_config(cfg)) == []
    assert OmegaConf.missing_keys(cfg.sizes) == OmegaConf.missing_keys(cfg.noise) == set()
    return cfg


def test_every_option_of_every_group_is_in_a_run_or_a_build():
    words = re.findall(r"\+?([\w]+)(?:@[\w.]+)?=([\w]+)", " ".join([*RUNS, *BUILDS]))
    groups = [path.name for path in CONF.iterdir() if path.is_dir() and path.name not in ("experiment", "published")]
    # other tests run these options if the packages that they need are installed
    extras = {("logger", "mlflow"), ("logger", "trackio"), ("data", "hub")}
    assert {(group, name) for group in groups for name in names(group)} - {*words} == extras


@pytest.mark.parametrize("words", RUNS)
def test_every_method_model_and_data_set_trains_in_float64_and_shows_every_argument(words, files, tmp_path):
    short = ["trainer.max_steps=1", "n_validations=1", "callbacks.figures=null", "callbacks.evaluation=null"]
    cfg = composed(f"debug=fast trainer.precision=64-true {words}", tmp_path, files)
    assert run.train(with_values(cfg, *short))["iteration"] == 1
    tensors = {name: x for name, x in checkpoint(tmp_path)["state_dict"].items() if x.is_floating_point()}
    assert {name: x.dtype for name, x in tensors.items() if x.dtype != torch.float64} == {}
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("words", BUILDS)
def test_every_other_option_builds_and_shows_every_argument(words, files, tmp_path):
    cfg = composed(words, tmp_path, files)
    check_config(cfg)
    parts = build(cfg)
    assert list(parts.callbacks) == [name for name in ORDER if name != "ema" or cfg.eval_weights == "ema"]
    assert parts.data.event_shape == parts.method.event_shape == tuple(to_plain(cfg.sizes)["v_shape"])
    if re.search("trainer=(ddp|slurm)", words) and not torch.cuda.is_available():
        with pytest.raises(ConfigError, match=r"^trainer"):
            build_trainer(cfg, parts)
        return
    logger = (re.findall(r"logger=(\w+)", words) or ["csv"])[0]
    assert len(build_trainer(cfg, parts).loggers) == {"none": 0, "csv": 1}.get(logger, 2)


def test_no_interpolation_computes():
    # oc.env and oc.select read a variable or a key, and take the default after the comma if there is none.
    read = r"oc\.env:\w+,\w+|oc\.decode:\$\{oc\.env:\w+,\w+\}|oc\.select:\w+,null"
    allowed = re.compile(rf"\$\{{({read}|hydra:[\w.]+|now:[%\w:-]+|[\w.]+)\}}")
    for path in CONF.rglob("*.yaml"):
        text = re.sub(r"(?m)^\s*#.*$", "", path.read_text())
        assert "${" not in allowed.sub("", text), path


# --- experiments ------------------------------------------------------------------------------------------


def commands(name):
    """Yield the overrides of each command in the comment at the top of an experiment's file.

    A list of values that a sweep would try is replaced by its first value.
    """
    text = (CONF / "experiment" / f"{name}.yaml").read_text()
    axes = OmegaConf.create(text).get("hydra", {}).get("sweeper", {}).get("params", {})
    for words in re.findall(rf"^#   python train.py (.*experiment={name}\b.*)$", text, re.MULTILINE):
        given = dict(word.split("=", 1) for word in shlex.split(words) if word not in ("-m", f"experiment={name}"))
        yield [f"{key}={first_value(values)}" for key, values in {**axes, **given}.items() if key != "ckpt"]


# These experiments, one of each kind, run in the quick tests. The slow tests run all others.
QUICK = ("bidvl_mnist_small", "bism_fig1", "bism_table4", "lebm_mnist_small", "vages_bias")
EXPERIMENTS = {name: list(commands(name)) for name in names("experiment")}


def shortened(name, folder):
    """Return the configuration of an experiment's first command, with few iterations and small networks."""
    swept, *_ = EXPERIMENTS[name]
    found = [f"experiment={name}", "debug=fast", *swept, *SHORTER.get(name, [])]
    small = ["data.batch_size=20", "trainer.max_steps=2", "n_validations=1", "method.compile=false"]
    small += [f"cache_dir={folder}", f"run_dir={folder}"]
    small += ["model.h_dim=3"] if "h_dim" in (whole := configured(*found)).get("model", {}) else []
    return with_values(whole, *small, *shorter_deep(whole))


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in EXPERIMENTS])
def test_every_experiment_runs_two_iterations(name, tmp_path, files, unrendered):
    assert run.train(shortened(name, tmp_path))["iteration"] == 2


@pytest.mark.parametrize("name", sorted({*EXPERIMENTS} - {*QUICK}))
def test_every_experiment_composes_as_the_reference_says(name):
    cfg = configured(f"experiment={name}", *EXPERIMENTS[name][0], "run_dir=.")
    assert check_config(cfg) is None
    reference = runpy.run_path(str(CONF.parent / "docs" / "site" / "reference.py"))
    page = (reference["PAGES"] / "experiments.md").read_text()
    row = re.search(rf"^\| \[`{name}`\]\(\S+\) \| (.+) \|$", page, re.MULTILINE)
    data, _, method, iterations, _ = row[1].split(" | ")
    assert iterations == f"{cfg.trainer.max_steps:,}"
    for group, cell in (("data", data), ("method", method)):
        path = CONF / group / f"{cell.split('`')[1]}.yaml"
        assert [cfg[group]._target_] == reference["targets"](reference["own"](path))[:1], "run docs/site/reference.py"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, found in EXPERIMENTS.items() if len(found) > 1])
def test_the_other_commands_of_an_experiment_compose(name):
    for swept in EXPERIMENTS[name][1:]:
        assert check_config(configured(f"experiment={name}", *swept, "run_dir=.")) is None


# --- published settings -----------------------------------------------------------------------------------


GREY = {"steps": 100_000, "lr": 1e-4, "levels": (0.1, 0.1, 3.0, "geometric"), "validation": 10_000}
COLOUR = {"steps": 300_000, "lr": 5e-5, "levels": (0.1, 0.05, 1.2, "linear"), "validation": 5_000}


@pytest.mark.parametrize(
    ("method", "data", "size", "published"),
    [
        *(("bimdsm", "mnist", (2, 64), GREY), ("bimdsm", "cifar10", (3, 128), COLOUR)),
        *((method, "cifar10", (3, 128), COLOUR) for method in ("mdsm", "vages_mdsm")),
    ],
)
def test_images_bring_the_published_deep_runs(method, data, size, published):
    cfg = configure(f"method={method}", f"data={data}")
    noise = cfg.noise
    rule = cfg.optimizer
    levels = (noise.sigma0, noise.sigma_min, noise.sigma_max, noise.ladder)
    found = {"steps": cfg.trainer.max_steps, "lr": rule.lr, "levels": levels}
    assert {**found, "validation": cfg.trainer.max_steps // cfg.n_validations} == published
    assert (cfg.data.batch_size, rule.schedule.floor, *rule.betas, rule.weight_decay) == (100, 1e-6, 0.9, 0.95, 0)
    assert (cfg.model.network.n_blocks, cfg.model.network.channels) == size
    if method == "bimdsm":
        assert cfg.model.h_dim == 50
        assert (cfg.method.n_lower_steps, cfg.method.n_unroll, cfg.method.hypergradient) == (5, 0, None)
    if method == "vages_mdsm":
        assert (cfg.method.n_lower_steps, cfg.score.n_particles, cfg.particles.n_refine_steps) == (5, 2, 5)


@pytest.mark.parametrize(
    ("overrides", "head"),
    [
        *((f"method=mdsm data={data}", "squared_norm") for data in ("mnist", "cifar10", "celeba32")),
        *((f"method=mdsm data={data}", "quadratic") for data in ("svhn", "celeba64", "mnist model=deep_small")),
        *((f"method={method} data=mnist", "quadratic") for method in ("dsm", "nce")),
        ("method=mdsm data=mnist model=deep_mlp", "quadratic"),
        ("method=mdsm data=mnist marginal_model.head=quadratic", "quadratic"),
        ("method=mdsm data=mnist model=grbm data.flatten=true", None),
    ],
)
def test_the_energy_without_latents_has_the_published_head(overrides, head):
    cfg = configure(*overrides.split())
    assert cfg.marginal_model.get("head") == cfg.method.energy.get("head") == head


@pytest.mark.parametrize(
    ("data", "batch", "epoch", "scale"), [("cifar10", 100, 500, 0.05), ("celeba64", 50, 1000, 0.1)]
)
def test_images_bring_the_published_doubly_variational_runs(data, batch, epoch, scale):
    cfg = configure("method=bidvl", f"data={data}")
    upper = cfg.optimizer
    lower = cfg.method.lower_optimizer
    assert (upper.lr, lower.lr, upper.weight_decay, lower.weight_decay) == (1e-4, 3e-4, 0, 1e-4)
    assert list(upper.betas) == list(lower.betas) == [0, 0.9]
    assert lower.schedule == upper.schedule == {**upper.schedule, "factor": 0.998, "every": epoch}
    assert (cfg.data.batch_size, cfg.data.value_range, cfg.loss.ratio.scale) == (batch, "symmetric", scale)
    assert (cfg.trainer.max_steps, cfg.method.n_lower_steps) == (600 * epoch, 1)


# --- which value takes precedence --------------------------------------------------------------------------


def test_command_line_beats_experiment_beats_data_set_beats_group(tmp_path):
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\noptimizer:\n  lr: 0.5\nn_validations: 3\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    group, data = (OmegaConf.load(CONF / f"{name}.yaml") for name in ("optimizer/adam", "data/checkerboard"))
    assert group.lr != data.optimizer.lr == configured("method=bidsm").optimizer.lr
    cfg = configure(f"hydra.searchpath=[file://{tmp_path}]", "experiment=mine", "optimizer.lr=0.25")
    assert cfg.n_validations == 3
    assert cfg.optimizer.lr == cfg.method.optimizer.lr == 0.25


@pytest.mark.parametrize(
    ("words", "part", "expected"),
    [
        ("method=pcd data=digits model=gaussian", "chain", "GibbsChain"),
        # these overrides compose, although the method refuses the chain later
        ("method=cd data=mnist chain=gibbs", "chain", "GibbsChain"),
        ("method=bidsm model=gaussian", "posterior", "LinearGaussianPosterior"),
    ],
)
def test_a_model_chooses_parts_that_fit_unless_the_command_line_chooses_others(words, part, expected):
    assert configure(*words.split()).method[part]._target_.endswith(f".{expected}")


# --- what is refused --------------------------------------------------------------------------------------


def test_a_model_of_images_is_refused_for_vectors():
    with pytest.raises(ConfigError, match=r"images.*data=mnist"):
        check_config(configure("method=bidvl", "run_dir=."))


def test_what_lightning_counts_in_epochs_and_batches_is_refused_by_name_or_taken():
    named = {name for name in inspect.signature(pl.Trainer).parameters if re.search("epoch|batches|val_|dev_run", name)}
    # Training is one epoch that never ends, so that the option to reload loaders after some epochs has no effect.
    assert named - {"reload_dataloaders_every_n_epochs"} <= {*NOT_TAKEN, *TAKEN}
    for name in NOT_TAKEN:
        with pytest.raises(ConfigError, match=f"trainer.{name} .*{NOT_TAKEN[name].split()[0]}"):
            refuse_unread(OmegaConf.create({"trainer": {name: 0}}), [])
