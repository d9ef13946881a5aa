"""Tests of the command line: all commands under one name, completion in a shell, and an installed wheel."""

import os
import subprocess
import sys
import sysconfig
import tomllib
from functools import partial

import pytest
import yaml
from hydra._internal.hydra import Hydra
from hydra.core.singleton import Singleton

from eblvm_lit import __version__
from eblvm_lit.__main__ import COMMANDS, main
from helpers.shell import ROOT


@pytest.fixture
def said(monkeypatch, capsys):
    """Return a function that runs ``python -m eblvm_lit WORDS``, or a script, and returns what it prints."""

    def call(*words, script="__main__.py"):
        monkeypatch.setattr(sys, "argv", [script, *words])
        try:
            main()
        except SystemExit as leaving:
            assert not leaving.code  # noqa: PT017 - train returns
        return capsys.readouterr().out

    before = Singleton.get_state()  # Hydra's global configuration must not leak from a command into later tests
    yield call
    Singleton.set_state(before)


def test_a_name_is_a_command_with_its_arguments(said, monkeypatch):
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {f"eblvm-{name}": "eblvm_lit.__main__:main" for name in COMMANDS}
    assert {said("--version", script=f"/bin/{name}") for name in scripts} == {said("--version")}
    assert {said(name, "--version") for name in COMMANDS} == {f"eblvm_lit {__version__}\n"}
    assert "samples.npz" in said("--help", script="/bin/eblvm-sample")
    assert yaml.safe_load(said("train", "--cfg", "job", "method=dsm", "seed=7"))["seed"] == 7
    # The help of evaluate has no list of groups, but Hydra makes this list in any case, which takes two seconds.
    monkeypatch.setattr(Hydra, "format_config_groups", lambda *_, **options: "")
    assert "ckpt=PATH" in said("evaluate", "--help")
    assert "samples.npz" in said("sample", "--help")
    assert "--metric" in said("report", "--help")


def test_a_shell_completes_groups_and_options(said, monkeypatch):
    assert "complete " in said("train", "-sc", "install=bash").splitlines()[-1]
    monkeypatch.setenv("COMP_LINE", "eblvm-train method=vages_")
    assert "method=vages_dsm" in said("train", "-sc", "query=bash").split()
    assert all("@hydra.main" in (ROOT / name).read_text() for name in ("train.py", "evaluate.py"))


@pytest.mark.slow
def test_a_wheel_made_of_the_sdist_trains_in_a_clean_environment(tmp_path):
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    call = partial(subprocess.run, cwd=tmp_path, env=variables, check=True, capture_output=True, text=True)
    call([sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", str(ROOT)])
    (wheel,) = tmp_path.glob("dist/*.whl")
    call([sys.executable, "-m", "venv", "env"])
    (site,) = tmp_path.glob("env/lib/python*/site-packages")
    # A .pth file gives the new environment the dependencies of this one. It does not give it the package, because
    # Python does not read the .pth file by which the package is installed here.
    (site / "shared.pth").write_text(sysconfig.get_path("purelib"))
    call(["env/bin/pip", "install", "--no-index", "--no-deps", str(wheel)])
    assert call(["env/bin/python", "-m", "eblvm_lit", "--version"]).stdout == f"eblvm_lit {__version__}\n"
    call(["env/bin/eblvm-train", "debug=fast", "hydra.run.dir=run"])
    assert (tmp_path / "run" / "metrics.json").is_file()
    assert (site / "eblvm_lit" / "conf" / "config.yaml").is_file()
