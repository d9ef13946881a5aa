"""A trained run as an object: its parts, results, samples, scores and likelihoods."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import cast

import pandas as pd
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.core.tensors import in_float64, tensor_of
from eblvm_lit.data.base import ArrayDataModule, Splits
from eblvm_lit.draws.base import Draws
from eblvm_lit.draws.chains import ChainDraws
from eblvm_lit.draws.choice import as_sampler, draws_of
from eblvm_lit.draws.generator import GeneratedImages
from eblvm_lit.energies.base import Energy, MarginalEnergy
from eblvm_lit.errors import ConfigError
from eblvm_lit.evaluation.likelihood.log_likelihood import ESTIMATED, LogLikelihood
from eblvm_lit.methods.base import Method
from eblvm_lit.posteriors.base import Posterior
from eblvm_lit.runs.instantiate import instantiate
from eblvm_lit.runs.sharing import save_pretrained
from eblvm_lit.samplers.dynamics import Dynamics
from eblvm_lit.samplers.sampler import Sampler
from eblvm_lit.scores.particles import PosteriorParticles
from eblvm_lit.scores.variational import VaES
from eblvm_lit.utils.digest import digest
from eblvm_lit.utils.run_files import read_curves

__all__ = ["TrainedRun"]


class TrainedRun:
    """A trained method with its configuration and its results. :func:`eblvm_lit.load` makes it.

    Args:
        method: The method with the trained parameters.
        config: The configuration that it was trained with.
        iteration: The number of iterations of its training.
        folder: The folder of the run, if there is one.
        metrics: The final metrics, if they are not in the folder.
        starts: What chains start from, where samples are to need no data: see :attr:`starts`.
        log_z: Log Z and its standard error, where they are known.
        packages: Packages beside this one that the configuration may name.

    Example:
        >>> from eblvm_lit.runs.load import load
        >>> run = load("grbm_digits")
        >>> v = run.examples()
        >>> v.shape, run.score(v).shape
        (torch.Size([197, 64]), torch.Size([197, 64]))
    """

    def __init__(
        self,
        *,
        method: Method,
        config: DictConfig,
        iteration: int,
        folder: Path | None = None,
        metrics: dict[str, float] | None = None,
        starts: Mapping[str, Tensor] | None = None,
        log_z: tuple[float, float] | None = None,
        packages: Sequence[str] = (),
    ) -> None:
        self.method = method
        self.config = config
        self.iteration = iteration
        self.folder = folder
        self.packages = list(packages)
        self._starts = dict(starts or {})
        # by the digest of the parameters that it is of
        self._log_z = {} if log_z is None else {digest(self.energy): log_z}
        if metrics is not None:
            self.metrics = metrics

    def __repr__(self) -> str:
        """What was trained, where it is, and for how long."""
        parts = [name for name in ("energy", "posterior", "generator") if getattr(self, name) is not None]
        lines = [f"{name}: {type(getattr(self, name)).__name__}" for name in parts]
        described = [f"method: {type(self.method).__name__}", *lines, f"iteration: {self.iteration:,}"]
        where = "" if self.folder is None else f"{str(self.folder)!r}, "
        return f"TrainedRun({where}{', '.join(described)})"

    # ------------------------------------------------------------------ parts

    @property
    def energy(self) -> Energy | None:
        """E(v, h; theta) or F(v; theta); None for a method without an energy, as the VAE."""
        return self.method.parts.energy

    @property
    def posterior(self) -> Posterior | None:
        """q(h|v; phi), or BiDVL's encoder; None for a method without one."""
        return self.method.parts.posterior

    @property
    def generator(self) -> nn.Module | None:
        """What maps h (B, H) to v (B, *event), as BiDVL's generator does; None for a method without one."""
        return self.method.parts.decoding

    @cached_property
    def data(self) -> ArrayDataModule:
        """The data set of the run; its files are read when it is first asked for."""
        data = self._unread_data()
        data.setup()
        return data

    def _unread_data(self) -> ArrayDataModule:
        """The data set of the run, whose files are not read yet."""
        data = instantiate(self.config.data, "data", self.packages, ArrayDataModule)
        data.max_examples = self.config.get("max_examples")
        return data

    def examples(self, split: str = "test") -> Tensor:
        """All v of a split (``train``, ``val`` or ``test``) as the model sees them, shape (n, *event)."""
        if split not in Splits._fields:
            raise ConfigError(f"split is 'train', 'val' or 'test', not {split!r}.")
        v = self.data.as_float(getattr(self.data.splits, split))
        return v.to(self._like)

    # ------------------------------------------------------------------ results

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The final metrics, as in ``metrics.json``; empty for a run that has not finished."""
        file = None if self.folder is None else self.folder / "metrics.json"
        return json.loads(file.read_text()) if file is not None and file.is_file() else {}

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Losses and metrics along training: one column for each, indexed by the iteration; NaN where not measured."""
        return pd.DataFrame() if self.folder is None else read_curves(self.folder / "metrics.csv")

    save_pretrained = save_pretrained

    # ------------------------------------------------------------------ what the model says

    @property
    def _like(self) -> Tensor:
        """A tensor of the model's type and on its device, which Lightning knows of the whole method alone."""
        return tensor_of(self.method if self.energy is None else self.energy, self.method.device)

    def _generator(self, seed: int, *keys: str) -> torch.Generator:
        return keyed_generator(seed, *keys, device=self._like.device)

    def sample(self, n: int, *, seed: int = 0, mean: bool = False, sampler: Sampler | Dynamics | None = None) -> Tensor:
        """Samples of v.

        They come from the generator where there is one; else by the sampler of the run's configuration. The sampler
        ``annealed``, which is the default, draws by 1,000 sweeps of Gibbs sampling where p(h|v) and p(v|h) can be drawn
        from; else, of images, by annealed Langevin dynamics, and of other data by plain Langevin dynamics: see
        :func:`~eblvm_lit.draws.choice.draws_of`. Metrics and figures show the same samples, and a model that was shared
        draws the samples that its run draws.

        Args:
            n: Number of samples; up to rounding, sample i does not depend on it.
            seed: Of all randomness.
            mean: With Gibbs sampling, E[v|h] at the last latents instead of a draw, as for images. What a generator
                gives is a mean in any case.
            sampler: Another sampler, or its dynamics, which is used as it is.

        Returns:
            Shape (n, *event), on the device of the model.

        Raises:
            ConfigError: For n < 1, a mean of another sampler, or a model that the sampler cannot draw from.
        """
        if not hasattr(n, "__index__") or n < 1:
            raise ConfigError(f"Ask for n >= 1 samples, not {n!r}.")
        if not isinstance(sampler, Sampler | Dynamics | None):
            raise ConfigError(f"A sampler is an object such as eblvm_lit.Gibbs(n_steps=1000), not {sampler!r}.")
        draws = self.draws(sampler)
        if draws is None:
            raise ConfigError(self.sampler.refusal(self.energy))
        chosen = draws.of_means() if mean else draws
        if chosen is None:
            raise ConfigError(f"mean=True is of Gibbs sampling, and these samples are of {draws.title}: leave it out.")
        return chosen.draw(int(n), seed=seed).reshape(n, *self.method.event_shape)

    def draws(self, sampler: Sampler | Dynamics | None = None) -> Draws | None:
        """Who draws the samples, as :func:`~eblvm_lit.draws.choice.draws_of` decides; None where nothing can.

        Args:
            sampler: Another sampler, or its dynamics, which is used as it is.
        """
        data = vars(self).get("data") or self._unread_data()
        if sampler is not None:
            return ChainDraws(as_sampler(sampler, self.energy), self.method, data, starts=self._starts)
        node = self.config.get("latent_langevin")
        langevin = None if node is None else instantiate(node, "latent_langevin", self.packages)
        generator = GeneratedImages(langevin=langevin)
        return draws_of(self.method, data, self.sampler, generator=generator, starts=self._starts)

    @property
    def sampler(self) -> Sampler:
        """The sampler of the run's configuration; the default, ``annealed``, if it has none."""
        node = self.config.get("sampler")
        chosen = None if node is None else instantiate(node, "sampler", self.packages)
        if not isinstance(chosen, Sampler | Dynamics | None):
            raise ConfigError(f"sampler must be a Sampler, not {type(chosen).__name__}: see {Sampler.__module__}.")
        return as_sampler(chosen, self.energy)

    @property
    def starts(self) -> dict[str, Tensor]:
        """What chains of the default sampler start from, by name; a model that is shared carries it."""
        draws = self.draws()
        return {} if draws is None else draws.starts

    def _points(self, v: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Points on the model's device and of its type, if no other is given; of arrays, too."""
        like = self._like
        try:
            v = torch.as_tensor(v, device=like.device, dtype=dtype or like.dtype)
        except (TypeError, ValueError, RuntimeError) as error:  # of a text, or rows of several lengths
            raise ConfigError(f"v is an array of numbers, (B, *{self.method.event_shape}): {error}.") from None
        if tuple(v.shape[1:]) != tuple(self.method.event_shape) or v.dim() == 0:
            raise ConfigError(
                f"v has the shape {tuple(v.shape)}, and this model takes (B, *{self.method.event_shape})."
            )
        return v

    def score(self, v: Tensor, *, seed: int = 0, n_particles: int = 100) -> Tensor:
        r"""The score of the marginal, :math:`\nabla_v \log p(v)`.

        It is exact where the free energy is tractable; else it is VaES, the mean of :math:`-\nabla_v E(v, h)` over
        latents of the posterior (Bao et al. 2021, section 3.1), which is unbiased where q(h|v) = p(h|v).

        Args:
            v: Points, shape (B, *event).
            seed: Of the latents.
            n_particles: Latents of each v.

        Returns:
            Shape (B, *event), on the device of the model.

        Raises:
            ConfigError: For v of another shape, a method without an energy, or one with neither a free energy nor a
                posterior.
        """
        energy = self.energy
        v = self._points(v)
        if not hasattr(n_particles, "__index__") or n_particles < 1:
            raise ConfigError(f"Ask for n_particles >= 1, not {n_particles!r}.")
        if isinstance(energy, MarginalEnergy):
            return energy.score(v).detach()
        q = self.posterior
        particles = PosteriorParticles()
        if energy is None or q is None:
            raise ConfigError(f"{type(self.method).__name__} has no score: it needs a free energy or a posterior.")
        seen = v.to(tensor_of(q, v.device))  # q may be of another type
        h = particles.draw(
            energy, q, seen, particles.noise(energy, q, (n_particles,), seen, self._generator(seed, "score"))
        )
        return VaES()(energy, q, v, h.to(v)).detach()

    def learn_log_partition(self) -> None:
        """Take log Z from the metrics, which are of the present parameters, if it is among them."""
        log_z, error = (self.metrics.get(f"test/{name}") for name in ESTIMATED[:2])
        if log_z is not None and error is not None and self.metrics.get("iteration") == self.iteration:
            self._log_z.setdefault(digest(self.energy), (log_z, error))

    def log_partition(self) -> tuple[float, float]:
        """Log Z of the present parameters and its standard error, in nats; the error is 0 where log Z is exact.

        They are computed as the run's metric of the log-likelihood computes them, once for each set of parameters; the
        metrics of a run and the files of a shared model have those of the parameters that were trained.

        Raises:
            ConfigError: Where log Z is neither known nor estimable.
        """
        energy = self.energy
        key = digest(energy)
        if key not in self._log_z:
            node = OmegaConf.select(self.config, "callbacks.evaluation.metrics.log_likelihood")
            metric = LogLikelihood() if node is None else instantiate(node, "log_likelihood", self.packages)
            log_z = None
            estimate = None
            if isinstance(energy, MarginalEnergy):
                generator = self._generator(self.method.seed, "test", "log_likelihood")
                log_z, estimate = metric.log_partition(energy, generator)
            if log_z is None:
                raise ConfigError(
                    f"{type(self.method).__name__} with {type(energy).__name__} has no likelihood: it needs a free "
                    "energy and a log Z that is known, or that annealed importance sampling estimates, as of a GRBM."
                )
            self._log_z[key] = log_z, 0.0 if estimate is None else estimate.standard_error
        return self._log_z[key]

    @torch.no_grad()
    def log_likelihood(self, v: Tensor) -> Tensor:
        r"""The log-likelihood of each point in nats, :math:`\log p(v) = -F(v) - \log Z`.

        log Z is exact where it can be; else that of a GRBM is estimated by annealed importance sampling: see
        :meth:`log_partition`.

        Args:
            v: Points, shape (B, *event).

        Returns:
            Shape (B,), float64, on the device of the model.

        Raises:
            ConfigError: For v of another shape, or where F or log Z is neither known nor estimable.
        """
        log_z, _ = self.log_partition()
        energy = cast(MarginalEnergy, self.energy)
        return -in_float64(energy).free_energy(self._points(v, torch.float64)) - log_z
