"""Train a model from Python: compose a configuration from overrides, run it, and return the trained run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

from hydra import compose
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from pytorch_lightning.utilities.seed import isolate_rng

from eblvm_lit.cli.fitting import fitted, fitting_words
from eblvm_lit.cli.hints import refuse_unread, sentence
from eblvm_lit.data.stored_arrays import arrays_to_store
from eblvm_lit.errors import ConfigError
from eblvm_lit.runs import run
from eblvm_lit.runs.groups import composing
from eblvm_lit.runs.instantiate import import_packages
from eblvm_lit.runs.load import load
from eblvm_lit.runs.trained_run import TrainedRun
from eblvm_lit.utils.folders import new_folder

__all__ = ["composed", "sampler_config", "train"]


def composed(overrides: Sequence[str] = (), *, config_dir: str | Path | None = None) -> DictConfig:
    """Compose the configuration of ``train.py`` with the given overrides.

    By default, ``run_dir`` is a timestamped folder.

    Args:
        overrides: The overrides as on the command line, such as ``method=dsm``.
        config_dir: Your own configuration folder, as in ``--config-dir``.

    Raises:
        ConfigError: If an option, a key or a value does not exist.

    Example:
        >>> cfg = composed(["method=dsm", "trainer.max_steps=200"])
        >>> cfg.method._target_, cfg.trainer.max_steps
        ('eblvm_lit.methods.score_matching.ScoreMatching', 200)
        >>> composed(["metod=dsm"])
        Traceback (most recent call last):
        ...
        eblvm_lit.errors.ConfigError: ...
    """
    overrides = _words(overrides)
    search = [] if config_dir is None else [f"hydra.searchpath=[file://{Path(config_dir).resolve()}]"]
    typed = overrides
    overrides = [*overrides, *fitting_words(overrides)]
    cfg = _compose("config", overrides, search, typed)
    choices = OmegaConf.select(cfg, "hydra.runtime.choices")
    cfg = fitted(cfg, choices, overrides, lambda more: _compose("config", [*overrides, *more], search, typed))
    folder = OmegaConf.select(cfg, "hydra.run.dir")
    with open_dict(cfg):
        del cfg["hydra"]
    if not any(override.startswith("run_dir=") for override in overrides):
        cfg.run_dir = folder
    refuse_unread(cfg, [override for override in overrides if not override.startswith("hydra")])
    return cfg


def sampler_config(overrides: Sequence[str]) -> dict[str, Any]:
    """Compose the configuration of a sampler from overrides, as the command line of ``evaluate.py`` does.

    Example:
        >>> sampler_config(["sampler=parallel_tempering", "sampler.dynamics.n_steps=5"])["dynamics"]["n_steps"]
        5
    """
    if other := [word for word in overrides if not word.lstrip("+~").startswith("sampler")]:
        raise ConfigError(f"{other[0]} cannot be set here: only the sampler can be chosen, by sampler=NAME.")
    cfg = _compose("evaluate", [*overrides, "ckpt=none"], (), overrides)
    return cast(dict[str, Any], OmegaConf.to_container(cfg.sampler))


def _words(overrides: str | Sequence[str]) -> list[str]:
    """Return the overrides as a list; a single string counts as one override."""
    return [overrides] if isinstance(overrides, str) else list(overrides)


def _compose(name: str, overrides: Sequence[str], search: Sequence[str], typed: Sequence[str]) -> DictConfig:
    """Compose a configuration; an error names only the overrides that were typed."""
    try:
        with composing():
            return compose(name, [*search, *overrides], return_hydra_config=True)
    except (HydraException, ValueError) as error:
        raise ConfigError(f"{sentence(error, name, overrides)} (in {' '.join(typed)})") from None


def train(
    overrides: Sequence[str] = (),
    *,
    data: Any = None,
    labels: Any = None,
    validation: Any = None,
    test: Any = None,
    config_dir: str | Path | None = None,
) -> TrainedRun:
    """Train a model from Python or a notebook in the same way as ``train.py``, and return the trained run.

    Arrays that are given as ``data`` are read as ``data=array`` reads files: vectors (n, d) of any d, or images (n, H,
    W), (n, C, H, W) or (n, H, W, C) of bytes or floats. The splits that are not given are taken from ``data`` by a hash
    of each example's content, and the model fits the kind of the data unless ``overrides`` choose one. The options of
    ``data=array`` are set in ``overrides``, such as ``"data.standardise=false"``.

    The arrays are copied into the folder of the run, so that ``evaluate.py`` and :func:`eblvm_lit.load` find them. A
    run of them is resumed from Python, with the same ``data`` and the word ``"ckpt=last"``.

    Args:
        overrides: The overrides as on the command line, such as ``["method=dsm", "trainer.max_steps=200"]``.
        data: A NumPy array, a tensor, a pandas frame, whose rows are examples, or a torch Dataset, whose items are
            examples or pairs (example, label). None trains on the data set that ``overrides`` choose.
        labels: The labels of ``data``, (n,): whole numbers or words, which only metrics and figures use.
        validation: Validation examples, in the kinds of ``data``, or a pair (examples, labels).
        test: Test examples, in the same way.
        config_dir: Your own configuration folder, as in ``--config-dir``.

    Returns:
        The run with the parameters of the tested checkpoint, as :func:`~eblvm_lit.load` returns it.

    Raises:
        EblvmError: For every error that the user can correct.
    """
    words = _words(overrides)
    if data is None and not (labels is validation is test is None):
        raise ConfigError("labels, validation and test belong to data: give data, too.")
    given = None
    if data is not None:
        if twice := [word for word in words if word.startswith(("data=", "data.train=", "data.path="))]:
            raise ConfigError(f"The data are given twice, by data and by {twice[0]}: leave one of them out.")
        given = arrays_to_store(data, labels, validation, test)
        words = [*given.overrides(words), *words]
    cfg = composed(words, config_dir=config_dir)
    if not any(word.startswith(("run_dir=", "hydra.run.dir=")) for word in words):
        cfg.run_dir = str(new_folder(cfg.run_dir))
    folder = cfg.run_dir
    packages = import_packages(cfg.allow_packages, config_dir)
    # restore the caller's random states afterwards, because a run seeds torch, NumPy and Python
    with isolate_rng(), nullcontext() if given is None else given.stored_in(Path(folder)):
        run.train(cfg, {"overrides": words})
    return load(folder, allow_packages=packages, cache_dir=cfg.cache_dir)
