"""Bad input ends in one clear sentence and a non-zero exit, and what was saved before stays."""

import re
import shutil
import subprocess
import sys

import pytest
import torch

from eblvm_lit.cli import run
from eblvm_lit.cli.build import build
from eblvm_lit.data.base import Splits
from eblvm_lit.data.digits import Digits
from eblvm_lit.errors import ConfigError, DataError, EblvmError
from eblvm_lit.methods.base import Method
from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
from eblvm_lit.training.callbacks.nonfinite import NonFiniteError
from eblvm_lit.training.checkpoint_io import load_checkpoint
from helpers.image_files import write_frey
from helpers.shell import ROOT, checkpoint, configure, evaluate, start, tiny, train


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A short run, and its last checkpoint."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(folder, "method=dsm")
    return folder / "checkpoints" / "last.ckpt"


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["method.n_lower_steps=-1"], r"n_lower_steps \(K\) must be >= 0, not -1"),
        (["method.n_unroll=-2"], r"n_unroll.*-2"),
        (
            ["trainer.precision=16-mixed"],
            "precision=16-mixed is not supported; use one of 32-true, 64-true, bf16-mixed",
        ),
        (["trainer.devices=0"], "trainer: .*0"),
        (["trainer.devices=many"], "trainer: .*devices"),
        (["trainer.accelerator=abacus"], "trainer.*abacus"),
        (
            ["trainer.max_steps=0"],
            "trainer.max_steps must be an integer of at least 1, not 0",
        ),
        (["trainer.max_steps=-1"], "at least 1, not -1"),
        (["trainer.max_steps=many"], "not 'many'"),
        (["n_validations=0"], "n_validations must be an integer of at least 1, not 0"),
        (["n_validations=1.5"], "n_validations must be an integer of at least 1, not 1.5"),
        (["optimizer.lr=0"], "lr > 0"),
        (["optimizer.clip_norm=-1"], "clip_norm"),
        (["data.batch_size=0"], "data.batch_size must be at least 1"),
        (["ckpt=nowhere.ckpt"], "There is no checkpoint at nowhere.ckpt"),
        (["ckpt=last"], "ckpt=last: no run"),
        (["method=ksd", "data.batch_size=7"], "pairs the two halves of a minibatch, which 7 examples do not have"),
        (["method=ksd", "data.batch_size=100", "data.eval_batch_size=99"], "which 99 examples do not have"),
        (["method=vages_dsm", "score.n_particles=1"], r"unbiased covariance needs n_particles \(L\) >= 2, not 1"),
        (["method=vages", "objective=ssm"], "SSM differentiates the score by v, .* objective=dsm, mdsm or ksd"),
        (["method=vages_dsm", "particles=refined"], "needs continuous latents, GRBM has binary ones"),
        (["method=dsm", "particles=posterior"], "nothing reads particles"),
        (["method=is_ksd", "model=gaussian"], "GaussianLatentModel has continuous ones"),
        (
            [
                *("method=vages_dsm", "model=gaussian", "particles=refined", "particles.step_size=100"),
                *("particles.n_refine_steps=20", "model.weight_scale=0.5"),
            ],
            r"The upper level's refined rms is inf at iteration 1: the Langevin refinement diverges with step_size=100",
        ),
        (["data=frey_face", "data.root=/nowhere"], r"/nowhere/frey_rawface.mat is missing: put http"),
        (
            ["hypergradient=fixed_point", "hypergradient.precision=stepped"],
            "BernoulliPosterior has no precision, use hypergradient.precision=fixed",
        ),
        (
            ["hypergradient=penalty", "method.n_unroll=3"],
            r"either n_unroll \(N\) or another hypergradient, and not both",
        ),
        *(
            ([f"hypergradient={name}", "optimizer=sgd"], "the second moments of phi's Adam, and SGD has none: use")
            for name in ("warm", "penalty", "finite_difference")
        ),
        *(
            (
                [f"hypergradient={name}", "model=gaussian", "divergence=fisher"],
                "curvature=fisher is the curvature of divergence=kl: use curvature=hessian with Fisher",
            )
            for name in ("warm", "implicit", "finite_difference")
        ),
    ],
)
def test_a_value_out_of_range_is_refused_in_one_sentence(overrides, sentence, tmp_path):
    with pytest.raises(EblvmError, match=sentence) as refusal:
        train(tmp_path / "run", *overrides)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_posterior_without_natural_parameters_has_no_fixed_point(tmp_path, monkeypatch):
    monkeypatch.setattr(BernoulliPosterior, "has_natural_params", False)
    with pytest.raises(ConfigError, match="use a Bernoulli or Gaussian posterior, or another hypergradient") as refusal:
        train(tmp_path, "hypergradient=fixed_point")
    assert "\n" not in str(refusal.value)


# --- data -------------------------------------------------------------------------------------------------


def test_a_damaged_data_file_is_refused(tmp_path):
    write_frey(tmp_path)
    path = tmp_path / "frey_rawface.mat"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"frey_rawface.mat is damaged or another file") as refusal:
        train(tmp_path / "run", "data=frey_face", f"data.root={tmp_path}")
    assert "\n" not in str(refusal.value)


