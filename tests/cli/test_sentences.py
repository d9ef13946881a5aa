"""Bad input ends in one clear sentence and a non-zero exit, and what was saved before stays."""

import re
import shutil
import subprocess
import sys

import pytest
import torch
from hydra.errors import HydraException

from eblvm_lit.cli import run
from eblvm_lit.cli.build import build
from eblvm_lit.cli.sentences import sentence
from eblvm_lit.data.base import Splits
from eblvm_lit.data.digits import Digits
from eblvm_lit.errors import ConfigError, DataError, EblvmError
from eblvm_lit.methods.base import Method
from eblvm_lit.training.callbacks.nonfinite import NonFiniteError
from eblvm_lit.training.checkpoint_io import load_checkpoint
from helpers.image_files import write_frey
from helpers.launching import run_script
from helpers.shell import ROOT, checkpoint, configure, evaluate, tiny, train


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A short run, and its last checkpoint."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(folder, "method=dsm")
    return folder / "checkpoints" / "last.ckpt"


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["method.n_lower_steps=-1"], r"n_lower_steps.*-1"),
        (["method.n_unroll=-2"], r"n_unroll.*-2"),
        (["trainer.precision=16-mixed"], "precision=16-mixed.*bf16-mixed"),
        (["trainer.devices=many"], "trainer.*devices"),
        (["trainer.accelerator=abacus"], "trainer.*abacus"),
        (["trainer.max_steps=0"], "trainer.max_steps.*0"),
        (["n_validations=1.5"], "n_validations.*1.5"),
        (["optimizer.lr=0"], "lr > 0"),
        (["optimizer.clip_norm=-1"], "clip_norm"),
        (["data.batch_size=0"], "data.batch_size"),
        (["ckpt=nowhere.ckpt"], r"nowhere\.ckpt"),
        (["ckpt=last"], "ckpt=last"),
        (["method=ksd", "data.batch_size=100", "data.eval_batch_size=99"], "99"),
        (["method=vages_dsm", "score.n_particles=1"], r"n_particles.*1"),
        (["method=vages", "objective=ssm"], "SSM.*objective=dsm"),
        (["method=vages_dsm", "particles=refined"], "GRBM"),
        (["method=is_ksd", "model=gaussian"], "GaussianLatentModel"),
        (
            [
                *("method=vages_dsm", "model=gaussian", "particles=refined", "particles.step_size=100"),
                *("particles.n_refine_steps=20", "model.weight_scale=0.5"),
            ],
            r"upper.*refined rms.*iteration 1.*step_size=100",
        ),
        (["data=frey_face", "data.root=/nowhere"], r"/nowhere/frey_rawface.mat.*http"),
        (["hypergradient=fixed_point", "hypergradient.precision=stepped"], "hypergradient.precision=fixed"),
        (["hypergradient=penalty", "method.n_unroll=3"], r"n_unroll.*hypergradient"),
        (["hypergradient=warm", "optimizer=sgd"], "Adam.*SGD"),
        (["hypergradient=implicit", "model=gaussian", "divergence=fisher"], "curvature=fisher.*curvature=hessian"),
    ],
)
def test_a_value_out_of_range_is_refused_in_one_sentence(overrides, named, tmp_path):
    with pytest.raises(EblvmError, match=named) as refusal:
        train(tmp_path / "run", *overrides)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run" / "checkpoints").exists()


# --- data and checkpoints ---------------------------------------------------------------------------------


def test_a_damaged_data_file_is_refused(tmp_path):
    write_frey(tmp_path)
    path = tmp_path / "frey_rawface.mat"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"frey_rawface\.mat"):
        train(tmp_path / "run", "data=frey_face", f"data.root={tmp_path}")


def test_a_nan_in_the_data_is_found_before_the_first_iteration(tmp_path, monkeypatch):
    splits = Splits(*torch.rand(30, 64).split(10))
    splits.val[3, 5] = torch.nan
    monkeypatch.setattr(Digits, "load", lambda self: splits)
    with pytest.raises(DataError, match=r"val.* Digits"):
        train(tmp_path)


