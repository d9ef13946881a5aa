"""Draws the pictures of docs/ that no run draws by itself: python docs/site/pictures.py --help."""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from PIL import Image

from eblvm_lit import load
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.data.digits import Digits
from eblvm_lit.draws.masks import LeftHalf
from eblvm_lit.figures.image_grid import tile
from eblvm_lit.figures.inpainting_grid import Inpainting
from eblvm_lit.figures.style import COLOURS, INK, MARKERS, STYLE, new_figure, open_frame
from eblvm_lit.samplers.gibbs import Gibbs

DOCS = Path(__file__).resolve().parents[1]
IMAGES = DOCS / "images"
WIDTH = 7.0  # inches: a page shows a picture at about 700 pixels, so that a point of a font is 1.4 pixels
EXACT = COLOURS[0]  # the colour of methods that know p(h|v), or need no latents
LEARNED = COLOURS[1]  # the colour of methods that learn q(h|v)
OTHER = "#6b7280"
WITH_Q = ("bi", "vages", "vnce", "vsnl", "ed_latent")  # how the names of methods begin that learn q(h|v)


def keep(figure: Figure, file: Path, dpi: int = 150) -> None:
    """Save a figure as a PNG in RGB, at some dots per inch."""
    found = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(found, format="png", dpi=dpi)
    image = Image.open(found).convert("RGB")
    file.parent.mkdir(parents=True, exist_ok=True)
    image.save(file, optimize=True)


