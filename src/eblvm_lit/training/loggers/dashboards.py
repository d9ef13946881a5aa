"""The W&B dashboard: python -m eblvm_lit.training.loggers.dashboards --entity TEAM [--project NAME] [--show]."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from eblvm_lit.errors import ConfigError, EblvmError
from eblvm_lit.evaluation.directions import direction

__all__ = ["Panel", "Section", "build", "layout", "main"]

CURVES = ("val/loss", "val/fisher", "val/posterior_fisher", "val/posterior_kl", "val/log_likelihood", "val/fid")
TRAINING = tuple(f"train/{name}" for name in ("model_loss", "upper_loss", "lower_loss", "iterations_per_second"))
RESULTS = (
    *("test/log_likelihood", "test/fisher", "test/posterior_fisher", "test/fid", "test/inception_score"),
    *("test/auroc_svhn", "test/rmse", "test/probe_accuracy"),
)
GRIDS = ("test/fisher", "test/log_likelihood", "train/iterations_per_second")
FIGURES = ("density", "samples", "filters", "curves", "tsne", "interpolation", "inpainting")
N, K, GROUP = "method.n_unroll", "method.n_lower_steps", "job.group"


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        kind: ``line`` (a metric over iterations), ``bar`` (the best value of each group), ``grid`` (the best value as
            colour over N and K) or ``media`` (figures).
        title: The title.
        metric: The metric, or the logged names of the figures for ``media``.
    """

    kind: Literal["line", "bar", "grid", "media"]
    title: str
    metric: str | tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """Panels under one title."""

    title: str
    panels: tuple[Panel, ...]


def best(metric: str) -> str:
    """The W&B summary that holds the best value of a metric.

    Example:
        >>> best("test/fisher"), best("test/log_likelihood"), best("train/upper_lr")
        ('test/fisher.min', 'test/log_likelihood.max', 'train/upper_lr')
    """
    return metric + {1: ".max", -1: ".min", 0: ""}[direction(metric)]


def layout() -> tuple[Section, ...]:
    """The sections of the dashboard, results first.

    Example:
        >>> [section.title for section in layout()]
        ['Results', 'N x K', 'Validation', 'Training', 'Figures']
    """
    media = Panel("media", "figures", tuple(f"figures/{name}" for name in FIGURES))
    return (
        Section("Results", tuple(Panel("bar", name, name) for name in RESULTS)),
        Section("N x K", tuple(Panel("grid", f"{name} over N and K", name) for name in GRIDS)),
        Section("Validation", tuple(Panel("line", name, name) for name in CURVES)),
        Section("Training", tuple(Panel("line", name, name) for name in TRAINING)),
        Section("Figures", (media,)),
    )


def build(sections: Sequence[Section], entity: str, project: str) -> Any:
    """Build the workspace with W&B's package, without sending it.

    Raises:
        ConfigError: If the package is not installed.
    """
    try:
        import wandb_workspaces.reports.v2 as reports
        import wandb_workspaces.workspaces as workspaces
    except ImportError as error:
        raise ConfigError(
            f"Dashboards need a package that is not installed ({error}): pip install wandb-workspaces, or look at "
            "the layout with --show."
        ) from None
    makers = {
        "line": lambda p: reports.LinePlot(title=p.title, x="iteration", y=[p.metric], groupby=reports.Config(GROUP)),
        "bar": lambda p: reports.BarPlot(title=p.title, metrics=[best(p.metric)], groupby=reports.Config(GROUP)),
        "grid": lambda p: reports.ScatterPlot(
            title=p.title, x=reports.Config(N), y=reports.Config(K), z=reports.SummaryMetric(best(p.metric))
        ),
        "media": lambda p: reports.MediaBrowser(title=p.title, media_keys=list(p.metric)),
    }
    return workspaces.Workspace(
        entity=entity,
        project=project,
        name="eblvm_lit",
        sections=[
            workspaces.Section(name=s.title, panels=[makers[p.kind](p) for p in s.panels], is_open=True)
            for s in sections
        ],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Create the dashboard on W&B, or print its layout; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m eblvm_lit.training.loggers.dashboards", description=__doc__)
    parser.add_argument("--entity", help="user or team that owns the project")
    parser.add_argument("--project", default="eblvm_lit")
    parser.add_argument("--show", action="store_true", help="print the layout without sending it")
    options = parser.parse_args(arguments)
    if options.show:
        print(json.dumps([asdict(section) for section in layout()], indent=2))
        return 0
    try:
        if options.entity is None:
            raise ConfigError("Whose project is it? python -m eblvm_lit.training.loggers.dashboards --entity TEAM")
        workspace = build(layout(), options.entity, options.project)
        try:
            workspace.save()
        except Exception as error:  # exceptions of W&B and the network share no base class
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise ConfigError(
                f"W&B did not take the dashboard ({reason}): see to `wandb login` and --entity."
            ) from error
        print(workspace.url)
    except EblvmError as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
