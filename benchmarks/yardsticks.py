"""A comparison of this package's models with other models, on MNIST and on points in the plane.

Run it with python -m benchmarks.yardsticks.
"""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import eblvm_lit
from benchmarks.flow_matching import FlowUNet, heun
from benchmarks.run import ROOT, machine, parser
from benchmarks.tables import Row
from benchmarks.yardstick_samplers import SAMPLERS, denoised, draw_images, weights_error
from benchmarks.yardstick_training import SEED, for_minutes, train_field, train_run, train_spline
from eblvm_lit.cli.compose import composed
from eblvm_lit.core.seeding import keyed_generator
from eblvm_lit.core.tensors import in_float64
from eblvm_lit.draws.cache import SampleCache
from eblvm_lit.draws.given_images import GivenImages
from eblvm_lit.errors import EblvmError
from eblvm_lit.evaluation.criteria.class_shares import ClassShares
from eblvm_lit.figures.image_grid import image_grid
from eblvm_lit.figures.style import save
from eblvm_lit.runs.instantiate import instantiate
from eblvm_lit.utils.io import write_json
from eblvm_lit.utils.torch_settings import torch_settings

METRIC = "callbacks.evaluation.metrics.fd_classifier"
TRAINED = {
    "vae": (  # with the same encoder and generator as the shipped model bidvl_mnist
        *("method=vae", "data=mnist", "data.val_size=1000", "data.batch_size=64", "method.compile=false"),
        *("posterior.h_dim=32", "posterior.network.width=16", "generator.width=20", "optimizer.lr=6.0e-4"),
        *("schedule@optimizer.schedule=cosine", "~optimizer.schedule.every"),
    ),
    "mdsm": (
        *("experiment=bimdsm_mnist", "method=mdsm", "~method.lower_noise", "~method.lower_optimizer"),
        *("sampler.kind=marginal", "method.compile=true"),
    ),
}
POINTS = re.compile(r"- _(toy|points)$", re.MULTILINE)  # configurations of two-dimensional data contain this line
# Minutes of training of the shipped models, from docs/reproduction.md.
SHIPPED = {"bidvl_mnist": 30.7, "bimdsm_mnist": 98.0, "vages_mnist": 113.0}
# The deep model of points is trained by energy discrepancy. Among the methods for an energy F(v), whose log Z can be
# computed, it is the only one that neither blurs the data nor gives wrong weights to modes.
DEEP = ("model=deep_toy", "method=ed")


class Images:
    """The comparison of models of MNIST by the features of a classifier.

    The classifier and the reference images are those of conf/evaluation/classifier.yaml.
    """

    names = ("real", "denoised", *TRAINED, "flow_matching", *SHIPPED)
    minutes = 60.0
    criteria = ("fd_classifier", "precision", "recall", "density", "coverage")
    shares = ("rarest_class", "commonest_class")
    columns = (*criteria, *shares, "too_bright", "parameters", "iterations", "minutes")
    quick = tuple(f"{METRIC}.{key}" for key in ("n_samples=100", "n_samples_at_validation=100", "features.n_steps=20"))

    def __init__(self, out: Path, minutes: float, overrides: tuple[str, ...]) -> None:
        shares = f"+{METRIC}.criteria.class_shares={{_target_: {ClassShares.__module__}.ClassShares}}"
        cfg = composed(["experiment=bimdsm_mnist", f"{METRIC}.criteria.mmd=null", shares, *overrides])
        cfg.cache_dir = str(out / "cache")
        self.out = out
        self.train = partial(for_minutes, minutes=minutes)
        self.metric = instantiate(cfg.callbacks.evaluation.metrics.fd_classifier, METRIC)
        self.data = instantiate(cfg.data, "data")
        self.n = self.metric.n_samples["test"]
        self.data.setup()
        self.metric.images = GivenImages()

    def row(self, name: str) -> Row:
        images, model, cost = self.made(name)
        save(image_grid([[(name, images[:64])]], self.data.image_shape, columns=8), self.out / name)
        self.metric.images.given = images
        found = self.metric.evaluate(SimpleNamespace(device="cpu"), self.data, "test", torch.Generator())
        cost |= {"parameters": sum(map(Tensor.numel, model.parameters())), "seed": getattr(model, "seed", SEED)}
        cost |= {key: 100 * found[f"{key}_classifier"] for key in self.shares}  # in percent
        # an image is too bright if its mean value is larger than that of every training image
        light, known = (v.float().mean((1, 2, 3)) for v in (images[: self.n], self.data.splits.train))
        cost |= {"too_bright": int((light > known.max()).sum())}
        return {key: found[f"{key.removesuffix('_classifier')}_classifier"] for key in self.criteria} | cost

    def made(self, name: str) -> tuple[Tensor, nn.Module, Row]:
        """Return images (uint8) for a row of the table, the module that drew them, and the cost of its training."""
        v = self.data.splits.train
        if name == "real":  # return the training images that the reference does not contain
            used = self.metric.reference._order(self.data)
            return v[~torch.isin(torch.arange(len(v)), used)], nn.Identity(), {}
        if name == "denoised":
            return *denoised("vages_mnist", self.made("real")[0][: self.n]), {}
        if name == "flow_matching":
            field, cost = self.train(partial(train_field, FlowUNet, 64, v))
            noise = torch.randn(self.n, *v.shape[1:], generator=keyed_generator(SEED, "flow matching", "samples"))
            v = torch.cat([heun(field, some) for some in noise.split(500)])
            return ((v + 1) * 127.5).round().clamp(0, 255).byte(), field, cost
        if name in SHIPPED:
            run = eblvm_lit.load(name)
            cost = {"minutes": SHIPPED[name]}
        else:
            run, cost = self.train(partial(train_run, TRAINED[name], self.out / "runs" / name))
        # Draw the images in the same way as the run's own metric.
        source = SampleCache(sampler=run.sampler, cache_dir=str(self.out / "cache"))
        return source.images(run.method, run.data, self.n), run.method, {**cost, "iterations": run.iteration}


