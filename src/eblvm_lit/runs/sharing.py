"""Shared models: folders in the layout of the Hugging Face Hub, with a model card, for upload and download."""

from __future__ import annotations

import copy
import json
import math
import os
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from jinja2 import Template
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from torchvision.utils import save_image

from eblvm_lit.core.tensors import part
from eblvm_lit.errors import ConfigError, DataError
from eblvm_lit.methods.base import PRIOR_STATISTICS
from eblvm_lit.runs.instantiate import instantiate
from eblvm_lit.runs.stored_config import redirect
from eblvm_lit.utils.io import write_json, write_text, write_whole
from eblvm_lit.utils.moved import with_present_names
from eblvm_lit.utils.run_files import read_command
from eblvm_lit.utils.untrusted import read_yaml

if TYPE_CHECKING:
    from eblvm_lit.runs.trained_run import TrainedRun

__all__ = ["WEIGHTS", "download", "draw_samples", "read_pretrained", "save_pretrained"]

FILES = ("model.safetensors", "config.yaml", "metrics.json", "README.md", "samples.png")
WEIGHTS, CONFIG, METRICS, CARD, PICTURE = FILES
# The prefix of tensors in the file that are not parameters; no parameter can have such a name.
BESIDE = "shared/"
STARTS = f"{BESIDE}starts/"  # prefix of the initial states of chains; the state's name follows
LOG_Z = f"{BESIDE}log_z"  # log Z and its standard error
STATISTICS = f"{BESIDE}{PRIOR_STATISTICS}/"  # prefix of batch-normalisation statistics; the buffer's name follows
# The configuration keys that a shared model keeps, in addition to callbacks.evaluation.
KEPT = ("seed", "max_examples", "data", "method", "sampler", "latent_langevin", "command")
FOLDER_KEYS = ("run_dir", "hydra.run.dir")
ELSEWHERE = re.compile(r"(^|=[\"'\[]*)(/|~/|\.\.)")  # a path that is valid on one machine only


def save_pretrained(
    run: TrainedRun,
    folder: str | Path,
    *,
    half: bool = False,
    license: str = "mit",
    push_to_hub: bool = False,
    repo_id: str | None = None,
) -> None:
    """Write the model to a folder that can be shared and loaded by :func:`eblvm_lit.from_pretrained`.

    The folder has the layout of the Hugging Face Hub: ``model.safetensors``, ``config.yaml``, ``metrics.json``, and a
    model card, ``README.md``, with ``samples.png``. The samples are drawn by this function.

    Args:
        run: The run, of which this is a method.
        folder: The folder that the files are written to.
        half: Whether parameters are rounded to half precision, with eleven significant bits, which halves the size of
            the file. A loaded model has these values as float32 parameters. A tensor with values outside the range of
            half precision is kept as it is.
        license: The license of the weights, by its name on the Hub.
        push_to_hub: Whether the files are uploaded to the Hub, which needs the package ``huggingface_hub`` and a login.
        repo_id: The name of the model on the Hub, ``OWNER/NAME``; the name of the folder if not given.

    Example:
        >>> import tempfile
        >>> from eblvm_lit import load
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     load("grbm_digits").save_pretrained(folder)
        ...     load(folder)
        TrainedRun(method: ScoreMatching, energy: GRBM, iteration: 15,000)
    """
    from safetensors.torch import save  # imported here, because training does not need it

    folder = Path(folder)
    name = repo_id or folder.resolve().name
    config = _config(run)
    written = _rounded(run) if half else run
    state = _state(written, half)
    write_whole(folder / WEIGHTS, lambda file: file.write(save(state, {"format": "pt"})))
    write_text(folder / CONFIG, OmegaConf.to_yaml(config))
    write_json(folder / METRICS, {**run.metrics, "iteration": run.iteration})
    draw_samples(run, written.sample(64 if run.data.window is None else 1000), folder / PICTURE)
    node = OmegaConf.select(run.config, "callbacks.evaluation")
    how = {} if node is None else instantiate(node, "callbacks.evaluation", run.packages).describe(run.method, run.data)
    card = Template(
        (files("eblvm_lit.runs") / "model_card.md.j2").read_text(), trim_blocks=True, keep_trailing_newline=True
    )
    of = {"name": name, "license": license, "config": config, "how": how, "picture": (folder / PICTURE).is_file()}
    write_text(folder / CARD, card.render(of, run=run, type=type))
    if push_to_hub:
        import huggingface_hub  # imported here, because only uploads and downloads need it

        repo = huggingface_hub.create_repo(name, exist_ok=True)
        huggingface_hub.upload_folder(repo_id=repo.repo_id, folder_path=folder, allow_patterns=list(FILES))


