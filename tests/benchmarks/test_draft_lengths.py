"""`benchmarks/draft_lengths.py`: ratios of the same prompts, and runs that continue."""

import json
import sys

import pytest
import torch
from torchao.prototype.quantization.int4.int4_opaque_tensor import Int4OpaqueTensor

from benchmarks import draft_lengths
from hf_diversed import load_demo_pair
from hf_diversed.files import read_lines


def test_ratios_are_of_the_same_prompt():
    """Catches ratios of sums, and the slowest constant length of upstream."""
    names = ("target", "upstream", "upstream:2", "upstream:5", "lossless:5")
    turns = [
        ([10, 1.0], [10, 0.5], [20, 1.0], [10, 2.0], [10, 2.0]),
        ([10, 2.0], [10, 2.0], [40, 2.0], [10, 2.0], [10, 2.0]),
        ([10, 4.0], [10, 2.0], [10, 4.0], [10, 1.0], [10, 1.0]),
    ]
    counts = {"rounds": 2, "drafted": 4, "accepted": 3}
    timed = [
        {
            name: dict(zip(("tokens", "seconds"), values)) | (counts if name == "lossless:5" else {})
            for name, values in zip(names, turn)
        }
        for turn in turns
    ]
    found = draft_lengths.summary(timed, "lossless:5")
    assert found["over_target"]["median"] == 1.0  # of 0.5, 1 and 4
    assert found["over_upstream_constant"]["median"] == 0.25  # of 0.25, 0.25 and 4
    assert found["acceptance_rate"] == 0.75


def test_a_run_continues(tmp_path, monkeypatch, capsys):
    """Catches methods that cannot be decoded, finished prompts that are decoded again, and lines appended to an
    incomplete one."""
    monkeypatch.setattr(draft_lengths, "EMBEDDED", ("math",))
    output = tmp_path / "lengths.json"
    short = ["x", "--output", str(output), "--num-prompts", "1", "--max-new-tokens", "12", "--constant", "2"]
    short += ["--schedules", "confidence,copies"]
    monkeypatch.setattr(sys, "argv", short)
    draft_lengths.main()
    first = json.loads(output.read_text())["records"]
    methods = {"target", "upstream", "upstream:2", "lossless:2"}
    methods |= {"lenience:0.3:confidence", "lossless:copies"}
    assert methods <= {record["method"] for record in first}
    monkeypatch.setattr(draft_lengths, "decode", lambda *_: pytest.fail("the prompt has been decoded"))
    draft_lengths.main()
    assert json.loads(output.read_text())["records"] == first
    (finished,) = tmp_path.glob("lengths.math-*.jsonl")
    complete = finished.read_text()
    finished.write_text(complete + complete[:20])  # as a killed process leaves it
    decoded: list[str] = []
    record = {"tokens": 1, "seconds": 1.0, "rounds": 1, "drafted": 1, "accepted": 1}
    monkeypatch.setattr(draft_lengths, "decode", lambda pair, ids, method, _: decoded.append(method) or record)
    monkeypatch.setattr(sys, "argv", [*short, "--num-prompts", "2"])
    draft_lengths.main()
    assert decoded.count("target") == 2  # for warming up, and the second prompt
    assert len(read_lines(finished)) == 2


def test_an_int4_draft_model_keeps_lossless_decoding():
    """Catches layers that are not quantized, and a quantized draft model whose tokens are all rejected."""
    pair = load_demo_pair()
    inputs = pair.tokenizer("Question: Mia has 3 pens and buys 9.", return_tensors="pt")
    draft_lengths.quantize_linear_layers(pair.draft.bfloat16())
    linear = [layer for layer in pair.draft.modules() if isinstance(layer, torch.nn.Linear)]
    assert linear
    assert all(isinstance(layer.weight, Int4OpaqueTensor) for layer in linear)
    greedy = {"do_sample": False, "max_new_tokens": 24, "return_dict_in_generate": True}
    found = pair.target.generate(**inputs, assistant_model=pair.draft, verifier="lossless", **greedy)
    assert torch.equal(found.sequences, pair.target.generate(**inputs, **greedy).sequences)
    assert found.stats.num_accepted > found.stats.num_drafted / 3
