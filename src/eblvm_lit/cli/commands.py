"""The commands eblvm-train and eblvm-evaluate, which the scripts train.py and evaluate.py run, too."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omegaconf import DictConfig

__all__ = ["evaluate", "outcome_of", "train"]

log = logging.getLogger(__name__)


def start(name: str, config_name: str) -> None:
    """Run ``train`` or ``evaluate`` of :mod:`eblvm_lit.runs.run` with the configuration from the command line.

    Args:
        name: The name of the function, ``train`` or ``evaluate``.
        config_name: The name of the configuration in ``conf/`` that is composed.
    """
    import hydra
    from hydra.errors import HydraException

    from eblvm_lit.cli.fitting import GROUPS, fitting_words, sentence_of
    from eblvm_lit.cli.hints import sentence
    from eblvm_lit.runs.groups import HYDRA, conf_folder

    def task(cfg: DictConfig) -> float | None:
        with outcome_of(cfg) as outcome:
            # imported here, because the import takes ten seconds and errors in the command line should appear earlier
            from eblvm_lit.runs import run

            outcome.metrics = getattr(run, name)(_with_fitting_model(cfg, config_name))
        return outcome.value

    if name == "evaluate" and any(word.startswith("images=") for word in sys.argv[1:]):
        from eblvm_lit.cli.image_evaluation import main  # images are compared with a data set, without a checkpoint

        return main(sys.argv[1:])
    if name == "train" and (words := fitting_words(sys.argv[1:])):
        print(sentence_of(words))
        place = next(i for i, word in enumerate(sys.argv) if word.startswith(GROUPS))
        # The new words go beside the overrides that were typed, because argparse accepts overrides only in one row.
        sys.argv[place:place] = words
    if name == "train" and sweeps_other_methods(sys.argv[1:]):
        config_name = "sweep"
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # let Hydra raise its errors instead of printing them
    try:
        # Hydra 1.4 needs a list of the packages whose callbacks it may build
        options = HYDRA or {"execution_whitelist": ["eblvm_lit.*"]}
        hydra.main(config_path=str(conf_folder()), config_name=config_name, **options)(task)()
    except (HydraException, ValueError) as error:
        if isinstance(error, ValueError) and not str(error).startswith("Config group override must be"):
            raise
        sys.exit(f"ERROR: {sentence(error, config_name, sys.argv[1:])}")


def sweeps_other_methods(words: Sequence[str]) -> bool:
    """Return whether a command sweeps over several methods of which the first does not choose its own models.

    Example:
        >>> sweeps_other_methods(["-m", "method=cd,pcd"]), sweeps_other_methods(["-m", "method=dual,levels"])
        (True, False)
    """
    from eblvm_lit.runs.groups import conf_folder

    swept = [word.partition("=")[2] for word in words if word.startswith("method=") and "," in word]
    file = conf_folder() / "method" / f"{swept[0].partition(',')[0]}.yaml" if swept else None
    return file is not None and not (file.exists() and "method_models" in file.read_text(encoding="utf-8"))


# Train a model: eblvm-train [GROUP=OPTION] [KEY=VALUE]; --help lists them.
train = partial(start, "train", "config")
# Evaluate a checkpoint on the test split, or images that any program has made: eblvm-evaluate ckpt=PATH|images=PATH.
evaluate = partial(start, "evaluate", "evaluate")


@contextmanager
def outcome_of(cfg: DictConfig) -> Iterator[SimpleNamespace]:
    """Check the command line's overrides, and turn an error in the ``with`` block into one message and an exit code.

    The block sets the attribute ``metrics`` of the yielded object. After the block, its attribute ``value`` is the
    metric ``cfg.optimized_metric``, for Hydra's sweepers. The value is None if no metric is optimized, and for a failed
    job of a plain grid, so that the other jobs still run.
    """
    # imported here, because these imports take half a second, and --help does not need them
    from hydra.errors import CompactHydraException

    from eblvm_lit.cli.sweeps import worst_value
    from eblvm_lit.errors import EblvmError, InterruptedRunError, NonFiniteError
    from eblvm_lit.utils.command_line import in_sweep

    in_grid = in_sweep() and "sweep" in cfg and cfg.get("optimized_metric") is None
    outcome = SimpleNamespace(metrics={}, value=None)
    try:
        _check_words(cfg)
        yield outcome
        if (name := cfg.get("optimized_metric")) is not None:
            outcome.value = outcome.metrics[name]
    except InterruptedRunError as error:
        log.error("%s", error)
        sys.exit(error.exit_code)
    except EblvmError as error:
        log.error("%s", error)
        if not in_sweep():
            sys.exit(1)
        outcome.value = worst_value() if isinstance(error, NonFiniteError) else None
        if not in_grid and outcome.value is None:
            # in a hyperparameter search, Hydra's sweeper handles this error
            raise CompactHydraException(str(error)) from None
    except Exception:
        if not in_grid:
            raise
        log.exception("The job has failed; the other jobs of the sweep still run.")


def _with_fitting_model(cfg: DictConfig, config_name: str) -> DictConfig:
    """Choose a model that fits the data and the method, unless it is given; return the configuration."""
    from hydra import compose
    from hydra.core.hydra_config import HydraConfig

    from eblvm_lit.cli.fitting import fitted

    hydra = HydraConfig.get()
    words = [*hydra.overrides.task]
    return fitted(cfg, hydra.runtime.choices, words, lambda more: compose(config_name, [*words, *more]))


def _check_words(cfg: DictConfig) -> None:
    """Refuse overrides that have no effect in this run, and an image folder that does not exist or is empty."""
    from hydra.core.hydra_config import HydraConfig

    from eblvm_lit.cli.hints import refuse_unread
    from eblvm_lit.data.files import look_for_folder
    from eblvm_lit.runs.instantiate import to_plain

    if HydraConfig.initialized() and "method" in cfg:
        refuse_unread(cfg, HydraConfig.get().overrides.task)
        look_for_folder(to_plain(cfg.data, "data"))
