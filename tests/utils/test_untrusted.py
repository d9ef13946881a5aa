"""Tests of files that are damaged or made to exhaust the machine: each is read as it was written, or refused."""

import io
import pickle
import zipfile

import pytest
import torch
import yaml
from omegaconf import OmegaConf

from eblvm_lit.errors import DataError
from eblvm_lit.utils.untrusted import LEVELS, MOST, read_tensors, read_yaml, refuse_endless
from helpers.shell import same

CONTENT = {
    "config": {"seed": 3, "lr": 0.1},
    "state_dict": {"w": torch.rand(40, 8)},
    "names": ["a"],
}


def flipped(content, places, bits=None):
    """Yield copies of a file's bytes in which one bit is changed at one of the given places."""
    for place in places:
        for bit in bits or [place % 8]:
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            yield bytes(changed)


def test_a_checkpoint_with_a_flipped_bit_is_refused_or_gives_what_was_saved(tmp_path):
    path = tmp_path / "last.ckpt"
    refused = []
    torch.save(CONTENT, path)
    content = path.read_bytes()
    # the length of the archive's directory, which has no checksum
    directory = len(content) - content.index(b"PK\x01\x02")
    for changed in (*flipped(content, range(0, len(content), 29)), *flipped(content, range(-directory, 0), [4])):
        path.write_bytes(changed)
        try:
            found = read_tensors(path)
        except DataError as error:
            refused.append(str(error))
        else:
            assert same(found, CONTENT)
    # The other changed bits do not matter: they are in padding between the parts of the archive, or in times.
    assert len(refused) > 200
    assert all(text.startswith(f"{path} is not a readable checkpoint") for text in refused)


def zipped(path, pickled, **options):
    """Write a file that looks like a checkpoint and contains a given pickle."""
    with zipfile.ZipFile(path, "w", **options) as file:
        file.writestr("last/data.pkl", pickled)
        file.writestr("last/version", "3\n")


def test_a_pickle_of_endless_instructions_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "load", lambda *args, **kwargs: pytest.fail("it is read"))
    # "N" pushes a value on the stack, and "0" drops it
    endless = b"\x80\x02" + b"N0" * 32 * MOST + b"N."
    zipped(tmp_path / "stored.ckpt", endless)
    zipped(tmp_path / "small.ckpt", endless[: 15 * MOST], compression=zipfile.ZIP_DEFLATED)
    for path in tmp_path.iterdir():
        with pytest.raises(DataError, match=path.name):
            read_tensors(path)


def test_a_checkpoint_of_another_kind_is_refused(tmp_path):
    for name, content in {"empty": b"", "text": b"hello", "pickle": pickle.dumps({"a": 1})}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=name):
            read_tensors(tmp_path / name)


def test_containers_that_hold_one_another_again_and_again_are_refused():
    node = [0] * 10
    for _ in range(9):
        node = [node] * 10
    deep = {}
    for _ in range(10 * LEVELS):
        deep = {"a": deep}
    loop = {}
    loop["a"] = [loop]
    for endless in (node, deep, loop, {"a": [0] * MOST}):
        with pytest.raises(DataError, match="config has too many"):
            refuse_endless(endless, "config")


BOMB = "\n".join(["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10))])
REFUSED = {
    "aliases": BOMB,
    "merged aliases": BOMB.replace("[", "{<<: [").replace("]", "]}"),
    "recursion": "&a [*a]",
    "deep": "[" * 10 * LEVELS,
    "large": "a: 1\n" * MOST,
    "another kind": "a: [",
    "an object": "!!python/object/apply:os.getcwd []",
    "a number of many digits": "a: " + "9" * 5000,
    "a date that is none": "a: 2001-99-99",
    "bytes": b"\xff\xfe\x00a: \xd8",
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_a_file_that_is_no_configuration_is_refused(text, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=r"config\.yaml is not a readable configuration") as refusal:
        read_yaml(path)
    assert len(str(refusal.value)) < 400


def test_what_this_package_writes_is_read_as_it_was(tmp_path):
    shared = [0.9, 1e-5, "1e-5", True, None, "${run_dir}/a", float("inf")]
    plain = {"betas": shared, "again": {"betas": shared}, "name": "ü", "empty": [{}, []]}
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(plain)), encoding="utf-8")
    assert read_yaml(tmp_path / "config.yaml") == plain
    assert not [event for event in yaml.parse((tmp_path / "config.yaml").read_text()) if getattr(event, "anchor", None)]
    torch.save({"config": plain}, buffer := io.BytesIO())
    (tmp_path / "last.ckpt").write_bytes(buffer.getvalue())
    found = read_tensors(tmp_path / "last.ckpt")
    refuse_endless(found, "last.ckpt")
    assert found == {"config": plain}
