"""Fixtures of all tests."""

import logging
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


# Folders of the embedded pair that replace models of the Hub.
EMBEDDED = {"Qwen/Qwen3-8B": "target", "Qwen/Qwen3-0.6B": "draft"}


@pytest.fixture(scope="module")
def pair():
    """A tiny target and a draft model that often agrees with it."""
    from tests.tiny import tiny_draft, tiny_model

    target = tiny_model("llama")
    return target, tiny_draft(target)


@pytest.fixture(autouse=True)
def cheap_draft_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the schedule "confidence" draft long blocks with draft models that are as large as their targets."""
    from hf_diversed.generation.confidence import ConfidenceRule
    from tests.tiny import rule_of_a_cheap_draft_model

    monkeypatch.setattr(ConfidenceRule, "for_models", rule_of_a_cheap_draft_model)


@pytest.fixture
def run_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """A function that runs a script with arguments in this process, offline, in the folder `tmp_path`."""
    import torch

    def run(path: Path, *arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", [str(path), *arguments])
        runpy.run_path(str(path), run_name="__main__")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with torch.random.fork_rng(devices=[]):
        yield run


@pytest.fixture
def rows_left(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows that each removal of finished rows leaves, in order; empty if no row is removed."""
    from hf_diversed.generation.rows import RaggedRows

    counts, keep = [], RaggedRows.keep
    monkeypatch.setattr(RaggedRows, "keep", lambda rows, kept: counts.append(len(kept)) or keep(rows, kept))
    return counts


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.LogCaptureFixture]:
    """pytest's `caplog` with the warnings of transformers and of this library propagated to it.

    Warnings that are shown once per process are shown again, so a test does not depend on earlier ones.
    """
    from transformers.utils.logging import warning_once

    warning_once.cache_clear()
    logger = logging.getLogger("transformers")
    for each in (logger, logging.getLogger("hf_diversed")):
        monkeypatch.setattr(each, "propagate", True)
    level = logger.level
    logger.setLevel(logging.WARNING)  # the CLI sets it to ERROR for the whole process
    yield caplog
    logger.setLevel(level)


@pytest.fixture
def embedded_for_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `from_pretrained` load the embedded pair under the names in the documentation."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from hf_diversed.zoo.loader import WEIGHTS

    for auto, folder in ((AutoModelForCausalLM, None), (AutoTokenizer, "tokenizer")):
        real = auto.from_pretrained

        def load(name, *args, real=real, folder=folder, **kwargs):
            return real(WEIGHTS / (folder or EMBEDDED[name]) if name in EMBEDDED else name, *args, **kwargs)

        monkeypatch.setattr(auto, "from_pretrained", load)
