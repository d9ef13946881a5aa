"""Checkpoints of somebody who means harm or of nobody's making: each case writes one, and says how it is read."""

import collections
import copy
import functools
import io
import os
import pickle
import struct
import zipfile
from typing import NamedTuple

import numpy as np
import torch

from eblvm_lit.cli.instantiate import instantiate
from eblvm_lit.cli.trained_run import load
from eblvm_lit.methods.checkpoint_weights import averages_of, check_resumable
from eblvm_lit.training.checkpoint_io import check_restorable, load_checkpoint
from hostile import Calls

__all__ = ["checkpoint_cases"]

W = "energy.W"
TERABYTE = 1 << 40


class Case(NamedTuple):
    """A file, how it is read, and why it is accepted, if that is right."""

    name: str
    write: object  # a function of an empty folder
    read: object  # a function of the folder
    right: str | None = None


def of_bytes(content):
    return lambda path: path.write_bytes(content)


PLACES = {
    "a pipe": os.mkfifo,
    "a folder": os.mkdir,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a terminal": lambda path: path.symlink_to("/dev/full"),
    "a link to nothing": lambda path: path.symlink_to(path.with_name("nothing")),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to a pipe": lambda path: (os.mkfifo(path.with_name("pipe")), path.symlink_to(path.with_name("pipe"))),
    "a terabyte of holes": lambda path: (path.touch(), os.truncate(path, TERABYTE)),
    "nothing": of_bytes(b""),
    "a page": of_bytes(b"<html>404</html>"),
}


def rebuilt(size, stride, offset=0, n=4, dtype=torch.float32):
    """A tensor of any size, stride and offset over n numbers."""
    storage = torch.storage.TypedStorage(wrap_storage=torch.zeros(n, dtype=dtype).untyped_storage(), dtype=dtype)
    return Calls(torch._utils._rebuild_tensor_v2, storage, offset, size, stride, False, collections.OrderedDict())


def aliases(depth):
    """Ten of ten of ten ... lists: a hundred bytes, and 10**depth values for whoever walks through them."""
    inner = [1]
    for _ in range(depth):
        inner = [inner] * 10
    return inner


def nested(depth):
    inner = []
    for _ in range(depth):
        inner = [inner]
    return inner


def circle():
    inner = {}
    inner["inner"] = inner
    return inner


# What stands for a tensor, in the parameters and in Adam's state.
TENSORS = {
    "a size beyond its memory": lambda x: rebuilt((1000, 1000), (1000, 1)),
    "an offset beyond its memory": lambda x: rebuilt((2,), (1,), offset=10**9),
    "a stride beyond its memory": lambda x: rebuilt((2,), (10**9,)),
    "an offset before its memory": lambda x: rebuilt((2,), (1,), offset=-1),
    "a negative stride": lambda x: rebuilt((2,), (-1,), offset=1),
    "a negative size": lambda x: rebuilt((-2,), (1,)),
    "a stride of 0": lambda x: torch.zeros(1).expand(x.shape),
    "one number as ten billion": lambda x: rebuilt((10**5, 10**5), (0, 0)),
    "rows that overlap": lambda x: torch.as_strided(torch.zeros(100), x.shape, (1, 1)),
    "half precision": lambda x: x.half(),
    "bfloat16": lambda x: x.bfloat16(),
    "float8": lambda x: x.to(torch.float8_e4m3fn),
    "the other float8": lambda x: x.to(torch.float8_e5m2),
    "complex numbers": lambda x: x.to(torch.complex64),
    "long complex numbers": lambda x: x.to(torch.complex128),
    "short integers": lambda x: x.short(),
    "integers": lambda x: x.long(),
    "truths": lambda x: x.bool(),
    "a sparse tensor": lambda x: x.to_sparse(),
    "sparse rows": lambda x: x.to_sparse_csr(),
    "a quantised tensor": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "a tensor without memory": lambda x: x.to("meta"),
    "another shape": lambda x: x.T.contiguous(),
    "no numbers": lambda x: x[:0],
    "a list": lambda x: x.tolist(),
    "a number": lambda x: 1.0,
    "nothing": lambda x: None,
    "an array": lambda x: x.numpy(),
    "a bytearray without end": lambda x: Calls(bytearray, 1 << 31),
    "uninitialised numbers": lambda x: Calls(torch.FloatTensor, *x.shape),
}


def of_parameters(content, value):
    content["state_dict"][W] = value(content["state_dict"][W])


def of_adam(content, value):
    state = content["optimizer_states"][0]["state"][0]
    state["exp_avg"] = value(state["exp_avg"])


def of_averages(content, value):
    averages = {name.removeprefix("energy."): tensor.clone() for name, tensor in content["state_dict"].items()}
    content["averages"] = {"theta": averages}
    averages["W"] = value(averages["W"])


def own(content):
    return content["eblvm_lit"]


def state(content):
    return content["optimizer_states"][0]


def progress(content):
    return content["loops"]["fit_loop"]["epoch_loop.batch_progress"]


def sharing(content):
    """Averages two of which are one tensor."""
    of_averages(content, lambda x: x)
    averages = content["averages"]["theta"]
    averages["b"] = averages["W"][:, 0].as_strided(averages["b"].shape, (1,))


