"""Makes the pages of docs/reference from conf/ and the package: python docs/site/reference.py [PAGE...].

What a page says is read where it is decided: in the files of conf/ and their comments, in the class statements of the
metrics, in the docstrings of the figures, and in configurations that Hydra composes. tests/test_documentation.py
compares the stored pages with what this script makes.
"""

import functools
import importlib
import inspect
import math
import re
import sys
from pathlib import Path

import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from eblvm_lit.methods.base import Method
from eblvm_lit.training.callbacks.log_curves import LogCurves

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
PAGES = ROOT / "docs" / "reference"
WIDTH = 88  # columns of a block of code that the site shows without a scroll bar
HEAD = "<!-- Made by `python docs/site/reference.py`: change conf/ or the docstrings, not this page. -->\n\n"
# What is code in a comment: an override such as data.size=8, a file, a name of the package.
CODE = re.compile(
    r"(?<![`\w/\[.])((?:[a-z]\w*\.)*[a-z]\w*=(?:\[[^\]]*\]|[^\s,;:()\[\]]*[\w\]])?(?![\w=])"
    r"|\w+\.yaml|eblvm_lit[\w.]+\w)"
)
ARROWS = {1: "↑", -1: "↓", 0: ""}

# --- what stands in conf/ ---------------------------------------------------------------------------------


def options(group):
    """The files of a group that a user may choose."""
    return sorted((CONF / group).glob("[!_]*.yaml"))


def comment(path):
    """The lines of the comment that begins a file, without their signs and without the directives of programs."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith(("# @package", "# yaml-language-server")):
            lines.append(line.removeprefix("#").removeprefix(" "))
    return lines


def prose(lines):
    """A comment's sentences as Markdown, without its commands: what names a key, a file or a class is code."""
    text = ""
    for line in lines:
        text = re.sub(":$", ".", text) if line.startswith("  ") else f"{text} {line}".strip()
    text = re.sub(CODE, r"`\1`", text)
    return escaped(re.sub(r"\s?\(docs/([\w.]+)(#[\w-]+)?\)", page_link, text))


def page_link(found):
    """A link to a page that a comment names, by the page's title."""
    title = (ROOT / "docs" / found[1]).read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
    return f" ([{title}](../{found[1]}{found[2] or ''}))"


def escaped(text):
    """Text with the characters that a table or Markdown would read, outside of code, as what they are."""
    parts = re.split(r"(`[^`]*`|\$[^$]*\$)", text)
    parts[::2] = [re.sub(r"([*<])", r"\\\1", part).replace("|", "\\|") for part in parts[::2]]
    parts[1::2] = [part.replace("|", "\\|") for part in parts[1::2]]
    return "".join(parts)


@functools.cache
def content(path):
    """A file's keys, with those of the files of its group, or of others below a key, that its defaults list names."""
    found = yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}
    merged = {}
    for entry in found.pop("defaults", ()):
        if isinstance(entry, str) and (path.parent / f"{entry}.yaml").is_file():
            merged = united(merged, content(path.parent / f"{entry}.yaml"))
        elif isinstance(entry, dict) and (placed := re.fullmatch(r"/(\w+)@([\w.]+)", next(iter(entry)))):
            node = own(CONF / placed[1] / f"{next(iter(entry.values()))}.yaml")
            for key in reversed(placed[2].split(".")):
                node = {key: node}
            merged = united(merged, node)
    return united(merged, found)


def united(base, other):
    """Two nested dictionaries as one; the second one's values count."""
    both = {key: united(base[key], other[key]) for key in base.keys() & other.keys()
            if isinstance(base[key], dict) and isinstance(other[key], dict)}  # fmt: skip
    return {**base, **other, **both}


def own(path):
    """The keys of a file below its group."""
    found = content(path)
    return found.get(path.parent.name) if "# @package _global_" in path.read_text(encoding="utf-8") else found


def targets(node):
    """The names of the classes that a part of a configuration builds, without the parts of these."""
    if not isinstance(node, dict):
        return []
    return [node["_target_"]] if "_target_" in node else [name for part in node.values() for name in targets(part)]


def defaults(node, place=""):
    """The keys of a part that are single values, as a user would type them; not those of data in it."""
    words = {None: "null", True: "true", False: "false"}
    found = []
    for key, value in (node or {}).items():
        if isinstance(value, dict):
            found += defaults(value, f"{place}{key}.") if key != "data" else []
        elif key != "_target_" and "${" not in str(value):
            value = words[value] if value is None or isinstance(value, bool) else value
            found.append(f"`{place}{key}={value}`".replace(" ", ""))
    return found


