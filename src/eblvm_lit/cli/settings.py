"""Settings of a run that no constructor checks, and those that only the files of the data decide."""

from __future__ import annotations

import logging
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from eblvm_lit.cli.instantiate import LIBRARIES, import_packages, instantiate, to_plain
from eblvm_lit.cli.results import WEIGHTS
from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.errors import ConfigError

__all__ = ["adapt", "check_config"]

log = logging.getLogger(__name__)

PRECISIONS = ("32-true", "64-true", "bf16-mixed", "auto")


def adapt(cfg: DictConfig) -> None:
    """Set what the files of the data decide: the size of images in a folder, and the shape of v of flattened images.

    A run with fewer iterations than validations gets one validation after each.

    Args:
        cfg: As composed; changed in place.

    Raises:
        ConfigError: The data cannot be built, or are no data module.
        DataError: The files of the data are missing or damaged.

    Example:
        >>> data = {"_target_": "eblvm_lit.data.toy.Checkerboard"}
        >>> cfg = {"data": data, "sizes": {"v_shape": "???"}, "trainer": {"max_steps": 5}, "n_validations": 10}
        >>> adapt(cfg := OmegaConf.create(cfg))
        >>> cfg.sizes.v_shape, cfg.n_validations
        ([2], 5)
    """
    packages = [*import_packages(cfg.get("allow_packages")), *LIBRARIES]
    data = instantiate(cfg.data, "data", packages, ArrayDataModule)
    found, line = data.find_options()
    if found:
        with open_dict(cfg.data):  # a configuration may leave out what has a default
            cfg.data.update(found)
        data = instantiate(cfg.data, "data", packages)
        log.info("%s", line)
    cfg.sizes.v_shape = list(data.event_shape)
    cfg.n_validations = min(cfg.n_validations, cfg.trainer.max_steps)


def check_config(cfg: DictConfig) -> None:
    """Refuse missing values, a model of images for vectors, and settings that no constructor checks.

    Raises:
        ConfigError: Names the first problem.
    """
    shape = OmegaConf.select(cfg, "sizes.v_shape")
    for name in ("model", "generator"):
        if shape is not None and len(shape) == 1 and "'v_shape'" in str(cfg.get(name)):
            raise ConfigError(f"The {name} needs images, and the data are vectors: use images, such as data=mnist.")
    to_plain(cfg)
    for name, value in (("trainer.max_steps", cfg.trainer.max_steps), ("n_validations", cfg.n_validations)):
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name} must be an integer of at least 1, not {value!r}.")
    _check_choice("trainer.precision", str(cfg.trainer.precision), PRECISIONS)  # a loss scaler fits no second gradient
    _check_choice("test_checkpoint", cfg.test_checkpoint, ("best", "last", "both"))
    _check_choice("eval_weights", cfg.eval_weights, tuple(WEIGHTS))


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name}={value} is not supported; use one of {', '.join(choices)}.")
