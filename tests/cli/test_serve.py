"""`hf-diversed serve`: the command that it builds, and its errors. `make vllm` runs vLLM itself."""

import json
import shlex
import sys

from hf_diversed.zoo.loader import HEADS, WEIGHTS
from tests.commands import succeed


HEAD = str(WEIGHTS / HEADS / "math")


SERVE = ("serve", "org/target", "--draft", "org/draft")


def written(*options: str) -> tuple[list[str], dict, dict]:
    """Return the words of the command, and both of its configurations."""
    words = shlex.split(succeed(*SERVE, *options, "--dry-run").stdout)
    speculative, additional = (json.loads(words[words.index(name) + 1]) for name in words if name in CONFIGS)
    return words, speculative, additional["hf_diversed"]


CONFIGS = ("--speculative-config", "--additional-config")


def test_writes_a_command_that_can_be_typed():
    """Catches greedy draft tokens, which are vLLM's default, and lost options of vLLM."""
    words, speculative, ours = written("--head", HEAD, "--strictness", "0.7", "--port", "8001", "--enforce-eager")
    assert words[:3] == ["vllm", "serve", "org/target"]
    assert words[-3:] == ["--port", "8001", "--enforce-eager"]
    expected = {"method": "draft_model", "model": "org/draft", "draft_sample_method": "probabilistic"}
    assert speculative == expected | {"num_speculative_tokens": 5}  # of the head
    assert ours == {"head": HEAD, "strictness": 0.7}


def test_short_options_of_vllm_are_passed_on():
    """Catches -dph, -cc.x=NONE and the like that print the help, because of an "h" among their letters."""
    options = ["-dph", "-tp", "2", "-cc.cudagraph_mode=NONE"]
    assert written("--head", HEAD, *options)[0][-4:] == options


def test_other_draft_tokens_than_a_models():
    """Catches a draft model that users of MTP and EAGLE must name, and their configuration lost or given twice."""
    config = '{"method": "mtp", "num_speculative_tokens": 2}'
    result = succeed("serve", "org/target", "--verifier", "lenience:0.3", "--speculative-config", config, "--dry-run")
    words = shlex.split(result.stdout)
    assert words.count("--speculative-config") == 1
    assert words[words.index("--speculative-config") + 1] == config


def test_a_verifier_without_a_head():
    options = "--verifier static:0.7 --choices 'lenience:0.3, static:0.5' --max-bias 0.2 --num-assistant-tokens 3"
    _, speculative, ours = written(*shlex.split(options))
    assert speculative["num_speculative_tokens"] == 3
    assert ours == {"verifier": "static:0.7", "choices": ["lenience:0.3", "static:0.5"], "max_bias": 0.2}


def test_becomes_the_server(monkeypatch, tmp_path):
    """Catches a child process that outlives the command, and a hook on `generate` in processes that do not call it."""
    seen = []
    monkeypatch.setattr("os.execve", lambda *call: seen.append(call))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    result = succeed(*SERVE, "--head", HEAD)
    assert "need a chat template: that of the target's tokenizer, or --chat-template FILE" in result.output
    ((path, words, environment),) = seen
    assert (path, words[:2], environment["HF_DIVERSED_NO_HOOK"]) == (str(program), ["vllm", "serve"], "1")
