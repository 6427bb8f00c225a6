"""`benchmarks/agreement.py`: heads and divergences as rankings of the tokens that change the answer."""

import json
import sys

import pytest
import torch

from benchmarks import agreement
from tests.training.test_counterfactual import planted


def test_a_head_ranks_what_it_was_trained_on(tmp_path, monkeypatch):
    """Catches heads trained on the prompts they rank, and rankings with the wrong sign."""
    labels = planted(lambda inputs: (inputs["target_after"][:, 0] > 0.5).double())
    labels.settings["metric"] = "agreement"
    labels.settings["sampling"]["temperature"] = 0.0
    monkeypatch.setattr(agreement, "load_labels", lambda path: labels)
    output = tmp_path / "agreement.json"
    monkeypatch.setattr(sys, "argv", ["agreement", "labels.jsonl", "--output", str(output)])
    agreement.main()
    found = {record["method"]: record for record in json.loads(output.read_text())["records"]}
    heads = [name for name in found if name.startswith("head")]
    assert heads == ["head, 100 labels", "head, 200 labels"]
    assert found[heads[-1]]["auc_ci"][0] > 0.8
    assert found["KL(p || q)"]["auc_ci"][0] < 0.5 < found["KL(p || q)"]["auc_ci"][1]
    assert found["KL(p || q)"]["labels"] == 100
    labels.settings["metric"] = "accuracy"
    with pytest.raises(ValueError, match="expected 'agreement'"):
        agreement.main()


def test_auc_counts_pairs():
    """Catches ties that count as right, and resamples without a positive or a negative."""
    ranking, positive = torch.tensor([3.0, 1.0, 1.0, 0.0]), torch.tensor([True, True, False, False])
    found = agreement.auc(ranking, positive, torch.tensor([0, 1, 2, 3]))
    assert found["auc"] == (1 + 1 + 0.5 + 1) / 4
    low, high = found["auc_ci"]
    assert low <= found["auc"] <= high
