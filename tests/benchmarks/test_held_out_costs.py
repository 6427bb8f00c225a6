"""`benchmarks/held_out_costs.py`: heads and lenience on a file of labels."""

import dataclasses
import json
import sys

import torch

from benchmarks import held_out_costs
from tests.training.test_counterfactual import planted


def test_only_heads_with_the_deciding_input_save_costs(tmp_path, monkeypatch):
    """Catches predictions for the prompts of training, mixed up labels, and the wrong order of lenience."""
    labels = planted(lambda inputs: inputs["target_after"][:, 0] - 0.5 * inputs["token"][:, 0], noise=0.3)
    labels.settings["metric"] = "accuracy"
    monkeypatch.setattr(held_out_costs, "load_labels", lambda path: labels)
    monkeypatch.setattr(held_out_costs, "HEADS", ("same inputs", "state after the token"))
    output = tmp_path / "costs.json"
    monkeypatch.setattr(sys, "argv", ["held_out_costs", "labels.jsonl", "--output", str(output)])
    held_out_costs.main()
    report = json.loads(output.read_text())
    halves = {name: points[0] for name, points in report["curve"].items()}
    assert halves["lenience"]["cost"] < -0.1  # the half with a lower expected cost
    assert halves["state after the token"]["saving_ci"][0] > 0.1
    assert abs(halves["same inputs"]["saving"]) < 0.1
    assert report["r2"]["same inputs"] < 0.3 < 0.8 < report["r2"]["state after the token"]


def test_predictions_do_not_depend_on_costs_of_their_own_prompt():
    """Catches heads that are evaluated on their own training labels."""
    labels = planted(lambda inputs: inputs["token"][:, 0], noise=1.0)
    settings = held_out_costs.FitSettings(**held_out_costs.SETTINGS[held_out_costs.ALL])
    own, scores = labels.prompt == 0, labels.scores.clone()
    scores[own, 1] += 10.0
    before = held_out_costs.held_out(labels, settings)
    after = held_out_costs.held_out(dataclasses.replace(labels, scores=scores), settings)
    assert torch.equal(before[own], after[own])
    assert not torch.equal(before, after)