CONTENTS = {
    "averages that share their memory": sharing,
    "an iteration of 10**30": lambda c: own(c).update(iteration=10**30),
    "an iteration before the first": lambda c: own(c).update(iteration=-1),
    "an iteration that is true": lambda c: own(c).update(iteration=True),
    "another iteration than it counts": lambda c: own(c).update(iteration=own(c)["iteration"] + 1),
    "a method that is bytes": lambda c: own(c).update(method=b"method"),
    "a configuration that is a list": lambda c: own(c).update(config=[1]),
    "a hundred million values": lambda c: own(c)["config"].update(extra=aliases(8)),
    "lists two hundred deep": lambda c: own(c)["config"].update(extra=nested(200)),
    "a dictionary that holds itself": lambda c: own(c)["config"].update(extra=circle()),
    "a number of 10**4000": lambda c: own(c)["config"].update(seed=10**4000),
    "a set": lambda c: own(c)["config"].update(extra={1, 2}),
    "a complex number": lambda c: own(c)["config"].update(extra=1j),
    "a counter": lambda c: own(c)["config"].update(extra=collections.Counter("a")),
    "a type of numbers": lambda c: own(c)["config"].update(extra=torch.float32),
    "a shape": lambda c: own(c)["config"].update(extra=torch.Size([1])),
    "a key that is a tuple": lambda c: own(c)["config"].update({(1, 2): 3}),
    "a key that is a tensor": lambda c: c["state_dict"].update({torch.zeros(1): torch.zeros(1)}),
    "a parameter of another name": lambda c: c["state_dict"].update({"[red]\n\x1b": torch.zeros(1)}),
    "a choice that is none": lambda c: own(c).update(compile={"at": "now"}),
    "validation that is text": lambda c: c.update(validation={"val/loss": "low"}),
    "no counts": lambda c: c["loops"].update(fit_loop={}),
    "a count that is text": lambda c: progress(c)["total"].update(ready="many"),
    "counts that are a list": lambda c: progress(c).update(total=[1]),
    "loops that are text": lambda c: c.update(loops="loops"),
    "callbacks that are a list": lambda c: c.update(callbacks=[1]),
    "schedulers that are a number": lambda c: c.update(lr_schedulers=1),
    "a version of nobody": lambda c: c.update({"pytorch-lightning_version": "abc"}),
    "a version that is converted": lambda c: c.update({"pytorch-lightning_version": "0.1.0"}),
    "no optimizers": lambda c: c["optimizer_states"].clear(),
    "an optimizer too many": lambda c: c["optimizer_states"].append(state(c)),
    "an optimizer that is text": lambda c: c.update(optimizer_states=["Adam"]),
    "groups that are numbers": lambda c: state(c).update(param_groups=[5]),
    "no groups": lambda c: state(c).update(param_groups=[]),
    "parameters of nobody": lambda c: state(c)["param_groups"][0].update(params=[0, 1, 2, 3, 4, 5]),
    "states of nobody": lambda c: state(c)["state"].update({0: {}}),
    "a state less": lambda c: state(c)["state"].pop(1),
    "moments that share their memory": lambda c: state(c)["state"][0].update(
        exp_avg=state(c)["state"][0]["exp_avg_sq"]
    ),
}


# --- files ------------------------------------------------------------------------------------------------


