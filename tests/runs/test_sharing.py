"""Tests of models in folders for sharing: equal when loaded elsewhere, refused when damaged, uploaded only on
demand."""

import copy
import re
import shutil
import sys

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file

import eblvm_lit
from eblvm_lit import ConfigError, DataError
from eblvm_lit.cli import sample
from eblvm_lit.runs import sharing
from eblvm_lit.runs.build import build
from eblvm_lit.runs.instantiate import to_plain
from eblvm_lit.runs.settings import adapt
from eblvm_lit.runs.sharing import FILES, WEIGHTS
from eblvm_lit.runs.trained_run import TrainedRun
from eblvm_lit.samplers.sampler import Sampler
from helpers.shell import CONF, configured
from helpers.short_runs import NARROW

SHORT = ["trainer.max_steps=4", "n_validations=1", "method.compile=false", "callbacks.progress=null", "summary=false"]
SHORT += ["callbacks.figures=null", "sampler.n_steps=20", "cache_dir=/secret/cache"]
DEEP = ["model=deep_toy", "model.widths=[8]", "model.h_dim=3", "model.head_dim=4", "method=vages_dsm"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train DSM on the checkerboard, and share it in the folder beside the run."""
    folder = tmp_path_factory.mktemp("shared")
    run = eblvm_lit.train([*SHORT, "method=dsm", f"run_dir={folder / 'run'}"])
    run.save_pretrained(folder / "model")
    return run


@pytest.fixture
def folder(trained, tmp_path):
    """Copy the shared folder to another place."""
    return shutil.copytree(trained.folder.with_name("model"), tmp_path / "elsewhere")


@pytest.mark.usefixtures("unrendered")
def test_a_loaded_model_is_the_run_with_equal_samples(trained, folder, capsys):
    found = eblvm_lit.from_pretrained(folder)
    assert (found.iteration, found.metrics, found.folder) == (4, trained.metrics, None)
    assert torch.equal(found.sample(5, seed=3), trained.sample(5, seed=3))
    sample.main([str(folder), "-n", "2", "--out", str(folder / "drawn")])
    assert "samples.npz" in capsys.readouterr().out
    found.save_pretrained(folder, half=True)
    assert load_file(folder / WEIGHTS)["energy.W"].dtype == torch.float16
    again = eblvm_lit.load(folder)
    assert torch.equal(again.energy.W, trained.energy.W.half().float())
    assert again.config == found.config


@pytest.mark.usefixtures("unrendered")
def test_a_run_that_starts_from_another_has_the_commands_of_both(trained, tmp_path):
    words = [*SHORT, "method=dsm", f"init_from={trained.folder / 'checkpoints' / 'last.ckpt'}"]
    second = eblvm_lit.train([*words, f"run_dir={tmp_path / 'second'}"])
    third = eblvm_lit.train([*words[:-1], "seed=2", f"init_from={second.folder}", f"run_dir={tmp_path / 'third'}"])
    third.save_pretrained(tmp_path / "model")
    own = " ".join(["python train.py", *SHORT[:-1], "method=dsm"])
    assert eblvm_lit.load(tmp_path / "model").config.command.split(" && ") == [
        f"{own} run_dir=outputs/run_1",
        f"{own} init_from=outputs/run_1 run_dir=outputs/run_2",
        f"{own} seed=2 init_from=outputs/run_2",
    ]


def test_the_card_has_what_the_hub_reads_and_no_path_of_the_machine(trained, folder):
    texts = [(folder / name).read_text() for name in ("config.yaml", "metrics.json", "README.md")]
    assert not [text for text in texts if str(trained.folder.parent) in text or "/secret" in text]
    assert "python train.py trainer.max_steps=4" in texts[-1]
    header = OmegaConf.create(texts[-1].split("---\n")[1])
    (result,) = header["model-index"][0].results
    assert (header.license, header.library_name, header.datasets) == ("mit", "eblvm_lit", ["checkerboard"])
    (likelihood,) = [row for row in result.metrics if row.type == "log_likelihood"]
    assert likelihood.value == trained.metrics["test/log_likelihood"]
    assert likelihood.name == "log_likelihood, log Z by enumeration"
    assert (folder / "samples.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("unrendered")
def test_a_model_whose_chains_start_at_examples_samples_without_them(tmp_path, monkeypatch):
    run = eblvm_lit.train([*SHORT, *DEEP, f"run_dir={tmp_path / 'run'}"])
    run.config.sampler = {"_target_": torch.typename(Sampler), "dynamics": run.config.sampler.dynamics}
    run.config.sampler.dynamics.update({"n_hot": 0, "n_falling": 3, "n_cold": 2})
    run.save_pretrained(tmp_path / "model")
    found = eblvm_lit.load(tmp_path / "model")
    torch.testing.assert_close(found.starts["latents"], run.posterior.mean(run.examples("train")[:10_000]).detach())
    drawn = run.sample(4, seed=2)
    mean = Sampler(dynamics=run.sampler.dynamics, kind="mean")
    drawn_with_mean = run.sample(4, seed=2, sampler=mean)
    monkeypatch.setattr(TrainedRun, "data", property(lambda self: pytest.fail("the data are read")))
    assert torch.equal(found.sample(4, seed=2), drawn)
    assert torch.equal(found.sample(4, seed=2, sampler=mean), drawn_with_mean)
    assert not torch.equal(drawn, drawn_with_mean)


# The class of the method that each option of the configuration group ``method`` builds.
CLASSES = {
    path.stem: found[1]
    for path in (CONF / "method").glob("[a-z]*")
    if (found := re.search(r"_target_: (eblvm_lit\.methods\.\S+)", path.read_text()))
}
IMAGES = ["data=cifar10", "data.size=8"]
# For each class at least one option of the group ``method``, with the other overrides that it needs.
SHARED = {
    **{name: [f"method={name}"] for name in ("annealed_likelihood", "bism", "cd", "ed", "ed_latent", "fisher_critic")},
    **{
        name: [f"method={name}"]
        for name in ("jarzynski", "levels", "nce", "particle_ml", "score_matching", "snl", "vages")
    },
    **{name: [f"method={name}"] for name in ("pcd", "vages_fisher", "vnce", "vsnl")},
    "particle_ml_langevin": ["method=particle_ml", "model=gaussian", "chain=langevin"],
    "in_a_box": ["method=mdsm", "model=deep_toy", "model.widths=[8]", "sampler=annealed", "sampler.n_steps=20"],
    "lebm": ["method=lebm", "model=latent_prior_toy", "latent_langevin.n_steps=2"],
    "bidvl": ["method=bidvl", *IMAGES, *NARROW],
    "vae": ["method=vae", *IMAGES, *NARROW[1:]],
    "sngan": ["method=sngan", "data=cifar10", "model.network.widths=[2,2,2,2]", "generator.widths=[2,2,2,2]"],
}


def built(*overrides):
    """Return a run with random parameters and buffers, as if it had been trained."""
    few_sweeps = "sampler.n_steps=3"
    cfg = configured("max_examples=50", "method.compile=false", "run_dir=nowhere", few_sweeps, *overrides)
    adapt(cfg)
    parts = build(cfg)
    generator = torch.Generator().manual_seed(0)
    parts.method.keep_examples(50)
    for name, value in parts.method.named_buffers():
        # the vectors of spectral norms stay as they are
        if value.is_floating_point() and not name.endswith(("_u", "_v")):
            value.uniform_(generator=generator)
    run = TrainedRun(
        method=parts.method.eval(), config=OmegaConf.create(to_plain(cfg)), iteration=3, metrics={"a": 1.0}
    )
    if parts.data.image_shape is not None:
        run.data = parts.data  # the files of the images do not exist, and are not needed
    return run


def said_of(quantity):
    """Compute a quantity of a model, and return its value, or the error message if the model does not have it."""
    try:
        return quantity()
    except ConfigError as error:
        return str(error)


def quantities(run):
    v = torch.rand(4, *run.method.event_shape, generator=torch.Generator().manual_seed(1))
    asked = {
        "samples": lambda: run.sample(3, seed=1),
        "means": lambda: run.sample(3, seed=1, mean=True),
        "scores": lambda: run.score(v),
        "likelihoods": lambda: run.log_likelihood(v),
        "log_z": run.log_partition,
        "loss": lambda: run.method.validation_loss(v, torch.Generator().manual_seed(2)).detach(),
        "learned_log_z": lambda: run.method.parts.log_z,
        "statistics": run.method.parts.prior_statistics,
        "starts": lambda: run.starts,
        "metrics": lambda: run.metrics["a"],
    }
    return {name: said_of(quantity) for name, quantity in asked.items()}


def test_every_class_of_methods_is_in_the_sharing_tests():
    options = {word.removeprefix("method=") for words in SHARED.values() for word in words}
    assert {found for option, found in CLASSES.items() if option in options} == {*CLASSES.values()}


@pytest.mark.parametrize("overrides", SHARED.values(), ids=SHARED)
def test_every_public_quantity_of_a_shared_model_is_that_of_the_run(overrides, tmp_path, monkeypatch):
    monkeypatch.setattr(sharing, "draw_samples", lambda *_: None)
    run = built(*overrides)
    run.save_pretrained(tmp_path)
    expected = quantities(run)
    monkeypatch.setattr(TrainedRun, "data", property(lambda self: pytest.fail("the data are read")))
    found = quantities(eblvm_lit.load(tmp_path))
    for name, value in expected.items():
        if isinstance(value, str | None):
            assert found[name] == value
        else:
            torch.testing.assert_close(found[name], value, rtol=0, atol=0)


def changed(name, old, new):
    """Return a function that replaces some bytes of a file in a given folder.

    In the shared model, the parameter W has the shape (2, 4).
    """
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes().replace(old, new, 1))


def rewritten(text, name="config.yaml"):
    return lambda folder: (folder / name).write_text(text)


def without(folder):
    state = load_file(folder / WEIGHTS)
    save_file({name: value.clone() for name, value in state.items() if name != "energy.W"}, folder / WEIGHTS)


DAMAGES = {
    "cut": (
        lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-8]),
        DataError,
        "elsewhere",
    ),
    "lies": (changed(WEIGHTS, b'"shape":[4]', b'"shape":[5]'), DataError, "elsewhere"),
    "other shape": (changed(WEIGHTS, b'"shape":[2,4]', b'"shape":[4,2]'), ConfigError, r"energy\.W"),
    "lacks one": (without, ConfigError, r"energy\.W"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), DataError, r"elsewhere: .* model\.safetensors"),
    "an empty configuration": (rewritten(""), DataError, "data, method, callbacks or seed"),
    "a list for a configuration": (rewritten("- a\n- b"), DataError, "elsewhere"),
    "a number for a configuration": (rewritten("5"), DataError, "elsewhere"),
    "aliases": (rewritten("seed: &a [1]\nmethod: *a"), DataError, "aliases"),
    "metrics that are none": (rewritten("[1]", "metrics.json"), DataError, "elsewhere"),
    "connects": (
        changed("config.yaml", b"eblvm_lit.energies.grbm.GRBM", b"pytorch_lightning.Trainer"),
        ConfigError,
        r"pytorch_lightning\.Trainer",
    ),
    "reads variables": (changed("config.yaml", b"h_dim: 4", b"h_dim: ${oc.env:HOME}"), ConfigError, "interpolation"),
    "names code": (changed("config.yaml", b"eblvm_lit.energies.grbm.GRBM", b"os.system"), ConfigError, r"os\.system"),
}


@pytest.mark.parametrize(("damage", "kind", "named"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_folder_is_refused_in_a_sentence(folder, damage, kind, named):
    damage(folder)
    with pytest.raises(kind, match=named):
        eblvm_lit.from_pretrained(folder)


def test_a_model_without_metrics_is_loaded(trained, folder):
    (folder / "metrics.json").unlink()
    found = eblvm_lit.from_pretrained(folder)
    assert (found.metrics, found.iteration) == ({}, 0)
    assert torch.equal(found.sample(3), trained.sample(3))


def test_paths_of_a_shared_configuration_are_names_here(folder):
    config = OmegaConf.load(folder / "config.yaml")
    config.data.update({"own": ["/etc/passwd", "~/.ssh/id", "../../secret", "photos"]})
    OmegaConf.save(config, folder / "config.yaml")
    assert eblvm_lit.from_pretrained(folder).config.data.own == ["passwd", "id", "secret", "photos"]


class Hub:
    """A stand-in for the package of the Hugging Face Hub, which stores uploads in a folder."""

    def __init__(self, root):
        self.root = root

    def create_repo(self, repo_id, *, exist_ok):
        return type("Repo", (), {"repo_id": repo_id})

    def upload_folder(self, *, repo_id, folder_path, allow_patterns):
        (self.root / repo_id).mkdir(parents=True)
        [shutil.copy(folder_path / name, self.root / repo_id) for name in allow_patterns]

    def snapshot_download(self, repo_id, *, revision, allow_patterns):
        if not (self.root / repo_id).is_dir():
            raise OSError("404 Client Error.\n\nRepository not found")
        return str(self.root / repo_id)


@pytest.mark.usefixtures("unrendered")
def test_a_model_is_uploaded_to_the_hub_on_demand_and_loaded_from_it(trained, folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", Hub(tmp_path / "hub"))
    (folder / "private.txt").touch()
    trained.save_pretrained(folder, repo_id="me/model")
    assert not (tmp_path / "hub").exists()
    trained.save_pretrained(folder, repo_id="me/model", push_to_hub=True)
    assert {path.name for path in (tmp_path / "hub" / "me" / "model").iterdir()} == {*FILES}
    assert torch.equal(eblvm_lit.from_pretrained("me/model").energy.W, trained.energy.W)
    with pytest.raises(DataError, match=r"^me/other .*404"):
        eblvm_lit.from_pretrained("me/other")


def test_half_precision_keeps_what_it_cannot_hold_and_samples_are_of_what_is_written(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(sharing, "draw_samples", lambda run, v, path: drawn.append(v))
    run = built("method=sm")
    with torch.no_grad():
        run.energy.b.copy_(torch.tensor([1e5, 0.1]))
        run.energy.W.copy_(torch.tensor([0.1, -0.3, 0.7, 1.1]).expand_as(run.energy.W))
    run.save_pretrained(tmp_path, half=True)
    found = eblvm_lit.load(tmp_path)
    assert torch.equal(found.energy.b, run.energy.b)
    assert torch.equal(found.energy.W, run.energy.W.half().float())
    assert torch.equal(found.sample(1000), drawn[0])
    v = torch.zeros(1, 2)
    expected = copy.deepcopy(found.energy).double()
    torch.testing.assert_close(found.log_partition(), (expected.log_partition().item(), 0.0), rtol=1e-12, atol=0)
    torch.testing.assert_close(found.log_likelihood(v), -expected.free_energy(v.double()) - expected.log_partition())
