"""Checkpoints and configurations of somebody who means harm; whatever they execute creates a file."""

import builtins
import importlib
import io
import os
import pickle
import subprocess
import tarfile
import zipfile

import numpy as np
import torch

__all__ = ["NESTED", "Calls", "files", "pickles"]

NESTED = 3000  # deeper than Python's stack


class Calls:
    """Calls a function when it is unpickled."""

    def __init__(self, function, *args, state=None):
        self.result = (function, args) if state is None else (function, args, state)

    def __reduce__(self):
        return self.result


class Sets:
    """Executes in the setting of its state."""

    def __init__(self, inner):
        self.inner = inner

    def __reduce__(self):
        return dict, (), {"a": self.inner}


class Items(list):
    """Executes while its items are added."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def __reduce__(self):
        return list, (), None, iter([self.inner])


def pickles(sentinel):
    """Objects that create the sentinel when unpickled."""
    touch = f"touch {sentinel}"
    write = f"open({str(sentinel)!r}, 'w')"
    system = Calls(os.system, touch)
    return {
        "os.system": system,
        "subprocess.Popen": Calls(subprocess.Popen, ["touch", str(sentinel)]),
        "subprocess.check_output": Calls(subprocess.check_output, ["touch", str(sentinel)]),
        "builtins.eval": Calls(builtins.eval, write),
        "builtins.exec": Calls(builtins.exec, write),
        "builtins.open": Calls(builtins.open, str(sentinel), "w"),
        "importlib.import_module": Calls(importlib.import_module, "this"),
        "import by name": Calls(__import__, "this"),
        "os.mkdir": Calls(os.mkdir, str(sentinel)),
        "numpy.save": Calls(np.save, str(sentinel), np.zeros(1)),
        "torch.save": Calls(torch.save, 1, str(sentinel)),
        "torch.load without its guard": Calls(torch.load, str(sentinel)),
        "torch.hub": Calls(torch.hub.load, "somebody/something", "model"),
        "a pickle in a pickle": Calls(pickle.loads, pickle.dumps(system)),
        "in an object's state": Sets(system),
        "among a list's items": Items(system),
        "a dictionary's key": {Calls(os.system, touch): 1},
        "in the arguments of what is allowed": Calls(torch._utils._rebuild_tensor_v2, system, 0, (1,), (1,), False, {}),
    }


def files(sentinel, content):
    """The bytes of files that would pass for checkpoints: by name."""
    made = {}
    for name, hostile in pickles(sentinel).items():
        for legacy in (False, True):
            file = io.BytesIO()
            torch.save({**content, "extra": hostile}, file, _use_new_zipfile_serialization=not legacy)
            made[f"{name}, {'legacy' if legacy else 'zip'}"] = file.getvalue()
    system = pickles(sentinel)["os.system"]
    file = io.BytesIO()
    torch.save({**content, "state_dict": {"w": system}}, file)
    made["among the parameters"] = file.getvalue()
    file = io.BytesIO()
    torch.save({**content, "optimizer_states": [system]}, file)
    made["in an optimizer's state"] = file.getvalue()
    made["a bare pickle"] = pickle.dumps(system)
    made["a bare pickle of protocol 0"] = b"cposix\nsystem\n(S'touch " + str(sentinel).encode() + b"'\ntR."
    made["a tar of the first days"] = _tar(pickle.dumps(system))
    made["an archive that was replaced"] = _replaced(content, pickle.dumps(system))
    made["an archive with names that climb"] = _climbing(content)
    made["an archive with a byte order of nobody"] = _replaced(content, b"middle", "byteorder")
    made["nothing"] = b""
    made["a thousand open lists"] = pickle.dumps([])[:-1] + b"(" * 100_000 + b"."
    return made


def _tar(content):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def _entries(content):
    file = io.BytesIO()
    torch.save(content, file)
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _zip(entries):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return file.getvalue()


def _replaced(content, data, entry="data.pkl"):
    return _zip({name: data if name.endswith(entry) else old for name, old in _entries(content).items()})


def _climbing(content):
    entries = _entries(content)
    return _zip({f"../../../{name}": data for name, data in entries.items()})
