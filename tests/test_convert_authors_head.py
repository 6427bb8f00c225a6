"""`examples/convert_authors_head.py` on files in the authors' format, written by these tests."""

import pickle
import runpy
import shlex
from pathlib import Path

import pytest
import torch

from hf_diversed import DiversedHead


ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "examples" / "convert_authors_head.py"
SIZES = ("--target-hidden-size", "12", "--draft-hidden-size", "7")


def write(folder: Path, width: int, rows: int = 2) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    weight, bias = (0.5 * torch.randn(shape, generator=generator) for shape in ((rows, width), (rows,)))
    state = {"summary.weight": weight.bfloat16(), "summary.bias": bias.bfloat16()}
    torch.save(state, folder / "ensemble_head.bin")
    return state


def test_weight_is_that_of_the_softmax(tmp_path, run_script):
    """Catches a wrong order of the inputs, the wrong class, a lost bias, and normalised inputs."""
    state = write(tmp_path, 19)
    run_script(SCRIPT, "ensemble_head.bin", "head", *SIZES, "--target", "org/target")
    head = DiversedHead.from_pretrained(tmp_path / "head")
    assert head.config.base_model_name_or_path == "org/target"
    generator = torch.Generator().manual_seed(1)
    target, draft = (3.0 * torch.randn(50, width, generator=generator) + 1.0 for width in (12, 7))
    logits = torch.cat([draft, target], dim=-1) @ state["summary.weight"].float().T + state["summary.bias"].float()
    expected = logits.softmax(-1)[:, 1]
    assert expected.min() < 0.1
    assert expected.max() > 0.9
    torch.testing.assert_close(torch.sigmoid(head(target, draft)), expected, atol=1e-5, rtol=0)


def test_the_line_of_the_documentation(tmp_path, run_script):
    """Catches a documented command that fails on the authors' checkpoint, 2048 + 4096 wide."""
    page = (ROOT / "docs" / "hub.md").read_text()
    line = next(line for line in page.splitlines() if "convert_authors_head.py" in line)
    write(tmp_path, 6144)
    run_script(SCRIPT, *shlex.split(line)[2:])
    config = DiversedHead.from_pretrained(tmp_path / "head").config
    assert (config.target_hidden_size, config.draft_hidden_size) == (4096, 2048)


class RunsCode:
    ran = False

    def __reduce__(self):
        return (RunsCode.run, ())

    @staticmethod
    def run():
        RunsCode.ran = True
        return {}


def test_other_files_are_refused(tmp_path):
    """Catches columns that are split at the wrong index, and code that runs from a pickle."""
    convert = runpy.run_path(str(SCRIPT))["convert"]
    narrow = {"summary.weight": torch.zeros(2, 18), "summary.bias": torch.zeros(2)}
    for content, words in ((narrow, r"must have shapes \[2, 19\] and \[2\]"), (RunsCode(), "weights_only")):
        torch.save(content, tmp_path / "ensemble_head.bin")
        with pytest.raises((ValueError, pickle.UnpicklingError), match=words):
            convert(tmp_path / "ensemble_head.bin", target_hidden_size=12, draft_hidden_size=7)
    assert not RunsCode.ran