def archive_of(content):
    file = io.BytesIO()
    torch.save(content, file)
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(entries, kind=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return file.getvalue()


def with_storage(content, change):
    """The archive with its largest storage changed."""
    entries = archive_of(content)
    name = max((n for n in entries if "/data/" in n), key=lambda n: len(entries[n]))
    return packed({**entries, name: change(entries[name])}.items())


def announced(content, n_bytes):
    """The archive whose directory says of a storage that it is longer."""
    whole, entries = bytearray(packed(archive_of(content).items())), archive_of(content)
    name = max((n for n in entries if "/data/" in n), key=lambda n: len(entries[n])).encode()
    at = whole.rindex(name) - 46  # in the directory, whose entries have 46 bytes before the name
    whole[at + 20 : at + 28] = struct.pack("<II", n_bytes, n_bytes)
    return bytes(whole)


def legacy(content):
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def longer_storage(content):
    """The older format, whose pickle says how long a storage is before it is there."""
    return legacy(content).replace(b"cpuq\x08K", b"cpuq\x08M", 1)


def pickled(content, operations):
    entries = archive_of(content)
    return packed((name, operations if name.endswith("data.pkl") else data) for name, data in entries.items())


def saved(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


BYTES = {
    "a packed archive": lambda c: packed(archive_of(c).items(), zipfile.ZIP_DEFLATED),
    "a packed archive of zeros": lambda c: packed([("archive/data.pkl", bytes(1 << 26))], zipfile.ZIP_DEFLATED),
    "a shorter storage": lambda c: with_storage(c, lambda data: data[:-8]),
    "a longer storage": lambda c: with_storage(c, lambda data: data + bytes(8)),
    "no storage": lambda c: packed((n, d) for n, d in archive_of(c).items() if "/data/" not in n),
    "a storage that says it is longer": lambda c: announced(c, 1 << 30),
    "two pickles": lambda c: packed([*archive_of(c).items(), ("other/data.pkl", b"N.")]),
    "a pickle of ten megabytes": lambda c: pickled(c, b"\x80\x02" + b"N0" * (5 << 20) + b"N."),
    "a pickle that names a bytearray": lambda c: pickled(c, b"\x80\x02c__builtin__\nbytearray\nJ\0\0\0\x7f\x85R."),
    "a pickle that names a tensor type": lambda c: pickled(c, b"\x80\x02ctorch\nFloatTensor\nJ\0\0\0\x7f\x85R."),
    "a pickle of pops": lambda c: pickled(c, b"\x80\x02" + b"0" * 100 + b"."),
    "a pickle of marks": lambda c: pickled(c, b"\x80\x02e."),
    "a pickle of a recalled nothing": lambda c: pickled(c, b"\x80\x02h\x07."),
    "a pickle without its end": lambda c: pickled(c, b"\x80\x02}"),
    "a pickle of nothing": lambda c: pickled(c, b""),
    "a pickle of a storage alone": lambda c: pickled(c, b"\x80\x02ctorch\nFloatStorage\nJ\0\0\0\x7f\x85R."),
    "the older format": legacy,
    "the older format with a longer storage": longer_storage,
    "an archive of text": lambda c: packed([("a.txt", b"text")]),
    "an empty archive": lambda c: packed([]),
    "an archive without its directory": lambda c: packed(archive_of(c).items())[:-100],
    "an archive with something before it": lambda c: bytes(100) + packed(archive_of(c).items()),
    "a list": lambda c: packed(archive_of([1, 2]).items()),
    "a tensor": lambda c: packed(archive_of(torch.zeros(3)).items()),
    "another's checkpoint": lambda c: packed(archive_of({"state_dict": c["state_dict"]}).items()),
    "numpy's file": lambda c: saved(np.zeros(3)),
    "a pickle": lambda c: pickle.dumps({"a": 1}),
}


# --- reading ----------------------------------------------------------------------------------------------


def read(folder):
    load_checkpoint(folder / "a.ckpt")


@functools.cache
def honest_method(path):
    content = load_checkpoint(path)
    return instantiate(content["eblvm_lit"]["config"]["method"], "method", []), content


def resume(honest, folder):
    """What a run does before it goes on from a checkpoint."""
    path = folder / "a.ckpt"
    method, whole = honest_method(honest)
    content = load_checkpoint(path)
    check_resumable(method, content, path)
    states = [optimizer.state_dict() for optimizer in method.configure_optimizers()]
    check_restorable(content, path, {"optimizer_states": states, "loops": {"fit_loop": whole["loops"]["fit_loop"]}})
    if "averages" in content:
        averages_of(content, method)


def spoiled(honest, spoil, folder):
    content = copy.deepcopy(torch.load(honest, weights_only=True))
    spoil(content)
    torch.save(content, folder / "a.ckpt")


def of_file(honest, make, folder):
    (folder / "a.ckpt").write_bytes(make(torch.load(honest, weights_only=True)))


def checkpoint_cases(honest):
    """All of them, made of an honest checkpoint."""
    resumed = functools.partial(resume, honest)
    for place in (of_parameters, of_adam, of_averages):
        where = {"of_parameters": "parameters", "of_adam": "Adam's state", "of_averages": "averages"}[place.__name__]
        for name, value in TENSORS.items():
            write = functools.partial(spoiled, honest, functools.partial(place, value=value))
            yield Case(f"{where}: {name}", write, resumed)
    for name, spoil in CONTENTS.items():
        yield Case(f"checkpoint: {name}", functools.partial(spoiled, honest, spoil), resumed)
    for name, make in BYTES.items():
        yield Case(f"checkpoint: {name}, its file", functools.partial(of_file, honest, make), read)
    for name, make in PLACES.items():
        yield Case(f"checkpoint: {name} in its place", lambda folder, make=make: make(folder / "a.ckpt"), read)
    for name in ("a" * 300, "a\0b"):
        yield Case(
            f"checkpoint: a name of {len(name)} letters", lambda f: None, lambda f, name=name: load_checkpoint(f / name)
        )
    yield Case("checkpoint: a folder without runs", lambda folder: None, load_checkpoint)
    nothing = functools.partial(spoiled, honest, lambda content: None)
    yield Case("checkpoint: an honest one", nothing, resumed, "nothing is wrong with it")
    yield Case("checkpoint: an honest one as a run", nothing, lambda f: load(f / "a.ckpt"), "nothing is wrong with it")
    more = functools.partial(spoiled, honest, lambda content: content.update(loggers=7, epoch="none"))
    yield Case("checkpoint: further entries", more, resumed, "nothing reads them")
    link = functools.partial(linked, honest)
    yield Case("checkpoint: a link to one", link, read, "a link to a file is a file")


def linked(honest, folder):
    (folder / "a.ckpt").symlink_to(honest)
    os.stat(folder / "a.ckpt")