# --- Markdown ---------------------------------------------------------------------------------------------


def table(head, rows):
    """A table; a column whose cells are all empty is left out."""
    kept = [i for i in range(len(head)) if any(row[i] for row in rows)]
    lines = [[head[i] for i in kept], ["---" for _ in kept], *([row[i] for i in kept] for row in rows)]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


def file_link(path):
    """A link to a file of conf/ by the name of its option."""
    return f"[`{path.stem}`](../../{path.relative_to(ROOT).as_posix()})"


def class_link(target):
    """A link to the module that defines a class; the site leads it to the page of that module."""
    module, _, name = target.rpartition(".")
    if not target.startswith("eblvm_lit."):
        return f"`{target}`"
    return f"[`{name}`](../../src/{module.replace('.', '/')}.py)"


def wrapped(command):
    """A command over several lines, none of them wider than a block of code if its words are not."""
    lines = []
    for word in command.split(" "):
        if lines and len(lines[-1]) + len(word) + 3 <= WIDTH:
            lines[-1] += f" {word}"
        else:
            lines.append(f"    {word}" if lines else word)
    return " \\\n".join(lines)


# --- groups -----------------------------------------------------------------------------------------------


def groups():
    """Each group with its options: what they are, their keys, and what they build."""
    text = (CONF / "hydra" / "help" / "train.yaml").read_text(encoding="utf-8").partition("template: |\n")[2]
    said = re.findall(r"^  (\w+): (.+)\n      ", text, re.MULTILINE)
    own_settings = (
        "settings of a pair of method and data, most of them from papers; `method=M data=D` loads them by itself"
    )
    said.append(("published", own_settings))
    parts = [
        f"# Groups and their options\n\n{HEAD}Each file of [conf/](../../conf) is an option of the group whose folder "
        "it lies in. The command line chooses it by `GROUP=OPTION`, or as the text below the heading says. The name of "
        "an option leads to its file, whose comments explain each key. The name of a class leads to the description of "
        "its arguments, which are the keys. Keys are given with their defaults where these are plain values."
    ]
    for name, sentence in said:
        what, _, how = sentence.rpartition(": ") if "=NAME" in sentence else (sentence, "", f"{name}=NAME")
        chosen = "" if name == "published" else f" Chosen by `{how}`."
        rows = [
            (file_link(path), option_text(path), ", ".join(map(class_link, dict.fromkeys(targets(own(path))))))
            for path in options(name)
        ]
        what = escaped(what[0].upper() + what[1:] if not what.startswith("q(") else what)
        parts.append(f"## {name}\n\n{what}.{chosen}\n\n{table((f'`{name}=`', 'what it is', 'builds'), rows)}".rstrip())
    return "\n\n".join(parts) + "\n"


def option_text(path):
    """The comment of an option, and the keys that it has beside its parts."""
    lines = comment(path)
    if path.parent.name == "experiment":
        return prose(lines[: next((i for i, line in enumerate(lines) if line.startswith("  ")), None)])
    keys = (
        []
        if path.parent.name in ("data", "evaluation", "figures", "callbacks", "published", "debug")
        else defaults(own(path))
    )
    return prose(lines) + (f"<br>Keys: {', '.join(keys)}." if keys else "")


# --- experiments ------------------------------------------------------------------------------------------

PAPERS = (
    ("Bao et al. 2020: BiSM", ("bism_",)),
    ("Bao et al. 2021: VaGES", ("vages_bias", "vages_cifar10", "vages_f", "vages_t")),
    ("Kan et al. 2022: BiDVL", ("bidvl_table",)),
    ("Models of MNIST", ("bidual", "bidvl", "bimdsm", "deep_mlp", "dual", "finish", "harm", "latent", "lebm", "vae")),
    ("Binary images", ("rbm_", "dbm_")),
    ("Comparisons", ("hypergradient", "toy")),
)


def experiment_row(name):
    """Data, model, method, iterations and jobs of an experiment, as Hydra composes its first command."""
    cfg = composed(f"experiment={name}", *first_job(name))
    chosen = {**cfg.hydra.runtime.choices, **axes_of(name)}
    shown = [", ".join(f"`{one}`" for one in swept(chosen.get(group) or "–")) for group in ("data", "model", "method")]
    n_jobs = math.prod(len(swept(values)) for values in axes_of(name).values())
    return (*shown, f"{cfg.trainer.max_steps:,}", str(n_jobs))


