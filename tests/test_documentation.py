"""The README and docs/: every command exists, every example runs, and every quotation is in the source.

``make docs-check`` also runs the commands, shortened, one after another in a temporary folder.
"""

import ast
import importlib
import importlib.util
import inspect
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from contextlib import redirect_stdout, suppress
from pathlib import Path

import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from PIL import Image

import cases
from eblvm_lit.cli.hints import refuse_unread
from eblvm_lit.data.toy import Checkerboard, ToyDataModule
from eblvm_lit.runs import run
from eblvm_lit.runs.settings import check_config
from energies import test_base as batteries_of_energies
from helpers.documents import BLOCK, PAGES, TUTORIALS, blocks, commands, commands_of, files, sentences, write
from helpers.image_files import write_cifar10, write_frey, write_mnist
from helpers.shell import CONF, ROOT, configure, configured
from helpers.short_runs import SHORTER, first_value, shorter_deep
from objectives import test_base as batteries_of_objectives

DOCS = ROOT / "docs"
EXAMPLES = DOCS / "extending.md"
OWN = ROOT / "examples" / "own_parts"
# Pages whose Python blocks are run. Those of EXAMPLES are tested in another way: they are rows of cases.py and files of
# the folder OWN.
PYTHON_PAGES = [ROOT / "README.md", DOCS / "concepts.md"]
# The blocks of this page take ten seconds, so that only the slow half of the tests runs them.
LONG_PYTHON_PAGES = [DOCS / "python.md"]
FLAGS = {
    **dict.fromkeys(("-m", "--multirun", "--help", "--hydra-help", "--resolve"), 1),
    **dict.fromkeys(("--cfg", "--info", "--package"), 2),
}
LAUNCHERS = {"python", "torchrun", "srun"}
SCRIPTS = {"eblvm-train": "train.py", "eblvm-evaluate": "evaluate.py"}  # the scripts that the installed commands run
# Pages with commands in the cells of tables.
TABLES = (
    *("papers", "choosing", "options", "python", "performance", "troubleshooting", "concepts", "glossary"),
    *("gallery", "reproduction", "yardsticks", "not_run", "devices", "data"),
)
# Programs whose commands are not checked: those of the shell, git, and others.
OTHERS = {
    *("[", "cd", "cp", "git", "kill", "ls", "rm", "sbatch", "scancel", "scontrol", "source", "squeue", "ssh", "tail"),
    *("tensorboard", "wandb"),
}
ALL = [command for page in PAGES if page not in TUTORIALS for command in commands(page)]
DISTINCT = list({command.words: command for command in ALL}.values())


def program(command):
    return Path(command.words[0]).name


def script(command):
    """Return ``train.py`` or ``evaluate.py`` and its arguments; (None, ()) for another command."""
    if program(command) in SCRIPTS:
        return SCRIPTS[program(command)], command.words[1:]
    for name in ("train.py", "evaluate.py"):
        if name in command.words and program(command) in LAUNCHERS:
            words = command.words[command.words.index(name) + 1 :]
            # A word such as $ARGS is a variable of the shell, which may contain an override, and is left out.
            return name, tuple(word for word in words if not word.startswith("$"))
    return None, ()


def split_flags(words):
    """Split the words of a command into Hydra's flags and its overrides.

    A folder of configurations becomes an override, because compose() takes it in this form.
    """
    flags = []
    overrides = []
    rest = list(words)
    while rest:
        if rest[0] == "--config-dir":
            where = next(folder / rest[1] for folder in (Path.cwd(), ROOT) if (folder / rest[1]).is_dir())
            overrides.append(f"hydra.searchpath=[file://{where}]")
            rest = rest[2:]
            continue
        n = FLAGS[rest[0]] if rest[0].startswith("-") else 0  # An unknown flag ends here with a KeyError.
        (flags if n else overrides).extend(rest[: n or 1])
        rest = rest[n or 1 :]
    return flags, overrides


def first_job(overrides):
    """Return the overrides of a sweep's first job; check that all options of a group that it names exist."""
    found = []
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        if not override.is_sweep_override():
            found.append(override.input_line)
            continue
        key = override.get_key_element()
        interval = override.is_interval_sweep()
        values = [override.value().start] if interval else list(override.sweep_string_iterator())
        if (CONF / key).is_dir():
            folders = (CONF / key, Path("my_parts", "conf", key))  # the second folder is that of a tutorial
            assert {*values} <= {path.stem for folder in folders for path in folder.glob("*.yaml")}
        found.append(f"{key}={values[0]}")
    return found


