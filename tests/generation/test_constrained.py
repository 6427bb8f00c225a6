"""JSON by a grammar with state, `examples/json_grammar.py`, on the embedded pair."""

import json
import runpy
from pathlib import Path

import pytest
import torch

from hf_diversed import load_demo_pair
from hf_diversed.tasks import get_task, load_records


pytest.importorskip("outlines_core", reason="the example needs outlines-core")
EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "json_grammar.py"))


@pytest.fixture(scope="module")
def pair():
    return load_demo_pair()


def check_json(text: str) -> None:
    found = json.loads(text)
    assert list(found) == ["answer", "unit", "note"]
    assert isinstance(found["answer"], int)
    assert found["unit"] in ("dollars", "pens", None)
    assert len(found["note"]) <= 8


@pytest.mark.parametrize("verifier", ["block:static:0.7", "fly", "diversed"])
def test_relaxed_verifiers_emit_json(verifier, pair):
    """Catches draft tokens that the grammar forbids, residual tokens from unprocessed scores, and a state that keeps
    rejected draft tokens."""
    task = get_task("math")
    prompts = [task.prompt(record) for record in load_records(task, "test", 4)]
    inputs = pair.tokenizer(prompts, return_tensors="pt", padding=True)
    length = inputs["input_ids"].shape[1]
    processor = EXAMPLE["GrammarProcessor"](EXAMPLE["build_index"](EXAMPLE["SCHEMA"], pair.tokenizer), length)
    call = {"max_new_tokens": 64, "do_sample": True, "top_k": 0, "return_dict_in_generate": True}
    call |= {"diversed_head": pair.heads["math"]} if verifier == "diversed" else {"verifier": verifier}
    torch.manual_seed(0)
    out = pair.target.generate(**inputs, **call, assistant_model=pair.draft, logits_processor=[processor])
    for text in pair.tokenizer.batch_decode(out.sequences[:, length:], skip_special_tokens=True):
        check_json(text)
    assert out.stats.num_accepted > 0
    assert out.stats.num_rejected > 0  # so the grammar's state was rolled back
