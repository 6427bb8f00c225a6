"""Behaviour that all commands share: fast help, error messages on standard error, exit codes, `--debug`."""

import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

import hf_diversed
from hf_diversed.cli.main import COMMANDS
from hf_diversed.cli.options import TASK_NAMES
from hf_diversed.cli.terminal import in_flags
from hf_diversed.tasks import TASKS
from tests.commands import run


ROOT = Path(__file__).parents[2]


def test_version():
    assert run("--version").stdout == f"hf-diversed {hf_diversed.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command(name):
    """Catches help that fails, an option without a description, and a required option that help needs."""
    result = run(name, "--help")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.lower().startswith(f"usage: hf-diversed {name} ")
    assert f"  {name}" in run("--help").stdout
    assert not re.search(r"--[a-z]+_", result.stdout)
    assert "--debug" in result.stdout


# Runs commands in one process, and prints the heavy modules that they imported.
IMPORTED = """
import sys
from hf_diversed.cli import app
for arguments in {arguments}:
    try:
        app(arguments, prog_name="hf-diversed")
    except SystemExit as ended:
        assert not ended.code, ended.code
print("imported:", *sorted({{"torch", "transformers", "peft", "matplotlib"}} & set(sys.modules)))
"""


def test_help_imports_neither_torch_nor_transformers():
    """Catches help that takes seconds, because a module of options imports torch."""
    commands = [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)]
    code = IMPORTED.format(arguments=commands)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].strip() == "imported:"
    assert "--num-iterations" in done.stdout


def test_tasks_of_the_help_are_those_of_the_library():
    """Catches a new task that the help of --task does not name, as the help does not import the tasks."""
    assert set(TASK_NAMES) <= set(TASKS)


def test_no_command():
    """Catches a bare `hf-diversed` that succeeds, or fails without naming the commands."""
    result = run()
    assert result.exit_code == 2
    assert "Usage: hf-diversed [OPTIONS] COMMAND" in result.output


ERRORS = [
    (ValueError("`x` must lie in [0, 1]."), 2, "`x` must lie in [0, 1]."),
    (TypeError("x must be text."), 2, "x must be text."),
    (PermissionError(13, "Permission denied", "x.json"), 1, "[Errno 13] Permission denied: 'x.json'"),
    (ModuleNotFoundError("no", name="lm_eval.api"), 1, 'pip install "hf-diversed[eval]"'),
    (ModuleNotFoundError("no", name="datasets"), 1, 'pip install "hf-diversed[train]"'),
    (ImportError("summaries are scored by rouge-score; install it."), 1, "summaries are scored by rouge-score"),
    (AssertionError("Torch not compiled with CUDA enabled"), 1, "Torch not compiled with CUDA enabled"),
    (torch.OutOfMemoryError("CUDA out of memory."), 1, "OutOfMemoryError: CUDA out of memory."),
    (FloatingPointError("the target's scores are NaN."), 1, "the target's scores are NaN."),
]


@pytest.mark.parametrize(("error", "code", "words"), ERRORS, ids=[type(error).__name__ for error, *_ in ERRORS])
def test_errors_as_text(error, code, words, monkeypatch):
    """Catches tracebacks, errors in the output proper, and a failure that looks like wrong usage to a script."""
    monkeypatch.setattr("hf_diversed.cli.demo.embedded_demo", Mock(side_effect=error))
    result = run("demo")
    assert (result.exit_code, result.stdout) == (code, "")
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    traced = run("demo", "--debug")
    assert (traced.exit_code, traced.stdout) == (code, "")
    assert "Traceback" in traced.stderr
    assert words in traced.stderr


def test_closed_output_prints_no_message(monkeypatch):
    """Catches a message after `hf-diversed ... | head -n 1`."""
    monkeypatch.setattr("hf_diversed.cli.demo.embedded_demo", Mock(side_effect=BrokenPipeError(32, "Broken pipe")))
    result = run("demo")
    assert (result.exit_code, result.output) == (1, "")


def test_a_bug_keeps_its_traceback(monkeypatch):
    """Catches a handler that hides an unexpected error."""
    monkeypatch.setattr("hf_diversed.cli.demo.embedded_demo", Mock(side_effect=KeyError("x")))
    with pytest.raises(KeyError):
        run("demo")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("`top_p` must lie in (0, 1], got 2.0.", "--top-p must lie in (0, 1], got 2.0."),
        ("pass diversed_head=, or name it", "pass --head, or name it"),
        ("diversed_max_bias bounds TV(v, p)", "--max-bias bounds TV(v, p)"),
        ("pass verifier=.", "pass --method."),
        ("max_bias: 0.1", "--max-bias: 0.1"),
        ('/data/top_p/x is `none`, cache_implementation="static"', None),
    ],
)
def test_errors_name_the_flags_of_the_command_line(message, expected):
    """Catches an error about a Python argument that is not an option of the command."""
    assert in_flags(message, {"top_p", "head", "max_bias", "method"}) == (expected or message)
