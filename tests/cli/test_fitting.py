"""Tests of the words that fitting adds: the model of a method for the data, and the method of a model."""

import re

import numpy as np
import pytest
from omegaconf import OmegaConf

import eblvm_lit
from eblvm_lit.cli.compose import composed
from eblvm_lit.cli.fitting import fitting_words
from eblvm_lit.energies.noise_conditional import NoiseConditionalExactLatents
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.level_classification import LevelClassification
from eblvm_lit.runs.build import build
from helpers.launching import run_script

# The classes of the model and of its network, for each option of the group model that fitting chooses.
MODELS = {
    "noise_conditional": ("NoiseConditionalEnergy", "NoiseConditionalMLP"),
    "noise_conditional_mixer": ("NoiseConditionalEnergy", "NoiseConditionalMixer"),
    "harmonium": ("NoiseConditionalExactLatents", "NoiseConditionalMLP"),
    "harmonium_mixer": ("NoiseConditionalExactLatents", "NoiseConditionalMixer"),
}
POINTS, VECTORS, IMAGES = (f"data=array data.path={{files}}/{name}.npy" for name in ("points", "vectors", "images"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a folder with points of two columns, vectors of six columns, and grey images of two sizes."""
    folder = tmp_path_factory.mktemp("files")
    numbers = np.random.default_rng(0)
    np.save(folder / "points.npy", numbers.normal(size=(200, 2)))
    np.save(folder / "vectors.npy", numbers.normal(size=(200, 6)))
    np.save(folder / "images.npy", numbers.integers(0, 256, (60, 16, 16), dtype=np.uint8))
    np.save(folder / "odd.npy", numbers.integers(0, 256, (60, 16, 18), dtype=np.uint8))
    return folder


def targets(*parts):
    """Return the name of the class of each part of a configuration."""
    return tuple(part._target_.rpartition(".")[2] for part in parts)


def chosen(words, files):
    """Compose a configuration, and return the classes of its method, its model and the model's network."""
    cfg = composed(words.format(files=files).split())
    # the method trains the model, or else the energy without latents that belongs to it
    assert cfg.method.energy in (cfg.model, cfg.marginal_model)
    return targets(cfg.method, cfg.model, cfg.model.energy.network)


# --- the model of the method ------------------------------------------------------------------------------


def test_the_default_run_classifies_levels_with_a_model_of_exact_latents():
    cfg = composed(["run_dir=nowhere"])
    assert fitting_words([]) == []
    assert targets(cfg.data, cfg.method, cfg.model) == (
        "Checkerboard",
        "LevelClassification",
        "NoiseConditionalExactLatents",
    )
    assert cfg.eval_weights == "ema"
    assert cfg.callbacks.ema is not None
    method = build(cfg).method
    assert isinstance(method, LevelClassification)
    assert isinstance(method.energy, NoiseConditionalExactLatents)
    assert (method.energy.event_shape, method.energy.h_dim) == ((3,), cfg.sizes.h_dim)  # the inputs are v and log t


@pytest.mark.parametrize(
    ("words", "added"),
    [
        (f"method=dual {POINTS}", ["kind=vectors", "model=noise_conditional"]),
        (f"method=dual {VECTORS}", ["kind=vectors", "model=noise_conditional"]),
        (f"method=dual {IMAGES}", ["kind=small_images", "model=noise_conditional_mixer"]),
        (f"method=dual {IMAGES} data.flatten=true", ["kind=vectors", "model=noise_conditional"]),
        (f"method=levels {POINTS}", ["kind=vectors", "model=harmonium"]),
        (VECTORS, ["kind=vectors", "model=harmonium"]),
        (f"kind=vectors {VECTORS}", ["model=harmonium"]),
        (IMAGES, ["kind=small_images", "model=harmonium_mixer"]),
        (f"kind=small_images {IMAGES}", ["model=harmonium_mixer"]),
        (f"{IMAGES} data.flatten=true", ["kind=vectors", "model=harmonium"]),
        ("data=mnist", ["model=harmonium_mixer"]),
        ("method=dual data=mnist", ["model=noise_conditional_mixer"]),
        ("method=bidual data=cifar10", ["model=noise_conditional_mixer"]),
        ("method=vages_dual data=celeba64", ["model=noise_conditional_mixer"]),
        ("data=image_folder data.path={files} data.size=16 data.channels=3", ["model=harmonium_mixer"]),
    ],
)
def test_a_method_gets_its_model_for_vectors_or_for_images(words, added, files):
    assert fitting_words(words.format(files=files).split()) == added
    method = re.search(r"method=(\w+)", words)
    expected = {"dual": "ScoreMatching", "bidual": "BiSM", "vages_dual": "VaGES", "levels": "LevelClassification"}
    name = added[-1].removeprefix("model=")
    assert chosen(words, files) == (expected[method[1] if method else "levels"], *MODELS[name])


@pytest.mark.parametrize(
    ("words", "model"),
    [
        ("data=moons", "harmonium"),
        ("data=digits", "harmonium"),
        ("data=mnist data.flatten=true", "harmonium"),
        ("method=dual data=mnist data.flatten=true", "noise_conditional"),
    ],
)
def test_no_word_is_added_where_the_method_has_its_model_already(words, model, files):
    assert fitting_words(words.split()) == []
    assert chosen(words, files)[1:] == MODELS[model]


@pytest.mark.parametrize(
    ("words", "model"),
    [
        ("method=dual data=mnist model=harmonium_mixer", "harmonium_mixer"),
        (f"{IMAGES} model=noise_conditional_mixer", "noise_conditional_mixer"),
        (f"method=dual {POINTS} model=harmonium", "harmonium"),
        # the method of this experiment is dual, whose own model for images is noise_conditional_mixer
        ("experiment=harmonium_mnist_small", "harmonium_mixer"),
        ("experiment=dual_mnist_small method=levels", "noise_conditional_mixer"),
    ],
)
def test_a_model_that_is_typed_or_of_an_experiment_stays(words, model, files):
    assert not any(word.startswith("model=") for word in fitting_words(words.format(files=files).split()))
    assert chosen(words, files)[1:] == MODELS[model]


def test_keys_of_the_chosen_model_and_kind_are_set_in_the_same_command(files):
    cfg = composed(["method=dual", "data=mnist", "model.energy.network.width=64"])
    assert cfg.model.energy.network.width == cfg.method.energy.energy.network.width == 64
    words = ["data=array", f"data.path={files / 'vectors.npy'}", "model.energy.network.widths=[8]", "threads=2"]
    cfg = composed(words)
    assert (cfg.method.energy.energy.network.widths, cfg.threads) == ([8], 2)


def test_points_without_a_method_keep_the_method_and_the_model_of_their_kind(files):
    for words in (POINTS, f"kind=points {POINTS}"):
        cfg = composed(words.format(files=files).split())
        assert targets(cfg.method, cfg.model, cfg.method.energy) == ("SNL", "DeepVectorEnergy", "MLPEnergy")
        assert cfg.method.energy.widths == [128, 128]
    assert fitting_words(f"method=dsm {POINTS}".format(files=files).split()) == ["kind=points"]


def test_the_kind_of_points_is_refused_with_a_method_that_has_models_of_its_own():
    with pytest.raises(ConfigError, match="use kind=vectors"):
        composed(["kind=points", "method=dual", "data=moons"])
    assert composed(["kind=vectors", "method=dual", "data=moons"]).noise_range.smallest == 1e-4


def test_images_whose_sides_are_no_multiples_of_four_get_a_model_of_one_level(files):
    words = ["data=array", f"data.path={files / 'odd.npy'}"]
    assert fitting_words(words) == ["kind=odd_images", "method=bimdsm"]
    assert targets((cfg := composed(words)).method, cfg.model, cfg.model.network) == (
        "BiSM",
        "DeepLatentEnergy",
        "ImageMLP",
    )
    assert fitting_words([*words, "method=dual"]) == ["kind=odd_images"]
    assert fitting_words([*words, "kind=odd_images"]) == ["method=bimdsm"]
    # train(data=...) gives the shape and the kind of the images by these words
    given = ["data=_memory", "kind=odd_images", "data.shape=[1,17,23]", "data.train=images.npz"]
    assert targets(composed(given).method) == ("BiSM",)


def test_nothing_is_added_to_several_data_sets_or_files_that_cannot_be_read(files):
    for words in ("data=mnist,cifar10", "method=dual,levels data=mnist", "data=array data.path=/nowhere.npy", "seed=3"):
        assert fitting_words(words.split()) == []
    # a list of columns is one value
    columns = f"{VECTORS} data.columns=[0,1,2,3]".format(files=files)
    assert fitting_words(columns.split()) == ["kind=vectors", "model=harmonium"]


# --- the method of a model --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "method"),
    [
        ("model=grbm", "bidsm"),
        ("model=gaussian data=digits", "bidsm"),
        ("model=grbm data=mnist data.flatten=true", "bidsm"),
        ("model=deep_small data=mnist", "bimdsm"),
    ],
)
def test_a_model_without_levels_and_without_a_method_gets_bidsm_or_for_images_bimdsm(words, method):
    assert fitting_words(words.split()) == [f"method={method}"]
    whole = ["run_dir=nowhere", *words.split()]
    assert composed(whole) == composed([*whole, f"method={method}"])
    cfg = composed([*whole, "method.n_unroll=3"])
    assert (*targets(cfg.method), cfg.method.n_unroll) == ("BiSM", 3)
    assert fitting_words([*words.split(), "method=dsm"]) == []


# --- whole commands and runs ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said", "method"),
    [
        ("method=dual data=mnist", "model=noise_conditional_mixer fits the data; method=NAME model=NAME", "dual"),
        (IMAGES, "kind=small_images with model=harmonium_mixer fits the data; method=NAME model=NAME", "levels"),
        ("model=grbm", "method=bidsm fits the model; method=NAME takes another", "bidsm"),
    ],
)
def test_a_command_says_what_it_has_added_and_runs_as_if_it_was_typed(words, said, method, files, tmp_path):
    key = "model.h_dim=7" if method == "bidsm" else "model.energy.network.width=64"
    typed = [*words.format(files=files).split(), key]
    code, printed = run_script("train.py", *typed, "seed=3", "--cfg", "job", folder=tmp_path)
    assert code == 0, printed
    first, _, config = printed.partition("\n")
    assert first.startswith(said)
    cfg = OmegaConf.create(config)
    assert (cfg.seed, OmegaConf.select(cfg, key.partition("=")[0])) == (3, int(key.partition("=")[2]))
    expected = composed([*typed, "seed=3"])
    assert (cfg.method, cfg.model) == (expected.method, expected.model)


