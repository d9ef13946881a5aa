"""Find the checkpoint from which a run is resumed, and check that its settings and data fit the run."""

from __future__ import annotations

import json
import logging
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.utilities import rank_zero_only

from eblvm_lit.data.base import ArrayDataModule
from eblvm_lit.data.split_changes import changed_splits, n_trained_on
from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.methods.base import Method
from eblvm_lit.training.checkpoint_io import checkpoint_file
from eblvm_lit.utils.incidental import LENGTH_AND_TESTS, is_below, is_incidental
from eblvm_lit.utils.run_files import flatten
from eblvm_lit.utils.untrusted import read_yaml

__all__ = [
    *("changed_rates", "changed_settings", "check_settings", "check_splits", "find_checkpoint", "finished_job"),
    "refuse_other_run",
]

MOST_TOLD = 3  # ckpt=last names the newest other run if at most this number of settings differ
log = logging.getLogger(__name__)

SPLITS = "data.splits"  # the entry of resume.allow that permits changed splits; it is not a configuration key


def _allowed(cfg: DictConfig) -> list[str]:
    """Return the keys in ``resume.allow``, which name the settings that may change when a run is resumed."""
    listed = OmegaConf.select(cfg, "resume.allow") or []
    return [listed] if isinstance(listed, str) else list(listed)


def check_settings(checkpoint: Mapping[str, Any], cfg: DictConfig, path: Path) -> None:
    """Refuse a checkpoint that was trained with another seed, other data or other settings of the method.

    Args:
        checkpoint: The content of the checkpoint.
        cfg: The configuration of the run; ``resume.allow`` names the keys that may differ.
        path: The file of the checkpoint, for the message.

    Raises:
        ConfigError: With all differing keys.
    """
    if changed := changed_settings(checkpoint["eblvm_lit"]["config"], cfg, _allowed(cfg)):
        raise ConfigError(_told(path, changed))


def _told(path: str | Path, changed: Mapping[str, str]) -> str:
    listed = "; ".join(f"{key}={values}" for key, values in changed.items())
    return (
        f"{path} was trained with {listed}: resume with its settings, or allow the change by "
        f"resume.allow=[{','.join(changed)}]."
    )


def check_splits(checkpoint: Mapping[str, Any], data: ArrayDataModule, cfg: DictConfig, path: str | Path) -> None:
    """Log how the data have changed since a checkpoint was written; refuse checkpoints trained on test examples.

    Only data modules whose files may change report their examples: see :meth:`ArrayDataModule.example_digests`.

    Args:
        checkpoint: The content of the checkpoint.
        data: The data of the run or of the evaluation.
        cfg: The configuration of the command; ``resume.allow=[data.splits]`` permits what is refused.
        path: The file of the checkpoint, for messages.

    Raises:
        ConfigError: If the checkpoint was trained on test examples, or does not say what it was trained on.
    """
    now = data.state_dict()
    if not now:
        return
    before = checkpoint.get(type(data).__qualname__)  # the key under which Lightning stores the data module's state
    problem = f"{path} does not say what it was trained on, and an earlier version split these data in another way"
    if before is not None:
        if changed := changed_splits(before, now):
            log.warning("The data have changed since %s was written: %s.", path, changed)
        n = n_trained_on(before, now)
        problem = f"{path} was trained on {n} of the {len(now['test'])} test examples" if n else ""
    if problem and not any(is_below(SPLITS, key) for key in _allowed(cfg)):
        raise ConfigError(
            f"{problem}: restore the data or start a new run, or allow it by resume.allow=[{SPLITS}], for test "
            "metrics that mean little."
        )


def changed_rates(method: Method, checkpoint: Mapping[str, Any], total: int) -> str:
    """Describe each learning rate that jumps when a run is resumed, with its values before and after the jump.

    A rate is named if the schedule of this run would have given the checkpoint's last iteration another rate.

    Args:
        method: The method of the run.
        checkpoint: The content of the checkpoint.
        total: The number of iterations of this run; a cosine schedule ends at this iteration.
    """
    done = checkpoint["eblvm_lit"]["iteration"]
    again, now = (method.rates_at(i, total) for i in (done - 1, done))
    states = dict(zip(method.groups, checkpoint["optimizer_states"], strict=True))
    last = {name: state["param_groups"][0]["lr"] for name, state in states.items()}
    changed = {name: (lr, now[name]) for name, lr in last.items() if not math.isclose(lr, again[name])}
    return ", ".join(f"{name}_lr from {before:.3g} to {after:.3g}" for name, (before, after) in changed.items())