def test_a_nan_in_the_data_is_found_before_the_first_iteration(tmp_path, monkeypatch):
    splits = Splits(*torch.rand(30, 64).split(10))
    splits.val[3, 5] = torch.nan
    monkeypatch.setattr(Digits, "load", lambda self: splits)
    with pytest.raises(DataError, match="The val split of Digits holds 1 non-finite value"):
        train(tmp_path)


# --- checkpoints ------------------------------------------------------------------------------------------


def test_a_truncated_checkpoint_is_refused_everywhere(trained, tmp_path):
    broken = tmp_path / "broken.ckpt"
    broken.write_bytes(trained.read_bytes()[:-500])
    for attempt in (
        lambda: train(tmp_path / "run", "method=dsm", f"ckpt={broken}"),
        lambda: evaluate(tmp_path, broken),
    ):
        with pytest.raises(DataError, match=r"broken\.ckpt is not a readable checkpoint") as refusal:
            attempt()
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda c: c.pop("eblvm_lit"), "is not a checkpoint of eblvm_lit"),
        (lambda c: c["eblvm_lit"]["config"].pop("data"), "does not say how it was trained"),
        (lambda c: c["state_dict"].pop("energy.W"), r"other sizes than this run's \(.*energy.W"),
    ],
)
def test_what_is_no_checkpoint_of_ours_is_refused(spoil, sentence, trained, tmp_path):
    content = load_checkpoint(trained)
    spoil(content)
    torch.save(content, tmp_path / "odd.ckpt")
    with pytest.raises(EblvmError, match=sentence):
        evaluate(tmp_path, tmp_path / "odd.ckpt")


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["method=bidsm"], "was written by .*ScoreMatching, but this run is a .*BiSM"),
        (["method=dsm", "model.h_dim=4"], r"a model of other sizes than this run's \(.*energy.W"),
    ],
)
def test_a_checkpoint_of_another_model_is_not_gone_on_with(overrides, sentence, trained, tmp_path):
    with pytest.raises(ConfigError, match=sentence):
        train(tmp_path, *overrides, f"ckpt={trained}")


def test_evaluate_without_a_checkpoint_says_how(tmp_path):
    cfg = tiny(tmp_path)
    cfg.ckpt = "???"
    with pytest.raises(ConfigError, match="Which checkpoint"):
        run.evaluate(cfg)
    with pytest.raises(DataError, match=r"There is no checkpoint at nowhere\.ckpt"):
        evaluate(tmp_path, "nowhere.ckpt")


# --- the folder -------------------------------------------------------------------------------------------


def test_an_unwritable_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()  # not by permissions, which the superuser does not feel
    with pytest.raises(ConfigError, match="cannot be written to"):
        train(tmp_path / "file" / "run")


def test_a_full_disk_leaves_the_checkpoint_before(trained, tmp_path, monkeypatch):
    shutil.copytree(trained.parents[1], tmp_path / "run")
    before = (tmp_path / "run" / "checkpoints" / "last.ckpt").read_bytes()

    def half(content, file):
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(DataError, match=r"could not be written .*No space left.*.*; earlier files are intact"):
        train(tmp_path / "run", "method=dsm", "trainer.max_steps=20", "ckpt=last")
    assert (tmp_path / "run" / "checkpoints" / "last.ckpt").read_bytes() == before
    assert not list((tmp_path / "run").rglob("*.tmp"))


# --- memory -----------------------------------------------------------------------------------------------

CUDA = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.19 GiB of which 1.06 GiB is free."
    " Including non-PyTorch memory, this process has 78.12 GiB memory in use. Of the allocated memory 76.31 GiB is "
    "allocated by PyTorch, and 1.02 GiB is reserved by PyTorch but unallocated."
)
NUMBERS = r"\(2.50 GiB more were asked for\): "


@pytest.mark.parametrize(
    ("overrides", "hints"),
    [
        (["method.n_unroll=7"], r"lower n_unroll \(N=7\), or use hypergradient=implicit, or lower data.batch_size"),
        (["method.n_unroll=0"], "lower data.batch_size"),
        (["hypergradient=implicit"], "lower data.batch_size"),
        (["method=vages_dsm"], r"lower data.batch_size, or lower score.n_particles \(L=2\)"),
        (["method=cd"], "lower data.batch_size"),
    ],
)
def test_too_little_memory_ends_in_a_sentence_that_says_what_needs_less(overrides, hints, tmp_path, monkeypatch):
    run_iteration = Method.run_iteration

    def exhaust(self, state, v, noise):
        if self.iterations_done == 2:
            raise torch.OutOfMemoryError(CUDA)
        return run_iteration(self, state, v, noise)

    monkeypatch.setattr(Method, "run_iteration", exhaust)
    with pytest.raises(
        ConfigError, match=f"^Out of memory {NUMBERS}{hints}, or lower data.eval_batch_size for validations.$"
    ):
        train(tmp_path, *overrides, "n_validations=1")


