"""Tests of `benchmarks.sampling_check`."""

import json

import pytest
import torch

from benchmarks.sampling_check import completions, deviations, earlier_records, encoded, run_warpers, scores
from tests.tiny import tiny_model


def test_deviations_have_mean_zero_and_the_returned_variance():
    """Catches a wrong sign, a lost expectation and the variance of another distribution."""
    p = torch.tensor([0.5, 0.2, 0.2, 0.1, 0.0, 0.0], dtype=torch.float64)
    q = torch.tensor([0.1, 0.6, 0.0, 0.2, 0.1, 0.0], dtype=torch.float64)
    found = torch.stack([deviations(p[None], q[None], torch.tensor([token])) for token in range(6)])
    assert found[:, :2].tolist() == [[1, 0]] * 4 + [[0, 1]] * 2
    for column, values in ((2, -p[:4].log()), (4, q[:4] / (p + q)[:4])):
        deviation, variance = found[:4, column], found[:4, column + 1]
        torch.testing.assert_close(deviation, values - p[:4] @ values)
        torch.testing.assert_close(variance, (p[:4] @ deviation.square()).expand(4))


def test_deviations_are_summed_over_tokens():
    """Catches tokens without probability in the sums, and NaN that is not counted."""
    p, q = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.8, 0.0]]).double(), torch.tensor([[0.1, 0.6, 0.3]] * 2).double()
    rows = [deviations(p[t : t + 1], q[t : t + 1], torch.tensor([0])) for t in (0, 1)]
    torch.testing.assert_close(deviations(p, q, torch.tensor([0, 0])), rows[0] + rows[1])
    torch.testing.assert_close(deviations(p, q, torch.tensor([0, 2])), rows[0] + torch.tensor([0.0, 1, 0, 0, 0, 0]))
    found = deviations(p * torch.nan, q, torch.tensor([0, 0]))
    assert found[0] == 2
    assert found[2:].isnan().all()


def test_the_truncation_of_the_run_is_applied(tmp_path):
    """Catches scores of the full distribution for truncated samples."""
    header = {"n": 1, "num_batches": 1, "settings": {"temperature": 0.5, "top_k": 3, "top_p": 0.9}}
    (tmp_path / "part-0").mkdir()
    (tmp_path / "part-0" / "batches-0.jsonl").write_text(json.dumps(header) + "\n")
    logits = torch.tensor([[0.5, 0.1, 0.3, 0.05, 0.05]]).log()  # p is proportional to [25, 1, 9]
    expected = torch.tensor([[25.0, 0.0, 9.0, 0.0, 0.0]]) / 34
    torch.testing.assert_close(run_warpers(tmp_path)(None, logits).softmax(-1), expected)


def test_scores_predict_the_completion():
    """Catches logits shifted by one position."""
    model, prompt, tokens = tiny_model(), [5, 6, 7], [8, 9]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + tokens])).logits[0]
    torch.testing.assert_close(scores(model, prompt, tokens), logits[2:4].float())


@pytest.mark.parametrize(
    ("num_tokens", "ended", "expected"), [(3, True, [1, 2, 0]), (2, False, [1, 2]), (3, False, None), (2, True, None)]
)
def test_texts_that_are_encoded_differently_are_left_out(num_tokens, ended, expected):
    """Catches an end token added to a completion that was cut off, and a text scored with other tokens."""

    class Tokenizer:
        eos_token_id = 0

        def __call__(self, text, add_special_tokens):
            return {"input_ids": [1, 2]}

    assert encoded(Tokenizer(), "text", num_tokens, ended) == expected


def test_completions_of_all_parts_are_numbered_as_the_prompts(tmp_path):
    """Catches completions scored with the prompt of another part, and end tokens of completions that were cut off."""
    header = {"n": 2, "num_batches": 1, "settings": {}, "max_new_tokens": 5}
    for part, texts in enumerate((["a", "b"], ["c", "d"])):
        rows = {"prompt": [1, 0], "text": texts, "tokens": [4, 5]}
        entry = {"method": "lossless", "batch": 0, "sample": 0, "rows": rows}
        without = entry | {"method": "target", "rows": {"prompt": [1, 0], "tokens": [4, 5]}}
        (tmp_path / f"part-{part}").mkdir()
        path = tmp_path / f"part-{part}" / "batches-0.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in (header, entry, without)))
    expected = [(0, "b", 5, False), (1, "a", 4, True), (2, "d", 5, False), (3, "c", 4, True)]
    assert completions(tmp_path, 2, "lossless") == expected
    with pytest.raises(ValueError, match="contains no texts of 'target'"):
        completions(tmp_path, 2, "target")


def test_reports_of_another_run_are_not_continued(tmp_path):
    """Catches methods of two runs in one report."""
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"task": "gsm8k", "run": "out", "records": [{"method": "lossless"}]}))
    assert earlier_records(path, {"task": "gsm8k", "run": "out"}) == [{"method": "lossless"}]
    with pytest.raises(ValueError, match="choose another --report"):
        earlier_records(path, {"task": "gsm8k", "run": "other"})