def find_checkpoint(cfg: DictConfig) -> Path | None:
    """Return the checkpoint from which the run is resumed, or None for a new run.

    ``ckpt=null`` starts a new run, and a path names a checkpoint or the folder of a run. ``ckpt=last`` means the newest
    ``last.ckpt`` of a run with the same method, data and seed, in the folder of this run or below ``outputs_dir``;
    ``resume.allow`` names settings that may differ. If there is none, the message names the newest run with few
    differing settings. A job of a sweep with ``sweep.resume=true`` resumes from the
    checkpoint in its own folder.

    Args:
        cfg: The configuration of the run.

    Raises:
        DataError: If there is no such file.
    """
    allowed = _allowed(cfg)
    own = Path(cfg.run_dir) / "checkpoints" / "last.ckpt"
    if (cfg.sweep.resume or cfg.ckpt == "last") and own.is_file():
        return own
    if cfg.ckpt is None:
        return None
    if cfg.ckpt != "last":
        return checkpoint_file(cfg.ckpt)
    similar = ""
    candidates = [path for path in Path(cfg.outputs_dir).glob("**/checkpoints/last.ckpt") if path.is_file()]
    for path in sorted(candidates, key=lambda p: p.stat().st_mtime, reverse=True):
        try:
            stored = read_yaml(path.parent.parent / "config.yaml")
            changed = changed_settings(stored, cfg, allowed)
        except (OSError, AttributeError, KeyError, DataError):
            continue  # this is not the folder of a run
        if not changed:
            return path
        if not similar and len(changed) <= MOST_TOLD and not {"", "method", "data"} & {*changed}:
            similar = f" {_told(path, changed)}"
    raise DataError(f"ckpt=last: no run with these settings was found under {cfg.outputs_dir}.{similar}")


@rank_zero_only
def refuse_other_run(folder: Path, resume_from: Path | None, *, is_job: bool) -> None:
    """Refuse a folder in which a run has begun or finished, unless a checkpoint of that run is resumed.

    Args:
        folder: The folder of the run that starts.
        resume_from: The checkpoint that this run resumes from; None for a new run.
        is_job: Whether this run is a job of a resumed sweep: its folder belongs to this job only, so it is never
            refused.

    Raises:
        ConfigError: If the folder contains another run.
    """
    records = [path for name in ("config.yaml", "metrics.json", "checkpoints/*.ckpt") for path in folder.glob(name)]
    if records and not is_job and (resume_from is None or resume_from.resolve().parent.parent != folder.resolve()):
        advice = "choose another folder by hydra.run.dir=... ."
        raise ConfigError(
            f"{folder} already contains a run: "
            + (f"resume it with ckpt=last, or {advice}" if folder / "checkpoints" / "last.ckpt" in records else advice)
        )


def finished_job(cfg: DictConfig) -> dict[str, float] | None:
    """Return the final metrics of a job that has already finished, if ``sweep.resume`` is true; otherwise None."""
    folder = Path(cfg.run_dir)
    if not cfg.sweep.resume or not (folder / "metrics.json").is_file():
        return None
    before = flatten(read_yaml(folder / "config.yaml"))
    now = flatten(OmegaConf.to_container(cfg, resolve=True))
    differ = sorted(
        key
        for key in before.keys() | now.keys()
        if before.get(key) != now.get(key) and now.get(key) != "auto" and not is_incidental(key)
    )
    if differ:  # the results belong to another sweep, so all jobs are stopped
        sys.exit(f"ERROR: {folder} has results of other settings ({', '.join(differ[:3])}): choose another folder.")
    log.info("%s has already finished.", folder)
    return json.loads((folder / "metrics.json").read_text())


def changed_settings(stored: Mapping[str, Any], cfg: DictConfig, allowed: Sequence[str] = ()) -> dict[str, str]:
    """Find the settings that differ between a checkpoint and a run, but should be equal.

    Returns a dict from the key of each setting to a text with both values. A value that comes from another key by
    ``${...}`` is reported once, under the other key: ``optimizer.lr``, for instance, sets the learning rates of both
    levels.

    Args:
        stored: The resolved configuration in a checkpoint.
        cfg: The configuration of the run, with its interpolations.
        allowed: The keys that may differ, together with all keys below them.

    Example:
        >>> cfg = OmegaConf.create({"seed": 2, "lr": 0.1, "method": {"lr": "${lr}"}, "threads": 2})
        >>> changed_settings({"seed": 1, "lr": 0.2, "method": {"lr": 0.2}, "threads": 1}, cfg)
        {'seed': '1, not 2', 'lr': '0.2, not 0.1'}
        >>> changed_settings({"seed": 1, "lr": 0.2, "method": {"lr": 0.2}}, cfg, ["seed", "lr"])
        {}
    """
    differing = dict(_differences(stored, OmegaConf.to_container(cfg, resolve=True)))
    raw = OmegaConf.to_container(cfg)

    def is_told(path: str) -> bool:
        if is_incidental(path, *LENGTH_AND_TESTS, *allowed):
            return False
        sources = _sources(raw, path.split("."))
        return not any(is_below(a, b) or is_below(b, a) for a in sources for b in differing)

    return {path: f"{before}, not {now}" for path, (before, now) in differing.items() if is_told(path)}


def _differences(before: Any, now: Any, path: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Compare two nested mappings, and yield the dotted path and the two values of each key whose values differ.

    Objects of different classes count as one difference.
    """
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        # an empty mapping counts as equal to a missing key
        before, now = (None if value == {} else value for value in (before, now))
        if before != now:
            yield path, (before, now)
    elif before.get("_target_") != now.get("_target_"):
        yield path, tuple(str(part.get("_target_")).rpartition(".")[2] for part in (before, now))
    else:
        for key in dict.fromkeys([*now, *before]):
            yield from _differences(before.get(key), now.get(key), f"{path}.{key}" if path else str(key))


def _sources(node: Any, keys: Sequence[str]) -> list[str]:
    """Return the dotted paths to which the interpolation ``${...}`` of a key, or of one of its parents, refers."""
    for key in keys:
        if not isinstance(node, Mapping):
            break
        node = node.get(key)
    return re.findall(r"\$\{(\w[\w.]*)\}", str(node)) if not isinstance(node, Mapping) else []
