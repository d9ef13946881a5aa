"""Make a trained model of the package anew: python -m benchmarks.pretrained vages_mnist.

The command trains the model with the commands of its card, one after another, and writes the folder
``outputs/pretrained/vages_mnist``. Its files have the names of those in ``src/eblvm_lit/pretrained/vages_mnist``; their
numbers may differ a little on another machine. If the command is interrupted, running it again continues it. Arguments
after the name are overrides of every training run, for example ``data.root=data`` or ``trainer.accelerator=gpu``.
``python -m benchmarks.pretrained --list`` shows the commands of all models.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import NamedTuple

import eblvm_lit

OUTPUT = Path("outputs/pretrained")


class Recipe(NamedTuple):
    """The training runs that make one model of the package, and the precision of its file.

    Attributes:
        runs: The overrides of each training run. A run after the first starts from the parameters of the run before.
        half: Whether the parameters are stored in half precision.
    """

    runs: tuple[str, ...]
    half: bool = True


# If a model is trained in two runs, the first computes no metrics and draws no figures. This saves about an hour, and
# only those of the second run are of the final model.
UNMEASURED = "callbacks.evaluation=null callbacks.figures=null"
RECIPES = {
    "bidvl_mnist": Recipe(("experiment=bidvl_mnist",)),
    "bimdsm_mnist": Recipe((f"experiment=bimdsm_mnist {UNMEASURED}", "experiment=finish_mnist")),
    "vages_mnist": Recipe((f"experiment=bimdsm_mnist method=vages_mdsm {UNMEASURED}", "experiment=finish_mnist")),
    "dual_mnist": Recipe(("experiment=dual_mnist_small trainer.max_steps=140000",)),
    "dual_mnist_guide": Recipe(("experiment=dual_mnist_guide",)),
    "grbm_digits": Recipe(
        ("method=dsm data=digits model.h_dim=200 trainer.max_steps=15000 optimizer.lr=3e-3 final_lr=1e-5 threads=1",),
        half=False,
    ),
}


def commands_of(name: str) -> str:
    """Return the commands that train a model, as its card shows them.

    Example:
        >>> commands_of("dual_mnist_guide")
        'python train.py experiment=dual_mnist_guide'
    """
    runs = RECIPES[name].runs
    found = []
    for i, words in enumerate(runs):
        started = "" if i == 0 else f" init_from=outputs/run_{i}"
        kept = "" if i == len(runs) - 1 else f" run_dir=outputs/run_{i + 1}"
        found.append(f"python train.py {words}{started}{kept}")
    return " && ".join(found)


def make(name: str, *overrides: str, output: Path = OUTPUT) -> Path:
    """Train a model, write its files to the folder ``output/name``, and return the path of this folder.

    Args:
        name: The name of the model in the package.
        overrides: Overrides of every training run.
        output: The parent folder. The training runs are in ``output/runs/name_1``, ``output/runs/name_2`` and so on.
    """
    recipe = RECIPES[name]
    started: list[str] = []
    for i, words in enumerate(recipe.runs):
        folder = output / "runs" / f"{name}_{i + 1}"
        run = eblvm_lit.train([*shlex.split(words), *started, *overrides, f"run_dir={folder}", "sweep.resume=true"])
        started = [f"init_from={folder}"]
    run.config.command = commands_of(name)
    # A run with a folder would store the command of this folder, which trained the model last, and no earlier command.
    shared = type(run)(
        method=run.method, config=run.config, iteration=run.iteration, metrics=run.metrics, starts=run.starts
    )
    shared.save_pretrained(output / name, half=recipe.half)
    return output / name


def main(*argv: str) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", choices=sorted(RECIPES))
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--list", action="store_true", help="show the models and the commands that train them")
    given = parser.parse_args(argv or None)
    if given.list:
        for name in [given.name] if given.name else sorted(RECIPES):
            print(f"{name}: {commands_of(name)}")
    elif given.name is None:
        parser.error(f"name one of {', '.join(sorted(RECIPES))}")
    else:
        print(make(given.name, *given.overrides))


if __name__ == "__main__":
    main()
