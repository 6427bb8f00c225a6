"""Notebooks are stored without outputs; `make notebooks` executes them."""

import json
from pathlib import Path

import pytest


NOTEBOOKS = sorted((Path(__file__).parent.parent / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_holds_no_outputs(notebook):
    """Catches stored outputs, which contain paths and timings of a local machine."""
    cells = json.loads(notebook.read_text())["cells"]
    assert all(cell.get("outputs", []) == [] and cell.get("execution_count") is None for cell in cells)