def axes_of(name):
    """The overrides of an experiment's first command, and the axes of its sweep, as its file has them."""
    path = CONF / "experiment" / f"{name}.yaml"
    found = dict(content(path).get("hydra", {}).get("sweeper", {}).get("params", {}))
    words = next(
        line.split() for line in comment(path) if line.startswith("  python") and f"experiment={name}" in line.split()
    )
    given = [word.split("=", 1) for word in words[2:] if word not in ("-m", f"experiment={name}")]
    return {**found, **{key: value for key, value in given if key != "ckpt"}}


def first_job(name):
    """The overrides of the first job of an experiment's first command."""
    return [f"{key}={swept(values)[0]}" for key, values in axes_of(name).items()]


def swept(values):
    """The values of one axis of a sweep."""
    if found := re.fullmatch(r"range\((\d+),(\d+)\)", str(values)):
        return [str(i) for i in range(int(found[1]), int(found[2]))]
    return re.findall(r"\[[^\]]*\]|[^,]+", str(values))


def experiments(row=experiment_row):
    """Each experiment: what it is, its data, model and method, its commands, time and result.

    ``row`` gives the cells of an experiment in the table; a test passes one that composes nothing.
    """
    left = {path.stem: path for path in options("experiment")}
    parts = [
        f"# Experiments\n\n{HEAD}An experiment is a file of [conf/experiment](../../conf/experiment) with all settings "
        "of a table or figure of a paper, or of a model of this package. `python train.py experiment=NAME` runs one "
        "job, and `-m` before it all jobs of its sweep. Every key can be overridden on the command line. *Iterations* "
        "are those of one job, *jobs* those of the first command. Times and results are measured ones, on two CPU "
        "cores unless they say otherwise; the linked page has the conditions and all numbers."
    ]
    for title, beginnings in PAPERS:
        names = [name for name in left if name.startswith(beginnings)]
        paths = [left.pop(name) for name in names]
        rows = [(f"[`{path.stem}`](#{path.stem})", *row(path.stem)) for path in paths]
        parts.append(f"## {title}\n\n{table(('experiment', 'data', 'model', 'method', 'iterations', 'jobs'), rows)}")
        parts += [experiment(path) for path in paths]
    assert not left, f"PAPERS does not say where {list(left)} belong"
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def experiment(path):
    """One experiment: its comment, with each command in a block below what is said of it."""
    text = f"### {path.stem}\n\n"
    said = []
    for line in [*comment(path), ""]:
        if line.startswith("  python "):
            text += paragraph(said) + f"```text\n{wrapped(line.strip())}\n```\n\n"
            said = []
        elif line.startswith(("Time:", "Result:")) or not line:
            text += paragraph(said)
            said = [line]
        else:
            said.append(line)
    return text + f"File: {file_link(path)}."


def paragraph(lines):
    """Lines of a comment as a paragraph; the label of a time or a result is bold."""
    text = prose(lines).strip()
    return re.sub(r"^(Time|Result):", r"**\1:**", text) + "\n\n" if text else ""


# --- keys -------------------------------------------------------------------------------------------------

CHOICES = ("model", "posterior", "divergence", "hypergradient")
KEYS = {
    "model": "the energy",
    "posterior": "q(h\\|v)",
    "divergence": "what q is fitted by",
    "hypergradient": "how the upper level differentiates q",
    "model.h_dim": "number of latents",
    "trainer.max_steps": "iterations",
    "data.batch_size": "examples in a minibatch",
    "optimizer.lr": "learning rate of the model, and of q unless the method has another",
    "final_lr": "learning rate at the end of the cosine; null: it is constant",
    "method.n_lower_steps": "K, steps on q in each iteration",
    "method.n_unroll": "N, steps that the hypergradient goes through",
    "noise.std": "noise of DSM, in the units of v",
    "noise.sigma_min": "smallest noise of MDSM",
    "noise.sigma_max": "largest noise of MDSM",
    "noise.sigma0": "reference noise of MDSM",
    "noise.ladder": "spacing of the noise levels of MDSM",
    "n_validations": "validations in a run",
    "test_checkpoint": "the checkpoint that is tested",
    "data.val_size": "validation images, or their share",
    "iterations_per_batch": "iterations between two calls of the callbacks",
    "threads": "threads of the CPU; null: torch's choice",
}
# The data sets of each column of the tables, which all have the values of the first.
POINTS = ("moons", "circle", "diamond_blobs", "line_blobs", "swiss_roll", "triangle_blobs", "two_blobs")
# The tables: the title, the method of their runs, and the columns.
TABLES = (
    ("Points", "bidsm", (("checkerboard",), POINTS, ("rings", "two_spirals"), ("twenty_five_gaussians",))),
    ("Vectors", "bidsm", (("digits",), ("frey_face",), ("standard_normal",))),
    ("Images", "bimdsm", (("mnist", "fashion_mnist"), ("cifar10", "svhn"), ("image_folder",))),
    ("CelebA", "bimdsm", (("celeba32",), ("celeba64",), ("celeba128",))),
)


