"""Tests of trained runs as Python objects: training, loading, samples, scores, likelihoods, and the command for
samples."""

import copy
import random

import numpy as np
import pandas as pd
import pytest
import pytorch_lightning as pl
import torch

import eblvm_lit
from eblvm_lit import ConfigError, DataError, Gibbs, Langevin
from eblvm_lit.cli import sample
from eblvm_lit.cli.compose import composed
from eblvm_lit.core.tensors import in_float64
from eblvm_lit.runs import run as runtime
from eblvm_lit.runs.trained_run import TrainedRun
from helpers.shell import configure

SHORT = ["trainer.max_steps=20", "method.compile=false", "show_config=false", "callbacks.progress=null"]
SHORT += ["callbacks.figures=null", "n_validations=2", "sampler.n_steps=20"]
OPTIONS = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train BiDSM on the checkerboard for 20 iterations."""
    folder = tmp_path_factory.mktemp("runs") / "bidsm"
    return eblvm_lit.train([*SHORT, "method=bidsm", f"run_dir={folder}"])


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """Train a deep model of points, whose free energy is intractable and whose samples come from short chains."""
    network = ["model=deep_toy", "model.widths=[8]", "model.h_dim=3", "model.head_dim=4", "method=vages_dsm"]
    run = eblvm_lit.train([*SHORT, *network, f"run_dir={tmp_path_factory.mktemp('runs') / 'deep'}"])
    run.config.sampler.dynamics.update({"n_hot": 0, "n_falling": 3, "n_cold": 2})
    return run


def test_training_from_python_gives_what_the_command_line_gives(trained, tmp_path):
    metrics = runtime.train(configure(*SHORT, "method=bidsm", f"run_dir={tmp_path}", "outputs_dir=/nowhere"))
    same = [name for name in metrics if name.startswith("test/")]
    assert same
    assert {name: trained.metrics[name] for name in same} == {name: metrics[name] for name in same}
    assert trained.iteration == 20
    assert isinstance(trained.method, eblvm_lit.BiSM)
    assert not trained.method.training
    assert (type(trained.energy).__name__, type(trained.posterior).__name__) == ("GRBM", "BernoulliPosterior")
    assert trained.generator is None
    assert trained.curves["val/loss"].dropna().index.tolist() == [10, 20]


def test_a_model_of_every_noise_level_has_log_likelihoods_with_and_without_latents(tmp_path):
    few = ["max_examples=20", "model.energy.network.widths=[4]", "trainer.max_steps=1", "n_validations=1"]
    for method in ("dual", "bidual"):
        run = eblvm_lit.train([*SHORT, *few, "data=moons", f"method={method}", f"run_dir={tmp_path / method}"])
        values = run.log_likelihood(run.examples())
        assert (values.shape, values.dtype) == ((20,), torch.float64)
        # With latents, both numbers are estimates of a bound, which use different samples of the latents.
        tolerance = 1e-9 if method == "dual" else 0.1
        assert values.mean().item() == pytest.approx(run.metrics["test/log_likelihood"], abs=tolerance)
        assert run.log_partition()[0] == pytest.approx(run.metrics["test/log_z"], abs=1e-9)
    assert not torch.equal(values, run.log_likelihood(run.examples(), seed=1))
    assert torch.equal(values, run.log_likelihood(run.examples()))


def test_the_log_likelihood_is_that_of_the_metrics(trained):
    values = trained.log_likelihood(trained.examples())
    assert values.shape == (len(trained.data.splits.test),)
    assert values.dtype == torch.float64
    assert values.mean().item() == pytest.approx(trained.metrics["test/log_likelihood"], abs=1e-9)


def test_samples_and_scores_of_a_tractable_model(trained):
    v = trained.sample(7, seed=1)
    assert v.shape == (7, 2)
    assert torch.equal(v, trained.sample(7, seed=1))
    assert not torch.equal(v, trained.sample(7, seed=2))
    assert torch.equal(trained.score(v), trained.energy.score(v))
    assert not trained.score(v).requires_grad
    with pytest.raises(ConfigError, match=r"v has the shape \(5, 3\)"):
        trained.score(torch.zeros(5, 3))
    means, samples = (trained.sample(500, sampler=Gibbs(n_steps=5), mean=mean) for mean in (True, False))
    assert means.var() < samples.var()


def test_examples_of_every_kind_give_the_same_numbers_and_arrays_give_arrays(trained):
    v = trained.sample(6, seed=1)
    frame = pd.DataFrame(v.numpy(), columns=["x", "y"])
    dataset = torch.utils.data.TensorDataset(v, torch.zeros(6))
    for function in (trained.score, trained.log_likelihood, trained.latents, trained.free_energy):
        expected = function(v)
        assert isinstance(expected, torch.Tensor)
        for array in (function(v.numpy()), function(v.double().numpy()), function(frame)):
            assert isinstance(array, np.ndarray)
            np.testing.assert_array_equal(array, expected.numpy())
        assert torch.equal(function(dataset), expected)
    assert torch.equal(trained.latents(v), in_float64(trained.posterior).mean(v.double()).float())
    torch.testing.assert_close(trained.free_energy(v), -trained.log_likelihood(v) - trained.log_partition()[0])
    with pytest.raises(ConfigError, match=r"^v is .* of numbers: could not convert string to float: 'a'"):
        trained.score(frame.assign(name="a"))


def test_images_are_drawn_and_taken_as_bytes_whatever_values_the_model_takes():
    run = eblvm_lit.load("bidvl_mnist")
    images = run.draw_images(3)
    assert (images.dtype, tuple(images.shape)) == (torch.uint8, (3, 1, 32, 32))
    # The model's pixel values are in [-1, 1], and those of images in {0, ..., 255}.
    assert torch.equal(images, ((run.sample(3) + 1) * 127.5).round().clamp(0, 255).to(torch.uint8))
    expected = run.latents(images.float() / 127.5 - 1)
    for same in (images, images.squeeze(1), images.movedim(1, -1)):
        assert torch.equal(run.latents(same), expected)
        np.testing.assert_array_equal(run.latents(same.numpy()), expected.numpy())
    run = eblvm_lit.load("grbm_digits")
    chains = Gibbs(n_steps=3)
    images = run.draw_images(2, sampler=chains)
    means = run.sample(2, sampler=chains, mean=True)
    assert torch.equal(images, (means * 255).round().clamp(0, 255).to(torch.uint8).view(2, 1, 8, 8))
    v = run.examples()[:5]
    # These means of latents are exact, because the run has no posterior.
    torch.testing.assert_close(run.latents(v), run.energy.latent_mean(v).detach())
    with pytest.raises(ConfigError, match=r"v has the shape \(2, 1, 8, 9\), and this model takes \(B, 64\)"):
        run.score(np.zeros((2, 1, 8, 9)))


def test_samples_and_scores_of_a_model_without_a_free_energy(deep):
    assert torch.equal(deep.sample(4), deep.sample(4))
    v = deep.examples()[:3]
    n = 4000
    # The score is a mean over latents from q, which many particles approximate.
    noise = deep.posterior.noise((n,), v, torch.Generator().manual_seed(5))
    h = deep.posterior.rsample_given(deep.posterior.distribution_params(v), noise).detach()
    x = v.clone().requires_grad_()
    (expected,) = torch.autograd.grad(-deep.energy.energy(x, h).mean(0).sum(), x)
    torch.testing.assert_close(deep.score(v, n_particles=n), expected, rtol=0.2, atol=0.2 * expected.abs().max().item())
    with pytest.raises(ConfigError, match="has no likelihood"):
        deep.log_likelihood(v)
    with pytest.raises(ConfigError, match="whose latents cannot be summed out"):
        deep.free_energy(v)
    with pytest.raises(ConfigError, match=r"^Checkerboard has no images: draw by sample\(4\)"):
        deep.draw_images(4)


class _Bump(eblvm_lit.VisibleEnergy):
    """The energy of N(0.5, 0.1^2) in each coordinate, given by its free energy only."""

    event_shape = (2,)

    def __init__(self):
        super().__init__()
        self.precision = torch.nn.Parameter(torch.tensor(100.0))

    def free_energy(self, v):
        return 0.5 * self.precision * (v - 0.5).square().sum(-1)


def test_a_known_log_z_gives_no_likelihood_if_the_latents_cannot_be_summed_out(deep):
    known = TrainedRun(method=deep.method, config=deep.config, iteration=1, log_z=(1.0, 0.1))
    with pytest.raises(ConfigError, match="whose latents cannot be summed out"):
        known.log_likelihood(deep.examples()[:3])


def test_samples_of_vectors_are_of_the_model_and_not_of_the_annealing_of_images(trained):
    parts = {"energy": _Bump(), "objective": eblvm_lit.DSM(noise_std=0.1), "optimizer": eblvm_lit.Adam(lr=1e-3)}
    method = eblvm_lit.ScoreMatching(**parts)
    config = trained.config.copy()
    config.sampler.n_steps = 1000  # these chains come close to their stationary distribution
    v = TrainedRun(method=method, config=config, iteration=0).sample(2000, seed=1)
    # the standard errors are 0.1 / sqrt(4000) for the mean and 0.1 / sqrt(8000) for the standard deviation
    assert v.mean().item() == pytest.approx(0.5, abs=0.008)
    assert v.std().item() == pytest.approx(0.1, abs=0.008)


def test_samples_of_a_generator_need_no_gradient():
    run = eblvm_lit.load("bidvl_mnist")
    v = run.sample(3)
    assert v.shape == (3, *run.method.event_shape)
    assert torch.equal(v, run.sample(5)[:3])  # each sample depends only on the seed and on its index
    assert run.generator is not None
    assert not v.requires_grad


def test_a_folder_is_loaded_with_the_checkpoint_of_its_metrics(tmp_path):
    # with this learning rate the second validation is the worse one, and so the best checkpoint is not the last
    words = [*SHORT, "method=bidsm", "n_validations=2", "optimizer.lr=5", "test_checkpoint=best"]
    trained = eblvm_lit.train([*words, f"run_dir={tmp_path}/run"])
    run = eblvm_lit.load(trained.folder)
    assert trained.iteration == run.iteration == 10
    assert eblvm_lit.load(trained.folder, checkpoint="last").iteration == 20
    again = runtime.evaluate(configure(f"ckpt={run.folder}", f"run_dir={tmp_path}/again", name="evaluate"))
    assert "test/fisher" in again
    assert again.items() <= trained.metrics.items()


def test_a_folder_and_a_checkpoint_load_alike_and_are_evaluated(trained, tmp_path):
    files = trained.folder, trained.folder / "checkpoints" / "last.ckpt"
    for run in map(eblvm_lit.load, files):
        assert torch.equal(run.energy.W, trained.energy.W)
        assert (run.metrics, run.folder) == (trained.metrics, trained.folder)
    alone = trained.folder.parent / "alone.ckpt"
    alone.write_bytes(files[1].read_bytes())
    run = eblvm_lit.load(alone)
    assert run.metrics == {}
    assert run.curves.empty
    evaluated = runtime.evaluate(configure(f"ckpt={trained.folder}", f"run_dir={tmp_path}", name="evaluate"))
    assert evaluated["test/log_likelihood"] == trained.metrics["test/log_likelihood"]


def test_wrong_requests_are_refused_by_name(trained):
    assert trained.sample(np.int64(2)).shape == (2, 2)
    for wrong in ("abc", [[1.0, 2.0], [3.0]], [{}]):
        for function in (trained.score, trained.log_likelihood):
            with pytest.raises(ConfigError, match=r"^v is a NumPy array, a tensor, .* Dataset"):
                function(wrong)
    with pytest.raises(DataError, match=r"vages_mnst: .*bidvl_mnist.* Did you mean vages_mnist\?"):
        eblvm_lit.load("vages_mnst")
    for path in (5, None, ""):
        with pytest.raises(DataError, match="There is no checkpoint at"):
            eblvm_lit.from_pretrained(path)
    with pytest.raises(ConfigError, match=r"^device=cuda:99"):
        eblvm_lit.load(trained.folder, device="cuda:99")
    with pytest.raises(DataError, match=r"last\.ckpt"):
        eblvm_lit.load(trained.folder.parent)
    with pytest.raises(ConfigError, match=r"mean=True.*Langevin"):
        trained.sample(2, mean=True, sampler=Langevin(n_steps=1, step_size=1e-3))
    with pytest.raises(ConfigError, match="metod"):
        composed(["metod=dsm"])


def test_training_and_loading_leave_the_random_numbers_of_the_caller_alone(tmp_path):
    def drawn():
        return torch.rand(1).item(), np.random.rand(), random.random()

    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    expected = drawn()
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    eblvm_lit.load(eblvm_lit.train([*SHORT, "method=dsm", f"run_dir={tmp_path}"]).folder)
    assert drawn() == expected


def test_the_command_writes_numbers_and_a_picture(trained, tmp_path, capsys):
    sample.main([str(trained.folder), "-n", "5", "--seed", "3", "--out", str(tmp_path)])
    files = [tmp_path / "samples.npz", tmp_path / "samples.png"]
    assert capsys.readouterr().out.split() == [str(file) for file in files]
    assert np.array_equal(np.load(files[0])["v"], trained.sample(5, seed=3).numpy())
    assert files[1].read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit, match=r"ERROR: There is no checkpoint at"):
        sample.main([str(tmp_path)])


def test_the_command_says_in_a_sentence_that_the_picture_needs_the_data(tmp_path, monkeypatch):
    monkeypatch.setenv("EBLVM_DATA", str(tmp_path))

    def refuse(self):
        raise RuntimeError("no network")

    monkeypatch.setattr("torchvision.datasets.MNIST.download", refuse)
    with pytest.raises(SystemExit, match=r"ERROR: .*train-images-idx3-ubyte"):
        sample.main(["bidvl_mnist", "-n", "1", "--out", str(tmp_path)])
    assert np.load(tmp_path / "samples.npz")["v"].shape == (1, 1, 32, 32)


def test_the_pretrained_model_can_be_trained_further_saved_and_loaded(tmp_path):
    run = eblvm_lit.load("grbm_digits")
    assert run.examples().shape == (197, 64)
    assert run.sample(2, sampler=Gibbs(n_steps=2)).shape == (2, 64)
    assert run.metrics["test/log_likelihood"] == 19.48
    before = run.energy.W.detach().clone()
    trainer = pl.Trainer(max_steps=2, **OPTIONS)
    trainer.fit(run.method, run.data)
    assert trainer.global_step == 2
    assert not torch.equal(run.energy.W, before)
    # The stream of minibatches has no end, so that the number of epochs cannot end the training.
    with pytest.raises(ConfigError, match="give the Trainer max_steps"):
        pl.Trainer(max_epochs=1, **OPTIONS).fit(run.method, run.data)
    trainer.save_checkpoint(tmp_path / "on.ckpt")
    assert torch.equal(eblvm_lit.load(tmp_path / "on.ckpt").energy.W, run.energy.W)


def test_the_log_likelihood_is_of_the_present_parameters(trained, monkeypatch):
    run = eblvm_lit.load(trained.folder)
    v = run.examples()[:5]
    before = run.log_likelihood(v)
    with torch.no_grad():
        run.energy.b.add_(1.0)
    found = run.log_likelihood(v)
    energy = copy.deepcopy(run.energy).double()
    assert not torch.equal(found, before)
    torch.testing.assert_close(found, (-energy.free_energy(v.double()) - energy.log_partition()).detach())
    monkeypatch.setattr(type(run.energy), "log_partition", lambda self: pytest.fail("it is computed again"))
    assert torch.equal(run.log_likelihood(v), found)
    run.method.double()
    assert run.score(v).dtype == run.sample(3).dtype == run.examples().dtype == torch.float64