def cells_of(page: str, first: str) -> list[list[str]]:
    """Return the cells of the table of a page whose head begins with the given cells, row by row, without the head."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {first} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def number(text: str) -> float:
    """Return the first number of a cell; a minus sign may be a hyphen or a dash, and there may be commas."""
    found = re.search(r"-?\d[\d.]*(e-?\d+)?", text.replace("−", "-").replace(",", ""))
    return float(found.group()) if found else float("nan")


def colour_of(method: str) -> str:
    """Return the colour of a method: whether it learns a posterior, or knows or does without one."""
    return LEARNED if method.startswith(WITH_Q) else EXACT


def spread(values: Iterable[float], gap: float) -> np.ndarray:
    """Move heights of labels apart until neighbours are at least ``gap`` apart, by as little as possible."""
    wanted = np.asarray(list(values), dtype=float)
    order = wanted.argsort()
    moved = wanted[order].copy()
    for _ in range(200):
        for i in range(len(moved) - 1):
            lacking = gap - (moved[i + 1] - moved[i])
            if lacking > 1e-9:
                moved[i] -= lacking / 2
                moved[i + 1] += lacking / 2
    found = np.empty_like(moved)
    found[order] = moved
    return found


def name_lines(axes: Axes, x: float, ends: dict[str, float], colours: dict[str, str], gap: float) -> None:
    """Write the name of each line at its right end, in the colour of the line."""
    for (name, _), height in zip(ends.items(), spread(ends.values(), gap), strict=True):
        axes.text(x, height, name, color=colours[name], va="center", clip_on=False)


def overview() -> Figure:
    """Draw final log-likelihoods of twelve methods, from the table of docs/reproduction.md, and samples."""
    rows = [row for row in cells_of("reproduction.md", "method | val/log_likelihood (last 3) ↑") if "±" in row[2]]
    figure = new_figure(WIDTH, 3.3)
    axes, *boards = figure.subplots(1, 3, width_ratios=(1.75, 1, 1))
    left = 0.2  # methods further left are named with their number at the edge
    for height, (name, _, text, _) in enumerate(reversed(rows)):
        method = name.split(",")[0]
        mean, error = (number(part) for part in text.split("±"))
        colour = OTHER if method.startswith("is_") else colour_of(method)
        if mean < left:
            axes.text(left, height, f"◂ {text}", color=colour, va="center", fontsize=8)
        else:
            axes.errorbar(mean, height, xerr=error, fmt="o", color=colour, markersize=4, linewidth=1.2)
    open_frame(axes, "checkerboard: test log-likelihood", grid="x")
    axes.set(xlim=(left, 0.44), ylim=(-0.7, len(rows) - 0.3), yticks=range(len(rows)))
    axes.set_yticklabels([row[0].split(",")[0] for row in reversed(rows)])
    axes.tick_params(axis="y", length=0)
    for value in (0.347, 0.421):
        axes.axvline(value, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.text(0.352, 1.2, "most fits by\nmaximum\nlikelihood", va="center", fontsize=7.5)
    axes.text(0.417, 4.2, "the best\nof them", ha="right", va="center", fontsize=7.5)
    for row, (colour, text) in enumerate(((EXACT, "knows p(h|v)"), (LEARNED, "learns q(h|v)"))):
        axes.text(left + 0.004, len(rows) - 1.6 - row, text, color=colour, va="center")
    for board, name, title in zip(boards, ("dual_mnist", "bidvl_mnist"), ("dual, guided", "BiDVL"), strict=True):
        v = load(name).sample(40, seed=0)
        low = -1.0 if float(v.min()) < -0.5 else 0.0
        images = ((v[..., 2:-2, 2:-2] - low) / (1 - low)).clamp(0, 1)
        greys = (images * 15).round() / 15  # few shades of grey make a small file
        shown = tile(greys, (1, 28, 28), columns=5).numpy()
        board.imshow(shown, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        board.set(title=f"samples, {title}", xticks=[], yticks=[], anchor="N")
        board.set_axis_off()
    return figure


def checkerboard_methods() -> Figure:
    """Draw the divergence and the speed of 23 methods, from the table of docs/reproduction.md."""
    rows = cells_of("reproduction.md", "method | test/kl ↓ | test/log_likelihood ↑ | test/fisher ↓")
    rows.reverse()
    names = [row[0].split(",")[0] for row in rows]
    figure = new_figure(WIDTH, 4.9)
    panels = figure.subplots(1, 2, sharey=True, width_ratios=(1.6, 1))
    for height, (name, row) in enumerate(zip(names, rows, strict=True)):
        colour = OTHER if name.startswith("is_") else colour_of(name)
        mean, error = (number(part) for part in row[1].split("±"))
        panels[0].errorbar(mean, height, xerr=error, fmt="o", color=colour, markersize=4, linewidth=1.2)
        panels[1].plot(number(row[4]), height, "o", color=colour, markersize=4)
    open_frame(panels[0], "KL(p_data ‖ p), nats: lower is better", grid="x")
    open_frame(panels[1], "eager iterations a second", grid="x")
    panels[0].set(xscale="log", xlim=(0.3, 1.6), ylim=(-0.7, len(rows) - 0.3))
    panels[0].set_xticks([0.35, 0.4, 0.5, 0.7, 1.0, 1.4], ["0.35", "0.4", "0.5", "0.7", "1", "1.4"])
    panels[0].set_yticks(range(len(rows)), names)
    panels[1].set(xscale="log", xlim=(140, 3000))
    panels[1].set_xticks([200, 500, 1000, 2000], ["200", "500", "1,000", "2,000"])
    for axes in panels:
        axes.xaxis.set_minor_locator(NullLocator())
        axes.tick_params(axis="y", length=0)
    sorts = ((EXACT, "knows p(h|v)"), (LEARNED, "learns q(h|v)"), (OTHER, "weighs samples"))
    for row, (colour, text) in enumerate(sorts):
        panels[0].text(0.65, len(rows) - 1.5 - 1.2 * row, text, color=colour, va="center")
    return figure


def hypergradient_bias() -> Figure:
    """Draw the bias of unrolled hypergradients against N and against the distance, from docs/reproduction.md."""
    rows = [row for row in cells_of("reproduction.md", "start") if row[0].startswith("K =")]
    steps = [0, 1, 2, 5, 10, 20, 50]
    figure = new_figure(WIDTH, 3.0)
    left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
    ends = {}
    colours = {}
    for i, (start, *cells, distance) in enumerate(rows):
        name = start.replace(", and φ\\*", " and φ*").replace("K = 200", "K = 60, 200")
        errors = [number(cell) for cell in cells]
        if start == "K = 60":  # no eye tells it from K = 200
            continue
        colours[name] = COLOURS[i % len(COLOURS)]
        ends[name] = np.log10(errors[-1])
        left.plot(steps, np.log10(errors), "o-", color=colours[name])
        right.plot(number(distance), errors[0], "o", color=colours[name], markersize=5)
        right.annotate(name, (number(distance), errors[0]), (6, 6), textcoords="offset points", color=colours[name])
    far = number(rows[3][-1])
    right.plot(far, number(rows[3][1]), "o", color=colours["K = 60, 200 and φ*"], markersize=5)
    name_lines(left, 52, ends, colours, 0.22)
    open_frame(left, "relative error of dJ/dθ", grid="both")
    left.set(xlabel="unrolled steps N", xlim=(-1, 50.5), xticks=steps[:1] + steps[3:])
    exponents = (-2, -1, 0)
    left.set_yticks(exponents, [f"$10^{{{e}}}$" for e in exponents])
    open_frame(right, "the same for N = 0", grid="both")
    right.set(xlabel="distance of φ from φ*", yscale="log", xlim=(-0.5, 15), ylim=(0.08, 4))
    return figure


def hypergradient_cost() -> Figure:
    """Draw the Fisher divergence of Frey faces against time and memory, from the table of docs/hypergradients.md."""
    rows = cells_of("hypergradients.md", "`hypergradient=` | log-likelihood ↑ | Fisher ↓ | seconds")
    rows = [row for row in rows if row[2] and row[3]]
    names = [row[0].replace("`", "").replace("_", " ") for row in rows]
    figure = new_figure(WIDTH, 3.2)
    panels = figure.subplots(1, 2, sharey=True)
    # Where the label of a point stands beside it, in points, if not at the right; and the colour of a point.
    places = {"finite difference": (-4, 11), "warm": (-6, -11), "unroll, N = 10": (-7, -12)}
    colours = dict(zip(names, (COLOURS[i] for i in (0, 1, 1, 3, 6, 5, 2)), strict=True)) | {"penalty": OTHER}
    labels = ("seconds per 100 iterations", "memory of an iteration, MiB")
    for axes, column, label in zip(panels, (3, 5), labels, strict=True):
        open_frame(axes, grid="both")
        axes.set_xlabel(label)
        for i, (name, row) in enumerate(zip(names, rows, strict=True)):
            point = number(row[column]), number(row[2])
            axes.plot(*point, MARKERS[i % len(MARKERS)], color=colours[name], markersize=6)
            side = "right" if name in ("warm", "unroll, N = 10") else "left"
            beside = {"xytext": places.get(name, (7, -3)), "textcoords": "offset points", "ha": side}
            axes.annotate(name, point, color=colours[name], **beside)
    panels[0].set(ylabel="Fisher divergence + constant, test", xlim=(0.4, 3.7))
    panels[1].set(xlim=(8, 47))
    return figure


def grbm_digits() -> Figure:
    """Draw digits of the test split beside means of Gibbs samples of the shipped model ``grbm_digits``."""
    data = Digits()
    data.setup()
    run = load("grbm_digits")
    samples = run.sample(100, seed=0, mean=True, sampler=Gibbs(n_steps=1000))
    shown = (("test digits", data.as_float(data.splits.test[:100])), ("E[v|h] after 1,000 Gibbs sweeps", samples))
    return boards_of(shown, (1, 8, 8), columns=10)


def boards_of(shown: Iterable[tuple[str, torch.Tensor]], shape: tuple[int, int, int], columns: int) -> Figure:
    """Draw boards of images in [0, 1] side by side, each with its title."""
    shown = list(shown)
    figure = new_figure(WIDTH, WIDTH / len(shown) + 0.2)
    for axes, (title, images) in zip(figure.subplots(1, len(shown)), shown, strict=True):
        board = tile(images.clamp(0, 1), shape, columns=columns)
        axes.imshow(board.numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(title)
        axes.set_axis_off()
    return figure


def mnist_inpainting() -> Figure:
    """Draw completions of halves of MNIST's test digits by the shipped model ``bimdsm_mnist``."""
    run = load("bimdsm_mnist")
    figure = Inpainting(sampler=run.sampler, mask=LeftHalf()).draw(run.method, run.data, keyed_generator(0, "mask"))
    assert figure is not None
    return figure


# The pictures that are drawn from tables of the pages and from the models of the package.
PICTURES: dict[str, Callable[[], Figure]] = {
    found.__name__: found
    for found in (overview, checkerboard_methods, hypergradient_bias, hypergradient_cost, grbm_digits, mnist_inpainting)
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(prog="python docs/site/pictures.py", description=__doc__)
    found.add_argument("names", nargs="*", metavar="NAME", help=f"pictures, of {', '.join(PICTURES)}; none: all")
    found.add_argument("--list", action="store_true", help="print the names of the pictures and draw nothing")
    return found


def main() -> int:
    """Draw the pictures that the command line names."""
    options = parser().parse_args()
    if options.list:
        print("\n".join(PICTURES))
        return 0
    for name in options.names or PICTURES:
        with matplotlib.rc_context(STYLE):
            keep(PICTURES[name](), IMAGES / f"{name}.png")
        print(f"written to {IMAGES / name}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
