"""The wheel, installed without this repository."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement


ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE")


def run(*command: object, cwd: Path, **environment: str) -> str:
    """Run a process that cannot import the checkout, and return its standard output."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HF_"))}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=inherited | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Build the wheel from a copy of the package and `SOURCES`, without earlier builds."""
    folder = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "hf_diversed", folder / "hf_diversed", ignore=shutil.ignore_patterns("__pycache__"))
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ".", cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.slow
def test_the_index_accepts_it(wheel, tmp_path):
    """Catches a description that the package index cannot render, and invalid metadata."""
    assert "PASSED" in run(sys.executable, "-m", "twine", "check", "--strict", wheel, cwd=tmp_path)


@pytest.mark.slow
def test_contains_exactly_the_package(wheel):
    """Catches missing weights, templates or `py.typed`, and tests in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        fields = Parser().parsestr(archive.read(metadata).decode())
    tracked = {str(path.relative_to(ROOT)) for path in (ROOT / "hf_diversed").rglob("*") if path.is_file()}
    assert {name for name in tracked if "__pycache__" not in name} == {
        name for name in names if ".dist-info/" not in name
    }
    assert "hf_diversed/py.typed" in names
    assert "Typing :: Typed" in fields.get_all("Classifier")


def newest_torch(pip: tuple, cwd: Path) -> tuple[str, bool]:
    """Return the newest torch of the package index, and whether it needs CUDA packages. Reads metadata only."""
    report = json.loads(run(*pip, "--dry-run", "--no-deps", "--ignore-installed", "--report", "-", "torch", cwd=cwd))
    metadata = report["install"][0]["metadata"]
    needed = [Requirement(text) for text in metadata.get("requires_dist", [])]
    needed = [item.name for item in needed if item.marker is None or item.marker.evaluate({"extra": ""})]
    return metadata["version"], any(name.startswith(("cuda-", "nvidia-")) for name in needed)


@pytest.mark.slow
def test_installed_package_works(wheel, tmp_path, capsys):
    """Catches a release of a dependency that the package does not work with, and a package that needs its checkout.

    No constraints apply, as for users. Only torch is that of constraints.txt if the newest one would install gigabytes
    of CUDA packages; an index of CPU builds (`PIP_INDEX_URL`) avoids that.
    """
    home, python = tmp_path / "home", tmp_path / "home" / "bin" / "python"
    run(os.environ.get("HF_DIVERSED_TEST_PYTHON", sys.executable), "-m", "venv", home, cwd=tmp_path)
    pip = (python, "-m", "pip", "install", "--quiet", "--no-compile")
    version, needs_cuda = newest_torch(pip, tmp_path)
    run(*pip, *(("-c", ROOT / "constraints.txt", "torch") if needs_cuda else (f"torch=={version}",)), cwd=tmp_path)
    installed = run(python, "-c", "import torch; print(torch.__version__)", cwd=tmp_path).strip()
    with capsys.disabled():
        reason = f"; the newest, {version}, needs CUDA packages" if needs_cuda else ", the newest of the index"
        print(f"\ntested with torch {installed}{reason}")
    run(*pip, f"{wheel}[demo]", cwd=tmp_path)
    assert str(home) in run(python, "-c", "import hf_diversed; print(hf_diversed.__file__)", cwd=tmp_path)

    snippets = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "index.md").read_text(), re.DOTALL | re.MULTILINE)
    offline = tmp_path / "offline.py"
    offline.write_text(next(snippet for snippet in snippets if "load_demo_pair" in snippet))
    assert "accepted" in run(python, offline, cwd=tmp_path, HF_HUB_OFFLINE="1")
    short = ("--num-examples", 2, "--max-new-tokens", 32)
    assert "diversed" in run(home / "bin" / "hf-diversed", "demo", *short, cwd=tmp_path, HF_HUB_OFFLINE="1")
