"""Tests that bad input ends in one clear sentence and a non-zero exit code, and changes no saved file."""

import re
import shutil
import subprocess
import sys

import pytest
import torch

from eblvm_lit.cli import compose
from eblvm_lit.cli.compose import composed
from eblvm_lit.data.base import Splits
from eblvm_lit.data.digits import Digits
from eblvm_lit.errors import ConfigError, DataError, EblvmError
from eblvm_lit.methods.base import Method
from eblvm_lit.runs.build import build
from eblvm_lit.training.callbacks.nonfinite import NonFiniteError
from eblvm_lit.training.checkpoint_io import load_checkpoint
from helpers.image_files import write_frey
from helpers.launching import run_script
from helpers.shell import ROOT, checkpoint, evaluate, train


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train a short run, and return the path of its last checkpoint."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(folder, "method=dsm")
    return folder / "checkpoints" / "last.ckpt"


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["+method.n_unrol=3"], r"n_unrol.*n_unroll"),
        (["+trainer.max_epochs=3"], "trainer.max_epochs.*trainer.max_steps"),
        (["data=image_folder"], r"data.path"),
        (["data=array"], r"needs a file: set either data\.path"),
        (["data=array", "data.path=/nowhere.csv"], r"There is no file /nowhere\.csv"),
        (["method=dsm", "posterior=bernoulli"], "posterior"),
        (["+method.lower_optimizer={_target_: eblvm_lit.optimizers.adam.Adam}"], r"lower_optimizer.*'lr'"),
        (["callbacks.evaluation.at_validation=[fid]"], "at_validation.*'fid'"),
        (["model.v_dim=63"], r"\(63,\).*\(64,\)"),
        (["trainer.precision=16-mixed"], "trainer.precision must be .*'bf16-mixed' or 'auto', not '16-mixed'"),
        (["trainer.devices=many"], "trainer.*devices"),
        (["optimizer.lr=0"], r"optimizer.lr \(Adam\) must be greater than 0, not 0"),
        (["method=vages", "objective=ssm"], "SSM.*objective=dsm"),
        (["callbacks.checkpoints.monitor=val/log_z"], r"callbacks\.checkpoints\.mode"),
        (["data=frey_face", "data.root=/nowhere"], r"/nowhere/frey_rawface.mat.*http"),
        (["hypergradient=penalty", "method.n_unroll=3"], r"n_unroll.*hypergradient"),
        (["data=cifar10", "model=grbm"], r"add data\.flatten=true sizes\.v_shape=\[3072\]"),
        (["data=array", "data.path=/"], r"/ is no file of a known format .* data=image_folder data\.path=/"),
    ],
)
def test_what_does_not_fit_or_is_out_of_range_is_refused_in_one_sentence(overrides, named, tmp_path):
    with pytest.raises(EblvmError, match=named) as refusal:
        train(tmp_path / "run", "method=bidsm", *overrides)  # a method among the overrides takes the place of BiDSM
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize("path", ["points.npy", "mine/points.npy", "/tmp/mine/points.npy"])
def test_a_file_in_place_of_a_data_set_is_told_the_word_for_it(path):
    with pytest.raises(EblvmError, match=f"is a file, and no option: write data=array data.path={path} "):
        composed([f"data={path}"])


@pytest.mark.parametrize("method", ["bidsm", "dsm", "cd"])
@pytest.mark.parametrize("model", ["noise_conditional", "harmonium"])
def test_a_model_of_every_level_is_told_with_the_methods_that_train_it(method, model):
    with pytest.raises(ConfigError, match=r"takes the noise level as an input beside v, .* method=levels, dual"):
        build(composed([f"method={method}", f"model={model}"]))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_told_in_one_sentence(tmp_path):
    with pytest.raises(EblvmError, match=r"^trainer: No supported gpu backend found"):
        train(tmp_path / "run", "method=dsm", "trainer.accelerator=gpu")


# --- data and checkpoints ---------------------------------------------------------------------------------


def test_a_damaged_data_file_is_refused(tmp_path):
    write_frey(tmp_path)
    path = tmp_path / "frey_rawface.mat"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"frey_rawface\.mat"):
        train(tmp_path / "run", "method=bidsm", "data=frey_face", f"data.root={tmp_path}")


def test_a_nan_in_the_data_is_found_before_the_first_iteration(tmp_path, monkeypatch):
    splits = Splits(*torch.rand(30, 64).split(10))
    splits.val[3, 5] = torch.nan
    monkeypatch.setattr(Digits, "load", lambda self: splits)
    with pytest.raises(DataError, match=r"val.* Digits"):
        train(tmp_path, "method=bidsm")


@pytest.mark.parametrize(
    ("missing", "named"),
    [(("eblvm_lit",), r"odd\.ckpt"), (("state_dict", "energy.W"), r"energy\.W")],
)
def test_what_is_no_checkpoint_of_ours_is_refused(missing, named, trained, tmp_path):
    content = node = load_checkpoint(trained)
    for key in missing[:-1]:
        node = node[key]
    del node[missing[-1]]
    torch.save(content, tmp_path / "odd.ckpt")
    with pytest.raises(EblvmError, match=named):
        evaluate(tmp_path, tmp_path / "odd.ckpt")
    (tmp_path / "odd.ckpt").write_bytes(trained.read_bytes()[:-500])
    with pytest.raises(DataError, match=r"odd\.ckpt"):
        evaluate(tmp_path, tmp_path / "odd.ckpt")


@pytest.mark.parametrize(
    ("overrides", "named"),
    [(["method=bidsm"], "ScoreMatching.*BiSM"), (["method=dsm", "model.h_dim=4"], r"energy\.W")],
)
def test_a_checkpoint_of_another_model_is_not_resumed(overrides, named, trained, tmp_path):
    with pytest.raises(ConfigError, match=named):
        train(tmp_path, *overrides, f"ckpt={trained}")


