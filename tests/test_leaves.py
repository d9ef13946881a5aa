"""Every leaf of a configuration, set to values of a wrong kind, runs or ends in one sentence."""

import copy
import resource
from collections import Counter

import pytest
import torch
from omegaconf import OmegaConf

from eblvm_lit.cli import run
from eblvm_lit.cli.annotations import check_value
from eblvm_lit.cli.build import build_trainer
from eblvm_lit.cli.instantiate import LIGHTNING, instantiate
from eblvm_lit.cli.validate import check_config, check_types
from eblvm_lit.data.digits import Digits
from eblvm_lit.errors import ConfigError
from eblvm_lit.optimizers.adam import Adam
from image_files import write_images, write_mnist
from leaves import COMBINATIONS, VALUES, outcome, parts, paths, trained_with
from shell import configure, tiny

GIB = 2**30


@pytest.fixture
def little_memory():
    """No more than 3 GiB, on any machine: what is asked for by mistake is asked for in vain."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (3 * GIB, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


# --- one check of types, ranges and kinds --------------------------------------------------------------------


@pytest.mark.usefixtures("little_memory")
def test_every_argument_of_every_part_is_taken_or_refused_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found, wrong = Counter(), []
    classes = {target: place for name in COMBINATIONS for target, place in parts(name).items()}
    for target, (path, node) in classes.items():
        for key in node.keys() - {"_target_"}:
            for value in VALUES:
                kind, said = outcome(lambda n={**node, key: value}, p=path: instantiate(n, p, LIGHTNING))
                found[kind] += 1
                if kind not in ("run", "sentence") or "does not fit" in said or len(said) > 400:
                    wrong.append(f"{target}.{key}={value!r}: {kind}, {said}")
    assert wrong == []
    assert len(classes) > 60
    assert found["sentence"] > 10 * found["run"]  # most values are of a wrong kind


class ReachedError(ConfigError):
    """The configuration was accepted, and its parts would be built."""


def test_every_key_at_the_top_is_taken_or_refused_before_anything_is_built(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def build(cfg, packages):
        raise ReachedError("Reached.")

    monkeypatch.setattr(run, "build", build)
    base, found = configure(*COMBINATIONS["bidsm"]), Counter()
    tops = [path for path in paths(base) if "." not in path and path != "run_dir"]
    for path in tops:
        for value in VALUES:
            kind, said = trained_with(base, path, value, tmp_path)
            found[kind] += 1
            assert kind == "sentence", (path, value, said)
    assert found["sentence"] == len(tops) * len(VALUES)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"run_dir": 10}, "run_dir must be str, not 10"),
        ({"run_dir": None}, "run_dir must be str, not None"),
        ({"ckpt": 1.5}, r"ckpt must be str \| None, not 1.5"),
        ({"allow_packages": 3}, "allow_packages must be .*, not 3"),
        ({"tf32": 1}, r"tf32 must be bool \| None, not 1"),
        ({"summary": None}, "summary must be bool, not None"),
        ({"threads": True}, r"threads must be int \| None, not True"),
        ({"sweep": {"resume": "yes"}}, "sweep.resume must be bool, not 'yes'"),
        ({"sizes": {"v_shape": 2}}, r"sizes.v_shape must be Sequence, not 2"),
        ({"trainer": None}, "trainer must be Mapping, not None"),
    ],
)
def test_what_no_constructor_takes_has_its_type_here(values, sentence):
    with pytest.raises(ConfigError, match=sentence):
        check_types(OmegaConf.create(values))


@pytest.mark.parametrize(
    ("value", "hint", "sentence"),
    [
        (float("nan"), float, "a finite number, not nan"),
        (float("inf"), float | None, "a finite number, not inf"),
        (10**30, int, "a number within 64 bits"),
        (-(2**63) - 1, float, "a number within 64 bits"),
        ([0.0, float("inf")], list[float], "finite numbers"),
        (["a"], list[float], r"list\[float\], not \['a'\]"),
        ([1, 2, 3], tuple[int, int], r"tuple\[int, int\], not"),
        (True, int, "int, not True"),
        (1, bool, "bool, not 1"),
        (3, torch.nn.Module, "Module, not 3"),
        ("adam", Adam, "Adam, not 'adam'"),
    ],
)
def test_a_value_of_another_type_is_refused(value, hint, sentence):
    with pytest.raises(ConfigError, match=f"^key must be {sentence}"):
        check_value(value, hint, "key")


def test_the_wrong_one_of_several_values_is_named():
    with pytest.raises(ConfigError, match=r"^metrics\.fid must be int \| None, not 'many'"):
        check_value({"kid": 1, "fid": "many"}, dict[str, int | None], "metrics")


@pytest.mark.parametrize(
    ("value", "hint"), [(2**63 - 1, int), (-(2**63), float), (1, float), (1e300, float), (None, int | None), ([], list)]
)
def test_a_value_of_the_type_is_taken(value, hint):
    check_value(value, hint, "key")


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("network", {"_target_": "eblvm_lit.objectives.dsm.DSM", "noise_std": 1}, "must be Module, not eblvm_lit"),
        ("network", {"depth": 3}, "has keys of a Module and names no class"),
        ("network", 5, "must be Module, not 5"),
    ],
)
def test_a_network_is_a_module(key, value, sentence):
    node = {"_target_": "eblvm_lit.energies.spectral.SpectralEnergy", key: value}
    with pytest.raises(ConfigError, match=sentence):
        instantiate(node, "model")


@pytest.mark.parametrize("value", [[], 3, "text"])
def test_what_is_no_part_is_refused_where_the_run_looks_at_parts_first(value, tmp_path):
    cfg = tiny(tmp_path)
    OmegaConf.update(cfg, "method.objective", value, merge=False)
    with pytest.raises(ConfigError, match=r"method\.objective must be Objective, not"):
        run.train(cfg)


TRAINER = ("accelerator", "devices", "num_nodes", "log_every_n_steps", "deterministic", "profiler", "benchmark")


def test_every_key_of_the_trainer_is_taken_or_refused_in_one_sentence(tmp_path):
    base = tiny(tmp_path)
    parts_of_run = type("", (), {"data": Digits(), "callbacks": {}})
    for key in TRAINER:
        for value in VALUES:
            cfg = copy.deepcopy(base)
            OmegaConf.update(cfg, f"trainer.{key}", copy.deepcopy(value), force_add=True)
            kind, said = outcome(lambda cfg=cfg: (check_config(cfg), build_trainer(cfg, parts_of_run)))
            assert kind in ("run", "sentence"), (key, value, said)


@pytest.mark.parametrize(
    "override",
    ["trainer.profiler=nothing", "+trainer.plugins=deepspeed"],
)
def test_a_key_of_the_trainer_that_needs_something_else_is_refused(override, tmp_path):
    with pytest.raises(ConfigError, match=r"^trainer") as refusal:
        build_trainer(tiny(tmp_path, override), type("", (), {"data": Digits(), "callbacks": {}}))
    assert "\n" not in str(refusal.value)


# --- whole runs ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("name", COMBINATIONS)
def test_every_leaf_runs_or_ends_in_one_sentence(name, tmp_path, monkeypatch):
    write_images(tmp_path / "pictures", 60, size=(32, 32))
    write_mnist(tmp_path / "digits", 60, 20)
    monkeypatch.chdir(tmp_path)
    base, found, wrong = configure(*COMBINATIONS[name]), Counter(), []
    assert trained_with(base, "seed", 1, tmp_path / "base") == ("run", "")
    for path in paths(base):
        for i, value in enumerate(VALUES):
            kind, said = trained_with(base, path, value, tmp_path / f"{path}_{i}")
            found[kind] += 1
            if kind not in ("run", "sentence", "announced"):
                wrong.append((path, value, kind, said))
            torch.use_deterministic_algorithms(False)
    print(name, dict(found))
    assert wrong == []