@pytest.fixture
def own_parts(monkeypatch):
    """Make the example package importable."""
    monkeypatch.syspath_prepend(str(OWN))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "my_package"]:
        del sys.modules[name]


# Commands that train with the example package, which a test further down runs. tests/runs/test_own_parts.py runs
# experiment=ring.
TRAINING = [c for c in commands(EXAMPLES) if script(c)[0] == "train.py" and "allow_packages=[my_package]" in c.words]

# --- commands ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [command for command in DISTINCT if command not in TRAINING], ids=str)
def test_every_command_is_one_that_exists(command, own_parts, tmp_path, monkeypatch):
    name, words = script(command)
    if name is not None:
        check_script(name, words, tmp_path)
    elif command.words[1:2] == ("-m",):
        check_module(command.words[2], command.words[3:], monkeypatch)
    elif command.words[1:2] == ("-c",):
        compile(command.words[2], str(command), "exec")
    elif program(command) == "make":
        makefile = (ROOT / "Makefile").read_text()
        for variable, equals, _ in (word.partition("=") for word in command.words[1:]):
            assert re.search(rf"^{variable} *\??{equals or ':'}", makefile, re.MULTILINE), f"make has no {variable}"
    elif program(command) == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        named = re.findall(r"\[(.*)\]", " ".join(command.words))
        assert {*",".join(named).split(",")} - {""} <= extras.keys()
    else:
        assert program(command) in OTHERS, f"{command}: add it to OTHERS, or teach this test what it is"


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_the_commands_of_a_tutorial_exist(page, tmp_path, monkeypatch):
    """Check the commands of a tutorial in a folder with the files that its page writes.

    The slow half of the tests runs the commands.
    """
    files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "my_parts"))
    for command in dict.fromkeys((command.words for command in commands(page)), None):
        if command[:2] in (("python", "train.py"), ("python", "evaluate.py")):
            check_script(command[1], command[2:], tmp_path)
        elif command[0] not in OTHERS:
            assert command[:2] == ("python", "-m"), f"{page.name}: {command}"
            assert importlib.util.find_spec(command[2]), f"there is no module {command[2]}"
    for name in [path.stem for path in tmp_path.rglob("*.py")]:
        sys.modules.pop(name, None)


def check_script(name, words, tmp_path):
    flags, overrides = split_flags(words)
    # Options of Hydra's plugins are left out, because compose() does not load plugins.
    overrides = [word for word in overrides if not word.startswith(("hydra/", "hydra.sweeper"))]
    if len(overrides) == 1 and (CONF / f"{overrides[0].replace('=', '/')}.yaml").is_file():
        return  # tests/cli/test_compose.py composes all experiments
    job = [*first_job(overrides), f"run_dir={tmp_path}"]
    own = [word for word in overrides if word.startswith(("images=", "images."))]  # keys of images of any program
    if name == "train.py" or own:
        job = [word for word in job if word not in own]
        cfg = configured(*job)
        refuse_unread(cfg, job)
        check_config(cfg)
    else:
        configure(*job, name="evaluate")
    parsed = OverridesParser.create().parse_overrides(overrides)
    assert {"-m", "--multirun"} & {*flags} or not any(o.is_sweep_override() for o in parsed), "a sweep needs -m"


def check_module(module, words, monkeypatch):
    assert importlib.util.find_spec(module), f"there is no module {module}"
    # Run the module as python -m does, but in this process, which has already imported torch.
    if module.startswith("benchmarks."):
        monkeypatch.setattr(sys, "argv", [module, *words, "--list"])
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as leaving:
            assert not leaving.code, f"{module} ended with {leaving.code}"  # noqa: PT017 - it need not be raised
    elif module.startswith("eblvm_lit."):
        name = f"{module}.__main__" if importlib.util.find_spec(module).submodule_search_locations else module
        if parser := getattr(importlib.import_module(name), "parser", None):
            parser().parse_args(list(words))  # argparse exits if it does not know an option


def test_files_that_pages_show_whole_are_the_files():
    shown = [block for page in PAGES for block in blocks(page, "yaml", "python") if block.marker.startswith("file: ")]
    assert shown
    for block in shown:
        assert block.text == (ROOT / block.marker.removeprefix("file: ")).read_text(), block


