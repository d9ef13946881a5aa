"""Loading of the package's trained models by name."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, cast

import torch
from omegaconf import DictConfig, OmegaConf

from eblvm_lit.cli.instantiate import instantiate
from eblvm_lit.cli.trained_run import TrainedRun
from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.utils.torch_settings import find_device

__all__ = ["LATENTS", "MODELS", "pretrained"]

LATENTS = "latents"  # posterior means of training examples, beside the parameters

# SHA-256 of each file of parameters: it is the file that the model card describes.
MODELS = {
    "bidvl_mnist": "767feea92b9d142399017c24387f70cb81acaca12c31e499b2620bef2567fa30",
    "bimdsm_mnist": "08c105bbaf59e2ad54f4353077369006b306ecf78f27fd0168aee398fd23eaa7",
    "grbm_digits": "5adfd42430d27774a7c221da039210280c3fd913bdfa98484c634a3297e38b4f",
    "vages_mnist": "87a55b860cc5750776aed9990c910c27fcfd0020bd936753d390bf1eb86692a7",
}


def pretrained(name: str, *, device: str | int | torch.device = "cpu") -> TrainedRun:
    r"""A trained model of this project with its data, metrics and samplers, as :func:`~eblvm_lit.load` gives a run.

    .. math:: p(v, h) \propto \exp(-E(v, h; \hat\theta))

    Its data, training and metrics are in ``docs/pretrained.md``.

    Args:
        name: ``grbm_digits``: scikit-learn's digits, v = x / 16 in [0, 1]^64, 200 binary latents. ``bidvl_mnist``:
            MNIST padded to 32 x 32 pixels, in [-1, 1]; an energy, an encoder and a generator of 32 latents.
            ``bimdsm_mnist``: the same images in [0, 1]; E(v, h) of 20 latents and a posterior, by BiMDSM.
            ``vages_mnist``: the same model by VaGES-MDSM.
        device: Where the model goes: a device of torch, ``gpu``, or ``auto`` for the GPU where there is one.

    Raises:
        ConfigError: For an unknown name, or a device that is not there.
        DataError: If the file is missing or not the published one.

    Example:
        >>> run = pretrained("grbm_digits")
        >>> run.energy
        GRBM(event_shape=(64,), h_dim=200)
        >>> run.metrics["test/log_likelihood"]
        19.47
    """
    if name not in MODELS:
        raise ConfigError(
            f"There is no trained model {name!r}; there is {', '.join(MODELS)}. Load a run of yours by "
            "eblvm_lit.load(FOLDER)."
        )
    device = find_device(device)
    path = Path(__file__).with_name(f"{name}.pt")
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