@functools.cache
def composed(*overrides):
    """A configuration that Hydra composes."""
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        return compose("config", [*overrides, "run_dir=."], return_hydra_config=True)


def column(method, data):
    """The values of the main keys for a method and a data set, as the table shows them."""
    cfg = composed(f"method={method}", f"data={data}")
    chosen = cfg.hydra.runtime.choices
    return [f"`{chosen[key]}`" if key in CHOICES else shown(OmegaConf.select(cfg, key, default="")) for key in KEYS]


def checked_column(method, members):
    """The values that all data sets of a column have."""
    first, *others = (column(method, data) for data in members)
    wrong = [data for data, other in zip(members[1:], others, strict=True) if other != first]
    assert not wrong, f"{wrong} have other values than {members[0]}"
    return first


def shown(value):
    """A value as one would type it."""
    return "null" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def keys(column=checked_column):
    """The main keys with their values by data set, and the keys of each method; ``column`` as ``row`` above."""
    parts = [
        f"# Main keys and their defaults\n\n{HEAD}The data set sets most of these keys, the method some of them. Hydra "
        "composed the values below; `python train.py method=M data=D --cfg job --resolve` prints all keys of a run. "
        "Any of them can be set on the command line, as in `trainer.max_steps=5000`. `data=array` and `data=hub` "
        "take the values of the [kind](groups.md#kind) that fits the file."
    ]
    for title, method, columns in TABLES:
        values = [column(method, members) for members in columns]
        rows = [
            (f"`{key}`<br>{said}", *row)
            for (key, said), row in zip(KEYS.items(), zip(*values, strict=True), strict=True)
            if any(row)  # some data have no such key
        ]
        names = [
            "other points" if members == POINTS else ", ".join(f"`{one}`" for one in members) for members in columns
        ]
        head = ("key", *names)
        parts.append(f"## {title}\n\nWith `method={method}`:\n\n{table(head, rows)}".rstrip())
    parts[-1] += (
        "\n\nSome pairs of method and data have settings of their own, most of them from papers, that differ from "
        "these ([published](groups.md#published))."
    )
    rows = []
    for path in options("method"):
        node = own(path)
        rows.append((file_link(path), ", ".join(map(class_link, targets(node)[:1])), ", ".join(defaults(node))))
    parts.append(
        "## Methods\n\nThe keys below `method.` that are plain values, with their defaults. For some data sets a "
        "method has other defaults ([published](groups.md#published)); for example, `method=snl data=array` has "
        "`n_proposals=5`. The keys of a method's parts are those of the groups [objective](groups.md#objective), "
        "[score](groups.md#score), [hypergradient](groups.md#hypergradient), [particles](groups.md#particles) and "
        "[chain](groups.md#chain).\n\n" + table(("`method=`", "class", "`method.KEY=`"), rows).rstrip()
    )
    return "\n\n".join(parts) + "\n"


# --- metrics ----------------------------------------------------------------------------------------------

STUDIES = ("hypergradient_error.HypergradientError", "hypergradient_bias.HypergradientBias", "score_bias.ScoreBias")