# --- a full disk and too little memory --------------------------------------------------------------------


def test_a_full_disk_leaves_the_earlier_checkpoint_unchanged(trained, tmp_path, monkeypatch):
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


def test_too_little_memory_ends_in_a_sentence_that_says_what_needs_less(tmp_path, monkeypatch):
    def exhaust(self, state, v, noise):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB.")

    monkeypatch.setattr(Method, "run_iteration", exhaust)
    with pytest.raises(ConfigError, match=r"2.50 GiB.*n_unroll \(N=7\).*data.batch_size"):
        train(tmp_path, "method=bidsm", "method.n_unroll=7", "n_validations=1")


# --- runs that diverge ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lr", "n_validations", "named"),
    [
        ("1e30", 1, r"model level.*iteration 12.*optimizer.lr"),  # the loss overflows after two steps
        # The parameters overflow in the first step, although its loss and gradient are finite. The run finds this
        # before it saves the parameters.
        ("3.4e38", 20, r"parameter .* of theta .*iteration 11"),
    ],
)
def test_a_run_that_diverges_stops_and_keeps_the_last_good_checkpoint(lr, n_validations, named, trained, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(trained.parents[1], folder)
    longer = ["trainer.max_steps=20", f"n_validations={n_validations}", "ckpt=last", "resume.allow=[optimizer.lr]"]
    with pytest.raises(NonFiniteError, match=named):
        train(folder, "method=dsm", f"optimizer.lr={lr}", *longer)
    assert checkpoint(folder)["global_step"] == 10
    assert evaluate(tmp_path, folder / "checkpoints" / "last.ckpt")["iteration"] == 10


def test_a_run_whose_final_metric_is_not_finite_fails(tmp_path, monkeypatch):
    target = "eblvm_lit.evaluation.fisher_score.FisherScore.compute"
    monkeypatch.setattr(target, lambda self, method, v, generator: {"fisher": float("nan")})
    with pytest.raises(NonFiniteError, match=r"test/fisher.*iteration 10"):
        train(tmp_path, "method=dsm")
    assert not (tmp_path / "metrics.json").exists()
    assert checkpoint(tmp_path)["global_step"] == 10


# --- suggestions for mistyped overrides -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("method=bidsm method/hypergradient=fixed_point", "Did you mean hypergradient=fixed_point?"),
        ("method=bidsm method/objective=mdsm", "Did you mean objective=mdsm?"),
        ("method.optimiser=sgd", "Did you mean optimizer=sgd?"),
        ("schedule=warmup", "Did you mean schedule@optimizer.schedule=warmup?"),
        ("method=cd data.batch_siz=7", "Did you mean data.batch_size=7?"),
        ("metod=dsm", "Did you mean method=dsm?"),
        ("seed=3 dsm", "'dsm' is not of the form KEY=VALUE, or its value needs quotes"),
        ("run_dir=a=b", "'run_dir=a=b' is not of the form KEY=VALUE, or its value needs quotes"),
        (
            "seed=3 model=null",
            "A group needs the name of one of its options, not a number or null, in: seed=3 model=null.",
        ),
        ("metrics=likelihood", "Did you mean evaluation@callbacks.evaluation.metrics=likelihood?"),
        ("data.path=x.npy", "There is no key 'data.path' here: it belongs to data=array"),
        # 0.01 is no option of the group optimizer, so that no other word is suggested
        ("optimzer=0.01", "There is no key 'optimzer'. --cfg job shows all keys."),
    ],
)
def test_a_suggestion_composes(words, said):
    with pytest.raises(ConfigError) as refusal:
        compose.composed(words.split())
    assert said in str(refusal.value)
    for suggestion in re.findall(r"Did you mean (\S+)\?", str(refusal.value)):
        compose.composed([*words.split()[:-1], suggestion])


# --- whole commands ---------------------------------------------------------------------------------------


WITHOUT_TORCH = """
import runpy, sys
script = sys.argv[1]
sys.modules["torch"] = None
try:
    sys.argv[1:] = ["--help"]
    runpy.run_path(script, run_name="__main__")
except SystemExit as leaving:
    assert not leaving.code
sys.argv[1:] = ["data=image_folder", "data.path=nowhere"]
runpy.run_path(script, run_name="__main__")
"""


def test_help_and_missing_files_are_reported_before_torch_is_imported(tmp_path):
    words = [sys.executable, "-c", WITHOUT_TORCH, str(ROOT / "train.py")]
    process = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 1
    named = re.findall(r"(?m)^(\w+):", process.stdout)
    assert {"method", "data", "objective", "hypergradient", "logger"} <= {*named}
    assert "/nowhere" in process.stderr
    assert "Traceback" not in process.stderr


@pytest.mark.parametrize(
    ("script", "words", "named"),
    [
        ("train.py", ["hydra.run.dir=file/run"], "file/run"),
        ("train.py", ["method=bidsn"], "'bidsn'.*method=bidsm"),
        ("train.py", ["logger=true"], "A group needs the name of one of its options, not a number or null"),
        ("train.py", ["method=bidsm", "method.n_unrol=3"], "'method.n_unrol'.*method.n_unroll=3"),
        ("evaluate.py", ["checkpoint=last.ckpt"], "ckpt=PATH"),
        ("evaluate.py", ["data=mnist"], "leave no data to choose"),
    ],
)
def test_the_command_line_ends_with_a_sentence_and_a_failure(script, words, named, tmp_path):
    (tmp_path / "file").touch()
    code, said = run_script(script, *words, folder=tmp_path)
    assert code == 1
    assert re.search(named, said)
    assert "Traceback" not in said
