"""`hf-diversed serve`: the command that it builds, and its errors. `make vllm` runs vLLM itself."""

import json
import re
import shlex
import sys

import pytest
import torch

from hf_diversed.serving.command import free_memory, memory_note
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
    """Catches greedy draft tokens, whose distribution vLLM does not keep, and lost options of vLLM."""
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
        (["--head", HEAD, "--quality", "0.5"], "--quality was renamed to --strictness."),
        (["--rule=static:0.5"], "--rule was renamed to --verifier."),
        (["--verifier", "static:0.5", "--head", HEAD], "`--head` belongs to the verifier 'diversed'"),
        (
            ["--verifier", "static:0.5", "--strictness", "0.5"],
            "'static:0.5' has no --strictness; its settings: --max-b",
        ),
        (["--head", HEAD, "--strictness", "0.5", "--max-drop", "0.1"], "`--strictness` and `--max-drop` are mutually"),
        (["--head", HEAD, "--max-drop", "0.1"], "`--max-drop`: nothing was certified for this head"),
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
    monkeypatch.setattr("hf_diversed.serving.command.free_memory", lambda: (10 * 2**30, 40 * 2**30, "GPU 1"))
    monkeypatch.setattr("os.execve", lambda *call: seen.append(call))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    result = serve("--head", HEAD)
    assert result.exit_code == 0
    assert (
        "vLLM reserves 0.92 of the memory of GPU 1: 36.8 of 40.0 GiB; 10.0 GiB are free. It will not start: pass"
        in (result.output)
    )
    assert "need a chat template: that of the target's tokenizer, or --chat-template FILE" in result.output
    ((path, words, environment),) = seen
    assert (path, words[:2], environment["HF_DIVERSED_NO_HOOK"]) == (str(program), ["vllm", "serve"], "1")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "reserves 0.92 .*: 36.8 of 40.0 GiB; 30.0 GiB are free. It will not start: pass --gpu.* 0.71 or less"),
        (["--port", "1", "--gpu-memory-utilization", "0.5"], "reserves 0.5 .* free. --gpu-memory-utilization changes"),
        (["--gpu_memory_utilization=0.8"], "reserves 0.8 .*: 32.0 of 40.0 GiB; .* It will not start"),
    ],
)
def test_the_memory_note_follows_the_options(options, words):
    """Catches a server that fails minutes later on a machine in use, without naming an option that would help."""
    assert re.search(words, memory_note(options, 30 * 2**30, 40 * 2**30, "GPU 0"))


def test_free_memory_is_that_of_the_fullest_gpu(monkeypatch):
    """Catches a note based on a GPU with free memory while vLLM fails on another."""
    free, total, device = free_memory()
    assert 0 < free <= total
    assert torch.cuda.is_available() or device == "this machine"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda index: ((70, 20)[index], 80))
    assert free_memory() == (20, 80, "GPU 1")
