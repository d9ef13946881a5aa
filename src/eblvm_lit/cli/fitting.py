"""The model that fits the user's own data: the configuration is composed again with the kind that the file shows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig

__all__ = ["fitted"]

log = logging.getLogger(__name__)


def fitted(
    cfg: DictConfig,
    choices: Mapping[str, Any],
    overrides: Sequence[str],
    compose_again: Callable[[str], DictConfig],
) -> DictConfig:
    """Return the configuration with the option of the group ``kind`` that fits the data.

    The group decides the model and the settings of data sets whose examples are known only when their file is read,
    which have ``data.shape=null``. The configuration of another data set, or with an option that the user has named, is
    returned as it is.

    Args:
        cfg: The composed configuration.
        choices: The options that were chosen, by group.
        overrides: The user's overrides.
        compose_again: Composes the configuration with one more override.

    Raises:
        DataError: If the data cannot be read.
    """
    if choices.get("kind") is not None or "kind=null" in overrides or cfg.data.get("shape", "known") is not None:
        return cfg
    from eblvm_lit.data.base import ArrayDataModule  # takes seconds, and most runs have no kind
    from eblvm_lit.data.kinds import kind_of
    from eblvm_lit.runs.instantiate import instantiate, packages_of

    data = instantiate(cfg.data, "data", packages_of(cfg), ArrayDataModule)
    kind = kind_of(data.event_shape)
    found = compose_again(f"kind={kind}")
    log.info("kind=%s fits the data: model=NAME, method=NAME or kind=NAME takes another.", kind)
    return found
