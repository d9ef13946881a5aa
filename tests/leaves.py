"""The leaves of six configurations, and values of a wrong kind for each: what must run, or end in one sentence."""

import contextlib
import copy
import io
import logging
import math
import re
import signal

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from eblvm_lit.cli import run
from eblvm_lit.errors import EblvmError
from shell import configure

METRICS, FIGURES = "callbacks.evaluation.metrics", "callbacks.figures.figures"
# What is long by default: only the leaf that is set makes a run long.
SHORT = (
    *("trainer.max_steps=2", "n_validations=1", "compile=false", "summary=false", "trainer.accelerator=cpu"),
    *("data.batch_size=8", f"{METRICS}.log_likelihood.n_chains=2", f"{METRICS}.log_likelihood.n_betas=2"),
)
PLANE = tuple(
    f"{FIGURES}.{key}" for key in ("samples.n_points=4", "samples.n_steps=2", "density.n_cells=4", "density.n_bins=2")
)
LANGEVIN = tuple(f"sampler.langevin.{name}=1" for name in ("n_hot", "n_falling", "n_cold"))
AIS = tuple(
    f"{METRICS}.{place}.{key}"
    for place in ("estimated_likelihood.hamiltonian_ais", "sandwich.ais")
    for key in ("n_chains=2", "n_betas=2", "n_adapting=1")
)
DIGITS = ("data=mnist", "data.root=digits", "data.val_size=20", "data.size=32")
IMAGES = ("data=image_folder", "data.path=pictures", "data.root=prepared", "data.size=32", "data.channels=3")
COMBINATIONS = {
    "bidsm": [*SHORT, *PLANE],
    "vages_mdsm": [
        *(*SHORT, *LANGEVIN, *IMAGES, "method=vages_mdsm", "model.network.channels=2", "sizes.h_dim=2"),
        *(f"evaluation@{METRICS}=out_of_distribution", f"figures@{FIGURES}=annealed", f"{FIGURES}.samples.n=4"),
    ],
    "bidvl": [
        *(*SHORT, *DIGITS, "method=bidvl", "model.network.width=2", "posterior.network.width=2", "generator.width=2"),
        *(f"evaluation@{METRICS}=generator", f"figures@{FIGURES}=generator", "posterior.h_dim=4"),
        *(f"{METRICS}.fd_classifier.{key}=2" for key in ("features.n_steps", "features.width", "features.dim")),
        *(f"{METRICS}.fd_classifier.{key}=10" for key in ("n_samples", "n_samples_at_validation")),
    ],
    "pcd": [
        *(*SHORT, *PLANE, "method=pcd", "callbacks=ema", "eval_weights=both", "optimizer=sgd"),
        *(f"evaluation@{METRICS}=plane", f"{METRICS}.modes.n_samples=20", f"{METRICS}.modes.n_steps=2"),
        *(f"{METRICS}.quadrature.n_cells=4", f"{METRICS}.quadrature.tolerance=1e9"),
    ],
    "snl": [
        *(*SHORT, *PLANE, *AIS, "method=snl", f"evaluation@{METRICS}=likelihood"),
        f"{METRICS}.estimated_likelihood.quadrature.n_nodes=5",
    ],
    "implicit": [
        *(*SHORT, "method=bidsm", "data=digits", "hypergradient=implicit", f"{FIGURES}.samples.n=4"),
        *(f"{FIGURES}.samples.n_steps=2", f"evaluation@{METRICS}=reconstruction"),
    ],
}
DSM = {"_target_": "eblvm_lit.objectives.dsm.DSM", "noise_std": 0.1}
VALUES = (-1, 0, math.nan, math.inf, 1.5, 1e30, 10**9, 10**30, None, True, "text", [], {}, DSM)


class LateError(BaseException):
    """A case took too long; no handler of errors takes it for one."""


def paths(node, prefix=""):
    """The paths of all leaves and parts of a configuration, as they are written there."""
    for key in node:
        here, child = f"{prefix}.{key}" if prefix else str(key), node._get_node(key)
        nested = OmegaConf.is_dict(child) and not child._is_none() and not child._is_interpolation() and len(child)
        if not nested or "_target_" in child:
            yield here
        if nested:
            yield from paths(child, here)


def parts(name):
    """Each class of a combination once: where it stands, and its node."""
    cfg = configure(*COMBINATIONS[name], "run_dir=run")
    plain = {key: OmegaConf.to_container(cfg[key], resolve=True) for key in ("data", "method", "callbacks", "logger")}

    def below(node, path):
        if isinstance(node, dict):
            if "_target_" in node:
                yield path, node
            for key, child in node.items():
                yield from below(child, f"{path}.{key}" if path else key)

    return {node["_target_"]: (path, node) for path, node in reversed(list(below(plain, "")))}


@contextlib.contextmanager
def within(seconds):
    """End the block with :class:`LateError` after some seconds."""

    def late(*_):
        raise LateError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def outcome(action, seconds=60):
    """How an action ends: ``run``, ``sentence``, ``traceback``, ``hang`` or ``announced``, that is with a forecast."""
    warned, printed = io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(warned)
    handler.setLevel(logging.WARNING)
    logging.getLogger("eblvm_lit").addHandler(handler)
    try:
        with within(seconds), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
            action()
    except EblvmError as error:
        return ("sentence" if str(error) and "\n" not in str(error) else "traceback"), str(error)
    except LateError:
        announced = re.search("Very much is asked for|About .* days left", warned.getvalue() + printed.getvalue())
        return ("announced" if announced else "hang"), warned.getvalue()
    except Exception as error:
        return "traceback", f"{type(error).__name__}: {error}"
    finally:
        logging.getLogger("eblvm_lit").removeHandler(handler)
    return "run", ""


def trained_with(base, path, value, folder, seconds=60):
    """How a run ends that has another value at a path."""
    cfg = copy.deepcopy(base)
    cfg.run_dir, cfg.outputs_dir, cfg.cache_dir = (str(folder / name) for name in ("run", "outputs", "cache"))
    try:
        OmegaConf.update(cfg, path, copy.deepcopy(value), merge=True)
    except OmegaConfBaseException as error:  # as on the command line, where Hydra says so
        return "sentence", str(error)
    return outcome(lambda: run.train(cfg), seconds)
