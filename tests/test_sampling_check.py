"""The test whether saved completions are samples from the target model."""

import json

import torch

from benchmarks.sampling_check import completions, excess


def test_excess_has_mean_zero_and_the_returned_variance():
    """Catches a wrong sign, a lost entropy term and the variance of another distribution."""
    logits = torch.randn(1, 7, generator=torch.Generator().manual_seed(0)).double() * 3
    probs = logits.softmax(-1)[0]
    found = [excess(logits, torch.tensor([token])) for token in range(7)]
    values = torch.tensor([value for value, _, _ in found], dtype=torch.float64)
    assert abs(probs @ values) < 1e-12
    assert {round(variance, 9) for _, variance, _ in found} == {round(float(probs @ values.square()), 9)}


def test_excess_adds_positions():
    """Catches a token scored at another token's position."""
    logits = torch.randn(2, 5, generator=torch.Generator().manual_seed(1))
    first, second = excess(logits[:1], torch.tensor([3])), excess(logits[1:], torch.tensor([0]))
    total = torch.tensor([first, second]).sum(0)
    torch.testing.assert_close(torch.tensor(excess(logits, torch.tensor([3, 0]))), total)


def test_completions_of_all_parts_are_numbered_as_the_prompts(tmp_path):
    """Catches completions scored with the prompt of another part."""
    header = {"n": 2, "num_batches": 1, "settings": {}}
    for part, texts in enumerate((["a", "b"], ["c", "d"])):
        rows = {"prompt": [1, 0], "text": texts, "tokens": [4, 5]}
        entry = {"method": "lossless", "batch": 0, "sample": 0, "rows": rows}
        (tmp_path / f"part-{part}").mkdir()
        lines = [header, entry, entry | {"method": "target"}]
        path = tmp_path / f"part-{part}" / "batches-0.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert completions(tmp_path, 2, "lossless") == [(0, "b", 5), (1, "a", 4), (2, "d", 5), (3, "c", 4)]
