"""The settings that do not matter: the one list by which resumed runs, finished jobs and reports tell runs apart."""

from __future__ import annotations

__all__ = ["COPIES", "INCIDENTAL", "LENGTH_AND_TESTS", "is_below", "is_incidental"]

# A name that begins with "*." stands for the keys of this name at any depth; any other one for itself and all below it.
INCIDENTAL = (
    # where a run reads and writes: the same content gives the same numbers in every folder
    *("*.root", "*.run_dir", "*.save_dir", "*.outputs_dir", "*.cache_dir", "*.csv_path", "*.folder", "*.dirpath"),
    # how a run is started, resumed and searched for
    *("ckpt", "resume", "sweep", "allow_packages", "optimized_metric"),
    # what a run prints, logs, draws and keeps beside its numbers
    *("show_config", "summary", "logger", "callbacks.progress", "callbacks.curves", "callbacks.figures"),
    *("callbacks.nonfinite", "callbacks.preemption", "callbacks.checkpoints.every", "callbacks.checkpoints.keep"),
    *("callbacks.evaluation.at_validation", "callbacks.evaluation.intervals"),
    *("trainer.log_every_n_steps", "trainer.enable_progress_bar", "trainer.enable_model_summary", "trainer.profiler"),
    # on what a run computes, and how fast: its numbers differ by rounding only
    *("compile", "method.compile", "threads", "tf32", "iterations_per_batch"),
    *("trainer.accelerator", "trainer.devices", "trainer.num_nodes"),
)
# A resumed run may be longer, and be validated and tested otherwise: its iterations stay those of the checkpoint.
# Reports and finished jobs of sweeps compare the numbers at the end, on which all of these have an influence.
LENGTH_AND_TESTS = ("trainer", "callbacks", "n_validations", "test_checkpoint", "eval_weights", "sampler")
# Reports pool runs that differ in their seeds, and the marginal model is a copy of what the method has. A resumed run
# and a finished job must have both: another seed continues with other noise.
COPIES = ("*.seed", "marginal_model")


def is_incidental(key: str, *more: str) -> bool:
    """Whether a setting does not matter to the numbers of a run.

    Args:
        key: Its dotted path.
        more: Further names that do not matter where this is asked, such as :data:`LENGTH_AND_TESTS`.

    Example:
        >>> [is_incidental(key) for key in ("threads", "data.root", "logger.csv.save_dir", "compiler", "method.lr")]
        [True, True, True, False, False]
        >>> is_incidental("trainer.max_steps"), is_incidental("trainer.max_steps", *LENGTH_AND_TESTS)
        (False, True)
    """
    last = key.rpartition(".")[2]
    return any(is_below(key, name) or name == f"*.{last}" for name in (*INCIDENTAL, *more))


def is_below(path: str, other: str) -> bool:
    """Whether a path is another one, or below it.

    Example:
        >>> is_below("method.lr", "method"), is_below("methods", "method")
        (True, False)
    """
    return f"{path}.".startswith(f"{other}.")