class Samplers(Images):
    """The comparison of samplers by 500 images that each sampler draws from a shipped model.

    The table also has a row for 500 real images.
    """

    models = ("bimdsm_mnist", "vages_mnist")
    names = ("real", *(f"{model}, {sampler}" for model in models for sampler in SAMPLERS))
    columns = (*Images.criteria[:3], "evaluations", "seconds", "weights_error", "weights_evaluations")

    def __init__(self, out: Path, minutes: float, overrides: tuple[str, ...]) -> None:
        super().__init__(out, minutes, (f"{METRIC}.n_samples=500", *overrides))

    def made(self, name: str) -> tuple[Tensor, nn.Module, Row]:
        if name == "real":
            return super().made(name)
        model, sampler = name.split(", ", 1)
        of_images, of_points = SAMPLERS[sampler]
        images, method, cost = draw_images(model, of_images, self.n)
        return images, method, cost | (weights_error(of_points) if of_points else {})


class Points:
    """The comparison of models of points in the plane by the mean log-likelihood of the test split, in nats."""

    names = sorted(
        path.stem for path in (ROOT / "conf" / "data").glob("[a-z]*.yaml") if POINTS.search(path.read_text())
    )
    columns = ("exact", "spline_flow", "deep", "grbm", "parameters", "iterations", "minutes")
    minutes = 5.0
    quick = ("max_examples=2000", "trainer.max_steps=100", "method.compile=false")

    def __init__(self, out: Path, minutes: float, overrides: tuple[str, ...]) -> None:
        self.minutes = minutes
        self.run = lambda name, *keys: train_run((f"data={name}", *keys, *overrides), out / "runs" / name)[0]

    def row(self, name: str) -> Row:
        grbm = self.run(name, "model=grbm", "method=dsm")
        data = grbm.data
        # The standard deviation of the noise is an eighth of the window's width. For rings it is 1, the published
        # value.
        noise = max(high - low for low, high in grbm.data.bounds) / 8
        deep = self.run(name, *DEEP, f"method.noise_std={noise}")
        (flow, value), cost = for_minutes(partial(train_spline, data.splits), self.minutes)
        exact = data.log_density(data.splits.test.double())
        found = {"exact": None if exact is None else float(exact.mean()), "spline_flow": value}
        found |= {"deep": log_likelihood(deep), "grbm": log_likelihood(grbm)}
        return {**found, **cost, "parameters": sum(map(Tensor.numel, flow.parameters())), "seed": SEED}


@torch.no_grad()
def log_likelihood(run: Any) -> float:
    """Compute the mean log-likelihood of the test split, with log Z by quadrature.

    The tolerance of log Z is 1e-4, or 0.01 if the finest grid does not reach 1e-4.
    """
    energy = in_float64(run.energy)
    v = run.examples("train").double()
    try:
        log_z = eblvm_lit.VisibleQuadrature(tolerance=1e-4).log_partition(energy, v)
    except EblvmError:  # for example, F(v) of swiss_roll changes too steeply for the finest grid
        log_z = eblvm_lit.VisibleQuadrature(tolerance=1e-2).log_partition(energy, v)
    return -float(energy.free_energy(run.examples().double()).mean()) - log_z


def table(columns: tuple[str, ...], rows: list[Row]) -> Table:
    made = Table("", *columns, box=box.MARKDOWN)
    for row in rows:
        cells = ("" if x is None else f"{x:.3g}" if isinstance(x, float) else f"{x:,}" for x in map(row.get, columns))
        made.add_row(row["name"], *cells)
    return made


def main(*words: str) -> int:
    own = parser("yardsticks", __doc__ or "", what="rows", quick="seconds a row")
    console = Console(width=180)
    own.add_argument("table", choices=("images", "samplers", "points"))
    own.add_argument("--minutes", type=float, help="of training a model (default: 60 for images, 5 for points)")
    options = own.parse_args(words or None)
    kind = {"images": Images, "samplers": Samplers, "points": Points}[options.table]
    folder = options.out / options.table
    rows = []
    chosen = [name for name in kind.names if options.only.search(name)]
    if options.list or not chosen:
        console.print("\n".join(chosen) or "No row has such a name; --list shows them.")
        return 0 if chosen else 1
    with torch_settings(threads=1):
        minutes, keys = (0.02, kind.quick) if options.quick else (kind.minutes, ())
        bench = kind(folder, options.minutes or minutes, keys)
        for name in chosen:
            try:
                row = bench.row(name)
            except EblvmError as error:  # record the error, and continue with the other rows, which take hours
                row = {"error": str(error)}
            rows.append({"name": name, **row, "machine": machine() | {"torch": torch.__version__}})
            write_json(folder / f"{name}.json", rows[-1])
            console.print(row.get("error", table(kind.columns, rows)), markup=False)
    return int(any("error" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
