"""Tests of the documentation's site: it builds strictly, contains every public name, and loads nothing from a
network."""

import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

import eblvm_lit
from helpers.shell import ROOT

for tool in ("mkdocs", "material", "mkdocstrings", "latex2mathml", "nbconvert"):
    pytest.importorskip(tool, reason="the site needs the extra docs")

pytestmark = pytest.mark.slow  # building the site takes half a minute


class Page(HTMLParser):
    """A page's anchors and the files that a browser loads for it; mkdocs itself checks the links."""

    def __init__(self, path):
        super().__init__()
        self.ids = set()
        self.loaded = []
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids |= {attrs[name] for name in ("id", "name") if attrs.get(name)}
        if tag in ("script", "img", "source", "iframe") and attrs.get("src"):
            self.loaded.append(attrs["src"])
        elif tag == "link" and attrs.get("rel") in ("stylesheet", "preconnect", "preload", "icon"):
            self.loaded.append(attrs["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the built site: the content of its pages by their path."""
    built = tmp_path_factory.mktemp("build")
    folder = built / "site"
    for words in (
        [ROOT / "docs/site/build.py", built],
        ["-m", "mkdocs", "build", "--strict", "-f", built / "mkdocs.yml"],
    ):
        done = subprocess.run([sys.executable, *map(str, words)], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
    return folder, {path.relative_to(folder).as_posix(): Page(path) for path in folder.rglob("*.html")}


def test_every_public_name_has_an_entry_and_a_line_in_the_list(site):
    _, pages = site
    anchors = {anchor: path for path, page in pages.items() for anchor in page.ids if path.startswith("api/")}
    for name in eblvm_lit.__all__:
        full = [anchor for anchor in anchors if re.fullmatch(rf"eblvm_lit(\.\w+)+\.{name}", anchor)]
        assert full, f"{name} has no entry"
        assert f"<code>{name}</code>" in pages["api/index.html"].text


def test_nothing_is_loaded_from_elsewhere(site):
    folder, pages = site
    for path, page in pages.items():
        foreign = [source for source in page.loaded if re.match(r"(https?:)?//", source)]
        assert not foreign, f"{path} loads {foreign}"
    for path in folder.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//", path.read_text(encoding="utf-8")), path


def test_every_formula_is_mathml(site):
    _, pages = site
    for path, page in pages.items():
        prose = re.sub(r"<(code|pre|script)\b.*?</\1>", "", page.text, flags=re.DOTALL)
        raw = re.findall(r"\\(?:frac|theta|nabla|sum|log|mathrm|hat|phi|sigma|tfrac)\b|:math:|\.\. math", prose)
        assert not raw, f"{path}: {raw[:5]}"
        assert "arithmatex" not in page.text, f"{path} has raw TeX"
    assert sum(page.text.count("<math") for page in pages.values()) > 200


def test_a_class_and_the_files_that_build_it_lead_to_each_other(site):
    _, pages = site
    method = pages["api/methods/bism/index.html"].text
    assert re.search(r'href="[./]*source/conf/method/bism.yaml.txt"', method)
    assert re.search(r'href="[./]*api/methods/bism/"', pages["reference/groups/index.html"].text)


def test_pages_of_the_api_can_be_read(site):
    """Check that no page of the API is too long to be read, and that none has methods that only Lightning calls.

    Each module has one page, without its source code.
    """
    folder, pages = site
    modules = {path: page for path, page in pages.items() if path.startswith("api/")}
    sizes = {path: (folder / path).stat().st_size for path in modules}
    assert max(sizes.values()) < 300_000, max(sizes, key=sizes.get)
    hooks = [
        path for path, page in modules.items() if any(re.search(r"\.on_(train|fit|save)_\w+$", i) for i in page.ids)
    ]
    assert hooks == []
