"""Runs on a disk of three megabytes that fills up and becomes read-only; prints what became of them, as JSON.

Started in a mount namespace of its own (``unshare --mount``), so that nothing is left of the disk.
"""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

from eblvm_lit.errors import EblvmError
from eblvm_lit.methods.base import Method
from eblvm_lit.training.callbacks.checkpoints import load_checkpoint
from eblvm_lit.training.status import read_status
from shell import train

SAVING = ("method=dsm", "callbacks.checkpoints.every=1")


def sums(folder):
    """What the files of a folder hold."""
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*")) if p.is_file()}


def attempt(folder, *overrides):
    """The sentence in which a run ends, and the checkpoints and metrics before and after it."""
    before = sums(folder)
    try:
        train(folder, *SAVING, *overrides)
        sentence = None
    except EblvmError as error:
        sentence = str(error)
    after = sums(folder)
    kept = [name for name in before if name.endswith(("last.ckpt", "best.ckpt", "metrics.json", "metrics.csv"))]
    return {
        "sentence": sentence,
        "intact": bool(kept) and all(before[name] == after.get(name) for name in kept),
        "leftovers": [name for name in after if name.endswith(".tmp")],
        "step": load_checkpoint(folder / "checkpoints" / "last.ckpt")["global_step"] if kept else None,
    }


def filled_in_training(disk):
    """A run whose disk becomes full in its third iteration: its status then."""
    step = Method.training_step

    def fill_and_step(self, v, i):
        if self.iterations_done == 2:
            fill(disk, 0)
        return step(self, v, i)

    Method.training_step = fill_and_step
    sentence = attempt(disk / "filled")["sentence"]
    Method.training_step = step
    (disk / "ballast").unlink()
    return {"sentence": sentence, "status": read_status(disk / "filled")}


def fill(disk, room):
    """Leave so many bytes."""
    free = int(subprocess.check_output(["stat", "-f", "-c", "%a %S", str(disk)]).split()[0]) * 4096
    (disk / "ballast").open("ab").write(bytes(max(free - room, 0)))


def main(disk):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)], check=True)
    found = {"too large": attempt(disk / "large", "model.h_dim=4000")}
    train(disk / "run", *SAVING)
    found["filled in training"] = filled_in_training(disk)
    longer = ("trainer.max_steps=20", "n_validations=2", "ckpt=last")
    fill(disk, 40_000)  # more than the other files, less than another checkpoint of this size
    found["full"] = attempt(disk / "run", *longer)
    fill(disk, 0)
    found["full to the brim"] = attempt(disk / "run", *longer)
    (disk / "ballast").unlink()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    found["read-only"] = attempt(disk / "run", *longer)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