def metrics():
    """Each number that a run reports: what it is, its unit, which direction is better, and for which models."""
    parts = [
        f"# Metrics\n\n{HEAD}A metric is computed on the validation split (`val/NAME`) or on the test split "
        "(`test/NAME`). `evaluation@callbacks.evaluation.metrics=OPTION` chooses the metrics of a run, several options "
        "as `[probe,fid]`; each section below is one option, and each option also has the metrics of `default`. ↑: "
        "higher is better; ↓: lower is better; an empty cell: neither, as for settings and standard errors. Numbers "
        "that a model cannot have are left out of its results. "
        "[Troubleshooting](../troubleshooting.md#is-my-run-good) says which values are good.",
        "## Training\n\nEvery run logs these every `trainer.log_every_n_steps` iterations, and `val/loss` at each "
        "validation. A level is one of the method's parts that are trained in turn, such as `lower` and `upper`.\n\n"
        + numbers((Method, ()), (LogCurves, ())),
    ]
    default = content(CONF / "evaluation" / "default.yaml")
    for path in sorted(options("evaluation"), key=lambda path: path.stem != "default"):
        added = {key: part for key, part in content(path).items() if path.stem == "default" or key not in default}
        said = "\n".join(of_metric(key, part) for key, part in added.items() if part)
        shown = numbers(*(one for part in added.values() if part for one in declaring(part)))
        parts.append(f"## {path.stem}\n\n{prose(comment(path))}\n\n{said}\n\n{shown}")
    coverage = CONF / "criteria" / "coverage.yaml"
    parts.append(
        f"## criteria: coverage\n\n{prose(comment(coverage))} They are added to a metric of samples, and have its "
        "network in their names: `+criteria@callbacks.evaluation.metrics.fid.criteria=coverage`.\n\n"
        + numbers(*((loaded(name), networks()) for name in targets(content(coverage))))
    )
    studies = [loaded(f"eblvm_lit.evaluation.studies.{name}") for name in STUDIES]
    said = "\n".join(f"- {class_link(f'{cls.__module__}.{cls.__name__}')} needs {cls.needs}." for cls in studies)
    parts.append(
        "## Studies\n\nThe experiments `hypergradient_comparison`, `bism_fig1` and `vages_bias` choose these "
        f"([Experiments](experiments.md)).\n\n{said}\n\n{numbers(*((cls, ()) for cls in studies))}"
    )
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def of_metric(key, part):
    """The line on one metric of an option: its class, the models and data it needs, and how many samples it draws."""
    names = ("n_samples", "n_samples_at_validation")
    sizes = ", ".join(f"`{name}={part[name]}`" for name in names if name in part)
    network = f" with {class_link(part['features']['_target_'])}" if "features" in part else ""
    needed = loaded((part.get("images") or part)["_target_"]).needs
    return f"- `{key}`: {class_link(part['_target_'])}{network}{f' ({sizes})' if sizes else ''} needs {needed}."


def declaring(part):
    """The classes that declare the numbers of a metric, with the words of the network in their names."""
    if "criteria" not in part:
        return [(loaded(part["_target_"]), ())]
    titles = loaded(part["features"]["_target_"]).titles._asdict()
    return [(loaded(name), [titles]) for name in targets(part["criteria"])]


def networks():
    """The words that each network of conf/ gives to the names of numbers."""
    files = [*options("features"), *sorted((CONF / "evaluation").glob("*.yaml"))]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    found = dict.fromkeys(re.findall(r"_target_: (eblvm_lit\.evaluation\.features\.[\w.]+)", text))
    return [cls.titles._asdict() for cls in map(loaded, found) if hasattr(cls, "titles")]


def numbers(*classes):
    """The table of the numbers that classes declare, each class with the words of the networks in their names."""
    rows = []
    for name, declared, titles in (
        (name, number, titles) for cls, titles in classes for name, number in cls.emits.items()
    ):
        names = list(dict.fromkeys(name.format(**words) for words in titles)) if "{" in name else [name]
        shown = ", ".join(f"`{one.replace('*', 'NAME')}`" for one in names)
        rows.append((shown, escaped(declared.meaning), declared.unit, ARROWS[declared.direction]))
    return table(("number", "what it is", "unit", "better"), rows)


def loaded(target):
    """The class of a dotted name."""
    module, _, name = target.rpartition(".")
    return getattr(importlib.import_module(module), name)


# --- figures ----------------------------------------------------------------------------------------------

