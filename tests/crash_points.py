"""Every moment at which a run opens, writes, flushes, links, renames or removes a file of its folder."""

import io
import os
import shutil
import signal
from pathlib import Path

import torch

__all__ = ["Points"]


class _Torn(io.FileIO):
    """A file whose every write has a moment in its middle."""

    points: "Points"

    def write(self, data):
        data = memoryview(data).cast("B")
        half = len(data) // 2
        written = super().write(data[:half]) if half else 0
        self.points.reach("write", self.name)
        return written + super().write(data[half:])


class Points:
    """Numbers these moments in a block, and copies the folder at each, or kills the process at one.

    What a process has written when it is killed is what is on the disk: a copy of the folder at that moment is the
    folder that the killed process leaves.

    Args:
        folder: Of the run.
        copies: Where the copies go, by number; None: no copies.
        kill_at: The number of the moment at which the process is killed.
    """

    def __init__(self, folder, copies=None, kill_at=None):
        self.folder, self.copies, self.kill_at = Path(folder).resolve(), copies, kill_at
        self.met, self.saved_at, self.saved = [], [], None  # (what, file); the iteration of the last checkpoint then
        self._inside = False

    def _is_ours(self, path):
        return isinstance(path, str | Path) and Path(path).resolve().is_relative_to(self.folder) and not self._inside

    def reach(self, what, path):
        """One moment, just before something is done to a file."""
        if not self._is_ours(path):
            return
        if len(self.met) == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.copies is not None:
            self._inside = True
            shutil.copytree(self.folder, self.copies / str(len(self.met)))
            self._inside = False
        self.met.append((what, str(Path(path).resolve().relative_to(self.folder))))
        self.saved_at.append(self.saved)

    def __enter__(self):
        points = self
        self._before = {name: getattr(os, name) for name in ("replace", "fsync", "link", "unlink", "open", "write")}
        self._path_open = Path.open
        real = dict(self._before)

        def replace(source, target, **options):
            points.reach("rename", target)
            real["replace"](source, target, **options)
            if points._is_ours(target) and Path(target).name == "last.ckpt":
                points.saved = torch.load(target, weights_only=True)["global_step"]

        def fsync(descriptor):
            points.reach("flush", os.readlink(f"/proc/self/fd/{descriptor}"))
            real["fsync"](descriptor)

        def link(source, target, **options):
            points.reach("link", target)
            real["link"](source, target, **options)

        def unlink(path, **options):
            points.reach("remove", path)
            real["unlink"](path, **options)

        def open_(path, flags, *rest, **options):
            if flags & os.O_CREAT:
                points.reach("open", path)
            return real["open"](path, flags, *rest, **options)

        def write(descriptor, data):
            points.reach("write", os.readlink(f"/proc/self/fd/{descriptor}"))
            return real["write"](descriptor, data)

        def path_open(path, mode="r", *rest, **options):
            if mode != "wb" or not points._is_ours(path):
                return points._path_open(path, mode, *rest, **options)
            points.reach("open", path)
            raw = _Torn(path, "w")
            raw.points = points
            return io.BufferedWriter(raw)

        new = {"replace": replace, "fsync": fsync, "link": link, "unlink": unlink, "open": open_, "write": write}
        for name, function in new.items():
            setattr(os, name, function)
        Path.open = path_open
        return self

    def __exit__(self, *error):
        Path.open = self._path_open
        for name, function in self._before.items():
            setattr(os, name, function)
