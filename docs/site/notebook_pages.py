"""For mkdocs: notebooks become pages with the outputs that are saved in them."""

from pathlib import Path

from mkdocs.structure.files import File
from nbconvert import MarkdownExporter

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"


def on_files(files, config):
    """Add a page and its pictures for each notebook."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        names = {"unique_key": path.stem, "output_files_dir": path.stem}
        text, resources = MarkdownExporter().from_filename(str(path), resources=names)
        title, _, rest = text.lstrip().partition("\n")
        text = f"{title}\n\n[Download this page as a notebook.]({path.name})\n{rest}"
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, data in resources["outputs"].items():
            files.append(File.generated(config, f"notebooks/{name}", content=data))
    return files
