"""For mkdocs: links of the pages to files outside of docs/ lead to copies of these in the site."""

import os
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\[([^\[\]]*)\]\(((?!\w+:)[^)#\s]+)((?:#[^)\s]*)?)\)")
README, OVERVIEW = "README.md", "overview.md"  # mkdocs takes a README for the index


def on_files(files, config):
    """Add the README as a page, and what pages link to as text, which browsers show."""
    files.append(File.generated(config, OVERVIEW, abs_src_path=str(ROOT / README)))
    for page in [file for file in files if file.is_documentation_page()]:
        for _, link, _ in LINK.findall(Path(page.abs_src_path).read_text()):
            target = _target(page, link)
            if not target.startswith("docs/") and target != README and (ROOT / target).is_file():
                uri = f"source/{target}.txt"
                if files.get_file_from_path(uri) is None:
                    files.append(File.generated(config, uri, abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown, page, **_):
    """Lead each link to where its target is in the site; a folder has no page, and only its name is left."""
    here = os.path.dirname(page.file.src_uri) or "."

    def replaced(match):
        text, link, anchor = match.groups()
        target = _target(page.file, link)
        if (ROOT / target).is_dir():
            return text
        inside = OVERVIEW if target == README else f"source/{target}.txt"
        inside = target.removeprefix("docs/") if target.startswith("docs/") else inside
        return f"[{text}]({os.path.relpath(inside, here)}{anchor})"

    return LINK.sub(replaced, markdown)


def _target(file, link):
    """A link's target as a path inside the repository."""
    folder = "" if file.src_uri == OVERVIEW else os.path.join("docs", os.path.dirname(file.src_uri))
    return os.path.normpath(os.path.join(folder, link))
