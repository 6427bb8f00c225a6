"""`hf-diversed serve`: the command that it builds. `make vllm` runs vLLM itself."""

import json
import shlex
import sys

import pytest

from hf_diversed.zoo import embedded_head
from tests.commands import refused, succeed


HEAD = str(embedded_head("math"))
SERVE = ("serve", "org/target", "--draft", "org/draft")


@pytest.fixture
def calls(monkeypatch, tmp_path):
    """The calls of `os.execve`, with a program `vllm` that exists."""
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    seen: list[tuple] = []
    monkeypatch.setattr("os.execve", lambda *call: seen.append(call))
    return seen


def configs(words: list[str]) -> tuple[dict, dict]:
    names = ("--additional-config", "--speculative-config")
    additional, speculative = (json.loads(words[words.index(name) + 1]) for name in names)
    return additional["hf_diversed"], speculative


def test_becomes_the_server(calls, tmp_path):
    """Catches greedy draft tokens, which are vLLM's default, lost options of vLLM, and a hook in the server."""
    options = ("--port", "8001", "-dph", "-tp", "2", "-cc.cudagraph_mode=NONE")
    result = succeed(*SERVE, "--head", HEAD, "--strictness", "0.7", *options)
    ((path, words, environment),) = calls
    assert (path, words[:3]) == (str(tmp_path / "vllm"), ["vllm", "serve", "org/target"])
    assert environment["HF_DIVERSED_NO_HOOK"] == "1"
    assert words[-6:] == list(options)
    assert shlex.split(result.stderr.splitlines()[-1]) == words  # after the progress of loading, if any
    ours, speculative = configs(words)
    assert ours == {"head": HEAD, "strictness": 0.7}
    expected = {"method": "draft_model", "model": "org/draft", "draft_sample_method": "probabilistic"}
    assert speculative == expected | {"num_speculative_tokens": 5}  # of the head


def test_other_verifiers_and_draft_tokens(calls):
    """Catches a lost setting of the verifier, and draft tokens of MTP or EAGLE that are lost or given twice."""
    options = "--verifier static:0.7 --choices 'lenience:0.3, static:0.5' --max-bias 0.2"
    config = '{"method": "mtp", "num_speculative_tokens": 2}'
    succeed("serve", "org/target", *shlex.split(options), "--speculative-config", config)
    words = calls[0][1]
    assert words.count("--speculative-config") == 1
    ours, speculative = configs(words)
    assert speculative == json.loads(config)
    assert ours == {"verifier": "static:0.7", "choices": ["lenience:0.3", "static:0.5"], "max_bias": 0.2}


def test_without_vllm(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    refused("vLLM is not installed", *SERVE, "--head", HEAD)
