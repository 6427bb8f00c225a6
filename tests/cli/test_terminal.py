"""Behaviour that all commands share: fast help, error messages on standard error, exit codes, `--debug`."""

import re
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

import hf_diversed
from hf_diversed.cli.main import COMMANDS
from hf_diversed.cli.terminal import EXTRAS, in_flags
from hf_diversed.sandbox import SandboxUnavailable
from tests.commands import run


ROOT = Path(__file__).parents[2]


def test_version():
    assert run("--version").stdout == f"hf-diversed {hf_diversed.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command(name):
    """Catches help that fails, an option without a description, and a required option that help needs."""
    result = run(name, "--help")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"usage: hf-diversed {name} ")
    assert f"  {name}" in run("--help").stdout
    assert not re.search(r"--[a-z]+_", result.stdout)
    assert "--debug" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "usage: hf-diversed COMMAND"),
        (["evalate"], "no such command: evalate (did you mean evaluate?)"),
        (["generate"], "the following arguments are required: PROMPT"),
        (["generate", "x", "--sed", "1"], "no such option: --sed (did you mean --seed?)"),
        (["generate", "x", "y"], "no such argument: y"),
        (["generate", "x", "--seed", "one"], "argument --seed: invalid int value: 'one'"),
        (["demo", "--num-examples", "0"], "--num-examples must be >= 1, got 0."),
        (["card", "no-such-folder"], "argument FOLDER: the folder no-such-folder does not exist."),
    ],
)
def test_wrong_usage(arguments, words):
    """Catches an invalid request with another exit code, and an error without the word that is wrong."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.output


def test_every_command_reads_a_config(tmp_path):
    """Catches a file whose lists, numbers and arguments are not converted as those of the command line are."""
    path = tmp_path / "run.yaml"
    path.write_text("prompt: 2 plus 3?\nmethod: static:0.5\nmax_new_tokens: 4\nseed: 3\nchat: false\n")
    assert run("generate", "--config", path).stdout == run("generate", "2 plus 3?", *OPTIONS).stdout
    path.write_text("task: math\nmethods: [target, magic]\ntemperature: [0, 1]\n")
    assert "unknown method 'magic'" in run("evaluate", "--config", path).stderr
    path.write_text("task: nothing\nmethods: target\nno_option: 1\n")
    assert "unknown options in the config: no_option" in run("evaluate", "--config", path).stderr


OPTIONS = ("--method", "static:0.5", "--max-new-tokens", "4", "--seed", "3")


def test_extras_bring_what_they_are_named_for():
    """Catches advice to install an extra that does not help."""
    text = (ROOT / "pyproject.toml").read_text()
    for module, extra in EXTRAS.items():
        package = {"yaml": "pyyaml"}.get(module, module.replace("_", "-"))
        (packages,) = re.findall(rf"^{extra} = \[(.*)\]$", text, re.MULTILINE)
        assert re.search(rf'"{package}\b', packages), module


@pytest.mark.parametrize("option", ["--num_examples", "--num-examples"])
def test_spellings_of_options(option):
    """Catches underscores, usual for `train`, as unknown options elsewhere."""
    result = run("demo", option, "0")
    assert (result.exit_code, result.stderr) == (2, "--num-examples must be >= 1, got 0.\n")


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


def test_a_bug_keeps_its_traceback(monkeypatch):
    """Catches a handler that hides an unexpected error."""
    monkeypatch.setattr("hf_diversed.cli.demo.embedded_demo", Mock(side_effect=KeyError("x")))
    with pytest.raises(KeyError):
        run("demo")


def test_a_missing_package_is_named_with_its_extra(monkeypatch, tmp_path):
    """Catches an ImportError that ends in a traceback: plots need a package that a base install lacks."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "hf_diversed.evaluation.plots", raising=False)
    monkeypatch.delattr("hf_diversed.evaluation.plots", raising=False)
    result = run("plot", str(tmp_path / "x.json"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert 'pip install "hf-diversed[eval]"' in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("`top_p` must lie in (0, 1], got 2.0.", "--top-p must lie in (0, 1], got 2.0."),
        ("pass diversed_head=, or name it", "pass --head, or name it"),
        ("diversed_max_drop sets the certified strictness", "--max-drop sets the certified strictness"),
        ("pass verifier=.", "pass --method."),
        ("max_drop: 0.1", "--max-drop: 0.1"),
        ('/data/top_p/x is `none`, cache_implementation="static"', None),
    ],
)
def test_errors_name_the_flags_of_the_command_line(message, expected):
    """Catches an error about a Python argument that is not an option of the command."""
    assert in_flags(message, {"top_p", "head", "max_drop", "method"}) == (expected or message)
