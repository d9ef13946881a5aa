"""A check of whether the methods are right and fast on this machine's GPU.

It writes a Markdown page. Run it with python -m benchmarks.gpu_check.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_cell import CLOSE, COMPILES, FACTOR, MODES, N_STEPS, PRECISIONS
from benchmarks.measure import ROOT
from eblvm_lit.training.callbacks.compiling import missing_compiler
from eblvm_lit.training.provenance import device_name

NO_GPU = "torch finds no CUDA device here, so there is nothing to check: run this on a machine with a GPU."
RANDOM = ("data._target_=benchmarks.images.RandomImages", "data.val_size=100")
DIGITS = ("data=digits", "data.batch_size=16", "model.h_dim=3", "optimizer.eps=0.1")
# The eps of Adam is large, because with a small eps Adam would divide rounding errors by rounding errors.
SMALL = (
    "data=cifar10",
    *RANDOM,
    "data.batch_size=4",
    "optimizer.eps=0.1",
)
# Points of the plane, because in the 64 dimensions of digits the importance weights overflow float32.
POINTS = ("data=checkerboard", "data.batch_size=16", "optimizer.eps=0.1")
ONE_BLOCK = ("data.size=8", "model.network.n_blocks=1", "model.network.channels=4")
RESIDUAL = tuple(f"sizes.spectral_resnet.{name}=[4,4,4,4]" for name in ("widths", "generator_widths"))
NARROW = {
    "bidvl": ("model.network.width=4", "posterior.network.width=4", "generator.width=4", "data.size=8"),
    "bidvl_resnet": RESIDUAL,
    "sngan": (*RESIDUAL, "method.fresh_minibatches=false"),
    "vae": ("posterior.network.width=4", "generator.width=4", "data.size=8"),
}
K = "method.n_lower_steps=1"
N = "method.n_unroll=1"
WIDE = "objective.bandwidth=3.0"
SHORT = {
    **dict.fromkeys(("bism", "bidsm", "bissm", "bimdsm"), (K, N)),
    **dict.fromkeys(("vages", "vages_dsm", "vages_mdsm", "vages_fisher", "vnce"), (K,)),
    **dict.fromkeys(("ksd", "is_ksd"), (WIDE,)),
    "vages_ksd": (K, WIDE),
    "sm": ("model=gaussian",),
    "snl": ("method.n_proposals=2",),
    "vsnl": (K, "model=gaussian", "method.n_proposals=2"),
    "particle_ml": ("method.n_chains=20",),
    "annealed_likelihood": tuple(
        f"method.{key}" for key in ("n_chains=16", "temperature=4", "n_falling=4", "n_held=4")
    ),
    "lebm": ("model=latent_prior_toy",),
}
DEEP = {"mdsm": (), "dsm": (), "pcd": (), "bimdsm": (K,), "vages_mdsm": (K,)}
TIMED = {
    "MDSM": ("method=mdsm", "marginal_model.head=quadratic"),
    "BiMDSM, N = 0": ("method=bimdsm", "hypergradient=none"),
    "VaGES-MDSM, L = 2": ("method=vages_mdsm",),
    "BiDVL": ("method=bidvl",),
}
PUBLISHED = ("data=cifar10", *RANDOM)


@dataclass(frozen=True)
class Part:
    """A part of the GPU check, which runs as one process.

    The section and the name are its place on the page. The module, the arguments and the overrides are its command.
    """

    section: str
    name: str
    module: str
    arguments: tuple[str, ...]
    overrides: tuple[str, ...]


def parts(n_devices: int) -> list[Part]:
    """List all parts of the check; within each section, the most important come first."""
    cell = "gpu_cell"
    methods = sorted(path.stem for path in (ROOT / "conf" / "method").glob("[!_]*.yaml"))
    found = []
    for name in methods:
        base = POINTS if name in ("snl", "vsnl") else DIGITS
        keys = (*SMALL, *NARROW[name]) if name in NARROW else (*base, *SHORT.get(name, ()))
        found.append(Part("equal", name, cell, ("equal",), (f"method={name}", *keys)))
    for name, keys in DEEP.items():
        found.append(Part("equal", f"{name}, deep", cell, ("equal",), (f"method={name}", *SMALL, *ONE_BLOCK, *keys)))
    for kind in ("compile", "speed") if COMPILES else ("speed",):
        for precision in PRECISIONS:
            for name, keys in TIMED.items():
                found.append(Part(kind, f"{name}, {precision}", cell, (f"{kind} {precision}",), (*keys, *PUBLISHED)))
    pair = {"MDSM": TIMED["MDSM"], "BiMDSM": ("method=bimdsm",)}
    for name, own in pair.items():
        for precision, allowed in (("float32", "false"), ("TF32", "true")):
            keys = (*own, f"tf32={allowed}", "trainer.max_steps=60", *PUBLISHED, "method.compile=false")
            found.append(Part("samples", f"{name}, {precision}", "measure_samples", (), keys))
    for n in sorted({1, 2, n_devices} if n_devices > 1 else ()):
        for name, own in pair.items():
            keys = (*own, f"trainer.devices={n}", "trainer.max_steps=60", "tf32=true", *PUBLISHED)
            found.append(Part("devices", f"{name}, {n}", "measure", (), keys))
    return [part for part in found if n_devices or part.section != "devices"]


def run(part: Part, device: str, seconds: float, overrides: Sequence[str]) -> Any:
    """Run a part in a process, and return its results, or ``{"error": ...}`` if there are none.

    Args:
        part: The part.
        device: ``cuda`` or ``cpu``.
        seconds: The time after which the process is stopped.
        overrides: Further overrides of the configuration.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        output = Path(folder, "output.txt")
        placed = (*part.arguments, device) if part.module == "gpu_cell" else ()
        accelerator = () if placed else (f"trainer.accelerator={'gpu' if device == 'cuda' else device}",)
        words = [*placed, str(result), *part.overrides, *accelerator, *overrides]
        reason = "it was stopped at the end of its time"
        with output.open("wb") as file:
            try:
                done = subprocess.run(
                    [sys.executable, "-m", f"benchmarks.{part.module}", *words],
                    cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, timeout=seconds,
                )  # fmt: skip
                reason = f"exit code {done.returncode}"
            except subprocess.TimeoutExpired:
                pass
        try:
            return json.loads(result.read_text())
        except (OSError, ValueError):
            last = output.read_text(errors="replace").strip().splitlines()[-1:]
            return {"error": " ".join([f"{reason}.", *last])[:300]}


