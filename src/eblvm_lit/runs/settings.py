"""Settings of a run that are not arguments of a constructor, and settings that depend on the data files."""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from eblvm_lit.core.ranges import ImageShape, Seed
from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.errors import ConfigError
from eblvm_lit.runs.annotations import Steps, argument_types, check_arguments, check_values, typed_key
from eblvm_lit.runs.instantiate import instantiate, packages_of, resolve_target, to_plain

__all__ = ["EVALUATION", "RUN", "TRAINER", "adapt", "check_config", "check_plain"]

log = logging.getLogger(__name__)


# The types of the top-level keys of a run's configuration.
RUN: dict[str, Any] = {
    **dict.fromkeys(("data", "method", "trainer"), dict[str, Any]),
    **dict.fromkeys(("logger", "sampler", "latent_langevin", "data_energy"), dict[str, Any] | None),
    **dict.fromkeys(("run_dir", "outputs_dir", "cache_dir"), str),
    **dict.fromkeys(("ckpt", "init_from", "optimized_metric"), str | None),
    **dict.fromkeys(("summary", "show_config"), bool),
    "callbacks": dict[str, dict[str, Any] | None],
    "seed": Seed,
    "test_checkpoint": Literal["last", "best", "both"],
    "eval_weights": Literal["raw", "ema", "both"],
    "max_examples": PositiveInt | None,
    "n_validations": PositiveInt,
    "iterations_per_batch": PositiveInt,
    "compile": bool | Literal["auto"],
    "threads": PositiveInt | None,
    "tf32": bool | None,
    "final_lr": NonNegativeFloat | None,
    "allow_packages": str | Sequence[str] | None,
    "resume": dict[str, str | Sequence[str] | None],
    "sweep": dict[str, bool],
}
# The types of Trainer options, for those options whose accepted values are fewer than in Lightning.
TRAINER: dict[str, Any] = {
    "max_steps": PositiveInt,
    "num_nodes": PositiveInt,
    # at most eight processes per core: more processes, which take 900 MB each, would fill the memory before training
    "devices": Annotated[int, Field(ge=-1, le=8 * (os.cpu_count() or 1))]
    | Annotated[str, Field(pattern=r"^(auto|-1|\d|\d+(,\d+)+)$")]
    | Sequence[NonNegativeInt],
    # float16 is left out, because its loss scaler does not work with second derivatives
    "precision": Literal["32-true", "64-true", "bf16-mixed", "auto"],
    "log_every_n_steps": PositiveInt,
    "overfit_batches": NonNegativeInt,
}
# The types of the top-level keys with which an evaluation overrides the run's configuration.
EVALUATION: dict[str, Any] = {
    **dict.fromkeys(("device", "data_root", "cache_dir", "run_dir"), str | None),
    "seed": Seed | None,
    "eval_weights": Literal["raw", "ema", "both"] | None,
    "resume": RUN["resume"],
}


def adapt(cfg: DictConfig) -> None:
    """Set the values that depend on the data files: the size of images in a folder, and the shape of an example v.

    A run with fewer iterations than validations is validated after each iteration.

    Args:
        cfg: The composed configuration, which is changed in place.

    Raises:
        ConfigError: If the data set cannot be built, or is not a data module.
        DataError: If the files of the data are missing or damaged.

    Example:
        >>> data = {"_target_": "eblvm_lit.data.toy.Checkerboard"}
        >>> cfg = {"data": data, "sizes": {"v_shape": "???"}, "trainer": {"max_steps": 5}, "n_validations": 10}
        >>> adapt(cfg := OmegaConf.create(cfg))
        >>> cfg.sizes.v_shape, cfg.n_validations
        ([2], 5)
    """
    packages = packages_of(cfg)
    data = instantiate(cfg.data, "data", packages, ArrayDataModule)
    found, line = data.find_options()
    if found:
        with open_dict(cfg.data):  # a configuration may leave out keys that have a default
            cfg.data.update(found)
        data = instantiate(cfg.data, "data", packages)
        log.info("%s", line)
    cfg.sizes.v_shape = list(data.event_shape)
    cfg.n_validations = min(cfg.n_validations, cfg.trainer.max_steps)


def check_config(cfg: DictConfig) -> None:
    """Refuse a configuration with missing values, values of wrong types, or an image model for vectors.

    This is done before any object is built.

    Raises:
        ConfigError: With the first problem.
    """
    check_values({"allow_packages": to_plain(cfg.get("allow_packages"))}, RUN, functools.partial(typed_key, cfg, ""))
    resolve = functools.partial(resolve_target, packages=packages_of(cfg))
    shape = OmegaConf.select(cfg, "sizes.v_shape")
    for name in ("model", "generator"):
        targets = re.findall(r"'_target_': '([\w.]+)'", str(cfg.get(name)))
        takes_images = any(ImageShape in argument_types(resolve(target)).values() for target in targets)
        if takes_images and isinstance(shape, ListConfig) and len(shape) == 1:
            raise ConfigError(f"The {name} needs images, and the data are vectors: use images, such as data=mnist.")
    check_plain(to_plain(cfg), resolve, functools.partial(typed_key, cfg, ""))
    if cfg.callbacks.get("checkpoints") is None:
        raise ConfigError("The final metrics are those of a checkpoint: do not remove callbacks.checkpoints.")
    if cfg.eval_weights != "raw" and cfg.callbacks.get("ema") is None:
        raise ConfigError(f"eval_weights={cfg.eval_weights} needs averages of the parameters: add callbacks=ema.")


def check_plain(plain: Mapping[str, Any], resolve: Callable[[str], type], key_of: Callable[[Steps], str]) -> None:
    """Check the types of all values that a run uses: its settings, constructor arguments and Trainer options.

    Args:
        plain: The configuration as plain containers.
        resolve: Returns the class of a ``_target_``.
        key_of: Returns the name, for messages, of the place that a sequence of keys and indices leads to.

    Raises:
        ConfigError: With the first key whose value has a wrong type or range.
    """
    check_values(plain, RUN, key_of)
    for name in ("data", "method", "callbacks", "logger", "sampler", "latent_langevin"):
        check_arguments(plain.get(name), resolve, key_of, (name,))
    options = {name: value for name, value in plain["trainer"].items() if name != "_target_"}
    types = argument_types(resolve(plain["trainer"]["_target_"])) | TRAINER
    check_values(check_arguments(options, resolve, key_of), types, lambda steps: key_of(("trainer", *steps)))