def write_truncated(path, trained):
    path.write_bytes(trained.read_bytes()[:-500])


def write_foreign(path, trained):
    content = load_checkpoint(trained)
    del content["eblvm_lit"]
    torch.save(content, path)


def write_without_settings(path, trained):
    content = load_checkpoint(trained)
    del content["eblvm_lit"]["config"]["data"]
    torch.save(content, path)


def write_without_a_parameter(path, trained):
    content = load_checkpoint(trained)
    del content["state_dict"]["energy.W"]
    torch.save(content, path)


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (write_truncated, r"odd\.ckpt"),
        (write_foreign, r"odd\.ckpt"),
        (write_without_settings, r"odd\.ckpt"),
        (write_without_a_parameter, r"energy\.W"),
    ],
)
def test_what_is_no_checkpoint_of_ours_is_refused(spoil, named, trained, tmp_path):
    spoil(tmp_path / "odd.ckpt", trained)
    with pytest.raises(EblvmError, match=named):
        evaluate(tmp_path, tmp_path / "odd.ckpt")


@pytest.mark.parametrize(
    ("overrides", "named"),
    [(["method=bidsm"], "ScoreMatching.*BiSM"), (["method=dsm", "model.h_dim=4"], r"energy\.W")],
)
def test_a_checkpoint_of_another_model_is_not_gone_on_with(overrides, named, trained, tmp_path):
    with pytest.raises(ConfigError, match=named):
        train(tmp_path, *overrides, f"ckpt={trained}")


def test_evaluate_without_a_checkpoint_asks_for_one(tmp_path):
    cfg = tiny(tmp_path)
    cfg.ckpt = "???"
    with pytest.raises(ConfigError, match="checkpoint"):
        run.evaluate(cfg)


# --- the folder, the disk, memory -------------------------------------------------------------------------


def test_an_unwritable_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()  # not by permissions, which the superuser does not feel
    with pytest.raises(ConfigError, match="file/run"):
        train(tmp_path / "file" / "run")


def test_a_full_disk_leaves_the_checkpoint_before(trained, tmp_path, monkeypatch):
    shutil.copytree(trained.parents[1], tmp_path / "run")
    before = (tmp_path / "run" / "checkpoints" / "last.ckpt").read_bytes()

    def half(content, file):
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(DataError, match=r"No space left"):
        train(tmp_path / "run", "method=dsm", "trainer.max_steps=20", "ckpt=last")
    assert (tmp_path / "run" / "checkpoints" / "last.ckpt").read_bytes() == before
    assert not list((tmp_path / "run").rglob("*.tmp"))


CUDA = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.19 GiB."


@pytest.mark.parametrize(
    ("overrides", "hints"),
    [
        (["method.n_unroll=7"], r"n_unroll \(N=7\).*data.batch_size"),
        (["method=vages_dsm"], r"data.batch_size.*score.n_particles \(L=2\)"),
        (["method=cd"], "data.batch_size"),
    ],
)
def test_too_little_memory_ends_in_a_sentence_that_says_what_needs_less(overrides, hints, tmp_path, monkeypatch):
    def exhaust(self, state, v, noise):
        raise torch.OutOfMemoryError(CUDA)

    monkeypatch.setattr(Method, "run_iteration", exhaust)
    with pytest.raises(ConfigError, match=f"2.50 GiB.*{hints}.*data.eval_batch_size"):
        train(tmp_path, *overrides, "n_validations=1")


def test_a_network_that_can_recompute_activations_is_told_to(tmp_path):
    small = ["model.network.n_blocks=1", "model.network.channels=2"]
    method = build(configure("method=cd", "data=mnist", *small, f"run_dir={tmp_path}")).method
    assert any("model.network.checkpoint=true" in hint for hint in method.memory_hints())
    method.energy.network.checkpoint = True
    assert not any("model.network.checkpoint" in hint for hint in method.memory_hints())


