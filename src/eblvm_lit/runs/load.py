"""Load trained models from runs, checkpoints, shared folders, this package and the Hugging Face Hub."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch
from omegaconf import OmegaConf

from eblvm_lit.errors import DataError
from eblvm_lit.methods.base import Method
from eblvm_lit.runs.instantiate import import_packages, instantiate
from eblvm_lit.runs.sharing import WEIGHTS, download, read_pretrained
from eblvm_lit.runs.stored_config import stored_config
from eblvm_lit.runs.trained_run import TrainedRun
from eblvm_lit.training.checkpoint_io import checkpoint_file, load_checkpoint, restore, tested_checkpoint
from eblvm_lit.utils.command_line import nearest
from eblvm_lit.utils.torch_settings import find_device

__all__ = ["PRETRAINED", "from_pretrained", "load"]

PRETRAINED = Path(__file__).parents[1] / "pretrained"


def load(
    path: str | Path,
    *,
    checkpoint: str | None = None,
    device: str | int | torch.device = "cpu",
    eval_weights: str | None = None,
    allow_packages: Sequence[str] = (),
    cache_dir: str | Path = "outputs/cache",
    config_dir: str | Path | None = None,
) -> TrainedRun:
    """Load a trained model from a run, a checkpoint or a shared folder, or one of this package's models by name.

    Files are read as data and run no code. The trained models of this package are ``grbm_digits``, ``bidvl_mnist``,
    ``bimdsm_mnist``, ``vages_mnist``, ``dual_mnist`` and ``dual_mnist_guide``; docs/python.md has their data and
    training.

    Args:
        path: A folder, a checkpoint, or the name of a trained model if no such path exists.
        checkpoint: The checkpoint of a run's folder, ``last`` or ``best``; None for the one that was tested, to which
            the run's final metrics belong.
        device: The device of the model: a device of torch, ``gpu``, or ``auto`` for a GPU if there is one.
        eval_weights: ``raw`` for the parameters or ``ema`` for their moving averages; as in the run if not given.
        allow_packages: Your own packages that the configuration may name.
        cache_dir: The folder in which the run's data set may keep prepared files.
        config_dir: Your configuration folder, as in ``--config-dir``; your packages may be beside it.

    Raises:
        DataError: If there is no such model, or it is damaged or of another version.
        ConfigError: If the configuration names a class that is not allowed, or there is no such device.

    Example:
        >>> run = load("grbm_digits")
        >>> run.energy, run.metrics["test/log_likelihood"]
        (GRBM(event_shape=(64,), h_dim=200), 19.48)
    """
    packages = import_packages(allow_packages, config_dir)
    device = find_device(device)
    shipped = PRETRAINED / str(path)
    path = shipped if shipped.is_dir() and not Path(str(path)).exists() else Path(str(path))
    named = f"{checkpoint or 'last'}.ckpt"
    if not any(file.is_file() for file in (path, path / WEIGHTS, path / "checkpoints" / named)):
        names = sorted(folder.name for folder in PRETRAINED.iterdir() if (folder / WEIGHTS).is_file())
        raise DataError(
            f"There is no checkpoint at {path}: name one, the folder of a run with checkpoints/{named}, that "
            f"of a model with {WEIGHTS}, or one of {', '.join(names)}."
            + (f" Did you mean {near}?" if (near := nearest(str(path), names)) else "")
        )
    if (path / WEIGHTS).is_file():
        file = path / WEIGHTS
        content = read_pretrained(path)
        folder = None
    else:
        file = tested_checkpoint(path) if checkpoint is None else checkpoint_file(path, checkpoint)
        content = load_checkpoint(file)
        folder = file.parent.parent if (file.parent.parent / "config.yaml").is_file() else None
    run_dir = file.parent if folder is None else folder
    asked = {"ckpt": str(file), "run_dir": str(run_dir), "cache_dir": str(cache_dir), "data_root": None, "seed": None}
    asked |= {"eval_weights": eval_weights, "allow_packages": packages}
    config = stored_config(content["eblvm_lit"]["config"], OmegaConf.create(asked))
    # keep the state of torch's generator: the method draws initial parameters, which restore then replaces
    with torch.random.fork_rng(devices=[]):
        method = instantiate(config.method, "method", packages, Method)
    iteration = restore(method, content, file, "ema" if config.eval_weights == "ema" else "raw")
    method.to(device).eval()
    # If the user's own Trainer saves a checkpoint later, it stores the loaded parameters as raw parameters, even if
    # they are moving averages.
    method.description = {**content["eblvm_lit"]["config"], "eval_weights": "raw"}
    found = {name: content.get(name) for name in ("metrics", "starts", "log_z")}
    run = TrainedRun(method=method, config=config, iteration=iteration, folder=folder, packages=packages, **found)
    if eval_weights is None:  # otherwise, the run's metrics may belong to parameters other than the loaded ones
        run.learn_log_partition()
    return run


def from_pretrained(
    path: str | Path, *, revision: str | None = None, device: str = "cpu", allow_packages: Sequence[str] = ()
) -> TrainedRun:
    """Load a model that :meth:`~eblvm_lit.runs.trained_run.TrainedRun.save_pretrained` wrote.

    Args:
        path: The folder of the model, the name of a model of this package, or ``OWNER/NAME`` of a model on the Hugging
            Face Hub, which needs the package ``huggingface_hub``.
        revision: A branch, a tag or a commit on the Hub.
        device: The device of the model, as in :func:`load`.
        allow_packages: Your own packages that the configuration may name.

    Raises:
        DataError: If there is no such model, or its files are damaged.
        ConfigError: If the files do not fit each other.

    Example:
        >>> from_pretrained("grbm_digits").sample(2).shape
        torch.Size([2, 64])
    """
    if re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)) and not Path(path).exists():
        path = download(str(path), revision)
    return load(path, device=device, allow_packages=allow_packages)
