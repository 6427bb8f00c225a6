"""`examples/convert_authors_head.py` on files in the authors' format, written by these tests."""

import runpy
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


def test_other_widths_are_refused(tmp_path):
    """Catches columns that are split at the wrong index."""
    convert = runpy.run_path(str(SCRIPT))["convert"]
    write(tmp_path, 18)
    with pytest.raises(ValueError, match=r"must have shapes \[2, 19\] and \[2\]"):
        convert(tmp_path / "ensemble_head.bin", target_hidden_size=12, draft_hidden_size=7)
