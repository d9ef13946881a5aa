"""The public interface as a type checker and an editor see it, in the files of a user."""

import importlib.util
import json
import subprocess
import sys

import pytest

import eblvm_lit
from helpers.shell import ROOT

RIGHT = """
import torch
from eblvm_lit import DSM, GRBM, Adam, Checkerboard, DeepLatentEnergy, ExactScore, Gibbs, ResNet, load

v = Checkerboard().sample(10, torch.Generator())
energy, objective = GRBM(v_dim=2, h_dim=3), DSM(noise_std=0.1)
noise = objective.noise(v, (), torch.Generator())
loss = objective.loss(ExactScore(energy), objective.perturb(v, noise), noise).mean()
deep = DeepLatentEnergy(network=ResNet(v_shape=[1, 8, 8], n_blocks=1, channels=2), h_dim=3)
samples = Gibbs(n_steps=2).sample(energy, 4, torch.Generator(), mean=True)
samples = load("grbm_digits").sample(4, seed=0)
rule = Adam(lr=0.1)
"""

START = "import torch\nfrom eblvm_lit import DSM, GRBM, Adam, DeepLatentEnergy, ExactScore, Gibbs, Langevin\n"
# A wrong call, and what the type checker says about it.
WRONG = {
    'GRBM(v_dim="two", h_dim=3)': '"v_dim"',
    "DSM(noise_std=0.1).loss(42)": '"v", "noise"',
    "DSM(noise_std=0.1).loss(42, torch.zeros(5, 2), {})": '"score"',
    "Adam(lr=0.1, momentum=0.9)": '"momentum"',
    "ExactScore(DSM(noise_std=0.1))": '"energy"',
    "Langevin(n_steps=5, step_size=0.1).noise(5, torch.Generator())": '"x"',
    "DeepLatentEnergy(network=torch.nn.Linear(2, 3), h_dim=3)": '"network"',
    "from eblvm_lit import GRMB": '"GRMB"',
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the type checker says about three files of a user: (severity, line, message) by the file's name."""
    if importlib.util.find_spec("basedpyright") is None:
        pytest.skip("basedpyright is not installed: pip install -e '.[lint]'")
    folder = tmp_path_factory.mktemp("user")
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "basic", "extraPaths": [f"{ROOT}/src"]}))
    (folder / "right.py").write_text(RIGHT)
    (folder / "wrong.py").write_text(START + "\n".join(WRONG))
    shown = [f"reveal_type(eblvm_lit.{name})" for name in eblvm_lit.__all__]
    (folder / "names.py").write_text("\n".join(["import eblvm_lit", *shown]))
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--outputjson"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    said = {"right.py": [], "wrong.py": [], "names.py": []}
    for item in json.loads(result.stdout)["generalDiagnostics"]:
        name = item["file"].rpartition("/")[2]
        said[name].append((item["severity"], item["range"]["start"]["line"], item["message"]))
    return said


def test_right_calls_pass(found):
    assert found["right.py"] == []


def test_wrong_arguments_are_found(found):
    first = START.count("\n")
    for number, (call, expected) in enumerate(WRONG.items(), start=first):
        messages = [message for severity, line, message in found["wrong.py"] if severity == "error" and line == number]
        assert any(expected in message for message in messages), f"{call}: {messages}"
    assert all(line >= first for _, line, _ in found["wrong.py"])


def test_every_public_name_has_a_type(found):
    assert len(found["names.py"]) == len(eblvm_lit.__all__)
    for severity, _, message in found["names.py"]:
        assert severity == "information", message
        assert "Unknown" not in message, message
