"""Tests of the annotations of constructors: a value of a configuration that they forbid is refused in one sentence."""

import copy
import functools
import inspect
import itertools
import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from eblvm_lit.errors import ConfigError, EblvmError
from eblvm_lit.runs.annotations import argument_types, check_arguments, check_values
from eblvm_lit.runs.build import build, build_trainer
from eblvm_lit.runs.instantiate import LIBRARIES, instantiate, resolve_target, to_plain
from eblvm_lit.runs.settings import RUN, check_config, check_plain
from helpers.shell import CONF, configure, configured
from helpers.short_runs import NARROW

RESOLVE = functools.partial(resolve_target, packages=LIBRARIES)


def test_every_argument_that_a_file_of_the_configuration_gives_is_checked(monkeypatch):
    monkeypatch.setattr(Path, "read_text", functools.cache(Path.read_text))  # each message reads all files
    targets = {
        name for path in CONF.rglob("*.yaml") for name in re.findall(r"_target_: (eblvm_lit\S+)", path.read_text())
    }
    for target in targets:
        types = argument_types(RESOLVE(target))
        given = inspect.signature(RESOLVE(target)).parameters
        assert {*given} <= {*types}, target
        for name in given:
            with pytest.raises(ConfigError):
                check_values({name: {1: ...}}, types, str)


# --- overrides that once ended in a traceback or were accepted --------------------------------------------

# The method of the two tests below, unless their own words name another one.
BIDSM = ("method=bidsm",)
PARTS = {
    "method.n_unroll=null method.hypergradient=fixed_point": "hypergradient=fixed_point",
    "method.objective=mdsm": "objective=mdsm",
    "method.posterior=gaussian": "posterior=gaussian",
    "method=cd method.chain=gibbs": "chain=gibbs",
    "optimizer.schedule=cosine": "schedule@optimizer.schedule=cosine",
    "callbacks.evaluation.metrics=fid": "evaluation@callbacks.evaluation.metrics=fid",
    "callbacks.figures.figures=annealed": "figures@callbacks.figures.figures=annealed",
    f"method=bidvl data=mnist method.loss=full_latent {' '.join(NARROW)}": "loss=full_latent",
    "method.energy=grbm": "model=grbm",
    "method.optimizer=sgd": "optimizer=sgd",
    "method.divergence=kl": "divergence=kl",
    "method=nce method.noise_distribution=fitted_normal": "noise_distribution=fitted_normal",
    "method=vages_dsm method.score=vages": "score=vages",
    "method=vages_dsm score.particles=posterior": "particles=posterior",
    "method.posterior=[1]": None,
    "method.objective=3": None,
    "method.optimizer=null": None,
    "method.lower_optimizer=adam": None,
}


@pytest.mark.parametrize("words", PARTS)
def test_a_word_where_a_part_belongs_is_refused_by_the_group_to_type(words):
    with pytest.raises(ConfigError, match=r"must be (of class|a valid mapping)") as refusal:
        check_config(configure("run_dir=none", *BIDSM, *words.split()))
    if PARTS[words]:
        assert f": choose it by {PARTS[words]}." in str(refusal.value)
        key = re.search(r"(\S+) \(", str(refusal.value))[1]
        others = [word for word in words.split() if not word.startswith((f"{key}=", "method.n_unroll"))]
        # the suggested override must be valid itself
        check_config(configure("run_dir=none", *BIDSM, *others, PARTS[words]))