def _rounded(run: TrainedRun) -> TrainedRun:
    """Return the run with its parameters rounded to half precision, as in the shared file."""
    method = copy.deepcopy(run.method)
    method.load_state_dict({name: _halved(value).to(value.dtype) for name, value in method.state_dict().items()})
    return type(run)(
        method=method,
        config=run.config,
        iteration=run.iteration,
        starts={name: _halved(value).to(value.dtype) for name, value in run.starts.items()},
        packages=run.packages,
    )


def _halved(value: Tensor) -> Tensor:
    """Round a tensor to half precision, or return it unchanged if the rounding error would be too large.

    The largest error that is accepted is 2^-11 of the tensor's largest absolute value.

    Example:
        >>> [_halved(torch.tensor([x, 1.0])).dtype for x in (0.1, 1e5)]
        [torch.float16, torch.float32]
    """
    if not value.is_floating_point() or value.numel() == 0:
        return value
    rounded = value.half()
    near = (rounded.to(value.dtype) - value).abs().max() <= 2**-11 * value.abs().max()
    return rounded if near else value


def _state(run: TrainedRun, half: bool) -> dict[str, Tensor]:
    """Return the tensors to store: parameters, buffers used after training, initial states of chains, and log Z."""
    unshared = run.method.unshared_buffers()
    state = {name: value for name, value in run.method.state_dict().items() if name not in unshared}
    state |= {f"{STARTS}{name}": value for name, value in run.starts.items()}
    if half:
        state = {name: _halved(value) for name, value in state.items()}
    state |= {f"{STATISTICS}{name}": value for name, value in run.method.parts.prior_statistics().items()}
    with suppress(ConfigError):  # a model without a tractable likelihood has no log Z
        state[LOG_Z] = torch.tensor(run.log_partition(), dtype=torch.float64)
    return {name: value.cpu().clone(memory_format=torch.contiguous_format) for name, value in state.items()}


def _config(run: TrainedRun) -> dict[str, Any]:
    """Return the training command and the settings that loading the model needs, both without absolute paths."""
    whole = cast(dict[str, Any], OmegaConf.to_container(run.config, resolve=True))
    config = {key: whole[key] for key in KEPT if whole.get(key) is not None}
    config["method"]["_target_"] = torch.typename(type(run.method))
    config["callbacks"] = {name: node for name, node in whole.get("callbacks", {}).items() if name == "evaluation"}
    if run.folder and (trainings := _trainings(run.folder, run.config.get("init_from"))):
        config["command"] = " && ".join(shlex.join(["python", "train.py", *words]) for words in trainings)
    return _portable(config)


def _trainings(folder: Path, init_from: str | None) -> list[list[str]]:
    """Return the overrides of the run in a folder, after those of the runs from which it started.

    The folders of the earlier runs are called outputs/run_1, outputs/run_2 and so on. A run without a stored command,
    such as a model of the package, is no earlier run: its name stays in the override init_from.
    """
    command = read_command(folder)
    if not command:
        return []
    words = [str(word) for word in command["overrides"] if not ELSEWHERE.search(str(word))]
    before = Path(init_from or "")
    chosen = "" if before.name in ("", "last.ckpt") or before.suffix != ".ckpt" else f"/checkpoints/{before.name}"
    before = before.parent.parent if before.suffix == ".ckpt" else before
    if init_from is None or not (before / CONFIG).is_file():
        return [words]
    earlier = _trainings(before, read_yaml(before / CONFIG).get("init_from"))
    if not earlier:
        return [words]
    name = f"outputs/run_{len(earlier)}"
    earlier[-1] = [*_without(earlier[-1], *FOLDER_KEYS), f"run_dir={name}"]
    return [*earlier, [*_without(words, "init_from", *FOLDER_KEYS), f"init_from={name}{chosen}"]]


