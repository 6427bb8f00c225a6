"""Every notebook runs from its first cell to its last, and is kept without outputs."""

import json
from pathlib import Path

import pytest


NOTEBOOKS = sorted((Path(__file__).parent.parent / "examples" / "notebooks").glob("*.ipynb"))


def code_of(notebook: Path) -> list[str]:
    """The code cells, without those that install."""
    cells = json.loads(notebook.read_text())["cells"]
    sources = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return [source for source in sources if not source.startswith("%pip")]


def test_there_are_notebooks():
    """Catches a glob that finds nothing."""
    assert [path.stem for path in NOTEBOOKS] == ["measure_your_pair", "quickstart", "train_a_head"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(notebook, tmp_path, monkeypatch, capsys):
    """Catches a notebook that the API has left behind, and one that says nothing."""
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "__main__"}
    for number, source in enumerate(code_of(notebook)):
        exec(compile(source, f"{notebook.name}, code cell {number}", "exec"), names)
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_holds_no_outputs(notebook):
    """Catches outputs, and with them paths and figures of somebody's machine."""
    cells = json.loads(notebook.read_text())["cells"]
    assert all(cell.get("outputs", []) == [] and cell.get("execution_count") is None for cell in cells)
