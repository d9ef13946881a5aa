"""Models as folders to share: equal when loaded elsewhere, refused when damaged, sent on demand alone."""

import shutil
import sys

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file

import eblvm_lit
from eblvm_lit import ConfigError, DataError
from eblvm_lit.cli import sample
from eblvm_lit.cli.sharing import FILES, WEIGHTS
from eblvm_lit.cli.trained_run import TrainedRun

SHORT = ["trainer.max_steps=4", "n_validations=1", "method.compile=false", "callbacks.progress=null", "summary=false"]
SHORT += ["callbacks.figures=null", "cache_dir=/secret/cache"]
DEEP = ["model=deep_toy", "model.widths=[8]", "model.h_dim=3", "model.head_dim=4", "method=vages_dsm"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """DSM on the checkerboard, shared in the folder beside it."""
    folder = tmp_path_factory.mktemp("shared")
    run = eblvm_lit.train([*SHORT, "method=dsm", f"run_dir={folder / 'run'}"])
    run.save_pretrained(folder / "model")
    return run


@pytest.fixture
def folder(trained, tmp_path):
    """Another place."""
    return shutil.copytree(trained.folder.with_name("model"), tmp_path / "elsewhere")


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


def test_a_model_whose_chains_start_at_examples_samples_without_them(tmp_path, monkeypatch):
    run = eblvm_lit.train([*SHORT, *DEEP, f"run_dir={tmp_path / 'run'}"])
    run.config.sampler.dynamics.update({"n_hot": 0, "n_falling": 3, "n_cold": 2})
    run.save_pretrained(tmp_path / "model")
    found = eblvm_lit.load(tmp_path / "model")
    torch.testing.assert_close(found.latents, run.posterior.mean(run.examples("train")[:1000]).detach())
    monkeypatch.setattr(TrainedRun, "data", property(lambda self: pytest.fail("the data are read")))
    assert found.sample(4, seed=2).isfinite().all()


def changed(name, old, new):
    """Other bytes in a file; W is 2 x 4."""
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
    """A stand-in of the Hub's package, which keeps what it is sent in a folder."""

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


def test_a_model_goes_to_the_hub_when_told_to_and_comes_back(trained, folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", Hub(tmp_path / "hub"))
    (folder / "private.txt").touch()
    trained.save_pretrained(folder, repo_id="me/model")
    assert not (tmp_path / "hub").exists()
    trained.save_pretrained(folder, repo_id="me/model", push_to_hub=True)
    assert {path.name for path in (tmp_path / "hub" / "me" / "model").iterdir()} == {*FILES}
    assert torch.equal(eblvm_lit.from_pretrained("me/model").energy.W, trained.energy.W)
    with pytest.raises(DataError, match=r"^me/other .*404"):
        eblvm_lit.from_pretrained("me/other")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"eblvm_lit\[hub\]"):
        eblvm_lit.from_pretrained("me/model")
