"""The first screen of a run: method, model, data, length, device and folder; and the commands that its end suggests."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytorch_lightning as pl
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.table import Column, Table
from rich.text import Text

from eblvm_lit.cli.build import Parts
from eblvm_lit.cli.console import shortest
from eblvm_lit.cli.own_packages import config_folders
from eblvm_lit.cli.sweeps import in_sweep
from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.methods.base import Method
from eblvm_lit.training.provenance import device_name
from eblvm_lit.utils.printing import is_worker, show

__all__ = ["next_steps", "show_next_steps", "show_start"]


def show_start(cfg: DictConfig, parts: Parts, trainer: pl.Trainer) -> None:
    """Print what will run, on one screen; nothing in a worker of a parallel sweep, whose screens would interleave.

    Args:
        cfg: The configuration of the run.
        parts: Its parts; the data are loaded.
        trainer: Its trainer.
    """
    if is_worker():
        return
    method, data = parts.method, parts.data
    rows = {
        "method": method.title,
        "model": parameter_counts(method),
        "data": data_sizes(data),
        "training": f"{trainer.max_steps:,} iterations of {data.batch_size:,} examples, {cfg.n_validations} "
        f"validations, seed {cfg.seed}",
        "device": device(cfg, trainer),
        "results in": "",
    }
    grid = Table.grid(Column(no_wrap=True), Column(overflow="fold"), padding=(0, 2))
    for name, text in rows.items():
        grid.add_row(Text(name, style="bold"), Text(text))
    show(grid, f"  {shortest(Path(cfg.run_dir))}")


def parameter_counts(method: Method) -> str:
    """The class and the number of parameters of each network.

    Example:
        >>> from eblvm_lit.energies.grbm import GRBM
        >>> from eblvm_lit.methods.score_matching import ScoreMatching
        >>> from eblvm_lit.objectives.dsm import DSM
        >>> from eblvm_lit.optimizers.adam import Adam
        >>> parts = {"energy": GRBM(v_dim=2, h_dim=3), "objective": DSM(noise_std=0.1), "optimizer": Adam(lr=1e-3)}
        >>> parameter_counts(ScoreMatching(**parts))
        'GRBM with 13 parameters (theta)'
    """
    texts = []
    for name, network in method.networks().items():
        members = network.items() if isinstance(network, torch.nn.ModuleDict) else [(name, network)]
        for key, module in members:
            label = name if key == name else f"{name}, {key}"
            n = sum(p.numel() for p in module.parameters())
            texts.append(f"{type(module).__name__} with {n:,} parameters ({label})")
    return ", ".join(texts)


def data_sizes(data: ArrayDataModule) -> str:
    """The name, the shape of one v, and the examples of each split."""
    n_train, n_val, n_test = (f"{len(split):,}" for split in data.splits)
    shape = " x ".join(map(str, data.event_shape))
    return f"{type(data).__name__}: {n_train} train, {n_val} validation, {n_test} test examples of {shape} values"


def device(cfg: DictConfig, trainer: pl.Trainer) -> str:
    """The device, the processes or threads, and the precision."""
    found = [device_name(trainer.strategy.root_device)]
    if trainer.world_size > 1:
        found.append(f"{trainer.world_size} processes")
    if trainer.strategy.root_device.type == "cpu":
        n_threads = cfg.threads or torch.get_num_threads()
        found.append(f"{n_threads} threads" if n_threads > 1 else "1 thread")
    return ", ".join([*found, f"precision {cfg.trainer.precision}"])


def show_next_steps(cfg: DictConfig) -> None:
    """Print what can be done with a finished run; nothing in a sweep, where it would come once a job."""
    if in_sweep():
        return
    words = None
    if HydraConfig.initialized():  # else the run was started from Python, and no command resumes it
        words = [word for folder in config_folders() for word in ("--config-dir", shortest(folder))]
        words = [*words, *HydraConfig.get().overrides.task]
    packages = [cfg.allow_packages] if isinstance(cfg.allow_packages, str) else list(cfg.allow_packages)
    steps = next_steps(Path(cfg.run_dir), words, packages, cfg.trainer.max_steps, Path(cfg.outputs_dir))
    show("", *(f"{purpose:<9}{command}" for purpose, command in steps.items()))


def next_steps(
    folder: Path, words: Sequence[str] | None, packages: Sequence[str], max_steps: int, outputs: Path
) -> dict[str, str]:
    """Where the pictures are, and commands that evaluate, resume and compare a finished run.

    Args:
        folder: The run's folder.
        words: Of the run's command line; None if there was none.
        packages: The packages that it allows.
        max_steps: The run's iterations.
        outputs: The folder of all runs.

    Example:
        >>> steps = next_steps(Path("outputs/a"), ["method=dsm"], [], 1000, Path("outputs"))
        >>> steps["compare"]
        'python -m eblvm_lit.reports outputs'
    """
    steps = {}
    if (folder / "figures").is_dir():
        steps["pictures"] = shortest(folder / "figures")
    if (folder / "checkpoints" / "last.ckpt").is_file():
        ckpt = f"ckpt={shlex.quote(shortest(folder))}"
        allowed = [shlex.quote(f"allow_packages=[{','.join(packages)}]")] if packages else []
        # packages are looked for beside the configurations
        places = [f"--config-dir {shlex.quote(b)}" for a, b in pairwise(words or ()) if a == "--config-dir"]
        steps["evaluate"] = " ".join([program("evaluate"), *places, ckpt, *allowed])
        if words is not None:
            own = ("ckpt=", "run_dir=", "hydra.run.dir=", "trainer.max_steps=")
            kept = [shlex.quote(word) for word in words if not word.startswith(own)]
            steps["resume"] = " ".join([program("train"), *kept, ckpt, f"trainer.max_steps={2 * max_steps}"])
    inside = outputs.resolve() in folder.resolve().parents
    steps["compare"] = f"{program('report')} {shlex.quote(shortest(outputs if inside else folder))}"
    return steps


def program(name: str) -> str:
    """How this installation calls ``train``, ``evaluate`` or ``report``, by how it was called itself.

    Example:
        >>> program("report")
        'python -m eblvm_lit.reports'
    """
    called = Path(sys.argv[0])
    if called.name.startswith("eblvm-"):
        return f"eblvm-{name}"
    if name == "report":
        return "python -m eblvm_lit.reports"
    folder = called.parent if called.name in ("train.py", "evaluate.py") else Path()
    return f"python {shlex.quote(str(folder / f'{name}.py'))}"
