"""A scikit-learn estimator that computes densities, outliers and latents of the rows of a table."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, OutlierMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from eblvm_lit.cli.compose import train
from eblvm_lit.data.array_files import ArrayFile
from eblvm_lit.errors import ConfigError, EblvmError
from eblvm_lit.runs.trained_run import TrainedRun

__all__ = ["EBLVM"]

# Overrides that turn off output, figures, metrics and logs, because a fit needs only the checkpoint.
QUIET = (
    *("callbacks=training_only", "callbacks.progress=null", "callbacks.figures=null", "logger=none", "summary=false"),
    *("trainer.enable_progress_bar=false", "trainer.accelerator=cpu", "n_validations=1", "test_checkpoint=last"),
    "eval_weights=raw",  # callbacks=training_only keeps no moving averages of the parameters
)
# Settings for tables with any number of columns: a learning rate at which a few thousand iterations suffice, and noise
# that is small relative to the columns' standard deviations, because the model learns the density of the noisy rows.
SETTINGS = ("kind=vectors", "optimizer.lr=0.01", "noise.std=0.1", "noise.sigma_min=0.1", "noise.sigma0=0.1")
N_VALIDATION = 1000  # the number of training rows whose loss is computed at the end of a fit
SEEDS = 2**31 - 1


class EBLVM(ClassNamePrefixFeaturesOutMixin, TransformerMixin, OutlierMixin, BaseEstimator):
    r"""An energy-based latent variable model as a scikit-learn estimator for tables of numbers.

    ``fit`` trains the model on all rows, with columns standardised. ``score_samples`` is the log-density of rows in the
    units of the table, in nats,

    .. math:: \log p(x) = -F\big((x - m) / s\big) - \log Z - \textstyle\sum_j \log s_j,

    ``predict`` marks the rows of lowest density as outliers, ``transform`` gives the latents :math:`E_q[h|v]`, and
    ``sample`` draws new rows. If log Z can be neither computed nor estimated, a warning says so, and ``score_samples``
    is the log-density up to a constant.

    Args:
        method: The training method, an option of ``method=``.
        model: The model, an option of ``model=``. The default, a Gaussian-Bernoulli RBM, is a mixture of
            2^n_latents Gaussians, and its density and latents are computed exactly.
        n_latents: The number of latents of the model.
        max_steps: The number of training iterations.
        contamination: The fraction of the training rows that ``predict`` marks as outliers.
        overrides: Further words of the command line, such as ``["optimizer.lr=0.01", "data.batch_size=50"]``.
        run_dir: A folder that keeps the run, with its checkpoint; None for a temporary folder, which is removed.
        random_state: The seed of all random numbers, a random state of NumPy, or None for another seed at each fit.

    Attributes:
        run_: The trained run, see :class:`~eblvm_lit.TrainedRun`.
        log_partition_: log Z of the model; NaN if it is unknown.
        offset_: The log-density below which rows are outliers.
        n_features_in_: The number of columns.
        feature_names_in_: The names of the columns, if ``fit`` was given a frame.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(200, 2))
        >>> model = EBLVM(n_latents=2, max_steps=50, random_state=0).fit(x)
        >>> model.score_samples(x).shape, model.transform(x).shape, model.sample(5).shape
        ((200,), (200, 2), (5, 2))
        >>> model.predict([[0.0, 0.0], [9.0, 9.0]])
        array([ 1, -1])
    """

    def __init__(
        self,
        method: str = "bidsm",
        *,
        model: str = "grbm",
        n_latents: int = 8,
        max_steps: int = 3000,
        contamination: float = 0.1,
        overrides: Sequence[str] = (),
        run_dir: str | Path | None = None,
        random_state: Any = None,
    ) -> None:
        self.method = method
        self.model = model
        self.n_latents = n_latents
        self.max_steps = max_steps
        self.contamination = contamination
        self.overrides = overrides
        self.run_dir = run_dir
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: Any = None) -> EBLVM:  # noqa: ARG002 - scikit-learn's signature
        """Train the model on the rows of a table.

        Args:
            X: The rows, shape (n, d), numbers without NaN, n >= 2.
            y: Not used.

        Raises:
            ValueError: If the table or a setting cannot be used.
        """
        x = self._table(X, ensure_min_samples=2)
        if not 0 < self.contamination <= 0.5:
            raise ValueError(f"contamination is a fraction in (0, 0.5], not {self.contamination!r}.")
        seed = int(check_random_state(self.random_state).randint(SEEDS))
        temporary = TemporaryDirectory(prefix="eblvm_lit_") if self.run_dir is None else nullcontext(self.run_dir)
        with temporary as folder:
            self.run_ = self._trained(x, folder, seed)
        self._n_features_out = self.n_latents  # the latents are called eblvm0, eblvm1 and so on
        self.log_partition_ = self._log_partition()
        self.offset_ = float(np.quantile(self.score_samples(X), self.contamination))
        return self

    def _trained(self, x: NDArray[Any], folder: str | Path, seed: int) -> TrainedRun:
        own = [f"method={self.method}", f"model={self.model}", f"sizes.h_dim={self.n_latents}", f"seed={seed}"]
        own += [f"trainer.max_steps={self.max_steps}", f"run_dir={str(folder)!r}", f"cache_dir={str(folder)!r}"]
        # A run also needs a validation and a test split: the first training rows serve as both.
        few = x[:N_VALIDATION]
        log = logging.getLogger(ArrayFile.__module__)
        level = log.level
        log.setLevel(logging.ERROR)  # no warning that these rows are training rows
        try:
            with redirect_stdout(io.StringIO()):
                run = train([*QUIET, *SETTINGS, *own, *self.overrides], data=x, validation=few, test=few)
        except EblvmError as error:  # users of scikit-learn expect a ValueError for unsuitable data
            raise ValueError(str(error)) from error
        finally:
            log.setLevel(level)
        # keep the initial states of the chains, so that sampling still works after a temporary folder is removed
        kept = {"iteration": run.iteration, "folder": run.folder if self.run_dir else None, "starts": run.starts}
        return TrainedRun(method=run.method, config=run.config, metrics=run.metrics, packages=run.packages, **kept)

    def _log_partition(self) -> float:
        try:
            return self.run_.log_partition()[0]
        except ConfigError:
            warnings.warn(
                "log Z of this model is not known: score_samples is the log-density up to a constant.", stacklevel=3
            )
            return float("nan")

    def _rows(self, X: ArrayLike) -> NDArray[Any]:
        check_is_fitted(self)
        return self._table(X, reset=False)

    def _table(self, X: ArrayLike, **options: Any) -> NDArray[Any]:
        """Validate a table with scikit-learn's ``validate_data``.

        The cast to Any is needed because the stub of this function lacks types.
        """
        return cast(Any, validate_data)(self, X, dtype=(np.float64, np.float32), **options)

    def score_samples(self, X: ArrayLike) -> NDArray[np.float64]:
        """Compute the log-density of each row in nats, shape (n,).

        If log Z is unknown, the result is the negative free energy, which is the log-density up to a constant.
        """
        x = self._rows(X)
        return self.run_.log_likelihood(x) if np.isfinite(self.log_partition_) else -self.run_.free_energy(x)

    def score(self, X: ArrayLike, y: Any = None) -> float:  # noqa: ARG002 - scikit-learn's signature
        """Compute the mean log-density of the rows in nats; grid searches compare settings by this number.

        Raises:
            ValueError: If log Z is unknown, because means of several models are then not comparable.
        """
        densities = self.score_samples(X)
        if not np.isfinite(self.log_partition_):
            raise ValueError("log Z of this model is not known, so that its densities cannot be compared with others.")
        return float(np.mean(densities))

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Compute ``score_samples(X) - offset_``, shape (n,), which is negative for outliers."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return 1 for each row that is an inlier and -1 for each outlier, shape (n,).

        An outlier has a lower density than most training rows.
        """
        return np.where(self.decision_function(X) >= 0, 1, -1)

    def transform(self, X: ArrayLike) -> NDArray[np.float64]:
        """Compute the posterior mean E_q[h|v] of the latents h of each row v, shape (n, n_latents)."""
        return self.run_.latents(self._rows(X)).astype(np.float64)

    def sample(self, n_samples: int = 1, *, random_state: Any = None) -> NDArray[np.float64]:
        """Draw rows from the model, shape (n_samples, d), in the units of the table.

        Args:
            n_samples: The number of rows.
            random_state: The seed, a random state of NumPy, or None for the random state of the estimator.
        """
        check_is_fitted(self)
        seed = check_random_state(self.random_state if random_state is None else random_state).randint(SEEDS)
        return self.run_.sample(n_samples, seed=int(seed)).cpu().numpy().astype(np.float64)
