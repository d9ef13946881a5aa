"""A trained run as an object: its parts, results, samples, scores and likelihoods."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import pandas as pd
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from eblvm_lit.core.eval_mode import eval_mode
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.core.tensors import by_rows, in_float64, tensor_of
from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.data.given import alike, as_points
from eblvm_lit.data.images import BinarizableData
from eblvm_lit.draws.base import Draws
from eblvm_lit.draws.chains import ChainDraws
from eblvm_lit.draws.choice import as_sampler, draws_of
from eblvm_lit.draws.generator import GeneratedImages
from eblvm_lit.energies.base import ConditionalEnergy, Energy, LatentMeans, MarginalEnergy
from eblvm_lit.energies.noise_conditional import AtLevel
from eblvm_lit.errors import ConfigError
from eblvm_lit.evaluation.likelihood.log_likelihood import ESTIMATED, QUADRATURE, LogLikelihood
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

ROWS = 1000  # the maximum number of examples in one pass through the networks
Points = TypeVar("Points", Tensor, np.ndarray)  # the type of points, which is that of the results


class TrainedRun:
    """A trained method with its configuration and its results, as :func:`eblvm_lit.load` returns it.

    Args:
        method: The method with the trained parameters.
        config: The configuration of the training run.
        iteration: The number of iterations that the method was trained for.
        folder: The folder of the run, if there is one.
        metrics: The final metrics; None reads them from the folder.
        starts: The initial states of sampling chains, given if sampling must not need the data: see :attr:`starts`.
        log_z: Log Z and its standard error, if they are known.
        packages: The packages, in addition to this one, that the configuration may name.

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
        # values of log Z and their standard errors, by the digest of the energy
        self._log_z = {} if log_z is None else {digest(self.energy): log_z}
        if metrics is not None:
            self.metrics = metrics

    def __repr__(self) -> str:
        """Return the folder, the classes of the method and its parts, and the number of iterations."""
        parts = {name: getattr(self, name) for name in ("method", "energy", "posterior", "generator")}
        described = [f"{name}: {type(part).__name__}" for name, part in parts.items() if part is not None]
        where = "" if self.folder is None else f"{str(self.folder)!r}, "
        return f"TrainedRun({where}{', '.join(described)}, iteration: {self.iteration:,})"

    # ------------------------------------------------------------------ parts

    @property
    def energy(self) -> Energy | None:
        """The energy E(v, h; theta) or F(v; theta) of the model; None for a method without an energy, such as a VAE."""
        return self.method.parts.energy

    @property
    def posterior(self) -> Posterior | None:
        """The posterior q(h|v; phi), which is the encoder in BiDVL, or None if the method has no posterior."""
        return self.method.parts.posterior

    @property
    def generator(self) -> nn.Module | None:
        """The network that maps latents h (B, H) to v (B, *event), or None if the method has no such network."""
        return self.method.parts.decoding

    @cached_property
    def data(self) -> ArrayDataModule:
        """The data set of the run, whose files are read on first access."""
        data = self._unread_data()
        data.setup()
        return data

    def _unread_data(self) -> ArrayDataModule:
        """Build the data set of the run without reading its files."""
        data = instantiate(self.config.data, "data", self.packages, ArrayDataModule)
        data.max_examples = self.config.get("max_examples")
        return data

    def examples(self, split: str = "test") -> Tensor:
        """Return all examples of a split (``train``, ``val`` or ``test``), shape (n, *event).

        The examples are v as the model receives them, except that standardised columns are in the units of the data.
        """
        return self.data.in_units(self._seen(split))

    def _seen(self, split: str) -> Tensor:
        """Return all examples of a split as the model receives them, shape (n, *event)."""
        return self.data.as_float(getattr(self.data.splits, split)).to(self._like)

    # ------------------------------------------------------------------ results

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The final metrics, as in ``metrics.json``, or an empty dict for an unfinished run."""
        file = None if self.folder is None else self.folder / "metrics.json"
        return json.loads(file.read_text()) if file is not None and file.is_file() else {}

    @cached_property
    def curves(self) -> pd.DataFrame:
        """The learning curves: rows are iterations, columns are losses and metrics; values not measured are NaN."""
        return pd.DataFrame() if self.folder is None else read_curves(self.folder / "metrics.csv")

    save_pretrained = save_pretrained

    # ------------------------------------------------------------------ samples, scores, latents and likelihoods

    @property
    def _like(self) -> Tensor:
        """A tensor with the dtype and device of the energy, or of the method if it has no energy.

        Lightning records a dtype and a device only for the method as a whole.
        """
        return tensor_of(self.method if self.energy is None else self.energy, self.method.device)

    def _generator(self, seed: int, *keys: str) -> torch.Generator:
        return keyed_generator(seed, *keys, device=self._like.device)

    def sample(self, n: int, *, seed: int = 0, mean: bool = False, sampler: Sampler | Dynamics | None = None) -> Tensor:
        """Draw n samples of v from the model.

        They come from the generator if there is one, else from the sampler of the run's configuration. The default
        sampler, ``annealed``, uses 1,000 Gibbs sweeps if p(h|v) and p(v|h) can be drawn from. Otherwise it uses
        annealed Langevin dynamics for images, and plain Langevin dynamics for other data: see
        :func:`~eblvm_lit.draws.choice.draws_of`. Metrics and figures use the same samples, and a shared model draws the
        same samples as its run.

        Args:
            n: The number of samples; up to rounding, sample i does not depend on n.
            seed: The seed of all random numbers.
            mean: Whether Gibbs sampling returns E[v|h] at the last latents instead of a draw of v, as for images. The
                output of a generator is a mean in any case.
            sampler: Another sampler, or its dynamics, which is used as it is.

        Returns:
            Shape (n, *event), on the device of the model.

        Raises:
            ConfigError: If ``mean`` is true without Gibbs sampling, or if the sampler does not fit the model.
        """
        draws = self.draws(sampler)
        if draws is None:
            raise ConfigError(self.sampler.refusal(self.energy))
        chosen = draws.of_means() if mean else draws
        if chosen is None:
            raise ConfigError(f"mean=True needs Gibbs sampling, but these are {draws.title}: leave it out.")
        v = chosen.draw(n, seed=seed).reshape(n, *self.method.event_shape)
        return self._shapes.in_units(v)

    def draws(self, sampler: Sampler | Dynamics | None = None) -> Draws | None:
        """Return the object that draws the samples, chosen by :func:`~eblvm_lit.draws.choice.draws_of`.

        The result is None if the model cannot be sampled.

        Args:
            sampler: Another sampler, or its dynamics, which is used as it is.
        """
        data = self._shapes
        if sampler is not None:
            return ChainDraws(as_sampler(sampler, self.energy), self.method, data, starts=self._starts)
        langevin = instantiate(self.config.get("latent_langevin"), "latent_langevin", self.packages)
        generator = GeneratedImages(langevin=langevin)
        return draws_of(self.method, data, self.sampler, generator=generator, starts=self._starts)

    @property
    def sampler(self) -> Sampler:
        """The sampler in the run's configuration, or the default sampler ``annealed`` if the configuration has none."""
        chosen = instantiate(self.config.get("sampler"), "sampler", self.packages)
        if not isinstance(chosen, Sampler | Dynamics | None):
            raise ConfigError(f"sampler must be a Sampler, not {type(chosen).__name__}: see {Sampler.__module__}.")
        return as_sampler(chosen, self.energy)

    @property
    def starts(self) -> dict[str, Tensor]:
        """The initial states of the Markov chains with which the run's sampler draws samples, in a dict by name.

        The files of a shared model include these states.
        """
        draws = self.draws()
        return {} if draws is None else draws.starts

    def _points(self, v: Any, dtype: torch.dtype | None = None) -> Tensor:
        """Convert examples to inputs v on the model's device, in the given dtype or, by default, the model's dtype."""
        like = self._like
        data = self._shapes
        points = as_points(v, data, self.method.event_shape).to(like.device)
        points = points if points.is_floating_point() else points.double()
        if isinstance(self.energy, Energy) and self.energy.binary_visible:
            if isinstance(data, BinarizableData) and data.binarize == "threshold":
                points = data.binarised(points, "given")
            if not ((points == 0) | (points == 1)).all():
                raise ConfigError(f"The v of {type(self.energy).__name__} are bits: give the numbers 0 and 1.")
        return data.from_units(points).to(dtype or like.dtype)

    @property
    def _shapes(self) -> ArrayDataModule:
        """The data set of the run, which has the shapes and units even if its files have not been read."""
        return vars(self).get("data") or self._unread_data()

    def draw_images(self, n: int, *, seed: int = 0, sampler: Sampler | Dynamics | None = None) -> Tensor:
        """Draw samples as uint8 images, with values from 0 to 255 for any value range of the training data.

        They are the images of :meth:`sample`, and with Gibbs sampling the means E[v|h], as in the run's figures.

        Args:
            n: The number of images; up to rounding, image i does not depend on n.
            seed: The seed of all random numbers.
            sampler: Another sampler, or its dynamics, which is used as it is.

        Returns:
            The images, uint8, shape (n, C, H, W), on the CPU; ``images.permute(0, 2, 3, 1).numpy()`` is what matplotlib
            and Pillow take.

        Raises:
            ConfigError: If the data are no images, or for the reasons of :meth:`sample`.

        Example:
            >>> from eblvm_lit.runs.load import load
            >>> images = load("bidvl_mnist").draw_images(4)
            >>> images.dtype, images.shape
            (torch.uint8, torch.Size([4, 1, 32, 32]))
        """
        data = self._shapes
        if data.image_shape is None:
            raise ConfigError(f"{type(data).__name__} has no images: draw by sample({n}).")
        draws = self.draws(sampler)
        mean = draws is not None and draws.of_means() is not None
        v = self.sample(n, seed=seed, mean=mean, sampler=sampler)
        return data.as_bytes(v).cpu().reshape(-1, *data.image_shape)

    def score(self, v: Points | pd.DataFrame, *, seed: int = 0, n_particles: int = 100) -> Points:
        r"""Compute the score of the marginal, :math:`\nabla_v \log p(v)`, in the units of the data.

        It is exact if the free energy is tractable. Otherwise it is VaES, the mean of :math:`-\nabla_v E(v, h)` over
        latents of the posterior (Bao et al. 2021, section 3.1), which is unbiased if q(h|v) = p(h|v).

        Args:
            v: Points, shape (B, *event): a tensor, a NumPy array, a pandas frame or a torch Dataset. Bytes
                are converted as those of the data's images are.
            seed: The seed of the latents.
            n_particles: The number of latents drawn for each v.

        Returns:
            Shape (B, *event): a NumPy array for an array or a frame, else a tensor on the device of the model.

        Raises:
            ConfigError: For v of another shape, a method without an energy, or an energy without a tractable free
                energy and without a posterior.
        """
        found = self._score(self._points(v), seed, n_particles)
        unit = self._shapes.unit_of_v
        return alike(found if unit is None else (found / unit.to(found.device)).to(found), v)

    def _score(self, v: Tensor, seed: int, n_particles: int) -> Tensor:
        energy = self.energy
        if isinstance(energy, MarginalEnergy):
            return by_rows(lambda part: energy.score(part).detach(), ROWS, v)
        q = self.posterior
        particles = PosteriorParticles()
        if energy is None or q is None:
            raise ConfigError(f"{type(self.method).__name__} has no score: it needs a free energy or a posterior.")
        seen = v.to(tensor_of(q, v.device))  # q may have a different dtype than v
        h = particles.draw(
            energy, q, seen, particles.noise(energy, q, (n_particles,), seen, self._generator(seed, "score"))
        )
        return VaES()(energy, q, v, h.to(v)).detach()

    @torch.no_grad()
    def latents(self, v: Points | pd.DataFrame) -> Points:
        """Compute the posterior mean E_q[h|v] of the latents h of each example v.

        Without a posterior, the latents are those of the method's encoder, or the exact mean E[h|v] of an energy that
        has one, such as a GRBM.

        Args:
            v: Points, in the kinds of :meth:`score`.

        Returns:
            Shape (B, H): a NumPy array for an array or a frame, else a tensor on the device of the model.

        Raises:
            ConfigError: For v of another shape, or a model without latents that can be computed.

        Example:
            >>> from eblvm_lit.runs.load import load
            >>> run = load("grbm_digits")
            >>> run.latents(run.examples().numpy()).shape
            (197, 200)
        """
        encoding = self.method.parts.encoding
        if encoding is None and isinstance(self.energy, ConditionalEnergy):
            encoding = LatentMeans(self.energy)
        if encoding is None:
            raise ConfigError(f"{type(self.method).__name__} has no latents: train one with a posterior, as bidsm.")
        # Compute in float64, because rounding errors in float32 would depend on the other examples in the batch.
        points = self._points(v, torch.float64)
        with eval_mode(encoding):
            latents = by_rows(in_float64(encoding), ROWS, points)
        return alike(latents.to(self._like.dtype), v)

    @torch.no_grad()
    def free_energy(self, v: Points | pd.DataFrame) -> Points:
        r"""Compute the free energy :math:`F(v) = -\log p(v) - \log Z`, in which the latents are summed out.

        It ranks examples where log Z is unknown: outliers have high energies. If columns are standardised, the density
        is that in the units of the data. The module :attr:`energy` has the joint energy E(v, h).

        Args:
            v: Points, in the kinds of :meth:`score`.

        Returns:
            Shape (B,), float64: a NumPy array for an array or a frame, else a tensor on the device of the model.

        Raises:
            ConfigError: For v of another shape, or an energy whose latents cannot be summed out.

        Example:
            >>> from eblvm_lit.runs.load import load
            >>> run = load("grbm_digits")
            >>> v = run.examples().numpy()
            >>> bool(run.free_energy(v).mean() < run.free_energy(1 - v).mean())
            True
        """
        energy = self.energy
        if not isinstance(energy, MarginalEnergy):
            kind = "no energy" if energy is None else f"{type(energy).__name__}, whose latents cannot be summed out"
            raise ConfigError(f"{type(self.method).__name__} has {kind}: a model such as grbm has a free energy.")
        points = self._points(v, torch.float64)
        return alike(by_rows(in_float64(energy).free_energy, ROWS, points) + self._shapes.log_unit_of_v, v)

    def learn_log_partition(self) -> None:
        """Take log Z from the final metrics, if the metrics include log Z and belong to the current iteration.

        The caller makes sure that the metrics belong to the current parameters.
        """
        log_z, error = (self.metrics.get(f"test/{name}") for name in ESTIMATED[:2])
        if log_z is not None and error is not None and self.metrics.get("iteration") == self.iteration:
            self._log_z.setdefault(digest(self.energy), (log_z, error))

    @property
    def _log_likelihood_metric(self) -> LogLikelihood:
        node = OmegaConf.select(self.config, "callbacks.evaluation.metrics.log_likelihood")
        if node is not None:
            return instantiate(node, "log_likelihood", self.packages)
        # a run without metrics still has the quadrature that suits its model
        return LogLikelihood(quadrature=instantiate(self.config.get("quadrature"), "quadrature", self.packages))

    def log_partition(self) -> tuple[float, float]:
        """Compute log Z and its standard error, in nats, for the current parameters.

        The error of an exact log Z is 0. The run's log-likelihood metric computes log Z, once for each set of
        parameters. For the trained parameters, the values are read from the run's metrics or the shared model's files,
        if they contain log Z.

        Raises:
            ConfigError: If log Z can be neither computed nor estimated.
        """
        energy = self.energy
        key = digest(energy)
        if key not in self._log_z:
            metric = self._log_likelihood_metric
            generator = self._generator(self.method.seed, "test", "log_likelihood")
            # quadrature starts from the bounding box of the examples
            v = self._seen("test") if metric.estimator(energy, self.posterior) == QUADRATURE else None
            log_z, estimate = metric.log_partition(cast(Energy, energy), generator, v, self.posterior)
            if log_z is None:
                raise ConfigError(
                    f"{type(self.method).__name__} with {type(energy).__name__} has no likelihood: it needs a "
                    "free energy, and a log Z that is known or can be estimated, as by annealed importance sampling."
                )
            self._log_z[key] = log_z, 0.0 if estimate is None else estimate.standard_error
        return self._log_z[key]

    @torch.no_grad()
    def log_likelihood(self, v: Points | pd.DataFrame, *, seed: int = 0) -> Points:
        r"""Compute the log-likelihood of each point in nats, :math:`\log p(v) = -F(v) - \log Z`.

        A model that knows the noise level has its own log Z, at its largest level: see
        :class:`~eblvm_lit.evaluation.likelihood.own_log_partition.OwnLogPartition`. With latents that cannot be summed
        out, -F(v) is then the importance-weighted lower bound by the posterior. For other models log Z is exact if
        possible; otherwise, for a GRBM, it is estimated by annealed importance sampling: see :meth:`log_partition`. If
        columns are standardised, the density is that in the units of the data.

        Args:
            v: Points, in the kinds of :meth:`score`.
            seed: The seed of the latents of the bound.

        Returns:
            Shape (B,), float64: a NumPy array for an array or a frame, else a tensor on the device of the model.

        Raises:
            ConfigError: For v of another shape, or if F or log Z can be neither computed nor estimated.
        """
        log_z, _ = self.log_partition()
        energy = self.energy
        if not isinstance(energy, AtLevel):
            return -self.free_energy(v) - log_z
        points = self._points(v, torch.float64)
        own = self._log_likelihood_metric.own
        bound = own.free_energy(energy, self.posterior, points, self._generator(seed, "log_likelihood"))
        return alike(-bound - self._shapes.log_unit_of_v - log_z, v)
