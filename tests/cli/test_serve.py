"""`hf-diversed serve`: the command it writes, and what it refuses. vLLM itself is `make vllm`'s."""

import json
import shlex
import sys

import pytest
from typer.testing import CliRunner

from hf_diversed.cli import app
from hf_diversed.zoo.loader import HEADS, WEIGHTS


HEAD = str(WEIGHTS / HEADS / "math")


def run(*options: str):
    return CliRunner().invoke(app, ["serve", "org/target", "--draft", "org/draft", *options], env={"COLUMNS": "200"})


def written(*options: str) -> tuple[list[str], dict, dict]:
    """The command's words, and both of its configurations."""
    result = run(*options, "--dry-run")
    assert result.exit_code == 0, result.output
    words = shlex.split(result.stdout)
    speculative, additional = (json.loads(words[words.index(name) + 1]) for name in words if name in CONFIGS)
    return words, speculative, additional["hf_diversed"]


CONFIGS = ("--speculative-config", "--additional-config")


def test_writes_a_command_that_can_be_typed():
    """Catches a draft that decodes greedily, whose law vLLM does not keep, and options of vLLM's that get lost."""
    words, speculative, ours = written("--head", HEAD, "--strictness", "0.7", "--port", "8001", "--enforce-eager")
    assert words[:3] == ["vllm", "serve", "org/target"]
    assert words[-3:] == ["--port", "8001", "--enforce-eager"]
    assert speculative == {
        "method": "draft_model",
        "model": "org/draft",
        "num_speculative_tokens": 5,  # of the head
        "draft_sample_method": "probabilistic",
    }
    assert ours == {"head": HEAD, "strictness": 0.7}


def test_rules_without_a_head():
    _, speculative, ours = written(
        "--rule",
        "static:0.7",
        "--choices",
        "lenience:0.3,static:0.5",
        "--max-bias",
        "0.2",
        "--num-assistant-tokens",
        "3",
    )
    assert speculative["num_speculative_tokens"] == 3
    assert ours == {"rule": "static:0.7", "choices": ["lenience:0.3", "static:0.5"], "max_bias": 0.2}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "a rule is needed: pass --head, or --rule"),
        (["--rule", "diversed"], "a rule is needed: pass --head, or --rule"),
        (["--head", HEAD, "--strictness", "7"], "should be less than or equal to 1"),
    ],
)
def test_refuses_before_anything_starts(options, words):
    result = run(*options)
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.output.split())


def test_says_how_to_install_vllm(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda *args, **named: None)
    result = run("--head", HEAD)
    assert result.exit_code == 1
    assert "vLLM is not installed: pip install" in " ".join(result.output.split())


def test_becomes_the_server(monkeypatch, tmp_path):
    """Catches a child that outlives the command, and `generate` hooked in processes that never call it."""
    seen = []
    monkeypatch.setattr("os.execve", lambda *call: seen.append(call))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert run("--head", HEAD).exit_code == 0
    ((path, words, environment),) = seen
    assert (path, words[:2], environment["HF_DIVERSED_NO_HOOK"]) == (str(program), ["vllm", "serve"], "1")
