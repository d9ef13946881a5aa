"""The public interface as a type checker and an editor see it in a user's files."""

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
# Wrong calls, each with a text that the type checker's message must contain.
WRONG = {
    'GRBM(v_dim="two", h_dim=3)': '"v_dim"',
    "DSM(noise_std=0.1).loss(42, torch.zeros(5, 2), {})": '"score"',
    "ExactScore(DSM(noise_std=0.1))": '"energy"',
    "DeepLatentEnergy(network=torch.nn.Linear(2, 3), h_dim=3)": '"network"',
    "from eblvm_lit import GRMB": '"GRMB"',
}


@pytest.mark.slow
def test_right_calls_pass_wrong_ones_are_found_and_every_public_name_has_a_type(tmp_path):
    if importlib.util.find_spec("basedpyright") is None:
        pytest.skip("basedpyright is not installed: pip install -e '.[lint]'")
    (tmp_path / "pyrightconfig.json").write_text(f'{{"typeCheckingMode": "basic", "extraPaths": ["{ROOT}/src"]}}')
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(START + "\n".join(WRONG))
    shown = [f"reveal_type(eblvm_lit.{name})" for name in eblvm_lit.__all__]
    (tmp_path / "names.py").write_text("\n".join(["import eblvm_lit", *shown]))
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--outputjson"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    found = {"right.py": [], "wrong.py": [], "names.py": []}
    for item in json.loads(result.stdout)["generalDiagnostics"]:
        found[item["file"].rpartition("/")[2]].append((item["range"]["start"]["line"], item["message"]))
    assert found["right.py"] == []
    assert {line - START.count("\n") for line, _ in found["wrong.py"]} == {*range(len(WRONG))}
    for line, message in found["wrong.py"]:
        assert [*WRONG.values()][line - START.count("\n")] in message
    assert len(found["names.py"]) == len(shown)
    assert not [message for _, message in found["names.py"] if "Unknown" in message]
