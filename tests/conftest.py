"""What tests anywhere may need."""

import logging

import pytest


# What stands in for models of the Hub, of which tests have none.
EMBEDDED = {"Qwen/Qwen3-8B": "target", "Qwen/Qwen3-0.6B": "draft"}


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """pytest's own, which listens at the root; transformers' loggers, and ours below them, stop short of it."""
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    return caplog


@pytest.fixture
def embedded_for_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """`from_pretrained` that finds the embedded pair by the names that the documents use."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from hf_diversed.zoo.loader import WEIGHTS

    for auto, folder in ((AutoModelForCausalLM, None), (AutoTokenizer, "tokenizer")):
        real = auto.from_pretrained

        def load(name, *args, real=real, folder=folder, **kwargs):
            return real(WEIGHTS / (folder or EMBEDDED[name]) if name in EMBEDDED else name, *args, **kwargs)

        monkeypatch.setattr(auto, "from_pretrained", load)
