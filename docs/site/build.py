"""Writes all pages of the site as finished Markdown into build/pages: python docs/site/build.py [FOLDER].

The pages are those of docs/ and of the top folder, the notebooks and the API. Their links lead to other pages or to
copies of files, and their formulas are MathML. A generator only makes HTML of them, by the settings in
build/mkdocs.yml: those of mkdocs.yml, with the folders and with the API in the navigation. The generator fills each
line ``::: module`` with signatures and docstrings.
"""

import os
import re
import shutil
import sys
from pathlib import Path

import api_pages
import yaml
from formulas import drawn
from nbconvert import MarkdownExporter

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PACKAGE = "src/eblvm_lit/"
LINK = re.compile(r"\[([^\[\]]*)\]\(((?!\w+:)[^)#\s]+)((?:#[^)\s]*)?)\)")
# Pages that lie at the top of the repository; the README says what index.md says.
TOP = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}


def main(folder):
    """Write the pages and the settings of the generator into a folder."""
    pages, files = collect()
    files |= copies(pages)
    shutil.rmtree(folder / "pages", ignore_errors=True)
    for uri, content in (files | {uri: finished(uri, text).encode() for uri, text in pages.items()}).items():
        path = folder / "pages" / uri
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (folder / "mkdocs.yml").write_text(yaml.safe_dump(settings(), sort_keys=False), encoding="utf-8")


def collect():
    """Return the text of each page, and the content of each other file of the site, by their paths in the site."""
    pages = {page: (ROOT / source).read_text(encoding="utf-8") for source, page in TOP.items()} | api_pages.pages()
    files = {}
    for path in sorted(path for path in DOCS.rglob("*") if path.is_file() and DOCS / "site" not in path.parents):
        uri = path.relative_to(DOCS).as_posix()
        if path.suffix == ".md":
            pages[uri] = path.read_text(encoding="utf-8")
        else:
            files[uri] = path.read_bytes()
        if path.suffix == ".ipynb":
            pages[f"notebooks/{path.stem}.md"], pictures = notebook(path)
            files |= {f"notebooks/{name}": data for name, data in pictures.items()}
    return pages, files


def notebook(path):
    """Return the page of a notebook, with the outputs that are saved in it, and the pictures on it by their names."""
    names = {"unique_key": path.stem, "output_files_dir": path.stem}
    text, resources = MarkdownExporter().from_filename(str(path), resources=names)
    title, _, rest = text.lstrip().partition("\n")
    return f"{title}\n\n[Download this page as a notebook.]({path.name})\n{rest}", resources["outputs"]


def copies(pages):
    """Return the files outside of docs/ that pages link to, as text that browsers show, by their paths in the site."""
    found = {}
    for uri, text in pages.items():
        for _, link, _ in LINK.findall(text):
            target = _target(uri, link)
            place = _place(target, uri)
            if place.startswith("source/") and (ROOT / target).is_file():
                found[place] = (ROOT / target).read_bytes()
    return found


def finished(uri, text):
    """Return a page whose links lead to places in the site and whose formulas are MathML."""

    def replaced(match):
        name, link, anchor = match.groups()
        target = _target(uri, link)
        if (ROOT / target).is_dir():
            return name  # a folder has no page
        return f"[{name}]({os.path.relpath(_place(target, uri), os.path.dirname(uri) or '.')}{anchor})"

    try:
        return drawn(LINK.sub(replaced, text))
    except ValueError as error:
        sys.exit(f"ERROR: {uri}: {error}")


def settings():
    """Return the settings of mkdocs.yml for this folder, with the API last in the navigation."""
    found = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    mkdocstrings = next(plugin for plugin in found["plugins"] if "mkdocstrings" in plugin)["mkdocstrings"]
    python = mkdocstrings["handlers"]["python"]
    python["paths"] = [str(ROOT / "src")]
    python["options"]["extensions"] = [str(DOCS / "site" / "docstrings.py")]
    return found | {"docs_dir": "pages", "site_dir": "site", "nav": [*found["nav"], {"API": api_pages.navigation()}]}


def _place(target, uri):
    """The place of a file of the repository in the site: its own page, that of its module in the API, or a copy."""
    if target in TOP:
        return TOP[target]
    if target.startswith("docs/"):
        inside = target.removeprefix("docs/")
        own = uri.startswith("notebooks/")  # a notebook's page offers the notebook itself
        return inside if own else re.sub(r"^(notebooks/\w+)\.ipynb$", r"\1.md", inside)
    module = target.removeprefix(PACKAGE)
    if module != target and target.endswith(".py") and not module.endswith("__main__.py") and module != "__init__.py":
        return f"api/{re.sub(r'__init__.py$', 'index.py', module).removesuffix('.py')}.md"
    return f"source/{target.lstrip('.')}.txt"  # generators leave out folders whose names begin with a dot


def _target(uri, link):
    """The target of a link on a page as a path inside the repository."""
    folder = "" if uri in TOP.values() else os.path.join("docs", os.path.dirname(uri))
    return os.path.normpath(os.path.join(folder, link))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build")