def test_images_of_a_file_are_trained_by_the_default_method(files, tmp_path):
    narrow = [f"model.energy.network.{size}" for size in ("width=4", "dense_width=5", "n_rounds=1", "fine_width=4")]
    words = ["data=array", f"data.path={files / 'images.npy'}", *narrow, "debug=fast"]
    run = eblvm_lit.train([*words, f"run_dir={tmp_path / 'run'}", f"cache_dir={tmp_path}"])
    assert isinstance(run.method, LevelClassification)
    assert np.isfinite(run.metrics["test/log_likelihood"])
    assert (run.folder / "figures" / "samples.png").exists()  # the probability flow takes seconds, unlike other chains
    assert run.latents(run.examples()).shape == (len(run.examples()), run.energy.h_dim)


def test_a_sweep_over_methods_sets_keys_of_their_models(tmp_path):
    """Hydra composes once without the swept words, where the default method has none of these keys."""
    words = ["data=twenty_five_gaussians", "marginal_model.widths=[8]", "chain.n_steps=2", "callbacks.figures=null"]
    command = ["-m", "method=pcd,jarzynski", *words, "debug=fast", f"hydra.sweep.dir={tmp_path}"]
    code, printed = run_script("train.py", *command, folder=tmp_path)
    assert code == 0, printed
    stored = [OmegaConf.load(tmp_path / str(job) / "config.yaml") for job in range(2)]
    assert [targets(cfg.method)[0] for cfg in stored] == ["ContrastiveDivergence", "Jarzynski"]
    assert all(cfg.method.energy.widths == [8] for cfg in stored)