def _without(words: Sequence[str], *keys: str) -> list[str]:
    return [word for word in words if word.partition("=")[0] not in keys]


def _portable(node: Any) -> Any:
    """Replace each absolute path in nested dicts and lists with its last component."""
    if isinstance(node, dict):
        return {key: _portable(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_portable(value) for value in node]
    return Path(node).name if isinstance(node, str) and ELSEWHERE.match(node) else node


def draw_samples(run: TrainedRun, v: Tensor, path: Path) -> None:
    """Save a picture of samples v (n, *event) if they are images or two-dimensional points."""
    if run.data.image_shape is not None:
        low, high = (float(bound) for bound in run.examples("train").aminmax())
        images = v.reshape(-1, *run.data.image_shape)
        columns = math.ceil(math.sqrt(len(v)))
        save_image(images, path, nrow=columns, padding=1, pad_value=1, normalize=True, value_range=(low, high))
    elif run.data.window is not None:
        # imported here, because matplotlib takes seconds to import
        from eblvm_lit.figures.base import window_in_units
        from eblvm_lit.figures.style import new_figure, save

        figure = new_figure(4, 4)
        axes = figure.subplots()
        x_range, y_range = window_in_units(run.data)
        axes.set(xlim=x_range, ylim=y_range, box_aspect=1)
        axes.scatter(*v.cpu().T, s=5, alpha=0.4, linewidths=0)
        save(figure, path.with_suffix(""))


def read_pretrained(folder: Path) -> dict[str, Any]:
    """Read the folder of a shared model without running any code from it; return the content in a checkpoint's form.

    The folder of the data set is set to the data folder of this machine, which is the environment variable EBLVM_DATA,
    or ``data``.

    Raises:
        DataError: If a file is missing, cut off, or contradicts itself.
    """
    from safetensors.torch import load_file  # imported here, because training does not need it

    try:
        state = load_file(folder / WEIGHTS)
        metrics = json.loads((folder / METRICS).read_text()) if (folder / METRICS).is_file() else {}
        config = cast(DictConfig, OmegaConf.create(with_present_names(_portable(read_yaml(folder / CONFIG)) or {})))
        redirect(config, {"root": os.environ.get("EBLVM_DATA", "data")})
        ours = {
            "config": OmegaConf.to_container(config),
            "method": OmegaConf.select(config, "method._target_"),
            "iteration": int(metrics.get("iteration", 0)),
        }
    except Exception as error:  # the three readers raise a dozen types of exceptions for invalid files
        reason = str(error).partition("\n")[0].rstrip(".")
        raise DataError(f"{folder} is not a readable model ({type(error).__name__}: {reason}).") from None
    state = {name: value.float() if value.dtype == torch.float16 else value for name, value in state.items()}
    beside = {name: state.pop(name) for name in list(state) if name.startswith(BESIDE)}
    log_z = tuple(beside[LOG_Z].tolist()) if LOG_Z in beside else None
    found = {"state_dict": state, "starts": part(beside, STARTS), "metrics": metrics, "log_z": log_z}
    statistics = part(beside, STATISTICS)
    return {"eblvm_lit": ours, **found, **({PRIOR_STATISTICS: statistics} if statistics else {})}


def download(repo_id: str, revision: str | None) -> Path:
    """Download a model from the Hub into the Hub's own cache.

    Raises:
        DataError: If there is no such model, or the Hub cannot be reached.
    """
    import huggingface_hub  # imported here, because only uploads and downloads need it

    try:
        return Path(huggingface_hub.snapshot_download(repo_id, revision=revision, allow_patterns=list(FILES)))
    except OSError as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise DataError(f"{repo_id} is not a folder here, and cannot be downloaded from the Hub ({reason}).") from None
