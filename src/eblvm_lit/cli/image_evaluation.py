"""The metrics of images that any program has made: a folder of image files, a file of arrays, or arrays."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch

from eblvm_lit.cli.compose import composed
from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.data.image_readers import given_images
from eblvm_lit.data.images import ValueRange
from eblvm_lit.draws.given_images import GivenImages
from eblvm_lit.errors import ConfigError, EblvmError
from eblvm_lit.evaluation.sample_quality import SampleQuality
from eblvm_lit.methods.base import Method
from eblvm_lit.runs.console import quiet, show_results
from eblvm_lit.runs.instantiate import import_packages, instantiate
from eblvm_lit.runs.settings import adapt
from eblvm_lit.utils.folders import prepare_folder
from eblvm_lit.utils.io import write_json
from eblvm_lit.utils.torch_settings import find_device, torch_settings

__all__ = ["evaluate_images", "main"]

log = logging.getLogger(__name__)

GROUP = "evaluation@callbacks.evaluation.metrics"


def evaluate_images(
    images: Any,
    overrides: Sequence[str] = (),
    *,
    key: str | None = None,
    value_range: ValueRange | None = None,
    config_dir: str | Path | None = None,
) -> dict[str, float]:
    """Compute the metrics that need only samples for images that any program has made.

    By default these are distances, precision, recall, density, coverage and the classes of samples in the features of a
    classifier of the data set's labels, and FID, KID and their kind if the weights of Inception are at hand.

    Args:
        images: A folder of image files, a file of arrays, an array or a tensor; see
            :func:`~eblvm_lit.data.image_readers.given_images`.
        overrides: The data set and other metrics as on the command line, such as ``["data=mnist"]``.
        key: The name of the array in a file with several.
        value_range: The range of floats, ``unit`` for [0, 1] or ``symmetric`` for [-1, 1]; found by default.
        config_dir: Your own configuration folder, as in ``--config-dir``.

    Returns:
        The metrics by the names that a run gives them.

    Raises:
        EblvmError: For every error that the user can correct.

    Example:
        >>> import tempfile
        >>> from eblvm_lit import Digits
        >>> data = Digits()
        >>> data.setup()
        >>> words = ["data=digits", f"cache_dir={tempfile.mkdtemp()}", "evaluation@callbacks.evaluation.metrics=points"]
        >>> found = evaluate_images(data.splits.train, words)
        >>> found["test/precision_raw"] > 0.8
        True
    """
    words = [overrides] if isinstance(overrides, str) else [*overrides]
    if any(word.startswith("ckpt=") for word in words):
        raise ConfigError("Images are evaluated without a checkpoint: leave ckpt= out, or images= to evaluate the run.")
    chosen = any(word.lstrip("+~").startswith(GROUP) for word in words)
    cfg = composed([*words, *([] if chosen else [f"{GROUP}=images"])], config_dir=config_dir)
    adapt(cfg)
    packages = import_packages(cfg.allow_packages, config_dir)
    data: ArrayDataModule = instantiate(cfg.data, "data", packages, ArrayDataModule)
    data.max_examples = cfg.max_examples
    if data.image_shape is None:
        raise ConfigError(f"{type(data).__name__} has no images: choose a data set of images, such as data=mnist.")
    data.setup()
    source = GivenImages()
    source.given = given_images(images, data, key=key, value_range=value_range)
    metrics = {
        name: instantiate(node, f"callbacks.evaluation.metrics.{name}", packages, SampleQuality)
        for name, node in cfg.callbacks.evaluation.metrics.items()
        if node is not None and node.get("_target_", "").endswith(SampleQuality.__name__)
    }
    device = find_device("auto")
    stand_in = cast(Method, SimpleNamespace(device=device, seed=cfg.seed))
    found: dict[str, float] = {}
    with torch.no_grad(), torch_settings(cfg.threads, cfg.tf32):
        for name, metric in metrics.items():
            if not chosen and (lacking := metric.features.lacking(data)):
                log.info("%s is left out: %s", name, lacking)
                continue
            metric.images = source
            metric.n_samples = {"test": min(len(source.given), metric.n_samples["test"])}
            metric.prepare(stand_in, data)
            log.info("%s: %s of %s images.", name, f"{metric.n_samples['test']:,}", f"{len(source.given):,}")
            found |= metric.evaluate(stand_in, data, "test", torch.Generator())
    if not found:
        raise ConfigError(f"No metric is left: choose one that needs neither labels nor weights, by {GROUP}=points.")
    return {f"test/{name}": float(value) for name, value in found.items()}


def main(words: Sequence[str]) -> None:
    """Compute the metrics of the images that a command line names, print them, and write ``evaluation.json``."""
    quiet()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    own = {"images": "images", "images.key": "key", "images.range": "value_range"}
    given = {own[name]: value for name, _, value in (word.partition("=") for word in words) if name in own}
    others = [word for word in words if word.partition("=")[0] not in own]
    folder = next((word.partition("=")[2] for word in words if word.startswith(("run_dir=", "hydra.run.dir="))), None)
    try:
        metrics = evaluate_images(overrides=others, **cast(Any, given))
        folder = prepare_folder(folder or datetime.now().strftime("outputs/%Y-%m-%d/%H-%M-%S"))
        write_json(folder / "evaluation.json", metrics)
    except EblvmError as error:
        sys.exit(f"ERROR: {error}")
    show_results(metrics, folder)
