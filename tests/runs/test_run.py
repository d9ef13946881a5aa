"""Tests of training and evaluation: what a run counts, changes and writes."""

import copy
import json
import math
import re
import shutil
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
from torch.optim.adam import adam as torch_adam

import eblvm_lit
from eblvm_lit.core.functional import params_of
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.core.tensors import copy_tree
from eblvm_lit.errors import ConfigError, EblvmError
from eblvm_lit.figures.filters import Filters
from eblvm_lit.methods.base import Method
from eblvm_lit.methods.loss_method import LossMethod
from eblvm_lit.optimizers import adam
from eblvm_lit.runs import results
from eblvm_lit.runs.build import build
from eblvm_lit.training.callbacks.evaluation import Evaluation
from eblvm_lit.training.callbacks.figures import Figures
from eblvm_lit.utils.folders import claimed
from eblvm_lit.utils.numbers import significant
from helpers import iterating
from helpers.launching import run_script, run_scripts
from helpers.processes import BATCH, iterate, make
from helpers.shell import checkpoint, curves, evaluate, files, of_checkpoint, same, same_state, tiny, train
from tolerances import assert_same_iterations, bounded, operations, reordered


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the folder and the metrics of a finished run whose best checkpoint is not its last one.

    The learning rate is so large that the run becomes worse.
    """
    folder = tmp_path_factory.mktemp("finished") / "run"
    long = ["trainer.max_steps=30", "n_validations=3", "test_checkpoint=best", "optimizer.lr=3", "method=bidsm"]
    return folder, train(folder, *long, "method.n_lower_steps=1", "method.n_unroll=0")


# --- what a run leaves ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("unrendered")
def test_a_sweep_leaves_complete_folders_and_a_bad_job_ends_in_a_sentence(tmp_path):
    jobs = ["-m", "trainer.precision=16-mixed,32-true", "hydra.sweep.dir=sweep"]
    words = [*jobs, "debug=fast", "data=line_blobs", "method=dsm", "show_config=true"]
    code, said = run_script("train.py", *words, folder=tmp_path)
    assert code == 1
    assert "ERROR: trainer.precision must be '32-true', '64-true', 'bf16-mixed' or 'auto', not '16-mixed'" in said
    assert "trainer.precision must be '32-true'" in (tmp_path / "sweep" / "0" / "train.log").read_text()
    assert not (tmp_path / "sweep" / "0" / "metrics.json").exists()
    folder = tmp_path / "sweep" / "1"
    found = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    pictures = {f"figures/{name}.png" for name in ("density", "samples", "curves")}
    saved = {"checkpoints/last.ckpt", "checkpoints/best.ckpt", "config.yaml", "command.yaml"}
    assert found == {"metrics.json", "quantities.json", "metrics.csv", "train.log"} | pictures | saved
    metrics = json.loads((folder / "metrics.json").read_text())
    assert all(significant(metrics[name]) in said for name in metrics)  # the output contains the table of results
    assert "noise_std: 0.05" in said  # the output contains the configuration as a tree
    for noise in ("Traceback", "Warning", "Tip", "GPU available", "weights_only", "deprecated"):
        assert noise not in said


def test_metrics_are_returned_written_and_reproduced_by_evaluate(finished, tmp_path):
    folder, metrics = finished
    assert json.loads((folder / "metrics.json").read_text()) == metrics
    assert metrics.keys() >= {"iteration", "test/fisher", "test/log_likelihood", "test/posterior_kl"}
    best = checkpoint(folder, "best")["eblvm_lit"]["iteration"]
    assert metrics["iteration"] == best < 30  # with test_checkpoint=best, these are the metrics of the best checkpoint
    assert evaluate(tmp_path, folder / "checkpoints" / "best.ckpt") == of_checkpoint(metrics)
    assert json.loads((tmp_path / "evaluation.json").read_text()) == of_checkpoint(metrics)
    last = evaluate(tmp_path, folder / "checkpoints" / "last.ckpt")
    assert last["iteration"] == 30
    assert last["test/fisher"] != metrics["test/fisher"]


def test_final_metrics_are_computed_on_the_gpu_that_trained(tmp_path, monkeypatch):
    """Check that the method is on the GPU of the training when the final metrics are computed.

    Lightning moves a method to the CPU after training, where samples of a deep model take hours.
    """
    fit = pl.Trainer.fit
    to = Method.to
    compute = results.final_metrics
    gpu = torch.device("cuda", 1)
    moved = []

    def fit_on_gpu(self, *args, **kwargs):
        fit(self, *args, **kwargs)
        monkeypatch.setattr(pl.Trainer, "strategy", property(lambda self: SimpleNamespace(root_device=gpu)))
        monkeypatch.setattr(Method, "to", lambda self, place: moved.append(place) if place == gpu else to(self, place))

    monkeypatch.setattr(pl.Trainer, "fit", fit_on_gpu)
    monkeypatch.setattr(results, "final_metrics", lambda *args: (moved.append("computed"), compute(*args))[1])
    train(tmp_path, "method=dsm")
    assert moved == [gpu, "computed"]


def test_final_metrics_and_figures_take_the_threads_of_the_run(tmp_path, monkeypatch):
    """Check the number of threads in the final metrics and figures, which ``evaluate`` computes again.

    The number is only recorded, so that no thread is started.
    """
    numbers = [1]
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: numbers[-1])
    seen = []

    def watched(name, function):
        return lambda *args, **kwargs: (seen.append((name, torch.get_num_threads())), function(*args, **kwargs))[1]

    monkeypatch.setattr(Method, "training_step", watched("training", Method.training_step))
    monkeypatch.setattr(Evaluation, "test", watched("metrics", Evaluation.test))
    monkeypatch.setattr(Filters, "draw", watched("figures", lambda *args: None))
    drawn = f"{{_target_: {torch.typename(Filters)}, n: 4}}"
    callback = (
        f"callbacks.figures={{_target_: {torch.typename(Figures)}, save_dir: none, figures: {{filters: {drawn}}}}}"
    )
    train(tmp_path / "run", "method=dsm", "threads=7", "trainer.max_steps=1", "n_validations=1", callback)
    assert seen == [("training", 7), ("metrics", 7), ("figures", 7)]
    assert numbers[-1] == 1
    del seen[:]
    evaluate(tmp_path / "again", tmp_path / "run" / "checkpoints" / "last.ckpt")
    assert seen == [("metrics", 7), ("figures", 7)]
    assert numbers[-1] == 1


# The default method with a small network. Its model has the key h_dim in another place than the model of the other runs.
DEFAULT = ("sizes.h_dim=3", "model.energy.network.widths=[8]")


def test_the_default_method_trains_without_averages_if_the_raw_parameters_are_tested(tmp_path):
    bare = (*DEFAULT, "callbacks=training_only")
    with pytest.raises(ConfigError, match=r"eval_weights=ema needs averages of the parameters"):
        train(tmp_path, *bare)
    assert files(tmp_path) == {}
    metrics = train(tmp_path, *bare, "eval_weights=raw")
    assert metrics["iteration"] == 10
    assert not any(name.startswith("test/") for name in metrics)  # there are no metrics beside the loss
    saved = checkpoint(tmp_path)
    assert saved["eblvm_lit"]["config"]["method"]["_target_"].endswith(".LevelClassification")
    assert "averages" not in saved
    train(tmp_path / "whole", *DEFAULT)
    assert "averages" in checkpoint(tmp_path / "whole")
    assert same(saved["state_dict"], checkpoint(tmp_path / "whole")["state_dict"])


def test_evaluation_may_choose_other_metrics_and_figures(finished, tmp_path):
    folder, metrics = finished
    ckpt = folder / "checkpoints" / "best.ckpt"
    bounded = "callbacks.evaluation.metrics.ksd.max_points=50"
    found = evaluate(tmp_path, ckpt, "evaluation@callbacks.evaluation.metrics=ksd", bounded)
    assert {name: found.pop(name) for name in list(found) if "ksd" in name}
    # The other metrics of the checkpoint stay as they are, because they are not replaced.
    assert found == of_checkpoint(metrics)
    with pytest.raises(ConfigError, match=r"callbacks\.figures"):
        evaluate(tmp_path, ckpt, "figures@callbacks.figures.figures=default")


def test_the_best_checkpoint_is_that_of_the_smallest_validation_loss(finished):
    folder, metrics = finished
    losses = {row["iteration"]: row["val/loss"] for row in curves(folder) if "val/loss" in row}
    assert list(losses) == [10, 20, 30]
    assert min(losses, key=losses.get) == metrics["iteration"]


def test_another_metric_can_pick_the_best_by_its_own_direction(tmp_path):
    metric = "val/log_likelihood"
    monitor = (f"callbacks.checkpoints.monitor={metric}", "callbacks.evaluation.at_validation=[fisher,log_likelihood]")
    train(tmp_path, "method=dsm", "optimizer.lr=0.3", *monitor, "trainer.max_steps=20", "n_validations=4")
    values = {row["iteration"]: row[metric] for row in curves(tmp_path) if metric in row}
    assert len(set(values.values())) == 4
    assert checkpoint(tmp_path, "best")["eblvm_lit"]["iteration"] == max(values, key=values.get)


# Hypergradients, and the buffers in which each keeps its state between iterations.
HYPERGRADIENTS = {
    "warm": {"adjoint", "adjoint_age"},
    "finite_difference": {"adjoint", "adjoint_age"},
    "penalty": {"penalty_shift", "penalty_multiplier"},
}


@pytest.mark.parametrize(
    ("name", "precision"), [*((name, "64-true") for name in HYPERGRADIENTS), ("penalty", "bf16-mixed")]
)
def test_what_a_hypergradient_keeps_is_in_checkpoints_and_not_averaged(name, precision, tmp_path):
    short = ["method=bidsm", "method.n_lower_steps=1", "trainer.max_steps=3", "n_validations=1", "callbacks=ema"]
    metrics = train(tmp_path, f"hypergradient={name}", f"trainer.precision={precision}", *short)
    saved = checkpoint(tmp_path)
    live = eblvm_lit.load(tmp_path).method.persistent_buffers()
    assert live.keys() == HYPERGRADIENTS[name]
    for key, value in live.items():
        assert same(saved["state_dict"][key].to(value), value)
        assert value.abs().max() > 0
    assert not live.keys() & saved["averages"].keys()
    assert evaluate(tmp_path, tmp_path / "checkpoints" / "last.ckpt") == of_checkpoint(metrics)


# --- a refused start changes no file ------------------------------------------------------------------------

# Overrides with which a run is started in the folder of a finished DSM run, and the message that refuses each.
REFUSED = {
    (): "already contains a run: resume it with ckpt=last",
    ("init_from=grbm_digits",): "already contains a run",
    ("seed=7", "ckpt=last"): "seed=1234, not 7",
    ("method=cd", "ckpt=last"): "was written by .*, but this run is",
    ("objective=sm", "ckpt=last"): "objective=DSM, not",
    ("model.h_dim=7", "ckpt=last"): "other sizes",
    ("trainer.max_steps=6", "ckpt=last"): "beyond trainer.max_steps=6",
    ("+trainer.nonsense=1", "ckpt=last"): "no key 'nonsense'",
    ("trainer.precision=16-mixed", "ckpt=last"): "16-mixed",
    ("trainer.devices=1000", "trainer.accelerator=gpu", "ckpt=last"): "trainer.devices must be less",
    ("trainer.accelerator=tpu", "ckpt=last"): "trainer: ",
    ("logger=wandb", "+logger.wandb.nonsense=1", "ckpt=last"): "no key 'nonsense'",
    ("ckpt=elsewhere.ckpt",): "no checkpoint at elsewhere.ckpt",
}


def test_a_start_that_is_refused_changes_no_byte_of_the_folder(tmp_path):
    train(tmp_path, "method=dsm")
    before = files(tmp_path)
    assert {"metrics.json", "config.yaml", "metrics.csv", "checkpoints/last.ckpt"} <= before.keys()
    for words, reason in REFUSED.items():
        with pytest.raises(EblvmError, match=reason):
            train(tmp_path, "method=dsm", *words)
        assert files(tmp_path) == before, words


def test_a_start_that_the_command_line_refuses_changes_no_byte_of_the_folder(tmp_path):
    run = ("debug=fast", "data=line_blobs", "method=dsm", "callbacks.figures=null", "hydra.run.dir=run")
    (said,) = run_scripts("train.py", [run], tmp_path)
    before = files(tmp_path / "run")
    assert {"command.yaml", "train.log"} <= before.keys(), said
    words = [("method=cd", "ckpt=last"), ("nonsense=1", "ckpt=last")]
    refused = run_scripts("train.py", [(*run, *these) for these in words], tmp_path)
    refused += run_scripts("evaluate.py", [("ckpt=run", "eval_weights=ema", "hydra.run.dir=run")], tmp_path)
    for text, reason in zip(refused, ("was written by", "no key 'nonsense'", "contains no averages"), strict=True):
        assert re.search(f"ERROR: .*{reason}", text), text
    assert files(tmp_path / "run") == before


@pytest.mark.parametrize("where", ["on_fit_start", "training_step"])
def test_a_start_refused_in_the_first_iteration_changes_no_byte_of_the_folder(where, tmp_path, monkeypatch):
    def refuse(*given):
        raise ConfigError("too late")

    long = ("method=dsm", "callbacks.checkpoints.every=5", "callbacks.checkpoints.keep=null")
    train(tmp_path, *long)
    before = files(tmp_path)
    monkeypatch.setattr(Method, where, refuse)
    for ckpt in ("last.ckpt", "iteration_5.ckpt"):
        with pytest.raises(ConfigError, match="too late"):
            train(tmp_path, *long, "trainer.max_steps=20", f"ckpt={tmp_path}/checkpoints/{ckpt}")
        assert files(tmp_path) == before
    with pytest.raises(ConfigError, match="too late"):
        train(tmp_path / "new", *long)
    assert files(tmp_path / "new") == {}


def test_a_begun_or_finished_run_is_recognised_without_checkpoints_and_resumed_from_none_of_another(tmp_path):
    bare = ("method=dsm", "trainer.max_steps=2", "n_validations=1")
    train(tmp_path / "bare", *bare)
    shutil.rmtree(tmp_path / "bare" / "checkpoints")
    before = files(tmp_path / "bare")
    train(tmp_path / "other", "method=dsm", "trainer.max_steps=2", "n_validations=1")
    for words in ((), (f"ckpt={tmp_path / 'other'}",), ("ckpt=last",)):
        with pytest.raises(ConfigError, match=r"bare already contains a run: choose another folder by hydra\.run\.dir"):
            train(tmp_path / "bare", *bare, *words)
        assert files(tmp_path / "bare") == before
    # Without its final metrics the run is unfinished, and its folder is still refused.
    (tmp_path / "bare" / "metrics.json").unlink()
    with pytest.raises(ConfigError, match="bare already contains a run"):
        train(tmp_path / "bare", *bare)


def test_only_what_the_writer_of_a_run_has_left_is_removed(tmp_path):
    ours = [".last.ckpt.12.eblvm_lit.tmp", "checkpoints/.last.ckpt.12.eblvm_lit.tmp"]
    theirs = [".a.tmp", ".a.json.12.tmp", "project/.a.json.12.eblvm_lit.tmp", "checkpoints/.b.tmp", "figures/.d.tmp/x"]
    for name in (*ours, *theirs, ".c.12.eblvm_lit.tmp/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    train(tmp_path, "method=dsm", "trainer.max_steps=1", "n_validations=1")
    left = {name for name in files(tmp_path) if "tmp" in name}
    assert left == {*theirs, ".c.12.eblvm_lit.tmp/x"}


def test_a_run_refuses_a_folder_that_another_process_uses(tmp_path):
    with claimed(tmp_path), pytest.raises(ConfigError, match="is in use by another process"):
        train(tmp_path, "method=dsm")
    assert files(tmp_path) == {}


# --- iterations, learning rates, initial parameters and seeds ---------------------------------------------


@pytest.mark.parametrize(("k", "n"), [(0, 2), (1, 0), (5, 2)])
def test_an_iteration_is_one_minibatch_whatever_k_and_n(k, n, tmp_path):
    steps = ["method=bidsm", f"method.n_lower_steps={k}", f"method.n_unroll={n}", "callbacks.evaluation=null"]
    train(tmp_path, *steps, "optimizer.lr=0.01", "final_lr=0.001", "trainer.max_steps=6", "n_validations=2")
    saved = checkpoint(tmp_path)
    assert saved["global_step"] == saved["eblvm_lit"]["iteration"] == 6
    lower, upper = (state["state"][0]["n_steps"].item() for state in saved["optimizer_states"])
    assert (lower, upper) == (6 * k, 6)
    rows = {row["iteration"]: row for row in curves(tmp_path)}
    assert list(rows) == [1, 2, 3, 4, 5, 6]
    assert [i for i, row in rows.items() if "val/loss" in row] == [3, 6]
    for i, row in rows.items():
        lr = 0.001 + 0.009 * (1 + math.cos(math.pi * (i - 1) / 6)) / 2
        assert row["train/upper_lr"] == row["train/lower_lr"] == pytest.approx(lr)
        assert ("train/lower_loss" in row) == (k > 0)


def test_the_learning_rate_of_the_schedule_is_the_one_that_is_used(tmp_path):
    # In the run named cut, the learning rate is multiplied by a millionth in every iteration from the second one on.
    cut = ["schedule@optimizer.schedule=exponential", "optimizer.schedule.every=1", "optimizer.schedule.factor=1e-6"]
    once = ["method=dsm", "optimizer=sgd", "optimizer.lr=0.01", "n_validations=1"]
    train(tmp_path / "once", *once, "trainer.max_steps=1")
    train(tmp_path / "cut", *once, *cut, "trainer.max_steps=4")
    train(tmp_path / "whole", *once, "trainer.max_steps=4")
    w = {name: checkpoint(tmp_path / name)["state_dict"]["energy.W"] for name in ("once", "cut", "whole")}
    moved = (w["whole"] - w["once"]).norm()
    assert moved > 0
    assert (w["cut"] - w["once"]).norm() < 1e-4 * moved


def test_a_run_begins_with_the_parameters_of_another(finished, tmp_path):
    folder, _ = finished
    still = ["trainer.max_steps=1", "optimizer.lr=1e-30", f"init_from={folder}"]
    train(tmp_path / "run", *still, "method=annealed_likelihood", "method.n_chains=4", "method.n_falling=1")
    before = checkpoint(folder)["state_dict"]
    after = checkpoint(tmp_path / "run")["state_dict"]
    networks = {name for name in before if name.startswith(("energy.", "posterior."))}
    assert {name for name in after if not name.startswith("chain_")} == networks
    assert all(torch.equal(after[name], before[name]) for name in networks)
    with pytest.raises(ConfigError, match="size mismatch"):
        train(tmp_path / "other", *still, "method=dsm", "model.h_dim=7")
    # the tensors of this model have the same names and shapes
    gaussian = ("method=dsm", "model=gaussian", "model.h_dim=3")
    with pytest.raises(ConfigError, match=r"it has GRBM\(.*\), this run GaussianLatentModel\("):
        train(tmp_path / "gaussian", *still, *gaussian)
    with pytest.raises(ConfigError, match="init_from"):
        train(tmp_path / "none", "trainer.max_steps=1", "init_from=bidvl_mnist", "method=fisher_critic")


def test_a_dbm_begins_with_the_first_layer_of_a_trained_rbm(tmp_path):
    bits = ["data=digits", "data.binarize=threshold", "method=pcd", "trainer.max_steps=1", "callbacks=training_only"]
    train(tmp_path / "rbm", *bits, "model=bernoulli_rbm", "model.h_dim=3")
    deep = [*bits, "model=dbm", "model.h_dim=5", "model.h1_dim=3", "optimizer.lr=1e-30"]
    train(tmp_path / "dbm", *deep, f"init_from={tmp_path / 'rbm'}")
    rbm, dbm = (checkpoint(tmp_path / name)["state_dict"] for name in ("rbm", "dbm"))
    for own, other in {"W1": "W", "c1": "c", "b": "b", "v_offset": "v_offset"}.items():
        assert torch.equal(dbm[f"energy.{own}"], rbm[f"energy.{other}"])


def test_a_run_is_a_function_of_its_seed(tmp_path):
    few = ["method=bidsm", "method.n_lower_steps=1", "method.n_unroll=1"]
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        train(tmp_path / name, *few, f"seed={seed}")
    assert same_state(tmp_path / "one", tmp_path / "again")
    assert curves(tmp_path / "one") == curves(tmp_path / "again")
    assert not same(checkpoint(tmp_path / "one")["state_dict"], checkpoint(tmp_path / "other")["state_dict"])


def test_each_iteration_draws_noise_of_its_own(tmp_path, monkeypatch):
    drawn = []
    draw = LossMethod.draw_noise

    def watched(self, v, generator):
        noise = draw(self, v, generator)
        drawn.append(float(noise["model"]["data"]["eps"][0, 0]))
        return noise

    monkeypatch.setattr(LossMethod, "draw_noise", watched)
    train(tmp_path, "method=dsm", "trainer.max_steps=4", "n_validations=1", "callbacks.evaluation=null")
    assert len(drawn) == len({*drawn}) == 4


# --- what each level changes ------------------------------------------------------------------------------


def snapshot(state):
    optimizers = {name: state.optimizers[name] for name in ("lower", "upper")}
    return copy.deepcopy({"theta": state.theta, "phi": state.phi, **optimizers})


def changed(before, after):
    return {key for key in before if not same(before[key], after[key])}


def test_each_level_changes_only_its_own_network_and_optimizer_state(tmp_path):
    parts = build(tiny(tmp_path, "method=bidsm", "method.n_lower_steps=2", "method.n_unroll=2"))
    parts.data.setup()
    method = parts.method
    v = parts.data.splits.train[:8]
    state = iterating.start(method, lr=0.01)
    noise = method.draw_noise(v, keyed_generator(0, "test"))
    start = snapshot(state)
    after_lower, _ = iterating.run(method, state, v, noise, only=("lower",))
    assert changed(start, snapshot(after_lower)) == {"phi", "lower"}
    none = {**noise, "lower": None}  # the upper level must not use the noise of the lower one
    method.n_lower_steps = 0
    after_upper, _ = iterating.run(method, after_lower, v, none)
    method.n_lower_steps = 2
    assert changed(snapshot(after_lower), snapshot(after_upper)) == {"theta", "upper"}
    # the iterations above have changed nothing in place
    assert changed(start, snapshot(state)) == set()
    twin, _ = iterating.run(method, copy.deepcopy(state), v, noise, in_place=True)
    method.run_iteration(state, v, noise)  # this writes into the method's own tensors
    assert changed(snapshot(twin), snapshot(state)) == set()
    torch.testing.assert_close(snapshot(state), snapshot(after_upper))
    assert same(params_of(method.energy), twin.theta)
    assert same(params_of(method.posterior), twin.phi)


# Methods whose state contains more than networks and moments, or that make several steps of one network in an
# iteration.
LIVE = ("bidsm N=2", "bidsm clipped", "bidsm warm", "bidsm penalty", "bimdsm shared deep", "pcd more chains", "lebm")
LIVE += ("bidvl complete N=1", "sngan")


@pytest.mark.parametrize("name", LIVE)
def test_what_a_step_reads_is_not_moved_under_it(name, tmp_path, monkeypatch):
    """Compare iterations that write into tensors in place, as eager iterations do, with iterations that copy
    tensors."""
    method, like = make(name, tmp_path)
    with bounded(method, reordered(operations(method, like.expand(BATCH, *like.shape[1:]), 2))) as bounds:
        live, record, *_ = iterate(method, like, 2)

    def run_pure(self, state, v, noise):
        after = self.iteration(state, v, noise)
        for tree in ("params", "optimizers", "buffers"):
            copy_tree(getattr(state, tree), getattr(after, tree))
        return after.record()

    monkeypatch.setattr(Method, "run_iteration", run_pure)
    pure, pure_record, *_ = iterate(method, like, 2)
    assert_same_iterations((pure, pure_record), (live, record), bounds)


def test_all_live_adam_steps_of_an_eager_run_are_the_fused_kernels(tmp_path, monkeypatch):
    """Check that every step of Adam uses the fused kernels.

    With unusual memory layouts of the moments, slow kernels would be used without notice.
    """
    steps = []
    monkeypatch.setattr(adam, "torch_adam", lambda *args, **kwargs: steps.append(torch_adam(*args, **kwargs)))
    short = ["method=bidsm", "method.n_lower_steps=2", "method.n_unroll=1", "method.compile=false"]
    for n, resumed in ((4, []), (6, ["ckpt=last"])):
        train(tmp_path, *short, f"trainer.max_steps={n}", *resumed)
        assert len(steps) == n * (2 + 1)


def test_subnormal_numbers_count_as_zero_in_a_run_and_not_after_it(tmp_path, monkeypatch):
    step = Method.training_step
    seen = []

    def look(self, v, i):
        seen.append(float(torch.tensor(1e-39) * 1.0))
        return step(self, v, i)

    monkeypatch.setattr(Method, "training_step", look)
    train(tmp_path, "method=dsm", "trainer.max_steps=2", "n_validations=1")
    assert set(seen) == {0.0}
    assert torch.tensor(1e-39) * 1.0 > 0
