"""Packing of a run as a trained model of the package: python -m eblvm_lit.cli.packing RUN NAME."""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any, cast

import torch
from omegaconf import OmegaConf

from eblvm_lit.cli.loading import LATENTS, PRETRAINED, load
from eblvm_lit.cli.trained_run import TrainedRun
from eblvm_lit.errors import EblvmError
from eblvm_lit.samplers.chain_samples import ChainSamples
from eblvm_lit.samplers.eval_mode import posterior_mean
from eblvm_lit.samplers.gibbs import Gibbs

__all__ = ["main", "pack"]

N_LATENTS = 1000
KEPT = ("seed", "data", "method", "sampler")  # what a loaded model needs of its configuration


def pack(run: TrainedRun, path: Path, *, half: bool = False) -> str:
    """Write the parameters of a run as ``path``, and its card beside it as JSON.

    Args:
        run: The run, with the weights that are to be kept.
        path: Where the file of tensors goes, with the ending ``.pt``.
        half: Whether parameters are rounded to half precision, eleven significant bits: half the size. A loaded model
            has float32 parameters of these values.

    Returns:
        The SHA-256 of the file, for :data:`~eblvm_lit.cli.loading.MODELS`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     len(pack(load("grbm_digits"), Path(folder, "copy.pt")))
        64
    """
    state = {name: value.detach().cpu().clone() for name, value in run.method.state_dict().items()}
    if half:
        state = {name: value.half() if value.is_floating_point() else value for name, value in state.items()}
    annealed = run.generator is None and not Gibbs.supports(run.energy)
    sampler = run.sampler if annealed else None
    if isinstance(sampler, ChainSamples) and sampler.needs_examples and run.posterior is not None:
        state[LATENTS] = posterior_mean(run.posterior, run.examples("train")[:N_LATENTS]).cpu()
    torch.save(state, path)
    whole = cast(dict[str, Any], OmegaConf.to_container(run.config, resolve=True))
    config = {key: whole[key] for key in KEPT if whole.get(key) is not None}
    if "root" in config["data"]:  # where this machine keeps its files is of no use elsewhere
        config["data"]["root"] = "${oc.env:EBLVM_DATA,data}"
    card = {"iteration": run.iteration, "metrics": run.metrics, "config": config}
    path.with_suffix(".json").write_text(json.dumps(card, indent=2) + "\n")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> None:
    """Pack the run of the command line as a trained model of the package, and print what the list of models needs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="folder of a run")
    parser.add_argument("name", help="name of the model")
    parser.add_argument("--eval-weights", choices=["raw", "ema"], default="raw")
    parser.add_argument("--half", action="store_true", help="round parameters to half precision")
    arguments = parser.parse_args()
    try:
        run = load(arguments.run, eval_weights=arguments.eval_weights)
    except EblvmError as error:
        parser.exit(1, f"ERROR: {error}\n")
    path = PRETRAINED / f"{arguments.name}.pt"
    print(f'"{arguments.name}": "{pack(run, path, half=arguments.half)}"  # {path.stat().st_size:,} bytes')


if __name__ == "__main__":
    main()
