"""Draws the screens of README, quick start and sweeps: python docs/site/terminals.py [FOLDER OF A SWEEP].

Each screen is what a command really prints, which is run here: the default training, or, with the folder of a finished
sweep (``python train.py -m method=bidsm,dsm,cd seed=0,1``), its report in the terminal and as a page in Chromium.
"""

import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
WIDTH = 100  # characters of a line
# rich's own template loads its font from a network; this one takes the reader's.
TEMPLATE = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {terminal_width} {terminal_height}">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>{lines}</defs>
<rect width="{terminal_width}" height="{terminal_height}" rx="10" fill="#1f2430"/>
<g transform="translate({terminal_x}, 18)">{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""
COLOURS = [(40, 44, 58), (240, 113, 120), (186, 230, 126), (255, 204, 102), (92, 207, 230), (212, 191, 255)]
COLOURS += [(149, 230, 203), (215, 218, 224)]
THEME = TerminalTheme((31, 36, 48), (215, 218, 224), COLOURS)


def printed(*words, bars=True):
    """What ``python WORDS`` prints on a screen of WIDTH characters, run at the top of the repository.

    With ``bars=False`` it prints a line at each validation instead of a progress bar, whose every state would be kept.
    """
    environment = {**os.environ, "COLUMNS": str(WIDTH), "PYTHONPATH": str(ROOT / "src")}
    environment |= {"FORCE_COLOR": "1"} if bars else {"TTY_COMPATIBLE": "0"}
    command = [sys.executable, *words]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return result.stdout


def screen(command, output):
    """A screen with a command and its output, as the text of an SVG file."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
    for line in output.rstrip().splitlines():
        console.print(Text.from_ansi(line.rstrip()))
    console.print()  # the room that rich leaves below the text is a line too small for this template
    return console.export_svg(theme=THEME, code_format=TEMPLATE, unique_id="terminal")


def page(report):
    """The page of a report, as a browser shows it."""
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "page.png"
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=760,1270"]
        subprocess.run(["chromium", *options, f"--screenshot={shot}", report.as_uri()], check=True, capture_output=True)
        return Image.open(shot).convert("RGB")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        text = screen("python train.py", printed("train.py", bars=False))
        (IMAGES / "terminal_train.svg").write_text(text, encoding="utf-8")
    for sweep in sys.argv[1:]:
        words = ["-m", "eblvm_lit.reports", sweep, "--metric", "test/log_likelihood", "test/fisher"]
        # The screen shows the command without --out, so that the output has to name the default folder of reports.
        output = printed(*words, "--out", f"{sweep}/report").replace(f"{sweep}/report", "outputs/report")
        text = screen(f"python {' '.join(words)}", output)
        (IMAGES / "terminal_report.svg").write_text(text, encoding="utf-8")
        page(ROOT / sweep / "report" / "report.html").save(IMAGES / "report_page.png", optimize=True)
