"""The settings that do not change a run's results, which resumed runs, finished jobs and reports ignore."""

from __future__ import annotations

__all__ = ["COPIES", "INCIDENTAL", "LENGTH_AND_TESTS", "is_below", "is_incidental"]

# A name that begins with "*." stands for keys of this name at any depth; any other name for itself and all keys below.
INCIDENTAL = (
    # folders that a run reads from and writes to: equal files give equal results in every folder
    *(
        "*.root",
        "*.run_dir",
        "*.run_folder",
        "*.save_dir",
        "*.outputs_dir",
        "*.cache_dir",
        "*.csv_path",
        "*.folder",
        "*.dirpath",
    ),
    # how a run is started and resumed, and how a search judges it
    *("ckpt", "resume", "sweep", "allow_packages", "optimized_metric"),
    # what a run prints, logs, draws and saves in addition to its results
    *("show_config", "summary", "logger", "callbacks.progress", "callbacks.curves", "callbacks.figures"),
    *("callbacks.nonfinite", "callbacks.preemption", "callbacks.checkpoints.every", "callbacks.checkpoints.keep"),
    *("callbacks.evaluation.at_validation", "callbacks.evaluation.intervals"),
    *("trainer.log_every_n_steps", "trainer.enable_progress_bar", "trainer.enable_model_summary", "trainer.profiler"),
    # the device and the speed of a run: results differ only by rounding
    *("compile", "method.compile", "threads", "tf32", "iterations_per_batch"),
    *("trainer.accelerator", "trainer.devices", "trainer.num_nodes"),
)
# A resumed run may also be longer, and be validated and tested in another way, because this does not change the
# iterations before the checkpoint. Reports and finished jobs of sweeps compare final results, which these keys change.
LENGTH_AND_TESTS = ("trainer", "callbacks", "n_validations", "test_checkpoint", "eval_weights", "sampler")
# Reports also pool runs that differ only in their seeds, and ignore the marginal model, which repeats settings of the
# method. For a resumed run and a finished job, the seed and the marginal model must be equal, because another seed
# gives other noise.
COPIES = ("*.seed", "marginal_model")


def is_incidental(key: str, *more: str) -> bool:
    """Return whether a setting has no influence on the results of a run.

    Args:
        key: The dotted path of the setting.
        more: Further names that are ignored in this comparison, such as :data:`LENGTH_AND_TESTS`.

    Example:
        >>> [is_incidental(key) for key in ("threads", "data.root", "logger.csv.save_dir", "compiler", "method.lr")]
        [True, True, True, False, False]
        >>> is_incidental("trainer.max_steps"), is_incidental("trainer.max_steps", *LENGTH_AND_TESTS)
        (False, True)
    """
    last = key.rpartition(".")[2]
    return any(is_below(key, name) or name == f"*.{last}" for name in (*INCIDENTAL, *more))


def is_below(path: str, other: str) -> bool:
    """Return whether a path equals another path, or is below it.

    Example:
        >>> is_below("method.lr", "method"), is_below("methods", "method")
        (True, False)
    """
    return f"{path}.".startswith(f"{other}.")
