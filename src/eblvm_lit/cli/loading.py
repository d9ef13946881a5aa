"""Loading of what was trained: runs, checkpoints, and the trained models of the package."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from omegaconf import DictConfig, OmegaConf

from eblvm_lit.cli.checkpoint_config import stored_config
from eblvm_lit.cli.instantiate import import_packages, instantiate
from eblvm_lit.cli.trained_run import TrainedRun
from eblvm_lit.errors import DataError
from eblvm_lit.training.checkpoint_io import checkpoint_file, load_checkpoint, restore
from eblvm_lit.utils.torch_settings import find_device

__all__ = ["LATENTS", "MODELS", "PRETRAINED", "load"]

PRETRAINED = Path(__file__).parents[1] / "pretrained"
LATENTS = "latents"  # posterior means of training examples, beside the parameters

# SHA-256 of each file of parameters: it is the file that the model card describes.
MODELS = {
    "bidvl_mnist": "767feea92b9d142399017c24387f70cb81acaca12c31e499b2620bef2567fa30",
    "bimdsm_mnist": "08c105bbaf59e2ad54f4353077369006b306ecf78f27fd0168aee398fd23eaa7",
    "grbm_digits": "5adfd42430d27774a7c221da039210280c3fd913bdfa98484c634a3297e38b4f",
    "vages_mnist": "87a55b860cc5750776aed9990c910c27fcfd0020bd936753d390bf1eb86692a7",
}


def load(
    path: str | Path,
    *,
    checkpoint: str = "last",
    device: str | int | torch.device = "cpu",
    eval_weights: str | None = None,
    allow_packages: Sequence[str] = (),
    cache_dir: str | Path = "outputs/cache",
    config_dir: str | Path | None = None,
) -> TrainedRun:
    """Load what was trained: a run, a checkpoint, or a trained model of the package by its name.

    Checkpoints are read as data and run no code. The trained models are ``grbm_digits``, ``bidvl_mnist``,
    ``bimdsm_mnist`` and ``vages_mnist``; docs/python.md has their data and training.

    Args:
        path: The folder of a run, a checkpoint, or the name of a trained model where there is no such path.
        checkpoint: ``last`` or ``best``, of a folder.
        device: Where the model goes: a device of torch, ``gpu``, or ``auto`` for the GPU where there is one.
        eval_weights: ``raw`` for the parameters or ``ema`` for their averages; as in the run if not given.
        allow_packages: Packages of yours that the configuration may name.
        cache_dir: Where the run's data set may keep prepared files.
        config_dir: The folder of configurations of yours, as ``--config-dir``: these packages may be beside it.

    Raises:
        DataError: If there is no run, or it is damaged or of another version.
        ConfigError: If the configuration names what it may not name, or there is no such device.

    Example:
        >>> run = load("grbm_digits")
        >>> run.energy, run.metrics["test/log_likelihood"]
        (GRBM(event_shape=(64,), h_dim=200), 19.47)
    """
    if str(path) in MODELS and not Path(path).exists():
        return _shipped(str(path), find_device(device))
    packages, device = import_packages(allow_packages, config_dir), find_device(device)
    file = checkpoint_file(path, checkpoint)
    content = load_checkpoint(file)
    folder = file.parent.parent if (file.parent.parent / "config.yaml").is_file() else None
    run_dir = file.parent if folder is None else folder
    asked = {"ckpt": str(file), "run_dir": str(run_dir), "cache_dir": str(cache_dir), "data_root": None, "seed": None}
    asked |= {"eval_weights": eval_weights, "allow_packages": packages}
    config = stored_config(content["eblvm_lit"]["config"], OmegaConf.create(asked))
    with torch.random.fork_rng(devices=[]):  # initial parameters are drawn, and replaced
        method = instantiate(config.method, "method", packages)
    iteration = restore(method, content, file, "ema" if config.eval_weights == "ema" else "raw")
    method.to(device).eval()
    # of a checkpoint of a Trainer of the user's; its parameters are those that are loaded here, averages or not
    method.description = {**content["eblvm_lit"]["config"], "eval_weights": "raw"}
    return TrainedRun(method=method, config=config, iteration=iteration, folder=folder, packages=packages)


def _shipped(name: str, device: torch.device) -> TrainedRun:
    """A trained model of the package, from its parameters and its card."""
    path = PRETRAINED / f"{name}.pt"
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != MODELS[name]:
        raise DataError(f"{path} is missing or not the published file: install eblvm_lit again.")
    card = json.loads(path.with_suffix(".json").read_text())
    config = cast(DictConfig, OmegaConf.create(card["config"]))
    with torch.random.fork_rng(devices=[]):  # initial parameters are drawn, and replaced
        method = instantiate(config.method, "method")
    state = torch.load(path, map_location="cpu", weights_only=True)
    latents = state.pop(LATENTS, None)
    method.load_state_dict(state)
    method.to(device).eval()
    plain = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))
    method.description = {"callbacks": {}, **plain}  # of a checkpoint of a Trainer of the user's
    found = {"iteration": card["iteration"], "metrics": card["metrics"], "latents": latents}
    return TrainedRun(method=method, config=config, **found)
