"""Draws two trained models and what is composed of them, for docs/python.md: python docs/site/composition.py FOLDER.

FOLDER holds the two runs, in folders of these names; each takes less than a minute on one core:

    python train.py method=dual data=rings trainer.max_steps=4000 optimizer.lr=5e-3 data.batch_size=256 \
        hydra.run.dir=FOLDER/rings
    python train.py method=dual data=two_spirals trainer.max_steps=4000 optimizer.lr=5e-3 data.batch_size=256 \
        hydra.run.dir=FOLDER/two_spirals
"""

import sys
from pathlib import Path

import torch

import eblvm_lit
from eblvm_lit.figures.style import COLOURS, new_figure, styled

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "composition.png"
N = 1000


def drawn(energy, n_corrections):
    """Draw N samples of an energy of every level."""
    flow = eblvm_lit.ProbabilityFlow(n_steps=30, n_corrections=n_corrections)
    return eblvm_lit.Sampler(dynamics=flow, batch_size=N).draw(energy.of_data(), range(N), seed=0)


def right(v, _):
    """Compute log p(class|v) of a classifier of clean points that tells right from left."""
    return torch.nn.functional.logsigmoid(8 * v[:, 0])


@styled
def figure(folder):
    """One panel for each model and each composed energy."""
    rings, spirals = (eblvm_lit.load(folder / name).energy.every_level for name in ("rings", "two_spirals"))
    product = eblvm_lit.ProductEnergy(energies=[rings, spirals])
    panels = {
        "rings": drawn(rings, 0),
        "two spirals": drawn(spirals, 0),
        "product, flow only": drawn(product, 0),
        "product, corrected": drawn(product, 8),
        "mixture": drawn(eblvm_lit.MixtureEnergy(energies=[rings, spirals]), 0),
        "rings, tilted to the right": drawn(eblvm_lit.TiltedEnergy(energy=rings, log_factor=right), 8),
    }
    made = new_figure(7.2, 4.9)
    for axes, (title, v) in zip(made.subplots(2, 3).flat, panels.items(), strict=True):
        axes.scatter(*v.T, s=1.2, color=COLOURS[0], linewidths=0)
        axes.set(title=title, xlim=(-4.5, 4.5), ylim=(-4.5, 4.5), xticks=[], yticks=[], aspect="equal")
    return made


if __name__ == "__main__":
    figure(Path(sys.argv[1])).savefig(PICTURE)
