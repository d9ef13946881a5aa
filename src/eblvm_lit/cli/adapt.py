"""The values of a configuration that the files of the data and the length of the run decide."""

from __future__ import annotations

import logging

from omegaconf import DictConfig, OmegaConf, open_dict

from eblvm_lit.cli.instantiate import instantiate
from eblvm_lit.cli.own_packages import import_packages
from eblvm_lit.data.base import ArrayDataModule

__all__ = ["adapt"]

log = logging.getLogger(__name__)

ONE_NOISE_LEVEL = "eblvm_lit.objectives.dsm.DSM"


def adapt(cfg: DictConfig) -> None:
    """Set what is left open, and say so in one line each; a configuration that leaves nothing open stays as it is.

    These are the options of the data that only their files tell, such as the size of the images in a folder; the shape
    of v, where the data differ from what their configuration says, as flattened images do; and the number of
    validations of a run that has fewer iterations. A warning says where images and an objective do not go together.

    Args:
        cfg: As composed and checked; changed in place.

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
    packages = import_packages(cfg.get("allow_packages"))
    data = instantiate(cfg.data, "data", packages, ArrayDataModule)
    found, line = data.find_options()
    if found:
        with open_dict(cfg.data):  # a configuration may leave out what has a default
            cfg.data.update(found)
        data = instantiate(cfg.data, "data", packages)
        log.info("%s", line)
    if list(OmegaConf.select(cfg, "sizes.v_shape") or ()) != list(data.event_shape):
        cfg.sizes.v_shape = list(data.event_shape)
    objective = OmegaConf.select(cfg, "method.objective")  # the check of its kind comes when it is built
    if (
        isinstance(objective, DictConfig)
        and objective.get("_target_") == ONE_NOISE_LEVEL
        and len(data.event_shape) == 3
    ):
        log.warning(
            "Denoising at one noise level does not learn where images come from, and samples will show none: "
            "method=bimdsm (or another with objective=mdsm) learns many levels."
        )
    if cfg.n_validations > cfg.trainer.max_steps:
        log.info("n_validations=%d: one after each of the %d iterations.", cfg.trainer.max_steps, cfg.trainer.max_steps)
        cfg.n_validations = cfg.trainer.max_steps
