"""Choose a model that fits the data and the method, by composing the configuration again with more overrides."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig

from eblvm_lit.errors import ConfigError

__all__ = ["GROUPS", "fitted", "fitting_words", "sentence_of"]

log = logging.getLogger(__name__)

# The words that determine the data, the method and the model.
GROUPS = ("data=", "data.", "method=", "model=", "kind=", "experiment=")
# The default method cannot train models that do not take the noise level as an input; these methods train them. Images
# need a method of several noise levels, because a deep model that is trained at a single level cannot generate images.
OF_OTHER_MODELS = {"vectors": "method=bidsm", "images": "method=bimdsm"}


def sentence_of(words: Sequence[str]) -> str:
    """Return the message about overrides that were added.

    Example:
        >>> sentence_of(["kind=vectors", "model=harmonium"])
        'kind=vectors with model=harmonium fits the data; method=NAME model=NAME or kind=NAME takes another.'
        >>> sentence_of(["method=bidsm"])
        'method=bidsm fits the model; method=NAME takes another.'
    """
    chosen = " with ".join(words)
    if words[0] in OF_OTHER_MODELS.values():
        return f"{chosen} fits the model; method=NAME takes another."
    return f"{chosen} fits the data; method=NAME model=NAME or kind=NAME takes another."


def fitting(
    cfg: DictConfig,
    choices: Mapping[str, Any],
    overrides: Sequence[str],
    compose_again: Callable[[list[str]], DictConfig],
) -> list[str]:
    """Return the overrides that make the data, the method and the model fit together, which may be none.

    The group ``kind`` chooses the model and its settings for data sets with ``data.shape=null``, whose examples have a
    shape that is known only after the file has been read. The override ``model=`` is needed if the method has models of
    its own: its key ``method_models`` names one for vectors and one for images. If the user names no method, and the
    model does not take the noise level as an input, the default method cannot train this model. The override is then
    ``method=bidsm``, for images ``method=bimdsm``. This is also the case for images whose sides are not multiples of 4,
    for which the default method has no model. Options that the user has named are never replaced.

    Args:
        cfg: The composed configuration.
        choices: The options that were chosen, by group.
        overrides: The user's overrides.
        compose_again: Composes the configuration with more overrides.

    Raises:
        DataError: If the data cannot be read.
        ConfigError: If the user names ``kind=points`` and a method that has models of its own.
    """
    words: list[str] = []
    shape: Sequence[int] | None = None
    if "data" not in cfg or "method_models" not in cfg:
        return words
    typed = any(word.startswith("method=") for word in overrides)
    if choices.get("kind") == "points" and typed and any(cfg.method_models.values()):
        raise ConfigError(
            "kind=points has settings of its own model, and this method needs another model: use kind=vectors."
        )
    given = any(cfg.data.get(source) is not None for source in ("path", "train", "repo"))
    if given and cfg.data.get("shape", "known") is None:
        from eblvm_lit.data.base import ArrayDataModule  # this import takes seconds, and most runs do not need it
        from eblvm_lit.runs.instantiate import instantiate, packages_of

        shape = instantiate(cfg.data, "data", packages_of(cfg), ArrayDataModule).event_shape
    if shape is not None and choices.get("kind") is None:
        from eblvm_lit.data.kinds import kind_of

        kind = kind_of(shape)
        method_chooses_model = typed and any(cfg.method_models.values())
        if kind == "points" and (method_chooses_model or any(word.startswith("model=") for word in overrides)):
            # "points" sets keys that only its own model has; the settings of "vectors" suit all models of points, too
            kind = "vectors"
        words = [f"kind={kind}"]
        cfg = compose_again(words)
        choices = {**choices, "model": None}  # chosen by the kind, and so not by the method
    shape = shape or cfg.data.get("shape") or cfg.sizes.v_shape
    if cfg.data.get("flatten", False):
        shape = [math.prod(side or 1 for side in shape)]
    if model := own_model(cfg, choices, overrides, shape):
        return [*words, f"model={model}"]
    if any(cfg.method_models.values()) and "noise_range" not in cfg and not typed:
        return [*words, OF_OTHER_MODELS["images" if len(shape) == 3 else "vectors"]]
    return words


def own_model(
    cfg: DictConfig, choices: Mapping[str, Any], overrides: Sequence[str], shape: Sequence[int]
) -> str | None:
    """Return the option of the group ``model`` that the method needs for examples of this shape.

    It is None if the method has no models of its own, if the model is chosen, and for images whose sides are not
    multiples of 4, which the network of these models cannot take.

    Args:
        cfg: The composed configuration.
        choices: The options that were chosen, by group.
        overrides: The user's overrides.
        shape: The shape of an example, (d,) or (C, H, W).

    Example:
        >>> from omegaconf import OmegaConf
        >>> cfg = OmegaConf.create({"method_models": {"vectors": "harmonium", "images": "harmonium_mixer"}})
        >>> own_model(cfg, {"model": "harmonium"}, [], (1, 8, 8)), own_model(cfg, {}, ["model=grbm"], (2,))
        ('harmonium_mixer', None)
    """
    if choices.get("experiment") is not None or any(word.startswith("model=") for word in overrides):
        return None
    if len(shape) == 3 and any(isinstance(side, int) and side % 4 for side in shape[1:]):
        return None
    name = cfg.method_models["images" if len(shape) == 3 else "vectors"]
    return None if name == choices.get("model") else name


def fitted(
    cfg: DictConfig,
    choices: Mapping[str, Any],
    overrides: Sequence[str],
    compose_again: Callable[[list[str]], DictConfig],
) -> DictConfig:
    """Return the configuration composed with the overrides of :func:`fitting`, or ``cfg`` if there are none.

    The overrides are logged.
    """
    if not (words := fitting(cfg, choices, overrides, compose_again)):
        return cfg
    log.info("%s", sentence_of(words))
    return compose_again(words)


def fitting_words(words: Sequence[str]) -> list[str]:
    """Return the overrides ``kind=...``, ``model=...`` and ``method=...`` that :func:`fitting` adds to a command.

    They are found only from the words about the data, the method and the model. The other words of the command may
    therefore set keys that only the chosen model or method has. The list is empty if nothing has to be added, or if the
    words are a sweep over data sets, methods or models. It is also empty if these words do not compose or the file of
    the data cannot be read; the run itself then reports that error.

    Args:
        words: The words of the command line.
    """
    from hydra import compose
    from hydra.errors import HydraException

    from eblvm_lit.errors import EblvmError
    from eblvm_lit.runs.groups import composing

    own = [word for word in words if word.startswith(GROUPS)]
    if not own or any("," in word and "[" not in word for word in own):
        return []
    try:
        with composing():
            cfg = compose("config", own, return_hydra_config=True)
            return fitting(cfg, cfg.hydra.runtime.choices, own, lambda more: compose("config", [*own, *more]))
    except (HydraException, EblvmError, ValueError):
        return []
