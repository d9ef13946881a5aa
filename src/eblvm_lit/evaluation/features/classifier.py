"""The features of a classifier of the data's own labels, shipped with the package for MNIST and trained for others."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal, cast

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from safetensors import safe_open
from torch import Tensor

from eblvm_lit.core.ranges import Seed
from eblvm_lit.core.ranks import first_rank_first
from eblvm_lit.core.seeding import derive_seed
from eblvm_lit.data.base import ArrayDataModule, Splits, image_shape_of
from eblvm_lit.errors import ConfigError
from eblvm_lit.evaluation.features.base import FeatureExtractor, Features, Titles
from eblvm_lit.evaluation.features.classifier_training import accuracy, centred, fit
from eblvm_lit.evaluation.features.image_bytes import content_fingerprint
from eblvm_lit.networks.image_classifier import ImageClassifier
from eblvm_lit.utils.digest import digest
from eblvm_lit.utils.io import read_cached, write_whole
from eblvm_lit.utils.untrusted import read_tensors

__all__ = ["ClassifierFeatures"]

log = logging.getLogger(__name__)

SHIPPED = Path(__file__).parents[2] / "pretrained"


class ClassifierFeatures(FeatureExtractor):
    """The last hidden layer of a small convolutional network that is trained on the labels of the training split.

    Use it for images that differ much from Inception's training images, such as digits. The criteria are named
    ``fd_classifier``, ``kd_classifier`` and ``classifier_score``: they compare models of the same data, and are not
    comparable with FID.

    The same training on two kinds of processors gives two networks, whose distances differ by a tenth. For MNIST of
    32 x 32 and of 16 x 16 pixels the network is therefore part of the package, and trained only for other data or
    settings: once, on the CPU, and cached in a file whose name contains a digest of everything that it depends on.

    Args:
        cache_dir: Folder of the cached file.
        version: Version of the networks that are part of the package; None trains a network for all data. It is
            reported as ``classifier_version`` beside the numbers, unless the network was trained on this machine.
        width: Number of channels of the first layers.
        dim: Number of features.
        n_steps: Number of batches in training.
        lr: Initial learning rate of Adam.
        batch_size: Number of images in a batch, in training and in evaluation.
        seed: Seed of the initial weights and of the batches.

    Example:
        >>> ClassifierFeatures(cache_dir="outputs/cache").titles.frechet
        'fd_classifier'
    """

    name = "classifier"
    titles = Titles("fd_classifier", "kd_classifier", "classifier_score", "_classifier")
    resize = "none"

    def __init__(
        self,
        *,
        cache_dir: str,
        version: Literal[1] | None = None,
        width: PositiveInt = 32,
        dim: PositiveInt = 128,
        n_steps: NonNegativeInt = 1000,
        lr: PositiveFloat = 3e-3,
        batch_size: PositiveInt = 100,
        seed: Seed = 0,
    ) -> None:
        self.cache_dir = cache_dir
        self.asked_version = version
        self.width = width
        self.dim = dim
        self.n_steps = n_steps
        self.lr = lr
        self.batch_size = batch_size
        self.seed = seed
        self.accuracy: float | None = None
        self._network: ImageClassifier | None = None

    def lacking(self, data: ArrayDataModule) -> str:
        """Return the words that the data have no labels, or nothing; see :meth:`FeatureExtractor.lacking`."""
        return "" if data.labels is not None else f"{type(data).__name__} has no labels to train a classifier on"

    def prepare(self, data: ArrayDataModule) -> None:
        """Read the network from the package or the cached file or, if there is none, train it; later calls do nothing.

        Raises:
            ConfigError: If the data have no labels.
        """
        if self._network is not None:
            return
        if lacking := self.lacking(data):
            raise ConfigError(f"{lacking}: choose data with labels, or evaluation=fid.")
        shipped = self.shipped(data)
        if shipped.is_file():
            self.version = self.asked_version
            self._network, self.accuracy = self._read(shipped, data)
        else:
            self._network, self.accuracy = first_rank_first(lambda: self.trained(data))
        self._network.requires_grad_(False).eval()
        # labels in two dimensions are attributes, for which the network has no class logits: an image may have several
        self.classifies = cast(Splits, data.labels).train.dim() == 1
        self.fingerprint = digest(self._network)
        words = type(data).__name__, "" if self.version is None else f" (version {self.version})"
        log.info("The classifier of %s%s predicts %.2f %% of the test labels.", *words, 100 * self.accuracy)

    @torch.no_grad()
    def extract(self, images: Tensor) -> Features:
        """Compute features (B, dim) and logits (B, n_classes); see :meth:`FeatureExtractor.extract`."""
        network = cast(ImageClassifier, self._network).to(images.device)
        with torch.autocast(images.device.type, enabled=False):
            features, logits = network(centred(images))
        return Features(features, logits if self.classifies else None)

    def path(self, data: ArrayDataModule) -> Path:
        """Return the path of the cached network: ``.../classifier-<data>-<digest of data and settings>.pt``."""
        settings = self.width, self.dim, self.n_steps, self.lr, self.batch_size, self.seed
        contents = [content_fingerprint(x) for x in (*data.splits, *cast(Splits, data.labels))]
        key = digest(type(data).__name__, data.image_shape, *contents, *settings)
        return Path(self.cache_dir).expanduser() / f"classifier-{type(data).__name__}-{key}.pt"

    def shipped(self, data: ArrayDataModule) -> Path:
        """Return the path at which the package has a network of these data and settings, if it has one.

        The name does not depend on the data's content, so that all runs on a data set have the same network: also those
        that train on a part of it.
        """
        kind = type(data)
        settings = self.asked_version, self.width, self.dim, self.n_steps, self.lr, self.seed
        key = digest(kind.__module__, kind.__name__, data.image_shape, *settings)
        return SHIPPED / f"classifier-{kind.__name__}-{key}.safetensors"

    def trained(self, data: ArrayDataModule) -> tuple[ImageClassifier, float]:
        """Return the network and its test accuracy, from the cached file if it exists, else by training the network."""
        labels = cast(Splits, data.labels).train
        path = self.path(data)
        network = self._network_of(data, int(labels.max()) + 1 if labels.dim() == 1 else labels.shape[1])
        known = read_cached(path, read_tensors)
        if known is not None:
            network.load_state_dict(known["state_dict"])
            return network, known["accuracy"]
        fit(network, data, n_steps=self.n_steps, batch_size=self.batch_size, lr=self.lr, seed=self.seed)
        content = {"state_dict": network.state_dict(), "accuracy": accuracy(network, data)}
        write_whole(path, lambda file: torch.save(content, file))
        return network, content["accuracy"]

    def _read(self, path: Path, data: ArrayDataModule) -> tuple[ImageClassifier, float]:
        """Read a network of the package and its test accuracy."""
        with safe_open(path, "pt") as file:
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - the file is no dict
            known = file.metadata()
        network = self._network_of(data, len(state["head.bias"]))
        network.load_state_dict(state)
        return network, float(known["accuracy"])

    def _network_of(self, data: ArrayDataModule, n_classes: int) -> ImageClassifier:
        """Build a network with initial weights that are a function of the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(self.seed, "classifier", "weights"))
            return ImageClassifier(
                v_shape=image_shape_of(data), n_classes=n_classes, width=self.width, out_dim=self.dim
            ).float()
