"""The W&B dashboard: python examples/wandb_dashboard.py --entity TEAM [--project NAME]."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from eblvm_lit.reports.runs import declare_all
from eblvm_lit.utils.quantities import direction

declare_all()
RESULTS = (
    *("test/log_likelihood", "test/fisher", "test/posterior_fisher", "test/fid", "test/inception_score"),
    *("test/auroc_svhn", "test/rmse", "test/probe_accuracy"),
)
GRIDS = ("test/fisher", "test/log_likelihood", "train/iterations_per_second")
CURVES = ("val/loss", "val/fisher", "val/posterior_fisher", "val/posterior_kl", "val/log_likelihood", "val/fid")
TRAINING = tuple(f"train/{name}" for name in ("model_loss", "upper_loss", "lower_loss", "iterations_per_second"))
FIGURES = ("density", "samples", "filters", "curves", "tsne", "interpolation", "inpainting")
N = "method.n_unroll"
K = "method.n_lower_steps"
GROUP = "job.group"


def best(metric: str) -> str:
    """Return the name of the W&B summary with the best value of a metric.

    Example:
        >>> best("test/fisher"), best("test/log_likelihood"), best("train/upper_lr")
        ('test/fisher.min', 'test/log_likelihood.max', 'train/upper_lr')
    """
    return metric + {1: ".max", -1: ".min", 0: ""}[direction(metric)]


def build(entity: str, project: str) -> Any:
    """Build the workspace, results first, without sending it; this needs ``pip install wandb-workspaces``."""
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

    by_group = wr.Config(GROUP)

    def line(name: str) -> Any:
        return wr.LinePlot(title=name, x="iteration", y=[name], groupby=by_group)

    def grid(name: str) -> Any:
        z = wr.SummaryMetric(best(name))
        return wr.ScatterPlot(title=f"{name} over N and K", x=wr.Config(N), y=wr.Config(K), z=z)

    panels = {
        "Results": [wr.BarPlot(title=name, metrics=[best(name)], groupby=by_group) for name in RESULTS],
        "N x K": [grid(name) for name in GRIDS],
        "Validation": [line(name) for name in CURVES],
        "Training": [line(name) for name in TRAINING],
        "Figures": [wr.MediaBrowser(title="figures", media_keys=[f"figures/{name}" for name in FIGURES])],
    }
    sections = [ws.Section(name=title, panels=of, is_open=True) for title, of in panels.items()]
    return ws.Workspace(entity=entity, project=project, name="eblvm_lit", sections=sections)


def main(arguments: Sequence[str] | None = None) -> None:
    """Create the dashboard on W&B, and print its address."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entity", required=True, help="user or team that owns the project")
    parser.add_argument("--project", default="eblvm_lit")
    options = parser.parse_args(arguments)
    workspace = build(options.entity, options.project)
    workspace.save()
    print(workspace.url)


if __name__ == "__main__":
    main()
