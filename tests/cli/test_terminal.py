"""Behaviour that all commands share: fast help, error messages on standard error, exit codes, `--debug`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

import hf_diversed
from hf_diversed.cli import app
from hf_diversed.cli.evaluation_options import TASK_NAMES
from hf_diversed.cli.publish import LICENSE
from hf_diversed.cli.terminal import EXTRAS, command, in_flags
from hf_diversed.hub import records
from hf_diversed.sandbox import SandboxUnavailable
from hf_diversed.tasks import TASKS


ROOT = Path(__file__).parents[2]
COMMANDS = (
    "demo",
    "make-draft",
    "generate",
    "evaluate",
    "calibrate",
    "frontier",
    "plot",
    "compile",
    "serve",
    "convert",
    "push",
    "card",
    "info",
)
ASKING = [["--help"], ["--version"], *([name, "--help"] for name in (*COMMANDS, "train", "tune-draft"))]


def test_help_and_version_are_quick():
    """Catches an import of torch or transformers before `--help`, which would take seconds.

    The limit is one second of child processes' CPU time, so that a parallel test does not matter.
    """
    for arguments in ASKING:
        before = os.times()
        done = subprocess.run([sys.executable, "-m", "hf_diversed", *arguments], capture_output=True, text=True)
        after = os.times()
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()
        spent = after.children_user - before.children_user + after.children_system - before.children_system
        assert spent < 1.0, (arguments, spent)


def test_help_loads_no_torch():
    """Catches the same on a machine that is too fast for the test above."""
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom hf_diversed.cli import app\n"
        f"for arguments in {ASKING!r}: assert CliRunner().invoke(app, arguments).exit_code == 0\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_command_is_asked_for_help():
    """Catches a new command that the tests above omit."""
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).stdout
    found = set(re.findall(r"^│ ([a-z][a-z-]*) ", shown, re.MULTILINE))
    assert found == {*COMMANDS, "train", "tune-draft"}


def test_version():
    assert CliRunner().invoke(app, ["--version"]).stdout == f"hf-diversed {hf_diversed.__version__}\n"


def test_words_of_help_are_those_of_the_library():
    """Catches names in the options, which import nothing, that differ from the library's."""
    assert TASK_NAMES.split(", ") == list(TASKS)
    assert records.LICENSE == LICENSE
    assert records.EVALUATION in CliRunner().invoke(app, ["card", "--help"], env={"COLUMNS": "200"}).stdout


def test_extras_bring_what_they_are_named_for():
    """Catches advice to install an extra that does not help."""
    text = (ROOT / "pyproject.toml").read_text()
    for module, extra in EXTRAS.items():
        package = {"yaml": "pyyaml"}.get(module, module.replace("_", "-"))
        (packages,) = re.findall(rf"^{extra} = \[(.*)\]$", text, re.MULTILINE)
        assert re.search(rf'"{package}\b', packages), module


@pytest.mark.parametrize("option", ["--num_examples", "--num-prompts", "--num_prompts", "--num-examples"])
def test_spellings_of_options(option, monkeypatch):
    """Catches underscores, usual for `train`, as unknown options elsewhere."""
    monkeypatch.setattr("hf_diversed.cli.models.load_demo_pair", None)
    result = CliRunner().invoke(app, ["demo", option, "0"], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "No such option" not in result.stderr
    assert "'--num-examples': " in result.stderr


def application(error: BaseException | None) -> typer.Typer:
    def work(name: str = "x") -> None:
        """Do some work."""
        if error is not None:
            raise error
        print(name)

    made = typer.Typer()
    made.command()(command(work))
    return made


ERRORS = [
    (ValueError("`x` must lie in [0, 1]."), 2, "`x` must lie in [0, 1]."),
    (TypeError("x must be text."), 2, "x must be text."),
    (PermissionError(13, "Permission denied", "x.json"), 1, "[Errno 13] Permission denied: 'x.json'"),
    (ModuleNotFoundError("no", name="matplotlib.style"), 1, 'pip install "hf-diversed[eval]"'),
    (ModuleNotFoundError("no", name="datasets"), 1, 'pip install "hf-diversed[train]"'),
    (ImportError("summaries are scored by rouge-score; install it."), 1, "summaries are scored by rouge-score"),
    (AssertionError("Torch not compiled with CUDA enabled"), 1, "Torch not compiled with CUDA enabled"),
    (torch.OutOfMemoryError("CUDA out of memory."), 1, "OutOfMemoryError: CUDA out of memory."),
    (SandboxUnavailable("nothing isolates."), 1, "nothing isolates."),
]


@pytest.mark.parametrize(("error", "code", "words"), ERRORS, ids=[type(error).__name__ for error, *_ in ERRORS])
def test_errors_in_words(error, code, words):
    """Catches tracebacks, errors on standard output, and a failure with the exit code of wrong usage."""
    result = CliRunner().invoke(application(error), [])
    assert (result.exit_code, result.stdout) == (code, "")
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    traced = CliRunner().invoke(application(error), ["--debug"])
    assert (traced.exit_code, traced.stdout) == (code, "")
    assert "Traceback" in traced.stderr
    assert "raise error" in traced.stderr
    assert words in traced.stderr


def test_a_bug_keeps_its_traceback_and_a_result_its_stream():
    """Catches a handler that hides unexpected errors, and `typer.Exit` handled as an error."""
    assert isinstance(CliRunner().invoke(application(KeyError("x")), []).exception, KeyError)
    assert CliRunner().invoke(application(typer.Exit(5)), []).exit_code == 5
    assert CliRunner().invoke(application(None), ["--name", "y"]).stdout == "y\n"


def test_a_missing_package_is_named_with_its_extra(monkeypatch, tmp_path):
    """Catches an ImportError that ends in a traceback: plots need a package that a base install lacks."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "hf_diversed.evaluation.plots", raising=False)
    monkeypatch.delattr("hf_diversed.evaluation.plots", raising=False)
    result = CliRunner().invoke(app, ["plot", str(tmp_path / "x.json")])
    assert (result.exit_code, result.stdout) == (1, "")
    assert 'pip install "hf-diversed[eval]"' in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("`top_p` must lie in (0, 1], got 2.0.", "--top-p must lie in (0, 1], got 2.0."),
        ("pass diversed_head=, or name it", "pass --head, or name it"),
        ("diversed_max_drop chooses the strictness", "--max-drop chooses the strictness"),
        ("pass verifier=.", "pass --method."),
        ("max_drop: 0.1", "--max-drop: 0.1"),
        ('/data/top_p/x is `none`, cache_implementation="static"', None),
    ],
)
def test_errors_name_the_flags_of_the_command_line(message, expected):
    """Catches an error about a Python argument that is not an option of the command."""
    assert in_flags(message, {"top_p", "head", "max_drop", "method"}) == (expected or message)