NUMBERS = {
    "data.batch_size=1.5": "data.batch_size .* must be a valid integer, not 1.5",
    "method.n_unroll=0.5": "method.n_unroll .BiSM. must be a valid integer, not 0.5",
    "seed=abc": "seed must be a valid integer, not 'abc'",
    "seed=-1": "seed must be greater than or equal to 0, not -1",
    "seed=1.5": "seed must be a valid integer, not 1.5",
    "seed=1.0": "seed must be a valid integer, not 1.0",
    "seed='12'": "seed must be a valid integer, not '12'",
    "model.h_dim=0": "model.h_dim .GRBM. must be greater than 0, not 0",
    "model.h_dim=-4": "model.h_dim .GRBM. must be greater than 0, not -4",
    "noise.std=x": "noise.std .DSM. must be a valid number, not 'x'",
    "noise.std=0": "noise.std .DSM. must be greater than 0, not 0",
    "noise.std=-0.1": "noise.std .DSM. must be greater than 0, not -0.1",
    "noise.std=nan": "noise.std .DSM. must be a finite number, not nan",
    "threads=lots": "threads must be a valid integer, not 'lots'",
    "optimizer.lr=abc": "optimizer.lr .Adam. must be a valid number, not 'abc'",
    "optimizer.lr=true": "optimizer.lr .Adam. must be a valid number, not true",
    "optimizer.lr='0.1'": "optimizer.lr .Adam. must be a valid number, not '0.1'",
    "optimizer.lr=inf": "optimizer.lr .Adam. must be a finite number, not inf",
    "optimizer.betas=[0.9]": "optimizer.betas .Adam. must have at least 2 items, not .0.9.",
    "optimizer.betas=[0.9,1]": r"optimizer.betas\[1\] .Adam. must be less than 1, not 1",
    "max_examples=-7": "max_examples must be greater than 0, not -7",
    "iterations_per_batch=0": "iterations_per_batch must be greater than 0, not 0",
    "n_validations=0": "n_validations must be greater than 0, not 0",
    "callbacks.checkpoints.mode=maximum": "callbacks.checkpoints.mode .* must be 'min' or 'max', not 'maximum'",
    "callbacks.nonfinite=3": "callbacks.nonfinite must be a valid mapping, not 3",
    "trainer.devices=1234": "trainer.devices must be less than or equal to",
    "trainer.max_steps=1.5": "trainer.max_steps must be a valid integer, not 1.5",
    "+trainer.overfit_batches=0.5": "trainer.overfit_batches must be a valid integer, not 0.5",
    "trainer.deterministic=perhaps": "trainer.deterministic must be a valid boolean or 'warn', not 'perhaps'",
    "eval_weights=both_of_them": "eval_weights must be 'raw', 'ema' or 'both', not 'both_of_them'",
    "compile=perhaps": "compile must be a valid boolean or 'auto', not 'perhaps'",
    "~optimizer": "optimizer .BiSM. must be of class Optimizer, not a mapping: choose one by optimizer=adam, sgd",
    "sizes.v_shape=3": "v_shape",
}


@pytest.mark.parametrize("word", NUMBERS)
def test_a_number_of_the_wrong_kind_or_range_is_refused_by_the_key_as_it_is_typed(word):
    cfg = configure("run_dir=none", *BIDSM, word)
    with pytest.raises(ConfigError, match=NUMBERS[word]) as refusal:
        check_config(cfg)
    assert "\n" not in str(refusal.value)


def test_a_batch_is_no_larger_than_the_training_split():
    data = instantiate({"_target_": "eblvm_lit.data.digits.Digits", "batch_size": 5000}, "data")
    with pytest.raises(
        ConfigError, match=r"data.batch_size=5000 is more than the (\d+) training examples: choose \1\."
    ):
        data.train_dataloader()


# --- a user's own classes ---------------------------------------------------------------------------------


class Own:
    """A user's class, with annotations as users write them."""

    def __init__(
        self,
        *,
        v_shape: "list[float]" = (),
        widths: "tuple[int, ...]" = (),
        path: "Path | None" = None,
        free=None,
    ):
        self.v_shape = v_shape


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"widths": [3, 4], "path": "a/b", "free": [1, {}], "v_shape": [1, 2.5]}, None),
        ({"widths": ["3"]}, "model.widths .Own. must be a valid tuple, not ..3.."),
        ({"widths": 3}, "model.widths .Own. must be a valid tuple, not 3"),
        ({"path": 3}, "model.path .Own. must be a valid path, not 3"),
        ({"v_shape": "abc"}, "model.v_shape .Own. must be a valid list, not 'abc'"),
    ],
)
def test_arguments_of_a_user_s_class_are_checked_by_their_own_annotations(given, named):
    def check():
        check_arguments(
            {"_target_": "own", **given}, lambda name: Own, lambda steps: ".".join(["model", *map(str, steps)])
        )

    if named is None:
        return check()
    with pytest.raises(ConfigError, match=named.replace(r"\[0\]", ".0")):
        check()


# --- every single value of a configuration ----------------------------------------------------------------

METHODS = {
    "levels": "",  # the default run
    "bidsm": "method=bidsm",
    "vages_dsm": "method=vages_dsm model=deep_toy",
    "bidvl": f"method=bidvl data=mnist {' '.join(NARROW)}",
    "cd": "method=cd",
    "nce": "method=nce",
    "mdsm": "method=mdsm data=mnist model=deep_mlp model.network.widths=[8]",
}
VALUES = ("word", -3, 0.5, None, ["a"])
NAMES = {"resume.allow", "allow_packages"}  # keys whose value is a name or a list of names
FRACTIONS = {"data.val_size", "data.test_size"}  # keys of counts that may be given as a fraction


