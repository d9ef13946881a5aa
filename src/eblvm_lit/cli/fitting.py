"""Choose a model that fits the user's own data, by composing the configuration again with the ``kind`` of the data."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig

__all__ = ["SENTENCE", "fitted", "fitting_words", "with_own_model"]

log = logging.getLogger(__name__)

SENTENCE = "%s fits the data; method=NAME model=NAME or kind=NAME takes another."


def fitted_kind(cfg: DictConfig) -> str:
    """Read the configured data, and return the option of the group ``kind`` that fits the shape of an example."""
    from eblvm_lit.data.base import ArrayDataModule  # this import takes seconds, and most runs do not need it
    from eblvm_lit.data.kinds import kind_of
    from eblvm_lit.runs.instantiate import instantiate, packages_of

    return kind_of(instantiate(cfg.data, "data", packages_of(cfg), ArrayDataModule).event_shape)


def fitting_words(words: Sequence[str]) -> list[str]:
    """Return a list with the override ``kind=...`` that fits the user's data file, or an empty list.

    The option is found before the whole configuration is composed, so that a command may also set keys of the model and
    the method that this option chooses. The list is empty if the words name no file, several files or a kind, or if the
    file cannot be read; the run then reports the error.

    Args:
        words: The words of the command line.
    """
    from hydra import compose
    from hydra.errors import HydraException

    from eblvm_lit.errors import EblvmError
    from eblvm_lit.runs.groups import composing

    own = [word for word in words if word.startswith(("data=", "data."))]
    files = [word for word in own if word.startswith(("data.path=", "data.train=", "data.repo="))]
    if (
        not files
        or any("," in word for word in files)
        or any(word.startswith(("kind=", "experiment=")) for word in words)
    ):
        return []
    try:
        with composing():
            cfg = compose("config", [word for word in own if "," not in word or "[" in word])
        if cfg.data.get("shape", "known") is not None:
            return []
        kind = fitted_kind(cfg)
    except (HydraException, EblvmError, ValueError):
        return []
    return [f"kind={with_own_model(kind, words)}"]


def with_own_model(kind: str, words: Sequence[str]) -> str:
    """Replace the kind ``points`` by ``vectors`` if the overrides choose a model; return other kinds unchanged.

    ``points`` sets keys of its own model, which other models do not have. The settings of ``vectors`` also suit points,
    and do not choose a model.

    Example:
        >>> with_own_model("points", ["model=grbm"]), with_own_model("points", ["method=dsm"])
        ('vectors', 'points')
    """
    return "vectors" if kind == "points" and any(word.startswith("model=") for word in words) else kind


def fitted(
    cfg: DictConfig,
    choices: Mapping[str, Any],
    overrides: Sequence[str],
    compose_again: Callable[[str], DictConfig],
) -> DictConfig:
    """Compose the configuration again with the option of the group ``kind`` that fits the user's data.

    The group chooses the model and its settings for data sets with ``data.shape=null``, whose examples are known only
    after their file has been read. The configuration of another data set, or with an option that the user has named, is
    returned as it is.

    Args:
        cfg: The composed configuration.
        choices: The options that were chosen, by group.
        overrides: The user's overrides.
        compose_again: Composes the configuration with one more override.

    Raises:
        DataError: If the data cannot be read.
    """
    named = choices.get("kind") is not None or "kind=null" in overrides
    if named or "data" not in cfg or cfg.data.get("shape", "known") is not None:
        return cfg
    if all(cfg.data.get(source) is None for source in ("path", "train", "repo")):
        return cfg  # no data file is named, and the run will refuse the configuration
    word = f"kind={with_own_model(fitted_kind(cfg), overrides)}"
    found = compose_again(word)
    log.info(SENTENCE, word)
    return found
