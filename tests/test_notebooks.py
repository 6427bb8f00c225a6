"""Every notebook runs from start to end, and is stored without outputs."""

import json
from pathlib import Path

import pytest


NOTEBOOKS = sorted((Path(__file__).parent.parent / "examples" / "notebooks").glob("*.ipynb"))


def code_of(notebook: Path) -> list[str]:
    """Return the code cells, without those that install packages."""
    cells = json.loads(notebook.read_text())["cells"]
    sources = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return [source for source in sources if "%pip" not in source]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(notebook, tmp_path, monkeypatch, capsys):
    """Catches a notebook for an older API, and one that prints nothing."""
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "__main__"}
    for number, source in enumerate(code_of(notebook)):
        exec(compile(source, f"{notebook.name}, code cell {number}", "exec"), names)
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_holds_no_outputs(notebook):
    """Catches stored outputs, which contain paths and timings of a local machine."""
    cells = json.loads(notebook.read_text())["cells"]
    assert all(cell.get("outputs", []) == [] and cell.get("execution_count") is None for cell in cells)
