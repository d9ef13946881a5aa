"""The notebooks of docs/notebooks run from their first cell to their last, without a display."""

import tomllib

import pytest

from helpers.shell import ROOT

pytest.importorskip("ipykernel", reason="notebooks need ipykernel")
nbformat = pytest.importorskip("nbformat", reason="notebooks need nbformat")
nbclient = pytest.importorskip("nbclient", reason="notebooks need nbclient")

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def test_there_are_four_small_notebooks_that_show_their_outputs():
    address = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    assert len(NOTEBOOKS) == 4
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        assert path.stat().st_size < 100_000
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert any(cell.outputs for cell in code)
        assert f"/{address.partition('.com/')[2]}/blob/main/docs/notebooks/{path.name})" in notebook.cells[0].source
        assert f"git+{address}" in code[0].source
        for output in [output for cell in code for output in cell.outputs]:
            assert output.output_type != "error"
            assert not (output.output_type == "stream" and output.name == "stderr"), output.text


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    resources = {"metadata": {"path": str(tmp_path)}}
    run = nbclient.NotebookClient(notebook, timeout=None, kernel_name="python3", resources=resources).execute()
    assert all(cell.execution_count for cell in run.cells if cell.cell_type == "code")
