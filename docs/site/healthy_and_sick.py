"""Draws four runs side by side for docs/troubleshooting.md: python docs/site/healthy_and_sick.py FOLDER.

FOLDER holds the four runs, in folders of these names; each is less than two minutes on one core:

    python train.py method=bidsm compile=true hydra.run.dir=FOLDER/healthy
    python train.py method=bidsm compile=true optimizer.lr=3 hydra.run.dir=FOLDER/diverging
    python train.py method=bidsm compile=true method.n_lower_steps=0 hydra.run.dir=FOLDER/lagging
    python train.py method=bidsm compile=true data=two_blobs optimizer.lr=0.1 trainer.max_steps=2500 \
        hydra.run.dir=FOLDER/dropping
"""

import sys
from pathlib import Path

import eblvm_lit
from eblvm_lit.errors import ConfigError
from eblvm_lit.figures.style import COLOURS, new_figure, open_frame, styled

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "healthy_and_sick.png"
RUNS = {
    "healthy": "healthy",
    "diverging": "diverged\n(learning rate 3)",
    "lagging": "lagging posterior\n(K = 0)",
    "dropping": "a mode is missing\n(two distant blobs)",
}
ROWS = {"val/loss": "val/loss", "val/log_likelihood": "val/log_likelihood", "val/posterior_kl": "val/posterior_kl"}
LOWEST = -3.0  # a lower log-likelihood is drawn here
LEAST = 1e-5  # a smaller divergence is below the axis


@styled
def figure(folder):
    """One column for each run: three curves, and samples over the data."""
    drawn = new_figure(9.2, 7.0)
    grid = drawn.subplots(len(ROWS) + 1, len(RUNS), height_ratios=[1, 1, 1, 2.1])
    for column, (name, title) in zip(grid.T, RUNS.items(), strict=True):
        run = eblvm_lit.load(folder / name)
        for axes, (metric, label) in zip(column, ROWS.items(), strict=False):
            curve = run.curves[metric].dropna()
            if metric == "val/log_likelihood":
                if curve.max() < LOWEST:
                    axes.text(0.5, 0.5, f"{curve.iloc[-1]:.0e}", transform=axes.transAxes, ha="center")
                curve = curve.clip(lower=LOWEST)
                axes.set_ylim(LOWEST - 0.3, 1.0)
            if metric == "val/posterior_kl" and curve.max() < LEAST:
                axes.text(0.5, 0.5, "below 1e-5", transform=axes.transAxes, ha="center")
            axes.plot(curve.index, curve, "o-", color=COLOURS[list(ROWS).index(metric)])
            if metric == "val/posterior_kl":
                axes.set_yscale("log")
                axes.set_ylim(LEAST, 100)
                axes.set_xlabel("iteration")
            open_frame(axes, title if metric == "val/loss" else None)
            if name == "healthy":
                axes.set_ylabel(label)
        samples(column[-1], run)
    return drawn


def samples(axes, run):
    """Samples of the model, in colour, over the data, in grey; a model that has diverged has none."""
    axes.scatter(*run.examples("test")[:2000].T, s=3, color="#b5bcc7", linewidths=0)
    try:
        axes.scatter(*run.sample(1000, seed=0).T, s=3, color=COLOURS[1], linewidths=0)
        axes.set_xlabel("data grey, samples orange")
    except ConfigError:
        axes.set_xlabel("data grey; the chains diverge")
    window = run.data.bounds
    axes.set(xlim=window[0], ylim=window[1], aspect="equal", xticks=[], yticks=[])


if __name__ == "__main__":
    figure(Path(sys.argv[1])).savefig(PICTURE, dpi=90, facecolor="white")
