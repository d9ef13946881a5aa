"""Draws pictures of docs/ from the runs and benchmarks in a folder: python docs/site/gallery.py --help."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from pictures import IMAGES, WIDTH, keep
from PIL import Image

from eblvm_lit import load
from eblvm_lit.figures.density import COLOURS as COLOURMAP
from eblvm_lit.figures.density import cell_centres, density_on_grid
from eblvm_lit.figures.style import STYLE, new_figure
from eblvm_lit.runs.trained_run import TrainedRun

# The order of the panels, after that of the data.
CHECKERBOARD = (
    *("sm", "ssm", "dsm", "mdsm", "ksd", "is_dsm", "is_ksd", "bissm", "bidsm", "bimdsm", "vages_dsm", "vages_mdsm"),
    *("vages_ksd", "cd", "pcd", "jarzynski", "particle_ml", "nce", "vnce", "snl", "vsnl", "ed", "ed_latent"),
)
RINGS = ("ssm", "dsm", "ksd", "nce", "ed")
# Figures that runs and benchmarks draw: the picture, and the figure in the folder that the command line names.
COPIES = {
    "gallery/points": "points/figures/samples",
    "gallery/curves": "points/figures/curves",
    "gallery/samples": "digits/figures/samples",
    "gallery/filters": "digits/figures/filters",
    "gallery/tsne": "digits_bidsm/figures/tsne",
    "gallery/energies": "digits_bidsm/figures/energies",
    "gallery/vae": "vae/figures/samples",
    "gallery/interpolation": "vae/figures/interpolation",
    "gallery/fisher_critic": "fisher_critic/figures/curves",
    "gallery/score_bias": "vages_bias/figures/score_bias",
    "bilevel_quadratic": "bilevel_quadratic/bilevel_quadratic",
    "bilevel_quadratic_outer": "bilevel_quadratic/bilevel_quadratic_outer",
    "speed_n_unroll": "growth/speed_n_unroll",
}


def runs_by_method(folder: Path) -> dict[str, Path]:
    """Find the finished runs at any depth of a folder, by the value of ``method=`` on their command line."""
    found = {}
    for file in sorted(folder.rglob("metrics.json")):
        words = (file.parent / "command.yaml").read_text(encoding="utf-8")
        method = next(line.split("=")[1] for line in words.splitlines() if line.strip().startswith("- method="))
        found[method.strip()] = file.parent
    return found


def gallery(
    folder: Path,
    methods: Iterable[str],
    n: int,
    brightest: float,
    title: Callable[[str, TrainedRun], str],
    columns: int = 4,
) -> Figure:
    """Draw the true density of the data and those of the models of several methods, in one window and on one scale.

    Args:
        folder: The folder of the runs.
        methods: The methods, in the order of their panels; a method without a run is left out.
        n: The number of cells of each panel along each axis.
        brightest: The upper end of the scale of colours, in units of the highest density of the data.
        title: A function of the method's name and its run that returns the title of the panel.
        columns: The number of panels in a row.
    """
    runs = runs_by_method(folder)
    shown = [(method, load(runs[method])) for method in methods if method in runs]
    data = shown[0][1].data
    log_d = data.log_density(cell_centres(data.bounds, n).view(-1, 2))
    truth = log_d.exp().view(n, n)
    rows = -(-(len(shown) + 1) // columns)
    figure = new_figure(WIDTH, 6.9 / columns * rows + 0.2)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True).flatten()
    # Few colours show lines of equal density, and make a small file.
    colours = matplotlib.colormaps[COLOURMAP].resampled(20)
    style = {
        "origin": "lower",
        "interpolation": "nearest",
        "cmap": colours,
        "vmin": 0,
        "vmax": float(truth.max()) * brightest,
    }
    image: AxesImage | None = None
    for panel, (name, run) in zip(panels, [("data", None), *shown], strict=False):
        found = truth if run is None else density_on_grid(run.energy, data.bounds, n)
        image = panel.imshow(found.numpy(), extent=(*data.bounds[0], *data.bounds[1]), **style)
        panel.set_title("data" if run is None else title(name, run), fontsize=9)
        panel.tick_params(labelsize=7)
        print(name, flush=True)
    for panel in panels[len(shown) + 1 :]:
        panel.set_axis_off()
    assert image is not None
    bar = figure.colorbar(image, ax=panels.tolist(), extend="max", aspect=60, pad=0.015, fraction=0.02)
    bar.set_label("p(v)")
    return figure


def checkerboard(folder: Path) -> Figure:
    """Draw the densities of 23 methods on the checkerboard, with their log-likelihoods."""
    return gallery(
        folder / "checkerboard",
        CHECKERBOARD,
        100,
        1.5,
        lambda name, run: f"{name}  {run.metrics['test/log_likelihood']:.2f}".replace("-", "−"),
    )


def rings(folder: Path) -> Figure:
    """Draw the densities of five methods on four rings."""
    return gallery(folder / "rings", RINGS, 110, 1.2, lambda name, _: name, columns=3)


def copy(source: Path, target: Path) -> None:
    """Copy a picture as a PNG in RGB, pixel by pixel: a change of size would make a larger file."""
    image = Image.open(source).convert("RGBA")
    image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    target.parent.mkdir(parents=True, exist_ok=True)
    image.save(target, optimize=True)


def main() -> int:
    """Draw the pictures that the command line names."""
    found = argparse.ArgumentParser(prog="python docs/site/gallery.py", description=__doc__)
    found.add_argument("folder", type=Path, help="the folder of the runs, build/pictures on the page")
    found.add_argument("names", nargs="*", metavar="NAME", help="pictures; none: all whose runs are there")
    options = found.parse_args()
    for draw in (checkerboard, rings):
        name = f"gallery/{draw.__name__}"
        if name in options.names if options.names else (options.folder / draw.__name__).is_dir():
            with matplotlib.rc_context(STYLE):
                keep(draw(options.folder), IMAGES / f"{name}.png", dpi=110)
            print(f"written to {IMAGES / name}.png")
    for name, figure in COPIES.items():
        source = options.folder / f"{figure}.png"
        if name in options.names if options.names else source.is_file():
            copy(source, IMAGES / f"{name}.png")
            print(f"written to {IMAGES / name}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
