"""The command line, run in process on the embedded pair."""

import pytest
from typer.testing import CliRunner

from hf_diversed import DiversedHead, DiversedHeadConfig, load_demo_pair
from hf_diversed.cli import app


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


def test_demo_prints_a_row_per_method():
    """Catches a method that fails or vanishes from the table, and an example without its prompt."""
    result = run("demo", "--num-prompts", "1", "--max-new-tokens", "24")
    assert result.exit_code == 0, result.output
    methods = ("plain decoding", "upstream assisted", "lossless", "static", "DIVERSED", "batch 8")
    for words in methods:
        assert words in result.output
    assert "/1" in result.output
    assert "Question:" in result.output


def test_generate_on_the_embedded_pair():
    prompt = "Question: 2 plus 3?\nAnswer:"
    result = run("generate", "--prompt", prompt, "--verifier", "static:0.5", "--max-new-tokens", "12")
    assert result.exit_code == 0, result.output
    assert "static:0.5" in result.output
    assert "lossless" in result.output


def test_generate_with_folders(tmp_path):
    """Catches a pair or head that only loads from the package."""
    pair = load_demo_pair()
    for name in ("target", "draft"):
        getattr(pair, name).save_pretrained(tmp_path / name)
        pair.tokenizer.save_pretrained(tmp_path / name)
    widths = [model.get_output_embeddings().weight.shape[1] for model in (pair.target, pair.draft)]
    DiversedHead(DiversedHeadConfig(*widths)).save_pretrained(tmp_path / "head")
    paths = {name: str(tmp_path / name) for name in ("target", "draft", "head")}
    options = [part for name, path in paths.items() for part in (f"--{name}", path)]
    result = run("generate", "--prompt", "2 plus 3?", *options, "--max-new-tokens", "8", "--no-compare")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--target", "only-one"], "go together"),
        (["--verifier", "nonsense"], "unknown verifier"),
        (["--verifier", "static:2"], "must lie in"),
        (["--verifier", "static:0.5", "--quality", "0.5"], "act on a head"),
        (["--head", "/no/such/folder"], "/no/such/folder"),
    ],
)
def test_bad_options_are_messages(arguments, words):
    """Catches tracebacks where a sentence would do."""
    result = run("generate", "--prompt", "x", *arguments)
    assert result.exit_code == 2, result.output
    assert words in result.output
    assert "Traceback" not in result.output
