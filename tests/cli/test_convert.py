"""`hf-diversed convert` on a file in the authors' format, written by these tests."""

import shlex
from pathlib import Path

import pytest
import torch

from hf_diversed import DiversedHead
from tests.commands import refused, succeed
from tests.tiny import tiny_model


@pytest.fixture
def folder(tmp_path):
    generator = torch.Generator().manual_seed(0)
    state = {"summary.weight": torch.randn(2, 48, generator=generator), "summary.bias": torch.tensor([0.0, 1.0])}
    torch.save(state, tmp_path / "ensemble_head.bin")
    for name, architecture in (("target", "llama"), ("draft", "opt")):
        tiny_model(architecture).config.save_pretrained(tmp_path / name)
    return tmp_path


def test_sizes_of_a_pair(folder):
    """Catches `hidden_size` used instead of the output embedding's width, and a need for weights, which are absent."""
    pair = ("--target", folder / "target", "--draft", folder / "draft")
    result = succeed("convert", folder / "ensemble_head.bin", folder / "head", *pair)
    assert "target 32, draft 16, 49 parameters" in result.output
    config = DiversedHead.from_pretrained(folder / "head").config
    assert (config.target_hidden_size, config.draft_hidden_size, config.vocab_size) == (32, 16, 64)
    assert config.base_model_name_or_path == str(folder / "target")
    assert config.assistant_model_name_or_path == str(folder / "draft")
    assert config.normalize is False


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ensemble_head.bin"], "pass --target-hidden-size 4096 --draft-hidden-size 2048"),
        (["."], "pass --target-hidden-size"),
        (["ensemble_head.bin", "--target", "one"], "go together"),
        (["ensemble_head.bin", "--target-hidden-size", "48"], "add up to 48"),
    ],
)
def test_bad_arguments_are_messages(folder, arguments, words):
    """Catches tracebacks for user errors, and a folder that is written despite an error."""
    file, *options = arguments
    refused(words, "convert", folder / file, folder / "head", *options)
    assert not (folder / "head").exists()
    refused("nothing.bin does not exist", "convert", folder / "nothing.bin", folder / "head", code=1)


def test_output_that_is_a_file(folder):
    """Catches a conversion whose result cannot be written."""
    file = folder / "ensemble_head.bin"
    refused("OUTPUT must be a folder, got", "convert", file, file, "--target-hidden-size", "32")


def test_the_line_of_the_documentation(folder, tmp_path):
    """Catches a documented command that fails on the authors' checkpoint: bfloat16, 2048 + 4096 wide, no config."""
    page = (Path(__file__).parents[2] / "docs" / "hub.md").read_text()
    line = next(line for line in page.splitlines() if line.startswith("hf-diversed convert"))
    _, _, file, output, *options = shlex.split(line, comments=True)
    state = {"summary.weight": torch.randn(2, 6144).bfloat16(), "summary.bias": torch.zeros(2).bfloat16()}
    torch.save(state, tmp_path / file)
    succeed("convert", tmp_path / file, tmp_path / output, *options)
    config = DiversedHead.from_pretrained(tmp_path / output).config
    assert (config.target_hidden_size, config.draft_hidden_size) == (4096, 2048)