def test_a_network_that_can_recompute_activations_is_told_to(tmp_path):
    small = ["model.network.n_blocks=1", "model.network.channels=2"]
    method = build(configure("method=cd", "data=mnist", *small, f"run_dir={tmp_path}")).method
    assert method.memory_hints()[1:] == ["set model.network.checkpoint=true with method.compile=false"]
    method.energy.network.checkpoint = True
    assert method.memory_hints() == ["lower data.batch_size"]


# --- divergence -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lr", "validations", "sentence"),
    [
        # two steps, and the loss overflows
        ("1e30", 1, r"The model level's (loss|grad norm) is (inf|nan) at iteration 12: lower optimizer.lr"),
        # parameters overflow in the first step, whose loss and gradient were finite; seen where they would be saved
        ("3.4e38", 10, r"The parameter \S+ of theta is not finite after iteration 11"),
        # parameters do not overflow, but the validation loss does
        ("1e20", 10, r"val/loss is (inf|nan) at iteration 11"),
    ],
)
def test_a_run_that_diverges_stops_and_keeps_the_last_good_checkpoint(lr, validations, sentence, trained, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(trained.parents[1], folder)
    (folder / "metrics.json").unlink()
    longer = ["trainer.max_steps=20", f"n_validations={validations * 2 if validations > 1 else 1}"]
    with pytest.raises(NonFiniteError, match=sentence):
        train(folder, "method=dsm", f"optimizer.lr={lr}", *longer, "ckpt=last", "resume.allow=[optimizer.lr]")
    assert not (folder / "metrics.json").exists()
    assert checkpoint(folder)["global_step"] == 10
    assert evaluate(tmp_path, folder / "checkpoints" / "last.ckpt")["iteration"] == 10


def test_the_level_that_diverges_is_named(tmp_path):
    lower = [
        "+method.lower_optimizer={_target_: eblvm_lit.optimizers.adam.Adam, lr: 3e38}",
        "method.n_unroll=0",
    ]
    with pytest.raises(NonFiniteError, match=r"The lower level's .* at iteration \d+"):
        train(tmp_path, *lower, "method.n_lower_steps=5", "n_validations=1")


def test_a_metric_that_is_not_finite_is_no_result(tmp_path, monkeypatch):
    target = "eblvm_lit.evaluation.fisher_score.FisherScore.compute"
    monkeypatch.setattr(target, lambda self, method, v, generator: {"fisher": float("nan")})
    with pytest.raises(NonFiniteError, match="test/fisher is nan at iteration 10"):
        train(tmp_path, "method=dsm")
    assert not (tmp_path / "metrics.json").exists()
    assert checkpoint(tmp_path)["global_step"] == 10


# --- the process ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["data=image_folder", "data.path=nowhere"], r"There is no folder .*/nowhere with images"),
        (["data=image_folder"], "data.path has no value"),
        (["data=frey_face", "data.root=nowhere"], r"/nowhere/frey_rawface.mat is missing"),
        (["+trainer.gpus=1"], "trainer.gpus is not taken: use trainer.devices"),
    ],
)
def test_what_is_missing_is_told_before_torch_is_imported(words, sentence, tmp_path):
    command = f"import runpy, sys; sys.modules['torch'] = None; runpy.run_path({str(ROOT / 'train.py')!r}, run_name='__main__')"
    process = subprocess.run([sys.executable, "-c", command, *words], cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 1
    assert re.search(sentence, process.stderr)
    assert "Traceback" not in process.stderr


@pytest.mark.parametrize(
    ("script", "args", "sentence"),
    [
        ("train.py", ["hydra.run.dir=file/run"], "ERROR: The output folder file/run cannot be written to"),
        (
            "train.py",
            ["-m", "hydra.sweep.dir=file/run"],
            "ERROR: The output folder file/run cannot be written to",
        ),
        ("train.py", ["method=bidsn"], "method has no option 'bidsn'. Did you mean method=bidsm?"),
        ("train.py", ["method.n_unrol=3"], "There is no key 'method.n_unrol'. Did you mean method.n_unroll=3?"),
        (
            "train.py",
            ["method=dsm", "method.n_unroll=3"],
            "There is no key 'method.n_unroll'. --cfg job shows all keys.",  # n_unroll=3 would be refused
        ),
        ("train.py", ["method=vae", "objective=mdsm"], "objective=mdsm: this method and model have no objective."),
        ("train.py", ["data=toy"], "data has no option 'toy'. The options are celeba128, "),
        ("evaluate.py", ["ckpt=last"], "There is no checkpoint at last; name a file, or the folder of a run."),
        ("train.py", ["figure=all"], "There is no key 'figure'. Did you mean figures@callbacks.figures.figures=all?"),
        ("evaluate.py", ["hydra.run.dir=file/run"], "ERROR: The output folder file/run cannot be written to"),
        ("evaluate.py", ["checkpoint=last.ckpt"], "checkpoint is not taken: use ckpt=PATH."),
    ],
)
def test_the_command_line_ends_with_a_sentence_and_a_failure(script, args, sentence, tmp_path):
    (tmp_path / "file").touch()
    process = start(script, *args, folder=tmp_path)
    out, err = process.communicate()
    assert process.returncode == 1
    assert sentence in err
    assert "Traceback" not in out + err
