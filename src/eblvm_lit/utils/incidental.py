"""The settings that do not change a run's results; resumed runs, finished jobs and reports ignore them."""

from __future__ import annotations

__all__ = ["COPIES", "INCIDENTAL", "LENGTH_AND_TESTS", "is_below", "is_incidental"]

# "*.NAME" stands for keys called NAME at any depth; any other entry stands for a key and all keys below it.
INCIDENTAL = (
    # folders that a run reads from or writes to, because results do not depend on where the files are
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
    # keys that say how a run is started and resumed, and which metric a hyperparameter search optimizes
    *("ckpt", "resume", "sweep", "allow_packages", "optimized_metric"),
    # the models from which one is chosen when the run is composed; the chosen one is under the key model
    "method_models",
    # keys that say what a run prints, logs, draws and saves in addition to its results
    *("show_config", "summary", "logger", "callbacks.progress", "callbacks.curves", "callbacks.figures"),
    *("callbacks.nonfinite", "callbacks.preemption", "callbacks.checkpoints.every", "callbacks.checkpoints.keep"),
    *("callbacks.evaluation.at_validation", "callbacks.evaluation.intervals"),
    *("trainer.log_every_n_steps", "trainer.enable_progress_bar", "trainer.enable_model_summary", "trainer.profiler"),
    # keys of the device and the speed of a run, because they change results only by rounding errors
    *("compile", "method.compile", "threads", "tf32", "iterations_per_batch"),
    *("trainer.accelerator", "trainer.devices", "trainer.num_nodes"),
)
# Further keys that may change when a run is resumed: its length and its tests do not affect the iterations before the
# checkpoint. Reports, and sweeps that look for finished jobs, still compare these keys, because they affect the final
# results.
LENGTH_AND_TESTS = ("trainer", "callbacks", "n_validations", "test_checkpoint", "eval_weights", "sampler", "quadrature")
# Further keys that reports ignore: seeds, because reports average over them, and the top-level key marginal_model,
# because a method that trains this model has a copy of these settings. These keys are compared when a run is resumed
# and when a sweep looks for finished jobs, because another seed gives other noise.
COPIES = ("*.seed", "marginal_model")


def is_incidental(key: str, *more: str) -> bool:
    """Return whether a setting of a run has no influence on its results.

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
    """Return whether a dotted path equals another path, or begins with that path and a dot.

    Example:
        >>> is_below("method.lr", "method"), is_below("methods", "method")
        (True, False)
    """
    return f"{path}.".startswith(f"{other}.")