# Pictures of docs/images by the name of the figure, with the command that draws them.
PICTURES = {
    "density": ("gallery/ed.png", "python train.py method=ed data=twenty_five_gaussians"),
    "samples": ("gallery/samples.png", "python train.py data=digits method=dsm trainer.max_steps=6000"),
    "filters": ("gallery/filters.png", "python train.py data=digits method=dsm trainer.max_steps=6000"),
    "curves": (
        "gallery/curves.png",
        "python train.py method=dsm trainer.max_steps=12000 optimizer.lr=0.01 n_validations=20",
    ),
    "inpainting": (
        "mnist_small_inpainting.png",
        "python train.py experiment=bimdsm_mnist_small figures@callbacks.figures.figures=all",
    ),
    "tsne": (
        "gallery/tsne.png",
        "python train.py data=digits method=bidsm trainer.max_steps=4000 "
        "figures@callbacks.figures.figures=representation",
    ),
    "energies": (
        "gallery/energies.png",
        "python train.py data=digits method=bidsm trainer.max_steps=4000 "
        "figures@callbacks.figures.figures=representation",
    ),
    "interpolation": (
        "gallery/interpolation.png",
        "python train.py experiment=vae_mnist_small trainer.max_steps=900 figures@callbacks.figures.figures=generator",
    ),
    "reconstructions": (
        "bidvl_mnist_small_reconstructions.png",
        "python train.py experiment=bidvl_mnist_small figures@callbacks.figures.figures=generator",
    ),
    "score_bias": ("gallery/score_bias.png", "python train.py experiment=vages_bias"),
    "hypergradient_bias": ("hypergradient_bias.png", "python train.py experiment=bism_fig1"),
}


def figures():
    """Each figure: what it shows, how it is read, which options draw it, and a picture."""
    drawn = {}
    for path in options("figures"):
        for key, part in content(path).items():
            drawn.setdefault(key, (loaded(part["_target_"]), []))[1].append(path) if "_target_" in part else None
    parts = [
        f"# Figures\n\n{HEAD}A run draws its figures at the end, into the folder `figures/` of the run, and those that "
        "do not apply to its model or data are left out. `figures@callbacks.figures.figures=OPTION` chooses them: "
        + ", ".join(map(file_link, options("figures")))
        + ". `callbacks.figures.at_validation=true` draws them at each validation, too, and "
        "`callbacks.figures.formats=[png,pdf]` sets the files' formats. For a finished run, "
        "`python evaluate.py ckpt=FOLDER figures@callbacks.figures.figures=OPTION` draws other figures."
    ]
    for key, (cls, paths) in sorted(drawn.items()):
        link = class_link(f"{cls.__module__}.{cls.__name__}")
        parts.append(figure(cls, key, f"`figures/{key}.png`, drawn by {', '.join(map(file_link, paths))}; {link}."))
    parts.append("## Figures of studies\n\nTwo metrics draw their results, under their own names.")
    for name in STUDIES[1:]:
        target = f"eblvm_lit.evaluation.studies.{name}"
        key = name.partition(".")[0]
        parts.append(figure(loaded(target), key, f"`figures/{key}.png`; {class_link(target)}.", level=3))
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def figure(cls, name, where, level=2):
    """One figure: its docstring up to the arguments, its file, and its picture with the command."""
    text = f"{'#' * level} {name}\n\n{where}\n\n{markdown(inspect.getdoc(cls))}"
    file, command = PICTURES.get(name, ("", ""))
    if file and (ROOT / "docs" / "images" / file).is_file():
        text += f"\n\n![The figure {name}](../images/{file})\n\n```text\n{wrapped(command)}\n```"
    return text


def markdown(docstring):
    """The sentences and formulas of a docstring that stand before its arguments, as Markdown."""
    text = re.split(r"\n(?:Args|Attributes|Example|Raises):\n", docstring)[0].strip()
    text = re.sub(r"\.\. math::((?: .*)?(?:\n +.*)*)", lambda found: f"$$ {' '.join(found[1].split())} $$", text)
    text = re.sub(r":math:`([^`]*)`", lambda found: f"${' '.join(found[1].split())}$", text)
    text = re.sub(r":\w+:`~?([^`]*)`", lambda found: f"`{found[1].rpartition('.')[2]}`", text).replace("``", "`")
    return text


MAKE = {"groups": groups, "experiments": experiments, "keys": keys, "metrics": metrics, "figures": figures}

if __name__ == "__main__":
    PAGES.mkdir(exist_ok=True)
    for page in sys.argv[1:] or MAKE:
        (PAGES / f"{page}.md").write_text(MAKE[page](), encoding="utf-8")