def problem(found: dict[str, Any]) -> str | None:
    """Describe what is wrong with a method, or return None if its modes agree.

    A CUDA graph that cannot be captured is no error.
    """
    if "error" in found:
        return found["error"]
    bad = [f"{mode}: {found['errors'][mode]}" for mode in ("eager", "compiled", "bf16") if mode in found["errors"]]
    bad += [f"{mode} is off" for mode in MODES if found.get(mode, 0.0) > found["tolerance"]]
    half = found.get("bf16", 0.0)
    if half == float("inf") or (found["float32_reason"] is None and half > CLOSE):
        bad.append("bf16 is off")
    return "; ".join(bad) or None


def skipped(found: Any) -> bool:
    return found == "skipped"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return ["| " + " | ".join(str(x).replace("|", "/") for x in line) + " |" for line in lines] + [""]


def equality(found: dict[str, Any]) -> list[str]:
    rows = []
    for name, row in found.items():
        if "error" in row:
            rows.append([name, *[""] * (len(MODES) + 2), f"**{row['error']}**"])
            continue
        cells = [f"{row[mode]:.1e}" if mode in row else "refused" for mode in (*MODES, "bf16")]
        bad = problem(row)
        refused = row["errors"].get("graphed")
        note = f"**{bad}**" if bad else f"equal; no graph: {refused}" if refused else "equal"
        rows.append([name, *cells, f"{row['tolerance']:.1e}", note])
    return [
        f"Relative distance of {N_STEPS} iterations from float64 on the processor: of what parameters and buffers "
        "moved by, or of losses and gradient norms, whichever is larger. TF32 is off. The tolerance is "
        f"{FACTOR:.0f} times what float32 loses on the processor. bf16 is to be finite, and below {CLOSE} where "
        "`trainer.precision=auto` would take it.",
        "",
        *table(("method", *MODES, "bf16", "tolerance", "outcome"), rows),
    ]


def speed(found: dict[str, Any]) -> list[str]:
    rows = []
    for name, modes in found.items():
        for row in modes if isinstance(modes, list) else [{"mode": "", **modes}]:
            if "error" in row:
                rows.append([name, row["mode"], *[""] * 3, row["error"]])
                continue
            low, high = row["range"]
            numbers = [f"{row['per_second']:.2f} ({low:.2f} to {high:.2f})", row["n"], f"{row['first_seconds']:.0f}"]
            rows.append([name, row["mode"], *numbers, f"{row['peak_mib']:.0f}"])
    return [
        "Published CIFAR10 networks, batch 100, random images: noise and iteration, without loader and trainer. "
        "Median of n blocks and their range, synchronised, after a warm-up. graphed: the iteration of the "
        "mode above it as one CUDA graph.",
        "",
        *table(("method", "mode", "iterations a second", "n", "first call, s", "peak MiB"), rows),
    ]


def sampling(found: dict[str, Any]) -> list[str]:
    rows = [
        [name, row["error"], "", ""]
        if "error" in row
        else [name, f"{row['samples_per_second']:.2f}", row["batch_size"], f"{row['peak_mib']:.0f}"]
        for name, row in found.items()
    ]
    return ["Chains of 2,700 steps.", "", *table(("model", "images a second", "batch", "peak MiB"), rows)]


