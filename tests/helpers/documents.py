"""The documentation as data: its blocks, its commands, and the sentences of the source that it quotes."""

import ast
import re
import shlex
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from helpers.shell import ROOT

# Pages whose blocks are run from top to bottom in one new folder, because a block may need the files of the blocks
# above it.
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if path not in TUTORIALS),
    *TUTORIALS,
]
BLOCK = re.compile(
    r"^(?:<!-- (?P<marker>.*?) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
ASSIGNMENT = re.compile(r"[A-Z_]+=.*")
OPERATORS = {"&&", "||", "|", ";", "&"}


class Block(NamedTuple):
    """A fenced block of code, the comment before it, and the line where it begins."""

    page: Path
    line: int
    language: str
    marker: str
    text: str

    def __str__(self):
        return f"{self.page.stem}-{self.line}"


class Command(NamedTuple):
    """The words of a command, and the environment variables that are set for it."""

    block: Block
    words: tuple[str, ...]
    variables: dict[str, str]

    def __str__(self):
        return f"{self.block}-{'_'.join(self.words)[:80]}"


def blocks(page, *languages):
    """Return the fenced blocks of a page in given languages."""
    text = page.read_text(encoding="utf-8")
    found = (
        Block(page, text[: m.start()].count("\n") + 1, m["language"], m["marker"] or "", m["text"])
        for m in BLOCK.finditer(text)
    )
    return [block for block in found if block.language in languages]


def commands(page):
    """Return the commands in the shell blocks of a page, without comments."""
    return [command for block in blocks(page, "bash", "sh", "shell") for command in commands_of(block)]


def files(page, folder):
    """Write the files that a page shows into a folder: the blocks of the page with the marker ``write: NAME``."""
    for block in blocks(page, "python", "yaml"):
        if block.marker.startswith("write: "):
            write(block, folder)


def write(block, folder):
    """Write the file that a block shows."""
    path = folder / block.marker.removeprefix("write: ")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text)


def commands_of(block):
    """Return the commands of a shell block, without comments."""
    found = []
    exported = {}
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        exported |= dict(word.split("=", 1) for word in words[1:] if words[0] == "export")
        for joined, part in groupby(words, key=OPERATORS.__contains__):
            if not joined and words[0] != "export":
                found += command(block, list(part), exported)
    return found


def command(block, words, variables):
    """Return the command that the words form, in a list, which is empty if the words only assign variables."""
    variables = dict(variables)
    while words and ASSIGNMENT.fullmatch(words[0]):
        name, _, variables[name] = words.pop(0).partition("=")
    return [Command(block, tuple(words), variables)] if words else []


def sentences():
    """Return all string literals of the package, with ``…`` in place of the values that are inserted into them."""
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.add("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(re.sub(r"%[sdr]", "…", node.value))
    return found
