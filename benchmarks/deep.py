"""A benchmark of the speed and memory of deep models of published sizes, in training and sampling.

Run it with python -m benchmarks.deep.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rich import box
from rich.table import Table

from benchmarks.cells import Cell, unrolled
from benchmarks.run import main
from benchmarks.tables import Row

ITERATIONS = 60
# The published minutes per 2,000 iterations on CIFAR10, with batch size 100 on two RTX 2080 Ti (Bao et al. 2021,
# appendix).
PUBLISHED = {"bimdsm N=0": 28, "bimdsm N=2": 43, "bimdsm N=5": 66, "vages_mdsm L=2": 35}
METHODS = {
    # The quadratic head makes this model without latents about as large as the models with latents.
    "mdsm": ("method=mdsm", "marginal_model.head=quadratic"),
    **{f"bimdsm N={n}": unrolled("bimdsm", n) for n in (0, 2, 5)},
    "vages_mdsm L=2": ("method=vages_mdsm",),
    "bidvl": ("method=bidvl",),
}
PRECISIONS = {
    "float32": ("trainer.precision=32-true", "tf32=false"),
    "TF32": ("trainer.precision=32-true", "tf32=true"),
    "bf16": ("trainer.precision=bf16-mixed", "tf32=true"),
}
# BiMDSM and VaGES-MDSM are compared with MDSM, which has no lower level. Both are measured with and without one noisy
# minibatch that the two levels share.
SHARED = ("method.lower_noise=shared",)
LOWER_NOISE = {
    "mdsm": METHODS["mdsm"],
    **{name: METHODS[name] for name in ("bimdsm N=0", "vages_mdsm L=2")},
    **{f"{name} shared": (*METHODS[name], *SHARED) for name in ("bimdsm N=0", "vages_mdsm L=2")},
}
IMAGES = ("data._target_=benchmarks.images.RandomImages", "data.val_size=100")
GREY_IMAGES = ("data._target_=benchmarks.images.RandomGreyImages", "data.val_size=100")
LEGEND = (
    "2,000 its: minutes for so many; published: those of two RTX 2080 Ti. gain: over eager float32. "
    "MiB: peak memory of the device."
)


def cells(iterations: int | None = None) -> list[Cell]:
    """List all measurements: training in every precision and mode, sampling, and the comparison with MDSM."""
    n = iterations or ITERATIONS
    training = [
        Cell(precision, "cifar10", method, compiled, n, (*overrides, *keys, *IMAGES))
        for method, overrides in METHODS.items()
        for precision, keys in PRECISIONS.items()
        for compiled in (False, True)
    ]
    sampling = [
        Cell(f"samples {p}", "cifar10", m, False, n, (*METHODS[m], *PRECISIONS[p], *IMAGES), "measure_samples", "steps")
        for m in ("mdsm", "bimdsm N=0")
        for p in ("float32", "TF32")
    ]
    baseline = [
        Cell("baseline", "mnist", method, False, n, (*overrides, *PRECISIONS["float32"], *GREY_IMAGES))
        for method, overrides in LOWER_NOISE.items()
    ]
    return training + sampling + baseline


def tables(rows: list[Row]) -> Iterator[Table | str]:
    """Make a table of training, a table of sampling, and a table of the comparison with MDSM.

    Failed measurements are left out.
    """
    good = [row for row in rows if "error" not in row]
    baseline = [row for row in good if row["series"] == "baseline"]
    sampling = [row for row in good if "samples_per_second" in row]
    training = [row for row in good if row not in [*baseline, *sampling]]
    slowest = [row for row in training if row["series"] == "float32" and row["mode"] == "eager"]
    slow = {row["method"]: row["seconds_per_100"] for row in slowest}
    if training:
        table = Table("method", "precision", "mode", title="training", box=box.SIMPLE, title_justify="left")
        for column in ("its/s", "gain", "2,000 its", "published", "MiB"):
            table.add_column(column, justify="right", no_wrap=True)
        for row in training:
            seconds = row["seconds_per_100"]
            eager = slow.get(row["method"])
            table.add_row(
                *(row["method"], row["series"], row["mode"], f"{100 / seconds:.2f}"),
                f"{eager / seconds:.2f}x" if eager else "",
                f"{20 * seconds / 60:.1f}",
                f"{PUBLISHED[row['method']]}" if row["method"] in PUBLISHED else "",
                f"{row['peak_mib']:.0f}",
            )
        yield table
    if sampling:
        table = Table("model of", "precision", title="samples of 2,700 steps", box=box.SIMPLE, title_justify="left")
        for column in ("samples/s", "steps/s", "batch", "MiB"):
            table.add_column(column, justify="right", no_wrap=True)
        for row in sampling:
            steps = f"{100 / row['seconds_per_100']:.1f}"
            table.add_row(
                *(row["method"], row["series"].removeprefix("samples "), f"{row['samples_per_second']:.2f}", steps),
                *(f"{row['batch_size']}", f"{row['peak_mib']:.0f}"),
            )
        yield table
    if baseline:
        table = Table("method", title="published models of MNIST", box=box.SIMPLE, title_justify="left")
        for column in ("s/it", "of mdsm", "MiB"):
            table.add_column(column, justify="right", no_wrap=True)
        mdsm = next((row["seconds_per_100"] for row in baseline if row["method"] == "mdsm"), None)
        for row in baseline:
            seconds = row["seconds_per_100"]
            ratio = f"{seconds / mdsm:.2f}x" if mdsm else ""
            table.add_row(row["method"], f"{seconds / 100:.2f}", ratio, f"{row['peak_mib']:.0f}")
        yield table
    if training:
        yield LEGEND


if __name__ == "__main__":
    sys.exit(main(cells, tables, name="deep", description=__doc__))
