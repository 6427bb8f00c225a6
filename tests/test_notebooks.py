"""Every notebook runs from start to end, and is stored without outputs."""

import json
import re
from pathlib import Path

import pytest


NOTEBOOKS = sorted((Path(__file__).parent.parent / "examples" / "notebooks").glob("*.ipynb"))


def code_of(notebook: Path) -> list[str]:
    """Return the code cells, without those that install packages."""
    cells = json.loads(notebook.read_text())["cells"]
    sources = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return [source for source in sources if "%pip" not in source]


def test_there_are_notebooks():
    """Catches a glob without matches."""
    assert [path.stem for path in NOTEBOOKS] == ["measure_your_pair", "quickstart", "train_a_head"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(notebook, tmp_path, monkeypatch, capsys):
    """Catches a notebook for an older API, and one that prints nothing."""
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "__main__"}
    for number, source in enumerate(code_of(notebook)):
        exec(compile(source, f"{notebook.name}, code cell {number}", "exec"), names)
    assert capsys.readouterr().out.strip()


def test_folders_differ_from_the_command_lines():
    """Catches a notebook or an example that writes into the folder of a documented command, which refuses files."""
    root = Path(__file__).parent.parent
    commands = re.findall(r"--output-dir (\S+)", "".join(page.read_text() for page in root.glob("docs/*.md")))
    sources = [code for notebook in NOTEBOOKS for code in code_of(notebook)]
    sources += [path.read_text() for path in root.glob("examples/*.py")]
    folders = re.findall(r'(?:output_dir=|"--output-dir", default=)"([^"]+)"', "".join(sources))
    assert len(folders) == 2
    assert commands
    assert not {*folders} & {*commands}


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_holds_no_outputs(notebook):
    """Catches stored outputs, which contain paths and timings of a local machine."""
    cells = json.loads(notebook.read_text())["cells"]
    assert all(cell.get("outputs", []) == [] and cell.get("execution_count") is None for cell in cells)