def test_links_lead_somewhere_and_every_page_and_picture_is_shown():
    shown = "".join(path.read_text() for path in [*PAGES, *DOCS.glob("notebooks/*.ipynb")])
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\((?!https?:|mailto:)([^)#\s]+)", text):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
    site = (ROOT / "mkdocs.yml").read_text()
    index = (DOCS / "index.md").read_text()
    for name in (path.relative_to(DOCS).as_posix() for path in [*DOCS.rglob("*.md"), *DOCS.glob("notebooks/*.ipynb")]):
        assert name == "index.md" or f"]({name}" in index, f"docs/index.md does not link to {name}"
        assert name.replace(".ipynb", ".md") in site, f"mkdocs.yml does not name {name}"
    for path in (path for path in (DOCS / "images").rglob("*") if path.is_file()):
        assert path.relative_to(DOCS).as_posix() in shown, f"no page shows {path}"


def anchors(page):
    """Return the anchors of a page's headings, as the site's Markdown extension makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    titles = (re.sub(r"[^\w\s-]", "", title).strip().lower() for title in re.findall(r"^#+ (.+)", text, re.MULTILINE))
    return {re.sub(r"[-\s]+", "-", title) for title in titles}


# Pages that may have wider blocks: those that show the code of a file, and those that are still to be wrapped.
WIDE = (
    "extending",
    "papers",
    "README",
    "python",
    "quick_start",
    "runs",
    "troubleshooting",
    "data",
    "devices",
    "sweeps",
)


def test_blocks_of_code_fit_the_page():
    """Check that the lines of code blocks have at most 88 columns, which the site shows without a line break."""
    wide = []
    for page in (page for page in PAGES if page.stem not in WIDE):
        for block in BLOCK.finditer(page.read_text()):
            wide += [f"{page.name}: {line}" for line in block["text"].splitlines() if len(line) > 88]
    assert wide == []


def test_links_to_sections_find_them():
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for target, anchor in re.findall(r"\]\(([^)#\s:]*\.md)?#([^)\s]+)\)", text):
            assert anchor in anchors(page.parent / target if target else page), f"{page.name}: {target}#{anchor}"


def test_pages_use_the_words_that_are_agreed_on():
    """Check the agreed words: "only", "the authors' code", "layers" and "minus" have no synonyms on the pages."""
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        found = re.findall(r"\b(?:alone|released|rooms?(?! that can)|finished by|less a)\b", text)
        assert page.stem == "SECURITY" or not found, f"{page.name}: {found}"


NUMBERS = (
    *("four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen"),
    *("sixteen", "seventeen", "eighteen", "nineteen", "twenty", "twenty-one", "twenty-two", "twenty-three"),
)


def counts():
    """Return the true numbers of the hypergradients, trained models, objectives and methods that pages count.

    Pages are only checked where they count four or more.
    """

    def swept(name):
        return OmegaConf.load(CONF / "experiment" / f"{name}.yaml").hydra.sweeper.params.method.count(",") + 1

    all_of_fig3 = re.findall(
        r"experiment=bism_fig3 method=(\S+)\n", (CONF / "experiment" / "bism_fig3.yaml").read_text()
    )
    return {
        "hypergradients": {len([*(CONF / "hypergradient").glob("[!_]*.yaml")])},
        "trained models": {len([*(ROOT / "src" / "eblvm_lit" / "pretrained").glob("*/config.yaml")])},
        "objectives": {len([*(CONF / "objective").glob("*.yaml")])},
        "methods": {swept("toy_comparison"), all_of_fig3[-1].count(",") + 1},
    }


def test_pages_count_rightly():
    """Check that the counts on pages, as in "ten hypergradients", are those of the files in conf/ or of a sweep's
    methods."""
    words = {**{word: i for i, word in enumerate(NUMBERS, 4)}, **{str(i): i for i in range(4, 100)}}
    wrong = []
    for page in PAGES:
        for what, right in counts().items():
            claims = re.findall(rf"(?i)\b({'|'.join(words)}) {what}\b", page.read_text())
            wrong += [f"{page.name}: {claim} {what}" for claim in claims if words[claim.lower()] not in right]
    assert wrong == []


def test_the_picture_of_the_layers_is_that_of_the_code():
    drawn = runpy.run_path(str(DOCS / "site" / "architecture.py"))
    assert drawn["picture"]() == drawn["PICTURE"].read_text(), "run python docs/site/architecture.py"


def test_the_diagrams_of_the_concepts_are_those_of_their_script():
    drawn = runpy.run_path(str(DOCS / "site" / "concepts.py"))
    for diagram in drawn["DIAGRAMS"]:
        file = drawn["PICTURES"] / f"{diagram.__name__}.svg"
        assert drawn["picture"](diagram) == file.read_text(), "run python docs/site/concepts.py"


def test_pictures_show_the_numbers_of_the_tables():
    drawn = runpy.run_path(str(DOCS / "site" / "pictures.py"))
    quality, speed = drawn["checkerboard_methods"]().axes
    names = [label.get_text() for label in quality.get_yticklabels()]
    rows = drawn["cells_of"]("reproduction.md", "method | test/kl ↓ | test/log_likelihood ↑ | test/fisher ↓")
    assert names == [row[0].split(",")[0] for row in reversed(rows)]
    assert [float(line.get_xdata()[0]) for line in speed.lines] == [drawn["number"](row[4]) for row in reversed(rows)]
    left, _ = drawn["hypergradient_bias"]().axes
    assert 10 ** left.lines[0].get_ydata()[0] == pytest.approx(2.31)  # the first point has K = 0 and N = 0
    for panel, numbers in zip(drawn["hypergradient_cost"]().axes, ((0.67, -5451.8), (14, -5451.8)), strict=True):
        assert (*panel.lines[0].get_xydata()[0],) == pytest.approx(numbers)  # the first point has N = 0


def test_the_blocks_of_the_picture_are_the_lines_of_train_in_their_order():
    steps = runpy.run_path(str(DOCS / "site" / "architecture.py"))["RUN"][1:]
    lines = inspect.getsource(run.train)
    places = [lines.index(f" {name}(") for _, names, _ in steps for name in names if "Method." not in name]
    assert places == sorted(places)
    package = ROOT / "src" / "eblvm_lit"
    defined = [(package / file).read_text() for _, _, file in steps]
    assert all(
        f"def {names[0].rpartition('.')[2]}(" in text
        for (_, names, _), text in zip(steps, defined, strict=True)
        if names[0] != "trainer.fit"
    )


def commands_in_tables():
    """Return the commands in the cells of tables, except those in the files of experiments.

    Some cells omit ``python train.py``.
    """
    own = "".join(path.read_text() for path in (CONF / "experiment").glob("*.yaml"))
    text = "".join((DOCS / f"{name}.md").read_text() for name in TABLES)
    whole = re.findall(r"`(?:python )?train\.py ([^`]+)`", text)
    found = {*whole, *re.findall(r"\| `((?:-m )?(?:method|experiment)=\w[^`]+)`", text)}
    return sorted(line for line in found if f"train.py {line}\n" not in own)


def differences():
    """Return the overrides that restore the authors' code where this package differs from it."""
    page = (DOCS / "differences.md").read_text()
    return re.findall(r"^(?:\|[^|]*){4}\| `([^`]+)` \|", page, re.MULTILINE)


@pytest.mark.parametrize("line", [*commands_in_tables(), *differences()])
def test_commands_in_tables_exist(line, tmp_path):
    check_script("train.py", shlex.split(line), tmp_path)


def test_the_papers_are_cited_alike():
    """Compare the papers on their page with those of the citation file, and the versions in all files."""
    page = (DOCS / "papers.md").read_text()
    citation = OmegaConf.load(ROOT / "CITATION.cff")
    for reference in citation.references:
        assert reference.title in " ".join(re.sub(r"[*\n]", " ", page).split())
        assert reference.url in page
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert citation.version == version
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text()


# --- examples ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "block",
    [
        *(block for page in PYTHON_PAGES for block in blocks(page, "python")),
        *(
            pytest.param(block, marks=pytest.mark.slow, id=str(block))
            for page in LONG_PYTHON_PAGES
            for block in blocks(page, "python")
        ),
    ],
    ids=str,
)
def test_python_on_a_page_runs(block, tmp_path, unrendered, monkeypatch):
    """Run a block of Python as it is printed, but with fewer iterations, and the default run without metrics and figures.

    The slow test of the default run in tests/test_library.py trains it to its end.
    """
    monkeypatch.chdir(tmp_path)
    few = "['trainer.max_steps=20', 'callbacks.evaluation=null', 'callbacks.figures=null']"
    text = block.text.replace("eblvm_lit.train()", f"eblvm_lit.train({few})")
    text = re.sub(r"max_steps=\d+", "max_steps=20", text).replace("sample(20_000", "sample(200")
    printed = io.StringIO()
    expected = re.findall(r"print\(.*#  ?about (-?[\d.]+)", block.text)
    torch.manual_seed(0)
    with redirect_stdout(printed):
        exec(compile(text, str(block), "exec"), {"__name__": "example"})
    numbers = [float(number) for number in re.findall(r"-?\d+\.\d+", printed.getvalue())]
    for value, about in zip(numbers[: len(expected)], expected, strict=True):
        assert value == pytest.approx(float(about), abs=0.05 + 0.02 * abs(float(about)))


def rows(marker):
    """Return the rows that a block of docs/extending.md would add to a table of cases.py."""
    table = marker.removeprefix("row: ")
    (block,) = [block for block in blocks(EXAMPLES, "python") if block.marker == marker]
    scope = {**vars(cases), table: []}
    exec(compile(block.text, str(block), "exec"), scope)
    return scope[table]


@pytest.mark.usefixtures("float64", "own_parts")
def test_the_row_of_an_objective_passes_the_batteries():
    (case,) = rows("row: OBJECTIVES")
    battery = batteries_of_objectives
    for rho in (-0.7, 0.7):
        battery.test_a_step_moves_a_wrong_scale_towards_that_of_the_data(case, rho)
    battery.test_the_right_scale_is_stationary(case)
    battery.test_expectation_for_a_gaussian(case)
    battery.test_cotangent_is_the_derivative_by_the_score(case)


@pytest.mark.usefixtures("float64", "own_parts")
def test_the_row_of_an_energy_passes_all_batteries_that_apply_to_it():
    (case,) = rows("row: ENERGIES")
    passed = []
    for battery in batteries_of_energies.batteries(case):
        with suppress(pytest.skip.Exception):  # a battery is skipped if the energy lacks what it needs
            battery(case)
            passed.append(battery)
    assert len(passed) == 6


@pytest.mark.usefixtures("own_parts")
def test_the_methods_own_tests_pass():
    scope = runpy.run_path(str(OWN / "test_discrepancy.py"))
    tests = [value for name, value in scope.items() if name.startswith("test_")]
    assert tests
    for test in tests:
        test()


@pytest.mark.parametrize("command", TRAINING, ids=str)
@pytest.mark.usefixtures("own_parts")
def test_the_worked_example_trains_and_is_evaluated(command, tmp_path, monkeypatch):
    for kind in (ToyDataModule, Checkerboard):
        monkeypatch.setattr(kind, "sizes", (200, 100, 100))
    overrides = split_flags(script(command)[1])[1]
    short = ["debug=fast", "trainer.max_steps=3", "n_validations=1", "callbacks.figures=null"]
    metrics = run.train(configure(*overrides, *short, f"run_dir={tmp_path}"))
    assert metrics["iteration"] == 3
    assert "test/fisher" in metrics
    checkpoint = f"ckpt={tmp_path}/checkpoints/last.ckpt"
    again = configure(checkpoint, "allow_packages=[my_package]", f"run_dir={tmp_path}/again", name="evaluate")
    assert run.evaluate(again)["test/fisher"] == metrics["test/fisher"]


# --- quotations and tables --------------------------------------------------------------------------------


def test_every_sentence_that_troubleshooting_quotes_is_printed_by_the_program():
    quotes = re.findall(r"^> (.+(?:\n> .+)*)", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    quotes = [re.sub(r"\n> ", " ", quote).strip() for quote in quotes]
    assert len(quotes) > 10
    printed = sentences()
    lost = [quote for quote in quotes if not any(is_quoted(quote, sentence) for sentence in printed)]
    assert not lost, f"no longer in the source: {lost}"


def is_quoted(quote, sentence):
    """Return whether a quotation is part of a sentence; … stands for what it omits, or for values that are filled
    in."""
    fragments = [fragment for fragment in re.split("…", quote) if fragment.strip()]
    pattern = ".*".join(re.escape(fragment.strip()) for fragment in fragments)
    return len(max(fragments, key=len)) > 10 and re.search(pattern, sentence, re.DOTALL) is not None


def test_every_experiment_is_on_a_page_of_results():
    text = "".join(
        (DOCS / f"{name}.md").read_text() for name in ("reproduction", "hypergradients", "yardsticks", "not_run")
    )
    names = [path.stem for path in (CONF / "experiment").glob("[!_]*.yaml")]
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []


def test_help_lists_the_options_of_every_group():
    """Check that the help text names each configuration group in one line and lists its public options.

    The group ``published`` is left out, because the method and the data set choose its options.
    """
    template = (CONF / "hydra" / "help" / "train.yaml").read_text().split("template: |\n")[1]
    groups = re.findall(r"^  (\w+): .+\n((?:      .+\n)+)", template, re.MULTILINE)
    listed = {name: sorted(re.split(r",\s+", options.strip())) for name, options in groups}
    folders = [folder for folder in CONF.iterdir() if folder.is_dir() and folder.name not in ("hydra", "published")]
    there = {folder.name: sorted(path.stem for path in folder.glob("[!_]*.yaml")) for folder in folders}
    assert listed == there


def formulas():
    """Yield every formula of the pages and of the docstrings, once."""
    pages = "".join(re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL) for page in PAGES)
    found = {match[0] or match[1] for match in re.findall(r"\$\$(.+?)\$\$|\$([^$\n]+)\$", pages, re.DOTALL)}
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                found |= {*re.findall(r":math:`([^`]+)`", text)}
                found |= {match[1] for match in re.findall(r"( *)\.\. math::(.*(?:\n\1 +.*| *\n(?=\1 ))*)", text)}
    return sorted(" ".join(tex.split()) for tex in found)


def test_the_site_can_draw_every_formula():
    pytest.importorskip("latex2mathml", reason="the site needs the extra docs")
    mathml = runpy.run_path(str(DOCS / "site" / "formulas.py"))["mathml"]
    found = formulas()
    assert len(found) > 100
    for tex in found:
        assert "<math" in mathml(tex)  # the converter raises an error at a command that it does not know
    assert "<munder><mo" in mathml(r"\arg \min_\theta J", display="block")
    assert "&#x0223C;" in mathml(r"v \sim p")
    with pytest.raises(ValueError, match="unheard"):
        mathml(r"\unheard x")


def test_a_page_has_its_formulas_as_mathml_and_its_code_as_it_is():
    pytest.importorskip("latex2mathml", reason="the site needs the extra docs")
    drawn = runpy.run_path(str(DOCS / "site" / "formulas.py"))["drawn"]
    code = "```bash\necho $HOME $PATH\n```\n\nUse `$a$`, ``$b` $c``, \\$5 or 5 $ and 6 $.\n"
    assert drawn(code) == code
    page = drawn("# Title\n\n$$E =\nv$$\n\nIt is $h$, not `$h$`.\n")
    head, display, sentence = page.strip().split("\n\n")
    assert head == "# Title"
    assert re.fullmatch(r'<div class="formula"><math [^>]*display="block">.*</math></div>', display)
    assert re.fullmatch(r'It is <span class="formula"><math [^>]*inline.*</math></span>, not `\$h\$`\.', sentence)


# --- the same commands, shortened and run -----------------------------------------------------------------

# A command is not run if one of its words ends like a key of this table, whose value is the reason.
NOT_RUN = {
    "=fid": "needs the weights of the Inception network and images",
    "data=image_folder": "needs a folder of images",
    "data=array": "needs a file of examples",
    "trainer=ddp": "needs GPUs",
    "held_out_classes=[1],[4],[5],[7],[9]": "needs more images of each class; tests/data/test_held_out.py trains on such a set",
}
SHORT = ["debug=fast", "trainer.max_steps=4", "n_validations=1", "data.batch_size=20"]
AT = "callbacks.evaluation.metrics"
AIS = f"{AT}.log_likelihood"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """Create the folder of a new user: small data sets in their published formats, a run and a sweep."""
    folder = tmp_path_factory.mktemp("docs")
    data = folder / "data"
    data.mkdir()
    write_mnist(data)
    write_cifar10(data, 12)  # the numbers of images can be divided among four devices
    write_frey(data)
    images = folder / "images"
    images.mkdir()
    for i in range(20):
        pixels = torch.randint(256, (28, 28), generator=torch.Generator().manual_seed(i)).byte().numpy()
        Image.fromarray(pixels).save(images / f"{i}.png")
    for words in (["callbacks=ema"], ["-m", "seed=0,1"]):
        check_run(folder, [str(ROOT / "train.py"), *words, *SHORT])
    return folder


def check_run(folder, words, variables=None):
    """Run Python in this folder as a user would, and check that it ends without an error."""
    paths = [str(folder / path) for path in (variables or {}).get("PYTHONPATH", "").split(os.pathsep) if path]
    paths += [str(ROOT / path) for path in ("tests/helpers/small_sets", ".", "src")]
    paths += [os.environ.get("PYTHONPATH", "")]
    # A page may set EBLVM_DATA to a folder of the reader, which does not exist here. The folder of small data sets then
    # takes its place.
    named = Path((variables or {}).get("EBLVM_DATA", folder / "data"))
    data = named if named.exists() else folder / "data"
    environment = {**os.environ, "EBLVM_DATA": str(data), "PYTHONPATH": os.pathsep.join(paths)}
    result = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, f"{' '.join(words)}\n{result.stdout[-2000:]}\n{result.stderr[-2000:]}"


def newest(folder, pattern):
    return max(folder.glob(pattern), key=lambda path: path.stat().st_mtime)


def resolved(word, folder):
    """Replace the placeholders in a word of a command, such as DATE/TIME, by folders that exist."""
    if (word.startswith("ckpt=") and "last.ckpt" in word) or word == "ckpt=...":
        return f"ckpt={newest(folder, 'outputs/*/*/checkpoints/last.ckpt')}"
    # DATE/TIME is the newest folder with a checkpoint, because evaluations create folders, too.
    trained = newest(folder, "outputs/*/*/checkpoints/last.ckpt").parents[1]
    for kind, latest in (("outputs", trained), ("multirun", newest(folder, "multirun/2*-*/*/"))):
        word = word.replace(f"{kind}/DATE/TIME", str(latest.relative_to(folder)))
    word = word.replace("images=FOLDER", f"images={folder / 'images'}")
    return word.replace("../shared/data", str(folder / "data"))


def shortened(overrides):
    """Shorten the run of a command: two values for each axis of a sweep, few iterations, small networks, quick
    metrics."""
    first = re.sub(r"=([^,\[{(]+,[^,]+)(,.*)$", r"=\1", "\n".join(overrides), flags=re.MULTILINE).splitlines()
    # A page names numbers of iterations that take hours.
    first = [word for word in first if not re.fullmatch(r"trainer\.max_steps=\d{5,}", word)]
    experiment = next((word.split("=")[1] for word in first if word.startswith("experiment=")), None)
    # This holds for the experiments of this repository, but not for that of the example folder.
    if experiment and (CONF / "experiment" / f"{experiment}.yaml").exists():
        node = OmegaConf.load(CONF / "experiment" / f"{experiment}.yaml").get("hydra", {}).get("sweeper", {})
        given = {word.split("=")[0] for word in first}
        axes = {key: first_value(values) for key, values in node.get("params", {}).items()}
        first += [f"{key}={value}" for key, value in axes.items() if key not in given]
    short = [word for word in SHORT if word.split("=")[0] not in {other.split("=")[0] for other in first}]
    cfg = configure(*first_job(first), *short)
    smaller = shorter_deep(cfg) + SHORTER.get(experiment, [])
    smaller += ["data.val_size=2", "data.batch_size=3"] if cfg.data.get("flatten") else []
    smaller += ["method.fresh_minibatches=false"]  # SN-GAN's five minibatches need more images than this small set has
    # Keep only the keys that the configuration of this command has. For example, figures that it does not draw have no
    # keys.
    short += [word for word in smaller if OmegaConf.select(cfg, word.split("=")[0], default=cfg) is not cfg]
    for name in cfg.callbacks.evaluation.intervals:  # the interval in iterations must be a whole number of validations
        short.append(f"callbacks.evaluation.intervals.{name}={cfg.trainer.max_steps // cfg.n_validations}")
    short += ["logger.wandb.offline=true"] if "wandb" in (cfg.get("logger") or {}) else []
    if cfg.callbacks.evaluation.metrics.get("log_likelihood"):
        short += [f"{AIS}.n_chains=20", f"{AIS}.n_betas=20"]
    parts = ("log_likelihood.hamiltonian_ais", "sandwich.ais")
    few = {f"{part}.{key}": 20 for part in parts for key in ("n_chains", "n_betas", "n_adapting")}
    few |= {"points.n_samples": 200, "points.n_samples_at_validation": 20}
    if "+criteria@" in "".join(first):
        # There must be more samples than the number of neighbours k of the criterion.
        few |= {f"fd_classifier.{key}": 20 for key in ("n_samples", "n_samples_at_validation")}
    metrics = cfg.callbacks.evaluation.metrics
    short += [f"{AT}.{key}={n}" for key, n in few.items() if OmegaConf.select(metrics, key) is not None]
    # The table of this experiment shows the mean of the last three validations, so that a run needs at least three.
    short += ["n_validations=4"] if experiment == "bism_fig3" else []
    if any(word.startswith("trainer.devices=") for word in first):
        short += ["data.batch_size=12", *(["data.val_size=12"] if "val_size" in cfg.data else [])]
    return first + short


@pytest.mark.slow
@pytest.mark.parametrize("command", ALL, ids=str)
def test_every_command_does_what_the_page_says(command, workspace):
    reason = next((why for word, why in NOT_RUN.items() if any(given.endswith(word) for given in command.words)), None)
    name, words = script(command)
    module = command.words[2] if command.words[1:2] == ("-m",) else ""
    if reason or program(command) != "python" or (name is None and not module.startswith("eblvm_lit.")):
        pytest.skip(reason or "is a make target, a benchmark or another program's")
    if name is None:
        check_run(workspace, [*command.words[1:3], *(resolved(word, workspace) for word in command.words[3:])])
        return
    flags, overrides = split_flags(words)
    overrides = [resolved(word, workspace) for word in overrides]
    if "eval_weights=ema" in overrides:
        check_run(workspace, [str(ROOT / "train.py"), "callbacks=ema", *SHORT])
        overrides = [resolved("ckpt=...", workspace) if word.startswith("ckpt=") else word for word in overrides]
    if any(word.startswith("images=") for word in overrides):
        overrides += ["data.val_size=2"]  # the small data set has fewer images than the validation split of MNIST
    if name != "train.py" or {"--help", "--cfg"} & set(flags):
        check_run(workspace, [str(ROOT / name), *flags, *overrides], command.variables)
        return
    check_run(workspace, [str(ROOT / name), *flags, *shortened(overrides)], command.variables)


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_runs_from_its_first_block_to_its_last(page, workspace, tmp_path, monkeypatch):
    """Run all blocks of a tutorial in a new folder, in their order.

    Its files are written, its commands are run with fewer iterations, and its Python is executed.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EBLVM_DATA", str(workspace / "data"))
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "my_parts"), *sys.path])
    for name in ("data", "docs/images/tutorials"):
        (tmp_path / name).mkdir(parents=True)
    scope = {"__name__": "tutorial"}
    for block in blocks(page, "bash", "python", "yaml"):
        if block.marker.startswith("write: "):
            write(block, tmp_path)
        elif block.language == "python":
            # The validation split gets only two of the few images that exist here.
            text = block.text.replace("size=16)", "size=16, val_size=2)")
            exec(compile(text, str(block), "exec"), scope)
        elif block.language == "bash" and block.marker != "not run":
            for command in commands_of(block):
                run_of_tutorial(command, tmp_path, workspace)
    assert [*tmp_path.glob("*/model.safetensors")], "a tutorial ends in a shared model"
    for name in [path.stem for path in (tmp_path / "my_parts").glob("*.py")]:
        sys.modules.pop(name, None)


def run_of_tutorial(command, folder, workspace):
    """Run one command of a tutorial in its folder."""
    name, words = script(command)
    variables = {**command.variables, "EBLVM_DATA": str(workspace / "data")}
    if name is None:
        words = [word.replace("tests/", f"{ROOT}/tests/") for word in command.words[1:]]
        words += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)] if "pytest" in words else []
        check_run(folder, words, variables)
        return
    flags, overrides = split_flags(words)
    if name == "train.py" and not {"--help", "--cfg", "--info"} & set(flags):
        # A run that resumes a checkpoint must be longer than the run that wrote it.
        longer = any(word.startswith("ckpt=") for word in overrides)
        given = [word for word in overrides if not word.startswith(("trainer.max_steps=", "n_validations="))]
        overrides = shortened([*given, f"trainer.max_steps={8 if longer else 4}"])
    check_run(folder, [str(ROOT / name), *flags, *overrides], variables)
