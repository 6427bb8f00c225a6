"""`hf-diversed convert` on a file in the authors' format, written here."""

import pytest
import torch
from typer.testing import CliRunner

from hf_diversed import DiversedHead
from hf_diversed.cli import app
from tests.tiny import tiny_model


@pytest.fixture
def folder(tmp_path):
    generator = torch.Generator().manual_seed(0)
    state = {"summary.weight": torch.randn(2, 48, generator=generator), "summary.bias": torch.tensor([0.0, 1.0])}
    torch.save(state, tmp_path / "ensemble_head.bin")
    for name, architecture in (("target", "llama"), ("draft", "opt")):
        tiny_model(architecture).config.save_pretrained(tmp_path / name)
    return tmp_path


def convert(*arguments):
    return CliRunner().invoke(app, ["convert", *map(str, arguments)], env={"COLUMNS": "200"})


def test_sizes_of_a_pair(folder):
    """Catches `hidden_size` read in place of the output embedding's width, and weights asked for: there are none."""
    pair = ("--target", folder / "target", "--draft", folder / "draft")
    result = convert(folder / "ensemble_head.bin", folder / "head", *pair)
    assert result.exit_code == 0, result.output
    assert "target 32, draft 16, 49 parameters" in result.output
    config = DiversedHead.from_pretrained(folder / "head").config
    assert (config.target_hidden_size, config.draft_hidden_size, config.vocab_size) == (32, 16, 64)
    assert config.base_model_name_or_path == str(folder / "target")
    assert config.assistant_model_name_or_path == str(folder / "draft")
    assert config.normalize is False


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ensemble_head.bin"], "pass target_hidden_size"),
        (["ensemble_head.bin", "--target", "one"], "go together"),
        (["ensemble_head.bin", "--target-hidden-size", "48"], "add up to 48"),
        (["nothing.bin"], "nothing.bin does not exist"),
    ],
)
def test_bad_arguments_are_messages(folder, arguments, words):
    """Catches tracebacks where a sentence would do, and a folder written all the same."""
    file, *options = arguments
    result = convert(folder / file, folder / "head", *options)
    assert result.exit_code == 2, result.output
    assert "".join(words.split()) in "".join(result.output.split())  # wherever the terminal wraps
    assert not (folder / "head").exists()