def leaves(node, key=""):
    """Yield the dotted key and the value of each entry that is not a mapping."""
    for name, value in node.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{key}{name}.")
        else:
            yield f"{key}{name}", value


def put(node, steps, value):
    """Set a value in nested containers."""
    for step in steps[:-1]:
        node = node[step]
    node[steps[-1]] = value


def get(node, steps):
    """Return a value in nested containers."""
    return functools.reduce(lambda part, step: part[step], steps, node)


def marked(node, steps=()):
    """Yield the configuration key that each mark contains, and the keys and indices that lead to the mark."""
    if isinstance(node, str) and (found := re.fullmatch(r"<([\w.]+)>", node)):
        yield found[1], steps
    for step, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from marked(value, (*steps, step))


def places(cfg, keys):
    """Find where the values of some keys stand in a configuration after its interpolations have been resolved.

    A run reads them there, so a value can be changed without resolving the configuration again.
    """
    cfg = copy.deepcopy(cfg)
    for key in keys:
        put(cfg, key.split("."), f"<{key}>")
    found = {key: [] for key in keys}
    for key, steps in marked(to_plain(cfg)):
        found[key] += [steps] * (steps[0] in RUN)
    return found


def must_be_refused(key, default, value):
    """Return whether a value must be refused for a key, judged by the type of the key's default value.

    A default value of null shows no type, so that no value must be refused.
    """
    if key in NAMES:
        return value in (-3, 0.5)
    kinds = {bool: (), int: (0.5,) if key in FRACTIONS else (), float: (0.5,), str: ("word",), list: (["a"],)}
    return type(default) in kinds and value is not None and value not in kinds[type(default)]


def built(cfg, steps):
    """Build the part of a run that reads the value at this place."""
    top, *rest = steps
    if top in ("callbacks", "logger"):
        instantiate(cfg[top][rest[0]], f"{top}.{rest[0]}", LIBRARIES)
    elif top == "trainer":
        build_trainer(cfg, build(cfg, LIBRARIES))
    elif top in ("data", "method", "sampler"):
        instantiate(cfg[top], top, LIBRARIES)


@pytest.mark.parametrize("method", METHODS)
def test_each_leaf_takes_what_its_annotation_allows_and_refuses_the_rest_in_a_sentence(method, tmp_path, monkeypatch):
    # A message that lists the options of a group reads all files of the configuration. None of them changes here.
    monkeypatch.setattr(Path, "read_text", functools.cache(Path.read_text))
    folders = (f"run_dir={tmp_path}", f"cache_dir={tmp_path}")
    cfg = configured(*METHODS[method].split(), *folders)
    raw = dict(leaves(OmegaConf.to_container(cfg)))
    plain = to_plain(cfg)
    found = places(cfg, [key for key, value in raw.items() if not isinstance(value, list)])
    n_tried = 0
    wrong = []
    several = []

    def key_of(steps):
        return ".".join(map(str, steps))

    if method != "levels":
        # Parts that are as in the default run give the same results, which the case "levels" of this test checks.
        default = to_plain(configured(*folders))
        same = {top for top in plain if plain[top] == default.get(top)}
        raw = {key: value for key, value in raw.items() if key not in found or {top for top, *_ in found[key]} - same}
    # All values fit before one of them changes. Then only the parts of the run that read this one are checked again.
    check_plain(plain, RESOLVE, key_of)
    for key, value in itertools.product(raw, VALUES):
        n_tried += 1
        put(cfg, key.split("."), value)
        defaults = [get(plain, steps) for steps in found.get(key, ())]
        for steps in found.get(key, ()):
            put(plain, steps, value)
        changed = {top: plain[top] for top in ("trainer", *(top for top, *_ in found.get(key, ())))}
        try:
            check_plain(changed, RESOLVE, key_of) if key in found else check_config(cfg)
            for steps in found.get(key, ()):
                built(cfg, steps)
            wrong += [(key, value)] * any(must_be_refused(key, default, value) for default in defaults)
        except EblvmError as error:
            several += [(key, value)] * ("\n" in str(error))
        for steps, default in zip(found.get(key, ()), defaults, strict=True):
            put(plain, steps, default)
        put(cfg, key.split("."), raw[key])
    assert wrong == several == []
    assert n_tried > (500 if method == "levels" else 100)
    print(method, n_tried)
