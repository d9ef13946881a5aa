"""The accuracy of a linear classifier on posterior means."""

from __future__ import annotations

from typing import Any, Literal, cast

import numpy as np
import torch
from pydantic import PositiveInt
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from eblvm_lit.data.base import ArrayDataModule, Splits
from eblvm_lit.draws.posterior_means import flat_pixels, posterior_means
from eblvm_lit.evaluation.base import Metric
from eblvm_lit.methods.base import Method
from eblvm_lit.utils.quantities import Quantity

__all__ = ["LinearProbe"]

NAMES = ("probe_accuracy", "probe_accuracy_pixels", "probe_accuracy_pixels_reduced")


class LinearProbe(
    Metric,
    emits={  # for accuracies on pixels, higher is not declared as better, because they do not depend on the method
        NAMES[0]: Quantity(1, "", "the accuracy of a linear classifier of posterior means"),
        NAMES[1]: Quantity(0, "", "the accuracy of the same classifier of pixels"),
        NAMES[2]: Quantity(0, "", "the accuracy of the same classifier of as many principal components as latents"),
    },
):
    r"""The accuracy of a linear support vector machine on posterior means, and on pixels for comparison.

    .. math:: f(v) = E_q[h|v], \quad \hat y(v) = \arg\max_k\, w_k^\top f(v) + b_k

    The classifier is trained on the training split, without the examples that are also in the evaluated split, and
    tested on the evaluated split. ``probe_accuracy`` is the fraction of correct predictions. With ``pixels`` there are
    two more numbers: ``probe_accuracy_pixels``, where f(v) is v itself, and ``probe_accuracy_pixels_reduced``, where
    f(v) consists of as many principal components of v as there are latents. The metric applies to methods with a
    posterior or an encoder, and to data with one label per example. Reference: Bao et al. 2020, section 5.2.

    The classifier is scikit-learn's LinearSVC: squared hinge loss, C = 1, one-versus-rest. The published numbers were
    computed with that library's defaults of the time: the dual problem, with features that are not standardized
    (``dual=true standardize=false``).

    Args:
        n_train: Largest number of training examples; the first ones are used. Null uses all.
        dual: Whether to solve the dual problem. ``auto`` solves the primal problem if there are more examples than
            features; it has the same optimum and converges sooner.
        max_iter: Largest number of iterations of the solver; scikit-learn warns if they do not suffice.
        standardize: Whether to shift and scale each feature to mean 0 and variance 1 over the training examples.
        pixels: Whether to classify pixels, too; the time grows with their number.

    Example:
        >>> from types import SimpleNamespace
        >>> from eblvm_lit.data.digits import Digits
        >>> from eblvm_lit.methods.parts import MethodParts
        >>> from eblvm_lit.posteriors.bernoulli import BernoulliPosterior
        >>> data, parts = Digits(), MethodParts(posterior=BernoulliPosterior(v_dim=64, h_dim=3))
        >>> data.setup()
        >>> method = SimpleNamespace(parts=parts, device="cpu", dtype=torch.float32)
        >>> list(LinearProbe(n_train=100, pixels=False).evaluate(method, data, "test", torch.Generator()))
        ['probe_accuracy']
    """

    needs = "methods with a posterior or an encoder, and data with labels"
    needs_labels = True

    def __init__(
        self,
        *,
        n_train: PositiveInt | None = None,
        dual: bool | Literal["auto"] = "auto",
        max_iter: PositiveInt = 1000,
        standardize: bool = False,
        pixels: bool = True,
    ) -> None:
        self.n_train = n_train
        self.dual = dual
        self.max_iter = max_iter
        self.standardize = standardize
        self.pixels = pixels

    def applies(self, method: Method, data: ArrayDataModule) -> bool:
        """Return whether the metric applies to a method and its data; see :meth:`Metric.applies`."""
        return method.parts.encoding is not None and data.labels is not None and data.labels.train.dim() == 1

    def evaluate(
        self, method: Method, data: ArrayDataModule, split: str, generator: torch.Generator
    ) -> dict[str, float]:
        """Evaluate a method on a split; see :meth:`Metric.evaluate`."""
        labels = cast(Splits, data.labels)
        n = data.n_train_without(split)
        examples = data.splits.train[:n][: self.n_train], getattr(data.splits, split)
        known = labels.train[:n][: self.n_train].numpy(), getattr(labels, split).numpy()
        if len(np.unique(known[0])) < 2:  # the classifier needs two classes
            return {}
        means = tuple(posterior_means(method, data, rows) for rows in examples)
        features = [means]
        if self.pixels:
            pixels = tuple(flat_pixels(data, rows) for rows in examples)
            n_components = min(cast(Any, method.parts.encoding).h_dim, *pixels[0].shape)
            pca = PCA(n_components=n_components, random_state=0).fit(pixels[0])
            features += [pixels, tuple(pca.transform(part) for part in pixels)]
        return {name: self.accuracy(pair, known) for name, pair in zip(NAMES, features, strict=False)}

    def accuracy(self, features: tuple[np.ndarray, ...], labels: tuple[np.ndarray, np.ndarray]) -> float:
        """Train the linear classifier on the training features, and return its accuracy on the test features.

        Args:
            features: The features for training, shape (n, D), and for testing, shape (m, D).
            labels: The labels for training, shape (n,), and for testing, shape (m,).

        Returns:
            The fraction of the m examples that are classified correctly.
        """
        # scikit-learn accepts a boolean as dual, although its type hints do not allow it
        svm = LinearSVC(max_iter=self.max_iter, dual=self.dual, random_state=0)  # pyright: ignore[reportArgumentType]
        model = make_pipeline(StandardScaler(), svm) if self.standardize else svm
        model.fit(features[0], labels[0])
        return float(model.score(features[1], labels[1]))
