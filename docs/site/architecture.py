"""Draws the layers of the package, what imports what, and one run as blocks: python docs/site/architecture.py."""

import ast
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "eblvm_lit"
PICTURE = ROOT / "docs" / "images" / "architecture.svg"
WIDTH = 1400  # of the picture
BLOCKS = 1010  # where the blocks of a run begin
ROW = 26  # height of a layer
ARCS = 190  # width of the arrows at its left
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
font-family="sans-serif" font-size="13">
<defs><marker id="head" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="7" markerHeight="7" orient="auto">
<path d="M0 0L6 3L0 6z" fill="#4477aa"/></marker></defs>
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
    y = {name: ROW * (i + 0.7) for i, name in enumerate(order)}
    lines = [HEAD.format(height=ROW * len(order) + 10)]
    for name in order:
        direct = arrows[name] - {far for other in arrows[name] for far in below(other, arrows)}
        lines += [arc(y[name], y[other]) for other in sorted(direct)]
        lines.append(f'<text x="{ARCS + 8}" y="{y[name] + 4:.0f}" font-weight="bold">{name}</text>')
        said = ast.get_docstring(ast.parse((PACKAGE / name / "__init__.py").read_text(encoding="utf-8"))) or ""
        said = escape(said.splitlines()[0].replace("``", "").rstrip("."))
        lines.append(f'<text x="{ARCS + 170}" y="{y[name] + 4:.0f}" font-size="12" fill="#444">{said}</text>')
    lines += blocks(ROW * len(order))
    return "\n".join([*lines, "</svg>\n"])


def blocks(height):
    """One run as boxes from the top to the bottom, each with its functions and its file."""
    step = height / len(RUN)
    width = WIDTH - BLOCKS - 10
    for i, (title, functions, file) in enumerate(RUN):
        top = step * i + 8
        yield (
            f'<rect x="{BLOCKS}" y="{top:.0f}" width="{width}" height="{step - 18:.0f}" rx="6" fill="#eef3f9" '
            'stroke="#4477aa"/>'
        )
        yield f'<text x="{BLOCKS + 12}" y="{top + 20:.0f}" font-weight="bold">{title}</text>'
        called = escape(", ".join(functions))
        yield f'<text x="{BLOCKS + 12}" y="{top + 36:.0f}" font-size="12" fill="#444">{called} ({file})</text>'
        if i:
            x = BLOCKS + width / 2
            yield f'<path d="M{x:.0f} {top - 10:.0f}V{top - 1:.0f}" stroke="#4477aa" marker-end="url(#head)"/>'


def arc(start, end):
    """An arrow down, at the left of the names; the longer, the wider."""
    reach = ARCS - 20 - 0.55 * (end - start)
    return (
        f'<path d="M{ARCS} {start:.0f}C{reach:.0f} {start:.0f} {reach:.0f} {end:.0f} {ARCS} {end:.0f}" fill="none" '
        'stroke="#4477aa" marker-end="url(#head)"/>'
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
