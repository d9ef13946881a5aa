"""Draws the layers of the package, what imports what, and one run as blocks: python docs/site/architecture.py."""

import ast
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "eblvm_lit"
PICTURE = ROOT / "docs" / "images" / "architecture.svg"
WIDTH = 760  # of the picture: a page shows it at 700 pixels, so that the letters keep their size
ROW = 25  # height of a layer
ARCS = 100  # width of the arrows at its left
BLOCK = 88  # height of a block of a run and of the gap below it
GAP = 22  # between blocks
LETTERS = 82  # of the sentence of a layer; a longer one ends at its colon
COLUMNS = 3  # blocks of a run in a row
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b0568a", "#333a45")  # of the layers, in turn, and of their arrows
# The steps of one run: the title, the functions that do it, and the file of the first of them.
RUN = (
    ("compose", ("train.py", "hydra.main"), "cli/commands.py"),
    ("check", ("check_config", "adapt"), "runs/settings.py"),
    ("open the folder", ("claimed_by_run", "find_checkpoint"), "training/processes.py"),
    ("build", ("build", "build_trainer"), "runs/build.py"),
    ("start or resume", ("start",), "runs/start.py"),
    ("fit", ("trainer.fit", "Method.iteration"), "methods/base.py"),
    ("evaluate", ("evaluated",), "runs/results.py"),
    ("write", ("write_results",), "runs/results.py"),
    ("show", ("show_results",), "runs/console.py"),
)
HEAD = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {{height}}"
font-family="sans-serif" font-size="14">
<rect width="100%" height="100%" fill="white"/>"""


def layers():
    """What each layer imports from, at any depth of its modules."""
    names = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    return {name: {other for path in (PACKAGE / name).rglob("*.py") for other in imported(path)} & names - {name}
            for name in names}  # fmt: skip


def imported(path):
    """The layers that a module names, also within functions and for types."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("eblvm_lit."):
            yield node.module.split(".")[1]


def below(name, arrows):
    """All layers that a layer stands on."""
    return arrows[name] | {other for direct in arrows[name] for other in below(direct, arrows)}


def level(name, arrows):
    """The length of the longest way down."""
    return 1 + max((level(other, arrows) for other in arrows[name]), default=0)


def picture():
    """The drawing; an arrow that follows from others is left out."""
    arrows = layers()
    order = sorted(arrows, key=lambda name: (-level(name, arrows), name))
    y = {name: ROW * (i + 1.7) for i, name in enumerate(order)}
    colour = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(order)}
    top = ROW * (len(order) + 2) + 24  # of the blocks
    lines = [HEAD.format(height=top + BLOCK * -(-len(RUN) // COLUMNS) + 6), *heads()]
    lines.append(heading(18, "Layers: an arrow leads from a layer, in its colour, down to one that it imports"))
    direct = {
        name: sorted(arrows[name] - {far for other in arrows[name] for far in below(other, arrows)}) for name in order
    }
    for name in order:
        for other in direct[name]:
            comers = [upper for upper in order if other in direct[upper]]
            # Arrows that arrive at one layer end a few pixels apart.
            shift = 4 * (comers.index(name) - (len(comers) - 1) / 2)
            lines.append(arc(y[name], y[other] + max(-9, min(9, shift)), colour[name]))
        lines.append(
            f'<text x="{ARCS + 8}" y="{y[name] + 5:.0f}" font-weight="bold" fill="{colour[name]}">{name}</text>'
        )
        said = ast.get_docstring(ast.parse((PACKAGE / name / "__init__.py").read_text(encoding="utf-8"))) or ""
        said = said.splitlines()[0].replace("``", "").rstrip(".")
        said = escape(said if len(said) <= LETTERS else said.split(":")[0])
        lines.append(f'<text x="{ARCS + 152}" y="{y[name] + 5:.0f}" font-size="12" fill="#444">{said}</text>')
    lines.append(heading(top - 14, "One run: python train.py, step by step, with the functions and their files"))
    lines += blocks(top)
    return "\n".join([*lines, "</svg>\n"])


def heading(y, words):
    """A heading of a part of the picture."""
    return f'<text x="10" y="{y}" font-size="15">{escape(words)}</text>'


def heads():
    """The heads of the arrows, one in each colour."""
    yield "<defs>"
    for colour in COLOURS:
        yield (
            f'<marker id="head{colour[1:]}" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0 0L6 3L0 6z" fill="{colour}"/></marker>'
        )
    yield "</defs>"


def blocks(top):
    """One run as boxes, row by row from the left to the right, each with its functions and the file of the first."""
    width = (WIDTH - 20 - GAP * (COLUMNS - 1)) / COLUMNS
    for i, (title, functions, file) in enumerate(RUN):
        x = 10 + (width + GAP) * (i % COLUMNS)
        y = top + BLOCK * (i // COLUMNS)
        yield (
            f'<rect x="{x:.0f}" y="{y}" width="{width:.0f}" height="{BLOCK - GAP}" rx="6" fill="#eef3f9" '
            f'stroke="{COLOURS[0]}"/>'
        )
        yield f'<text x="{x + 12:.0f}" y="{y + 20}" font-weight="bold">{i + 1}. {title}</text>'
        for line, words in enumerate((", ".join(functions), file)):
            yield f'<text x="{x + 12:.0f}" y="{y + 38 + 16 * line}" font-size="12" fill="#444">{escape(words)}</text>'
        if i == len(RUN) - 1:
            continue
        if (i + 1) % COLUMNS:
            path = f"M{x + width + 3:.0f} {y + 31}H{x + width + GAP - 3:.0f}"
        else:  # to the first block of the next row
            path = f"M{x + width / 2:.0f} {y + BLOCK - GAP + 2}v{GAP / 2 - 2}H{10 + width / 2:.0f}v{GAP / 2 - 2}"
        yield f'<path d="{path}" fill="none" stroke="{COLOURS[0]}" marker-end="url(#head{COLOURS[0][1:]})"/>'


def arc(start, end, colour):
    """An arrow down, at the left of the names; the longer, the wider."""
    reach = ARCS - 16 - 0.22 * (end - start)
    return (
        f'<path d="M{ARCS} {start:.0f}C{reach:.0f} {start:.0f} {reach:.0f} {end:.0f} {ARCS} {end:.0f}" fill="none" '
        f'stroke="{colour}" stroke-width="1.4" marker-end="url(#head{colour[1:]})"/>'
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
