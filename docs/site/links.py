"""For mkdocs: links of the pages to files outside of docs/ lead to pages or copies of these in the site."""

import os
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "src/eblvm_lit/"
LINK = re.compile(r"\[([^\[\]]*)\]\(((?!\w+:)[^)#\s]+)((?:#[^)\s]*)?)\)")
# Pages that lie at the top of the repository; the README says what index.md says.
TOP = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}


def on_files(files, config):
    """Add the pages of the top folder, and what pages link to as text, which browsers show."""
    for source, page in TOP.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for page in [file for file in files if file.is_documentation_page()]:
        for _, link, _ in LINK.findall(page.content_string):
            target = _target(page, link)
            uri = _place(target, page)
            if uri.startswith("source/") and (ROOT / target).is_file() and files.get_file_from_path(uri) is None:
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
        return f"[{text}]({os.path.relpath(_place(target, page.file), here)}{anchor})"

    return LINK.sub(replaced, markdown)


def _place(target, page):
    """Where a file of the repository is in the site: its own page, that of its module in the API, or a copy."""
    if target in TOP:
        return TOP[target]
    if target.startswith("docs/"):
        inside = target.removeprefix("docs/")
        own = page.src_uri.startswith("notebooks/")  # a notebook's page offers the notebook itself
        return inside if own else re.sub(r"^(notebooks/\w+)\.ipynb$", r"\1.md", inside)
    module = target.removeprefix(PACKAGE)
    if module != target and target.endswith(".py") and not module.endswith("__main__.py") and module != "__init__.py":
        return f"api/{re.sub(r'__init__.py$', 'index.py', module).removesuffix('.py')}.md"
    return f"source/{target.lstrip('.')}.txt"  # mkdocs leaves out folders whose names begin with a dot


def _target(file, link):
    """A link's target as a path inside the repository."""
    top = {page: source for source, page in TOP.items()}
    folder = "" if file.src_uri in top else os.path.join("docs", os.path.dirname(file.src_uri))
    return os.path.normpath(os.path.join(folder, link))
