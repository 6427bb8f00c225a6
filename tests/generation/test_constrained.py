"""JSON by a grammar with state, `examples/json_grammar.py`, on the embedded pair."""

import json
import runpy
from pathlib import Path

import pytest
import torch
from transformers import LogitsProcessorList

from hf_diversed import load_demo_pair
from hf_diversed.tasks import get_task, load_records


pytest.importorskip("outlines_core", reason="the example needs outlines-core")
EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "json_grammar.py"))
CALL = {"max_new_tokens": 64, "top_k": 0, "return_dict_in_generate": True}


@pytest.fixture(scope="module")
def pair():
    return load_demo_pair()


@pytest.fixture(scope="module")
def index(pair):
    return EXAMPLE["build_index"](EXAMPLE["SCHEMA"], pair.tokenizer)


@pytest.fixture(scope="module")
def prompts():
    task = get_task("math")
    return [task.prompt(record) for record in load_records(task, "test", 8)]


def decode(pair, index, prompts, **call):
    """Return the output and the texts of one call with a processor of its own."""
    inputs = pair.tokenizer(list(prompts), return_tensors="pt", padding=True)
    length = inputs["input_ids"].shape[1]
    processor = EXAMPLE["GrammarProcessor"](index, length)
    call = {**CALL, "logits_processor": LogitsProcessorList([processor]), **call}
    out = pair.target.generate(**inputs, **call)
    return out, pair.tokenizer.batch_decode(out.sequences[:, length:], skip_special_tokens=True)


def check_json(text: str) -> None:
    found = json.loads(text)
    assert list(found) == ["answer", "unit", "note"]
    assert isinstance(found["answer"], int)
    assert found["unit"] in ("dollars", "pens", None)
    assert len(found["note"]) <= 8


@pytest.mark.parametrize("verifier", ["block:static:0.7", "fly", "diversed"])
def test_relaxed_verifiers_emit_json(verifier, pair, index, prompts):
    """Catches draft tokens that the grammar forbids, residual tokens from unprocessed scores, and a state that keeps
    rejected draft tokens."""
    torch.manual_seed(0)
    given = {"diversed_head": pair.heads["math"]} if verifier == "diversed" else {"verifier": verifier}
    call = {"assistant_model": pair.draft, "do_sample": True, **given}
    out, texts = decode(pair, index, prompts[:4], **call)
    for text in texts:
        check_json(text)
    assert out.stats.num_accepted > 0
    assert out.stats.num_rejected > 0  # so the grammar's state was rolled back


@pytest.mark.parametrize("source", ["draft", "lookup"])
def test_lossless_json_is_that_of_plain_generate(pair, index, prompts, source):
    """Catches a grammar that is applied at another position than without draft tokens, in rows of a batch."""
    given = {"assistant_model": pair.draft} if source == "draft" else {"prompt_lookup_num_tokens": 4}
    plain, _ = decode(pair, index, prompts, do_sample=False)
    out, texts = decode(pair, index, prompts, do_sample=False, verifier="lossless", **given)
    assert torch.equal(out.sequences, plain.sequences)
    assert len(set(texts)) > 1
