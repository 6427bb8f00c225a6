"""`hf-diversed serve`: the command that it builds, and its errors. `make vllm` runs vLLM itself."""

import json
import shlex
import sys

import pytest

from hf_diversed.zoo.loader import HEADS, WEIGHTS
from tests.commands import run


HEAD = str(WEIGHTS / HEADS / "math")


def serve(*options: str):
    return run("serve", "org/target", "--draft", "org/draft", *options)


def written(*options: str) -> tuple[list[str], dict, dict]:
    """Return the words of the command, and both of its configurations."""
    result = serve(*options, "--dry-run")
    assert result.exit_code == 0, result.output
    words = shlex.split(result.stdout)
    speculative, additional = (json.loads(words[words.index(name) + 1]) for name in words if name in CONFIGS)
    return words, speculative, additional["hf_diversed"]


CONFIGS = ("--speculative-config", "--additional-config")


def test_writes_a_command_that_can_be_typed():
    """Catches greedy draft tokens, which are vLLM's default, and lost options of vLLM."""
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


def test_other_draft_tokens_than_a_models():
    """Catches a draft model that users of MTP and EAGLE must name, and their configuration lost or given twice."""
    config = '{"method": "mtp", "num_speculative_tokens": 2}'
    result = run("serve", "org/target", "--verifier", "lenience:0.3", "--speculative-config", config, "--dry-run")
    assert result.exit_code == 0, result.output
    words = shlex.split(result.stdout)
    assert words.count("--speculative-config") == 1
    assert words[words.index("--speculative-config") + 1] == config
    result = run("serve", "org/target", "--verifier", "lenience:0.3", "--dry-run")
    assert result.exit_code == 2
    assert "pass --draft, or vLLM's --speculative-config" in " ".join(result.output.split())


def test_a_verifier_without_a_head():
    _, speculative, ours = written(
        "--verifier",
        "static:0.7",
        "--choices",
        "lenience:0.3,static:0.5",
        "--max-bias",
        "0.2",
        "--num-assistant-tokens",
        "3",
    )
    assert speculative["num_speculative_tokens"] == 3
    assert ours == {"verifier": "static:0.7", "choices": ["lenience:0.3", "static:0.5"], "max_bias": 0.2}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "pass --head, or --verifier, for example"),
        (["--verifier", "diversed"], "pass --head, or --verifier, for example"),
        (["--head", HEAD, "--strictness", "7"], "`--strictness` must lie in [0, 1], got 7.0."),
        (["--verifier", "static:0.5", "--head", HEAD], "`--head` belongs to the verifier 'diversed'"),
        (
            ["--verifier", "static:0.5", "--strictness", "0.5"],
            "'static:0.5' has no --strictness; its settings: --max-b",
        ),
        (["--head", HEAD, "--strictness", "0.5", "--max-drop", "0.1"], "`--strictness` and `--max-drop` are mutually"),
        (["--head", HEAD, "--max-drop", "0.1"], "`--max-drop`: this head has no certificate"),
        (["--verifier", "static:0.5:0.1"], "set `--max-bias` or `--max-ratio` beside the verifier"),
        (["--verifier", "block"], "verifier 'block' is not served by vLLM"),
    ],
)
def test_refuses_before_vllm_starts(options, words):
    """Catches an error that vLLM raises a minute later, or one that names configuration keys instead of flags."""
    result = serve(*options)
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.output.split())


def test_names_how_to_install_vllm(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda *args, **named: None)
    result = serve("--head", HEAD)
    assert result.exit_code == 1
    assert "vLLM is not installed: pip install" in " ".join(result.output.split())


def test_becomes_the_server(monkeypatch, tmp_path):
    """Catches a child process that outlives the command, and a hook on `generate` in processes that do not call it."""
    seen = []
    monkeypatch.setattr("os.execve", lambda *call: seen.append(call))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    result = serve("--head", HEAD)
    assert result.exit_code == 0
    assert "need a chat template: that of the target's tokenizer, or --chat-template FILE" in result.output
    ((path, words, environment),) = seen
    assert (path, words[:2], environment["HF_DIVERSED_NO_HOOK"]) == (str(program), ["vllm", "serve"], "1")
