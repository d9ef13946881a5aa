"""Folders of runs that are written without training."""

import json

import pandas as pd
from omegaconf import OmegaConf

from eblvm_lit.reports.runs import group_runs, read_runs
from helpers.shell import configured


def run_folder(folder, *overrides, cfg=None, metrics=None, curves=None, hydra=True):
    """Write the files that a finished run leaves in its folder.

    ``curves`` maps the name of a metric to its values by iteration.
    """
    folder.mkdir(parents=True)
    cfg = configured(*overrides, f"run_dir={folder}") if cfg is None else cfg
    OmegaConf.save(cfg, folder / "config.yaml", resolve=True)
    if hydra:
        chosen = dict(override.split("=", 1) for override in ("data=checkerboard", "method=levels", *overrides))
        choices = {key: value for key, value in chosen.items() if "." not in key}
        OmegaConf.save({"overrides": list(overrides), "choices": choices}, folder / "command.yaml")
    (folder / "metrics.json").write_text(json.dumps(metrics))
    if curves is not None:
        pd.DataFrame(curves).sort_index().rename_axis("iteration").to_csv(folder / "metrics.csv")
    return folder


class Simple:
    """A function that writes run folders with a small configuration, without composing it by Hydra."""

    def __init__(self, root):
        self.root = root

    def __call__(self, name, method="dsm", seed=0, data="Checkerboard", metrics=None, curves=None, **keys):
        cfg = OmegaConf.create(
            {
                **{"seed": seed, "run_dir": str(self.root / name), "ckpt": None, "optimizer": {"lr": 0.1}},
                "data": {"_target_": f"x.{data}", "seed": seed},
                "method": {"_target_": f"x.{method}", "seed": seed, "optimizer": "${optimizer}"},
                "logger": {"csv": {"save_dir": str(self.root / name)}},
            }
        )
        keys = {key.replace("__", "."): value for key, value in keys.items()}
        for key, value in keys.items():
            OmegaConf.update(cfg, key, value, force_add=True)
        overrides = [f"method={method}", f"data={data.lower()}", *(f"{key}={value}" for key, value in keys.items())]
        metrics = {"test/log_likelihood": 0.0} if metrics is None else metrics
        return run_folder(self.root / name, *overrides, cfg=cfg, metrics=metrics, curves=curves)


def groups_of(*folders):
    return group_runs(read_runs(folders)[0])
