"""The study of heads trained on token costs, in small."""

import json
import sys

import pytest

from benchmarks import counterfactual
from hf_diversed.training import counterfactual as regression


def test_draws_count_as_one_method(tmp_path, monkeypatch):
    """Catches heads of one draw shown as methods, differences to others than lenience, and a broken report."""
    output = tmp_path / "counterfactual-summary.json"
    options = ["--num-train", "12", "--num-test", "8", "--rejections", "2", "--samples", "1", "--draws", "2"]
    options += ["--lenience", "1", "1e-3", "1e-10", "--others", "lossless", "--heads", "counterfactual@0.5", "mlp@0"]
    monkeypatch.setattr(sys, "argv", ["counterfactual", "summary", *options, "--output", str(output)])
    names = (counterfactual.ALL, f"{counterfactual.ALL}, mlp")
    monkeypatch.setattr(counterfactual, "SETTINGS", {name: counterfactual.SETTINGS[name] for name in names})
    monkeypatch.setattr(regression, "STEPS", 20)
    counterfactual.main()
    report = json.loads(output.read_text())
    records = {record["method"]: record for record in report["decoding"]}
    leniences = ["lenience:1.0", "lenience:0.001", "lenience:1e-10"]
    others = ["lossless", "diversed", "mixture head", "counterfactual@0.5", "mlp@0"]
    assert list(records) == ["target", *leniences, *others]
    head = records["counterfactual@0.5"]
    assert len(head["gain_draws"]) == 2
    assert records["mlp@0"]["acceptance_rate"] == pytest.approx(1.0)
    assert records["lossless"]["gain_draws"] == pytest.approx([0.0])  # the same decisions as lenience 1
    assert report["labels"]["train"]["labels"] < sum(  # of both draws
        found["num_labels"] for name, found in report["heads"].items() if name.endswith("labels")
    )
