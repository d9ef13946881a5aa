"""Training from Python: the configuration of a command line is composed, run and returned as an object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from pytorch_lightning.utilities.seed import isolate_rng

from eblvm_lit.cli import run
from eblvm_lit.cli.commands import conf_folder, null_group
from eblvm_lit.cli.composition import known_keys, own_folder, sentence
from eblvm_lit.cli.own_packages import import_packages
from eblvm_lit.cli.renamed import new_name
from eblvm_lit.cli.trained_run import TrainedRun, load
from eblvm_lit.cli.validate import refuse_unread
from eblvm_lit.errors import ConfigError

__all__ = ["composed", "train"]


def composed(overrides: Sequence[str] = (), *, config_dir: str | Path | None = None) -> DictConfig:
    """The configuration of ``train.py`` with overrides, and a new folder for its results.

    Args:
        overrides: As on the command line, such as ``method=dsm``.
        config_dir: A folder with configurations of yours, as ``--config-dir``.

    Raises:
        ConfigError: For an option, a key, a value or a folder that does not exist.

    Example:
        >>> cfg = composed(["method=dsm", "trainer.max_steps=200"])
        >>> cfg.method._target_, cfg.trainer.max_steps
        ('eblvm_lit.methods.score_matching.ScoreMatching', 200)
        >>> composed(["metod=dsm"])
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: ...
    """
    if isinstance(overrides, Mapping):
        raise ConfigError("Give the settings as on the command line: a list of 'key=value', not a dictionary.")
    overrides = [overrides] if isinstance(overrides, str) else list(overrides)
    for override in overrides:
        _refuse_option(override)
        if renamed := new_name(override.lstrip("+~")):
            raise ConfigError(renamed)
    if refused := null_group(overrides):
        raise ConfigError(refused)
    search = [] if config_dir is None else [f"hydra.searchpath=[file://{own_folder(config_dir)}]"]
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(conf_folder()), job_name="train"):
            cfg = compose("config", [*search, *overrides], return_hydra_config=True)
        folder = OmegaConf.select(cfg, "hydra.run.dir")
    except (HydraException, OmegaConfBaseException) as error:
        reason = sentence(
            str(error).partition("\nSee https")[0], overrides, lambda: known_keys(conf_folder(), "config", overrides)
        )
        raise ConfigError(f"{reason} (in {' '.join(overrides)})") from None
    with open_dict(cfg):
        del cfg["hydra"]
    if not any(override.startswith("run_dir=") for override in overrides):
        cfg.run_dir = _unused(folder)
    refuse_unread(cfg, [override for override in overrides if not override.startswith("hydra")])
    return cfg


def _refuse_option(word: str) -> None:
    """Refuse an option of Hydra, which it would take for a badly written key."""
    if word in ("-m", "--multirun"):
        raise ConfigError(
            f"{word}: sweeps are of the command line, as train.py -m method=dsm,cd; call train once for each run."
        )
    if word.startswith("-"):
        raise ConfigError(
            f"{word}: options are of the command line; give settings as 'key=value', and a folder of configurations as "
            "config_dir=."
        )


def _unused(folder: str) -> str:
    """The folder, or one beside it if it holds a run already: two runs may start within one second."""
    if not (Path(folder) / "config.yaml").exists():
        return folder
    return f"{folder}-{datetime.now():%f}"


def train(overrides: Sequence[str] = (), *, config_dir: str | Path | None = None) -> TrainedRun:
    """Train as ``train.py`` does, from Python or a notebook, and return the trained run.

    Args:
        overrides: As on the command line, such as ``["method=dsm", "trainer.max_steps=200"]``.
        config_dir: A folder with configurations of yours, as ``--config-dir``.

    Returns:
        The run, as :func:`~eblvm_lit.cli.trained_run.load` gives it: the checkpoint that was tested.

    Raises:
        EblvmError: For everything that the user can correct.
    """
    cfg = composed(overrides, config_dir=config_dir)
    if OmegaConf.select(cfg, "callbacks.checkpoints") is None:
        raise ConfigError("train() returns what checkpoints hold: leave callbacks.checkpoints in.")
    folder, which = cfg.run_dir, "best" if cfg.test_checkpoint == "best" else "last"
    packages = import_packages(cfg.allow_packages, config_dir)
    with isolate_rng():  # a run sets the seeds of torch, NumPy and Python: those of the caller go on as they were
        run.train(cfg)
    return load(folder, checkpoint=which, allow_packages=packages, cache_dir=cfg.cache_dir)