def several(found: dict[str, Any]) -> list[str]:
    rows = [
        [name, row["error"], ""]
        if "error" in row
        else [name, f"{100 / row['seconds_per_100']:.2f}", f"{row['peak_mib']:.0f}"]
        for name, row in found.items()
    ]
    return [
        "Whole runs, TF32; the minibatch is shared.",
        "",
        *table(("method, devices", "iterations a second", "peak MiB"), rows),
    ]


SECTIONS = {
    "equal": (", ".join(MODES).capitalize(), equality),
    "speed": ("Speed of training", speed),
    "samples": ("Annealed Langevin dynamics", sampling),
    "devices": ("Several devices", several),
}


def commit() -> str:
    """Return the commit of this clone, which ends in -dirty if tracked files were changed; "unknown" without git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def page(found: dict[str, dict[str, Any]], device: str, words: Sequence[str], seconds: float) -> str:
    """Write the page as Markdown: the machine, a table for each section, and the parts that were left out."""
    name = device_name(torch.device(device))
    n = torch.cuda.device_count() if device == "cuda" else 1
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}, Python {platform.python_version()}"
    lines = [
        *(f"# GPU check: {name}", ""),
        f"{n} x {name}; {versions}; commit {commit()}; {datetime.now(UTC):%Y-%m-%d}; {seconds / 60:.1f} minutes.",
        *(() if COMPILES else ("", f"Not compiled: {missing_compiler(torch.device(device))}.")),
        *("", "```bash", " ".join(["python -m benchmarks.gpu_check", *map(shlex.quote, words)]), "```", ""),
    ]
    for section, (title, text) in SECTIONS.items():
        rows = {name: row for name, row in found.get(section, {}).items() if not skipped(row)}
        if rows:
            lines += [f"## {title}", "", *text(rows)]
    left = [
        f"{section}: {name}" for section in SECTIONS for name, row in found.get(section, {}).items() if skipped(row)
    ]
    if left:
        lines += ["## Left out", "", "The time was over before these:", "", *(f"- {name}" for name in left), ""]
    return "\n".join(lines)


def n_jobs(device: str) -> int:
    """Return how many small processes may run at the same time on the CPU's cores and in the GPU's memory."""
    cores = max(1, (os.cpu_count() or 2) // 2)
    if device != "cuda":
        return 1
    return max(1, min(8, cores, int(torch.cuda.get_device_properties(0).total_memory / 2**33)))


def options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, default=ROOT / "outputs" / "bench" / "gpu.md", help="the page (default: %(default)s)")
    add("--minutes", type=float, default=10.0, help="what has not begun by then is left out (default: 10)")
    add("--only", default="", help="parts that have this in SECTION/NAME")
    add("--list", action="store_true", help="print the parts and run nothing")
    add("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: for tests of this program itself")
    add("overrides", nargs="*", help="keys of the configuration with other values, in all parts")
    return parser.parse_args(words)


def check(chosen: Sequence[Part], asked: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Run the chosen parts of the check, and return their results.

    Comparisons and compilations run at the same time. Then timings run one by one.
    """
    end = time.monotonic() + 60 * asked.minutes
    found: dict[str, dict[str, Any]] = {}

    def one(part: Part) -> None:
        left = end - time.monotonic()
        row = run(part, asked.device, left, asked.overrides) if left > 0 else "skipped"
        found.setdefault(part.section, {})[part.name] = row
        bad = problem(row) if part.section == "equal" and not skipped(row) else None
        said = "left out" if skipped(row) else bad or (row.get("error") if isinstance(row, dict) else None) or "done"
        print(f"{part.section}/{part.name}: {said}", flush=True)

    together = [part for part in chosen if part.section in ("equal", "compile")]
    for part in chosen:  # this fixes the order of the rows on the page, whichever part ends first
        found.setdefault(part.section, {})[part.name] = "skipped"
    with ThreadPoolExecutor(n_jobs(asked.device)) as pool:
        list(pool.map(one, together))
    for part in chosen:
        if part not in together:
            one(part)
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Run the check, and write its page.

    Return the exit code, which is 1 if the modes of a method do not agree.
    """
    asked = options(words)
    has_gpu = torch.cuda.is_available()
    everything = parts(torch.cuda.device_count() if has_gpu and asked.device == "cuda" else 1)
    chosen = [part for part in everything if asked.only in f"{part.section}/{part.name}"]
    if asked.list or not chosen:
        print(
            "\n".join(f"{part.section}/{part.name}" for part in chosen) or "There is no such part; --list shows them."
        )
        return 0 if chosen else 2
    if asked.device == "cuda" and not has_gpu:
        print(NO_GPU)
        return 0
    begin = time.monotonic()
    found = check(chosen, asked)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(page(found, asked.device, sys.argv[1:] if words is None else words, time.monotonic() - begin))
    print(f"written to {asked.out}")
    return int(any(not skipped(row) and problem(row) for row in found.get("equal", {}).values()))


if __name__ == "__main__":
    sys.exit(main())
