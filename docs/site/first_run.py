"""Draws docs/images/first_run.png by the first Python block of README: python docs/site/first_run.py."""

import os
import re
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

if __name__ == "__main__":
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    os.environ.setdefault("MPLBACKEND", "agg")
    with tempfile.TemporaryDirectory() as folder:  # the run is not kept
        os.chdir(folder)
        exec(compile(block, "README.md", "exec"), {"__name__": "README"})
        (ROOT / "docs" / "images" / "first_run.png").write_bytes(Path("first_run.png").read_bytes())
