"""The command line, run in this process on the embedded pair."""

import re

import pytest
import torch

from hf_diversed import load_demo_pair
from hf_diversed.cli.generate import build_method
from hf_diversed.cli.models import load_pair
from hf_diversed.cli.options import MethodOptions
from hf_diversed.formatting import PLAIN
from hf_diversed.verifiers import LosslessVerifier
from tests.commands import run, succeed


def test_demo_prints_a_row_per_method():
    """Catches a method that fails or is missing in the table, and an example without its prompt."""
    result = succeed("demo", "--num-examples", "1", "--max-new-tokens", "24", "--engine", "eager", "--repeats", "1")
    assert "compiled" not in result.output
    for name in (PLAIN, "upstream:0.7", "lossless", "static:0.7", "lenience:0.05", "diversed", "diversed, batch 8"):
        assert re.search(rf"^{name} +(-|[0-9.]+%) ", result.stdout, re.MULTILINE), name
    assert "/1" in result.output
    assert "Question:" in result.output


def test_demo_without_a_compiler():
    """Catches a demo that fails where compilation is not possible, and a failure that is not reported."""
    options = ("--num-examples", "1", "--max-new-tokens", "12", "--backend", "no-such-backend", "--repeats", "1")
    result = succeed("demo", *options)
    assert "Compilation failed on this machine" in result.stderr
    assert "accepted draft" in result.stdout
    assert run("demo", *options, "--engine", "compiled").exit_code == 1


PROMPT = "Question: 2 plus 3?\nAnswer:"


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("target", ["target: ", "1.00 tokens per target forward"]),
        ("lossless", ["lossless: ", "draft tokens accepted", "relaxed:"]),
        ("static:0.5", ["static:0.5: ", "mean w 0.50"]),
        (None, ["diversed: ", "mean w"]),
    ],
)
def test_generate_prints_text_and_then_statistics(method, words):
    """Catches a method that does not stream, tokens lost or printed twice, and escape codes or notes in a pipe."""
    chosen = [] if method is None else ["--method", method]
    settings = ["--max-new-tokens", "12", "--seed", "3"]
    result = succeed("generate", PROMPT, *chosen, *settings)
    for part in words:
        assert part in result.stderr
    assert ("draft tokens accepted" in result.stderr) == (method != "target")
    assert "\x1b" not in result.stdout
    pair = load_demo_pair()
    torch.manual_seed(3)
    inputs = pair.tokenizer(PROMPT, return_tensors="pt")
    given = {
        "target": {},
        "lossless": {"assistant_model": pair.draft, "verifier": "lossless"},
        None: {"assistant_model": pair.draft, "diversed_head": pair.heads["math"]},
    }.get(method, {"assistant_model": pair.draft, "verifier": method})
    out = pair.target.generate(**inputs, **given, do_sample=True, top_k=0, max_new_tokens=12)
    text = pair.tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert result.stdout == text + "\n"


def test_generated_text_is_unaltered_in_a_pipe(monkeypatch):
    """Catches tabs that become spaces, and control characters that are removed."""
    monkeypatch.setattr("hf_diversed.token_view.TokenReader._spell", lambda self, token: "a\tb\x0c")
    text = succeed("generate", "2 plus 3?", "--max-new-tokens", "2").stdout
    assert text.removesuffix("\n") in ("a\tb\x0c", 2 * "a\tb\x0c")


@pytest.mark.parametrize("command", ["generate", "compile"])
def test_lossless_is_the_default_without_a_head(command, folder):
    """Catches a default that changes the target's distribution without being asked."""
    label, verifier = build_method(MethodOptions(target=str(folder / "target"), draft=str(folder / "draft")))
    assert (label, type(verifier)) == ("lossless", LosslessVerifier)
    assert "else lossless." in " ".join(run(command, "--help").stdout.replace("│", " ").split())


def test_generate_applies_the_strictness():
    """Catches options that do not reach the verifier."""
    accepted = []
    for options in ([], ["--max-bias", "0"], ["--bias-budget", "0"], ["--max-ratio", "1"]):
        result = run(
            "generate", PROMPT, "--strictness", "0", *options, "--num-assistant-tokens", "3", "--max-new-tokens", "24"
        )
        assert "diversed@0: " in result.stderr, result.output
        accepted.append("100.0% of " in result.stderr)
    assert accepted == [True, False, False, False]


def test_compile(folder):
    """Catches options that do not reach the warm-up, and a message about a folder where nothing is stored."""
    pair = [str(folder / name) for name in ("target", "draft")]
    sizes = ["--batch-sizes", "1,2", "--max-length", "64", "--num-assistant-tokens", "1"]
    result = succeed("compile", *pair, "--method", "static:0.7", *sizes, "--backend", "eager", "--device", "cpu")
    assert result.stdout.startswith("static:0.7: compiled 2 functions in ")
    assert "TORCHINDUCTOR_CACHE_DIR" not in result.stderr
    assert "TORCHINDUCTOR_CACHE_DIR" in run("compile", "--help").stdout


def test_dtype_of_the_pair():
    """Catches a --dtype that applies to named models only."""
    assert load_pair(None, None, "cpu", dtype="bfloat16").target.dtype is torch.bfloat16
    assert load_pair(None, None, "cpu").draft.dtype is torch.float32
    succeed("generate", "2 plus 3?", "--dtype", "bfloat16", "--device", "cpu", "--max-new-tokens", "4")
