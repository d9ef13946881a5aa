"""Start a run: choose its device and precision, write its configuration, and set its initial parameters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import yaml
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.utilities import rank_zero_only

from eblvm_lit.energies.bernoulli_rbm import BernoulliRBM
from eblvm_lit.energies.deep_boltzmann import DeepBoltzmannMachine
from eblvm_lit.errors import ConfigError
from eblvm_lit.methods.base import Method
from eblvm_lit.runs.build import Parts, root_device
from eblvm_lit.runs.load import load
from eblvm_lit.runs.resume import changed_rates, check_settings, check_splits
from eblvm_lit.training import precision
from eblvm_lit.training.checkpoint_io import load_checkpoint, restore
from eblvm_lit.training.loggers.base import resume_runs
from eblvm_lit.utils.io import PARTIAL, write_text
from eblvm_lit.utils.run_files import COMMAND
from eblvm_lit.utils.torch_settings import find_device

__all__ = ["choose_device", "choose_precision", "keep_records", "start"]

log = logging.getLogger(__name__)


def choose_precision(trainer: DictConfig, method: Method, resume_from: Path | None) -> str:
    """Choose the numerical precision of a run from the setting ``trainer.precision``.

    The setting ``auto`` keeps the precision of a resumed checkpoint. Where bfloat16 is asked for and the device has to
    emulate it, the log warns before the training starts.
    """
    wanted = trainer.precision
    before = None
    if resume_from is not None and wanted == "auto":
        stored = load_checkpoint(resume_from)["eblvm_lit"]["config"]
        before = stored.get("trainer", {}).get("precision")
    device = root_device(trainer)
    chosen, reason = precision.choose_precision(wanted, method, device, before)
    if reason is not None:
        log.info("precision=auto: %s, %s.", chosen, reason)
    if chosen == precision.HALF and not precision.multiplies_bfloat16(device):
        log.warning(
            "This %s has no units for bfloat16 and emulates them, which is up to 50 times slower than float32: "
            "interrupt the run and set trainer.precision=32-true.",
            device.type,
        )
    return chosen


def choose_device(wanted: str | None, stored: DictConfig) -> torch.device:
    """Choose the device of an evaluation: the requested device, or the type of device on which the run was trained.

    The type matters, because random numbers differ between CPUs and GPUs.

    Args:
        wanted: A device of torch, ``gpu`` or ``auto``; None for the type that trained the run, if this machine has one.
        stored: The configuration of the run.
    """
    on_gpu = torch.cuda.is_available() and OmegaConf.select(stored, "trainer.accelerator") != "cpu"
    return find_device(wanted or ("cuda" if on_gpu else "cpu"))


def keep_records(folder: Path, config: Mapping[str, Any], command: Mapping[str, Any]) -> Callable[[], None]:
    """Return a function that, when first called, writes the configuration and the command of a run into its folder.

    Only the first process writes these files. The function is called when the first minibatch is done: until then the
    run may be refused, and its folder must not change.

    Args:
        folder: The folder of the run.
        config: The resolved configuration, for ``config.yaml``.
        command: The command line, in the form of :func:`~eblvm_lit.utils.run_files.read_command`, for ``command.yaml``;
            empty without Hydra.
    """

    @cache
    @rank_zero_only
    def write() -> None:
        (folder / "metrics.json").unlink(missing_ok=True)  # the file would mark this run as finished
        places = (folder, folder / "checkpoints", folder / "figures")
        for leftover in [path for place in places for path in place.glob(PARTIAL) if path.is_file()]:
            leftover.unlink()  # it is a partial file of a process that was killed while writing
        if command:
            write_text(folder / COMMAND, yaml.safe_dump(dict(command), sort_keys=False))
        write_text(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(dict(config))))

    return write


def start(cfg: DictConfig, parts: Parts, trainer: pl.Trainer, resume_from: Path | None) -> None:
    """Load the parameters of a checkpoint or of another model, if the run starts from one, and log the configuration.

    Args:
        cfg: The configuration of the run.
        parts: The parts of the run; the method has random parameters that depend on the seed.
        trainer: The trainer of the run.
        resume_from: The checkpoint that the run resumes from; None for a new run, which takes the parameters of
            ``cfg.init_from`` if it is given.
    """
    method = parts.method
    if resume_from is not None:
        _resume(cfg, parts, trainer, resume_from)
    elif cfg.init_from is not None:
        # the last checkpoint, from which the other run would go on, and not the tested one
        trained = load(
            cfg.init_from, checkpoint="last", allow_packages=cfg.allow_packages, cache_dir=cfg.cache_dir
        ).method
        _begin_with(method, trained, cfg.init_from)
    for logger in trainer.loggers:
        logger.log_hyperparams(method.description)


def _resume(cfg: DictConfig, parts: Parts, trainer: pl.Trainer, path: Path) -> None:
    """Check that a checkpoint fits this run, restore the method from it, and continue the logs.

    Raises:
        ConfigError: If the checkpoint has another method, other sizes, or other settings that ``resume.allow`` does not
            name, if it was trained on test examples, or if its iteration is beyond the end of this run.
    """
    method = parts.method
    checkpoint = load_checkpoint(path)
    # restore the method here, with the checkpoint's dtype, because Lightning would round float64 parameters
    begins = restore(method, checkpoint, path)
    if begins > trainer.max_steps:
        raise ConfigError(
            f"{path} is of iteration {begins}, beyond trainer.max_steps={trainer.max_steps}: raise that, or evaluate "
            "the checkpoint with evaluate.py."
        )
    check_splits(checkpoint, parts.data, cfg, path)
    check_settings(checkpoint, cfg, path)
    log.info("Resuming from iteration %d of %s.", begins, path)
    if changed := changed_rates(method, checkpoint, trainer.max_steps):
        log.warning("The learning rate leaves its schedule at iteration %d: %s.", begins, changed)
    resume_runs(trainer.loggers, checkpoint.get("loggers", {}), path.parent.parent, begins)


def _begin_with(method: Method, trained: Method, name: str) -> None:
    """Copy parameters from a trained method to a new method, for all networks that both methods have.

    A DBM may also begin with an RBM, whose latents become its first layer.

    Args:
        method: The method of the new run.
        trained: The trained method.
        name: The value of ``init_from``, for messages.

    Raises:
        ConfigError: If they have no network in common, or if a common network has other sizes or classes.
    """
    theirs = trained.networks()
    common = {key: network for key, network in method.networks().items() if key in theirs}
    if not common:
        raise ConfigError(f"init_from={name} has no network of this method.")
    for key, network in common.items():
        rbm = theirs[key]
        if isinstance(network, DeepBoltzmannMachine) and isinstance(rbm, BernoulliRBM):
            network.begin_with(rbm)
            continue
        try:
            network.load_state_dict(theirs[key].state_dict())
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1].strip()
            raise ConfigError(f"init_from={name} is of another model: {reason}") from None
        for other, own in zip_longest(map(_described, theirs[key].modules()), map(_described, network.modules())):
            if other != own:
                raise ConfigError(f"init_from={name} is of another model: it has {other}, this run {own}.")


def _described(module: torch.nn.Module) -> str:
    """Return the class of a module with the settings that its ``extra_repr`` shows, without its submodules.

    Example:
        >>> _described(torch.nn.Sequential(torch.nn.ELU())), _described(torch.nn.ELU())
        ('Sequential()', 'ELU(alpha=1.0)')
    """
    return f"{type(module).__name__}({module.extra_repr()})"
