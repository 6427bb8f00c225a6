"""What all commands share: fast help, options, errors on standard error, exit codes."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from hf_diversed.zoo import embedded_head
from tests.commands import refused, run


ROOT = Path(__file__).parents[2]
# The commands, and an option of each.
COMMANDS = {"demo": "--repeats", "train": "--shots", "evaluate": "--methods", "calibrate": "--confidence"}
COMMANDS |= {"push": "--tags", "serve": "--verifier"}
HEAD = embedded_head("math")
EVALUATE = "evaluate --task math --methods target,static:0.5 --num-examples 2"
TRAIN = "train --task math --output-dir out"
SERVE = "serve org/target --draft org/draft"

REFUSED = [
    ("evalate", "No such command 'evalate'"),
    ("demo --sed 1", "No such option: --sed"),
    (f"{EVALUATE} --methods static:abc", "`weight` must lie in [0, 1], got 'abc'"),
    (f"{EVALUATE} --task code", "allow-code-execution"),
    (f"{EVALUATE} --data-file nothing.jsonl", "No such file or directory: 'nothing.jsonl'"),
    ("evaluate --task math", "Missing option '--methods'"),
    (f"{EVALUATE} --plot plot.txt", "--plot must end in .png, .svg or .pdf, got plot.txt"),
    (f"calibrate {HEAD} --max-quality-drop 0", "`max_quality_drop` must lie between 0 and 1, got 0.0"),
    (f"calibrate {HEAD} --confidence 95", "`confidence` must lie between 0 and 1, got 95.0"),
    (f"calibrate {HEAD} --temperature 0 --samples-per-prompt 2", "`samples_per_prompt` must be 1 at temperature 0"),
    ("train --output-dir out", "--task"),
    (f"{TRAIN} --temperature 0", "temperature must be above 0"),
    ("push no-such-folder org/head", "'no-such-folder' does not exist"),
    (f"serve --port 8000 org/target --draft org/draft --head {HEAD}", "TARGET must come first, got '--port'"),
    ("serve org/target --verifier lenience:0.3", "pass either --draft, or vLLM's --speculative-config"),
    (
        f"{SERVE} --verifier static:0.5 --speculative-config {{}}",
        "pass either --draft, or vLLM's --speculative-config",
    ),
    (f"{SERVE} --head {HEAD} --strictness 7", "must lie in [0, 1], got 7.0"),
]


@pytest.mark.parametrize(("command", "words"), REFUSED)
def test_refusals(command, words, tmp_path, monkeypatch):
    """Catches a traceback, another exit code, files of a run that never started, and loading before an error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hf_diversed.zoo.loader.load_demo_pair", None)
    refused(words, *shlex.split(command))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command(name):
    """Catches help that fails or is empty, and an option without a description."""
    result = run(name, "--help")
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"  {name}" in run("--help").stdout
    assert {"--debug", COMMANDS[name]} <= set(result.stdout.split())
    assert not re.search(r"^  --[a-z-]+( <\w+>)?\n  --", result.stdout, re.MULTILINE)


def test_help_imports_neither_torch_nor_transformers():
    """Catches help that takes seconds. That of `train` lists the settings of transformers' trainer, and takes some."""
    code = f"""
import sys
from hf_diversed.cli import app
for arguments in [["--help"], ["--version"], *([name, "--help"] for name in {COMMANDS} if name != "train")]:
    try:
        app(arguments, prog_name="hf-diversed")
    except SystemExit as ended:
        assert not ended.code, ended.code
print("imported:", *sorted({{"torch", "transformers", "matplotlib"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].strip() == "imported:"


@pytest.mark.parametrize("error", [ValueError("`x` must be 1."), ImportError("no y")])
def test_errors_are_one_line_unless_debug(error, monkeypatch):
    """Catches a traceback, an error in the output proper, and a --debug without effect."""
    monkeypatch.setattr("hf_diversed.zoo.loader.load_demo_pair", Mock(side_effect=error))
    result = run("demo")
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"{error}\n")
    traced = run("demo", "--debug")
    assert (traced.exit_code, traced.stdout) == (2, "")
    assert "Traceback" in traced.stderr
