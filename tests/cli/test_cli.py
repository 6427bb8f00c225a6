"""The command line, run in this process on the embedded pair."""

import re

import torch

from hf_diversed.cli.models import load_pair
from hf_diversed.formatting import PLAIN
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


def test_dtype_of_the_pair():
    """Catches a --dtype that applies to named models only."""
    assert load_pair(None, None, "cpu", dtype="bfloat16").target.dtype is torch.bfloat16
    assert load_pair(None, None, "cpu").draft.dtype is torch.float32