# --- divergence -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lr", "validations", "named"),
    [
        # two steps, and the loss overflows
        ("1e30", 1, r"model level.*iteration 12.*optimizer.lr"),
        # parameters overflow in the first step, whose loss and gradient were finite; seen where they would be saved
        ("3.4e38", 20, r"parameter .* of theta .*iteration 11"),
        # parameters do not overflow, but the validation loss does
        ("1e20", 20, r"val/loss is (inf|nan) at iteration 11"),
    ],
)
def test_a_run_that_diverges_stops_and_keeps_the_last_good_checkpoint(lr, validations, named, trained, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(trained.parents[1], folder)
    (folder / "metrics.json").unlink()
    longer = ["trainer.max_steps=20", f"n_validations={validations}", "ckpt=last", "resume.allow=[optimizer.lr]"]
    with pytest.raises(NonFiniteError, match=named):
        train(folder, "method=dsm", f"optimizer.lr={lr}", *longer)
    assert not (folder / "metrics.json").exists()
    assert checkpoint(folder)["global_step"] == 10
    assert evaluate(tmp_path, folder / "checkpoints" / "last.ckpt")["iteration"] == 10


def test_the_level_that_diverges_is_named(tmp_path):
    lower = ["+method.lower_optimizer={_target_: eblvm_lit.optimizers.adam.Adam, lr: 3e38}", "method.n_unroll=0"]
    with pytest.raises(NonFiniteError, match=r"lower level.*iteration \d+"):
        train(tmp_path, *lower, "method.n_lower_steps=5", "n_validations=1")


def test_a_metric_that_is_not_finite_is_no_result(tmp_path, monkeypatch):
    target = "eblvm_lit.evaluation.fisher_score.FisherScore.compute"
    monkeypatch.setattr(target, lambda self, method, v, generator: {"fisher": float("nan")})
    with pytest.raises(NonFiniteError, match=r"test/fisher.*iteration 10"):
        train(tmp_path, "method=dsm")
    assert not (tmp_path / "metrics.json").exists()
    assert checkpoint(tmp_path)["global_step"] == 10


# --- the command line -------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["test", "train", "trainer.foo", "steps"])
def test_what_is_like_no_key_gets_no_hint_by_luck(word):
    assert "Did you mean" not in sentence(HydraException(f"Could not override '{word}'."), "config", [f"{word}=1"])


def test_what_is_missing_is_told_before_torch_is_imported(tmp_path):
    command = f"import runpy, sys; sys.modules['torch'] = None; runpy.run_path({str(ROOT / 'train.py')!r}, run_name='__main__')"
    words = [sys.executable, "-c", command, "data=image_folder", "data.path=nowhere"]
    process = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 1
    assert re.search(r"/nowhere", process.stderr)
    assert "Traceback" not in process.stderr


@pytest.mark.parametrize(
    ("script", "words", "named"),
    [
        ("train.py", ["hydra.run.dir=file/run"], "file/run"),
        ("train.py", ["-m", "hydra.sweep.dir=file/run"], "file/run"),
        ("evaluate.py", ["hydra.run.dir=file/run"], "file/run"),
        ("train.py", ["data=frey_face", "data.root=nowhere"], "nowhere/frey_rawface.mat"),
        ("train.py", ["+trainer.gpus=1"], "trainer.gpus.*trainer.devices"),
        ("train.py", ["method=bidsn"], "'bidsn'.*method=bidsm"),
        ("train.py", ["method.n_unrol=3"], "'method.n_unrol'.*method.n_unroll=3"),
        ("train.py", ["figure=all"], "'figure'.*figures@callbacks.figures.figures=all"),
        ("train.py", ["method=dsm", "method.n_unroll=3"], "'method.n_unroll'"),  # no hint: n_unroll would be refused
        ("train.py", ["method=vae", "objective=mdsm"], "objective=mdsm"),
        ("evaluate.py", ["ckpt=last"], "checkpoint at last"),
        ("evaluate.py", ["checkpoint=last.ckpt"], "ckpt=PATH"),
    ],
)
def test_the_command_line_ends_with_a_sentence_and_a_failure(script, words, named, tmp_path):
    (tmp_path / "file").touch()
    code, said = run_script(script, *words, folder=tmp_path)
    assert code == 1
    assert re.search(named, said)
    assert "Traceback" not in said
