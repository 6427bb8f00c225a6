"""The tables of heads trained on token costs, rendered from made-up results."""

import json

from tools import render_counterfactual
from tools.render_counterfactual import studies


def point(share: float, cost: float, saving: float) -> dict:
    bounds = {"cost_ci": [cost - 0.01, cost + 0.01], "saving_ci": [saving - 0.01, saving + 0.01]}
    return {"share": share, "cost": cost, "saving": saving, **bounds}


def decoded(method: str, rate: float | None, drop: float | None, **gain) -> dict:
    record = {"method": method, "n": 1000, "quality": 0.7, "quality_drop": drop, "acceptance_rate": rate, **gain}
    bounds = {"quality_drop_ci": drop and [drop - 0.01, drop + 0.01], "acceptance_rate_ci": rate and [rate, rate]}
    return record | bounds


def test_tables(tmp_path):
    """Catches figures in wrong cells, savings where costs belong, and p-values that are not corrected."""
    assert not any(studies(tmp_path).values())
    made = {"labels": 3000, "prompts": 1000, "continuations": 2, "mean_cost": 0.1, "deviation": 0.1, "noise": 0.05}
    curve = {
        "lenience": [point(0.2, 0.03, 0.0), point(0.5, 0.08, 0.0)],
        "packaged head": [point(0.2, 0.01, 0.02), point(0.5, 0.06, 0.02)],
        "lookahead": [point(0.2, 0.025, 0.005), point(0.5, 0.06, 0.02)],
    }
    gains = {"gain_ci": [-0.01, 0.02], "gain_draws": [0.004, 0.006]}
    decoding = [
        decoded("target", None, None),
        decoded("lenience:0.3", 0.75, 0.02),
        decoded("lenience:0.1", 0.8, 0.03),
        decoded("counterfactual@0.5", 0.81, 0.04, gain=None),
        decoded("counterfactual@0.6", 0.79, 0.025, gain=0.005, gain_p=0.02, **gains),
        decoded("lookahead@0.6", 0.79, 0.025, gain=0.005, gain_p=1e-5, **gains),
    ]
    study = {"task": "summary", "metric": "rouge2", "labels": {"train": made}, "curve": curve, "decoding": decoding}
    study["gain_curve"] = {
        "lenience": [point(0.6, 0.07, 0.0)],
        "packaged head": [point(0.6, 0.06, 0.01)],
        "lookahead": [point(0.6, 0.05, 0.02)],
    }
    study |= {"heads": {"lookahead": {"r2": 0.4}}, "draws": 2}
    (tmp_path / "counterfactual-summary.json").write_text(json.dumps(study))
    decoded_text, costs, labels = studies(tmp_path).values()
    assert "| summary | train | 3,000 | 1,000 | 2 | 10.00 | 10.00 | 5.00 | 25.0% |" in labels
    assert "| order | R² | 20% kept | 50% kept | 60% gained |" in costs
    assert "cost | - | 3.00 (2.00 to 4.00) | 8.00 (7.00 to 9.00) | 7.00 (6.00 to 8.00) |" in costs
    assert "| lookahead | 40.0% | 0.50 (-0.50 to 1.50) | 2.00 (1.00 to 3.00) | 2.00 (1.00 to 3.00) |" in costs
    assert "| `lenience:0.3` | 75.0% (75.0% to 75.0%) | 70.0% | 2.00 (1.00 to 3.00) | - |" in decoded_text
    assert "| `counterfactual@0.5` | 81.0% (81.0% to 81.0%) | 70.0% | 4.00 (3.00 to 5.00) | - | - |" in decoded_text
    assert "| 2.50 (1.50 to 3.50) | 0.50 (-1.00 to 2.00) | 0.020 | 0.40, 0.60 |" in decoded_text
    assert "| 0.50 (-1.00 to 2.00) | < 0.001 | 0.40, 0.60 |" in decoded_text


def test_published_pair(tmp_path, monkeypatch):
    """Catches a published pair that is not shown, and savings where costs belong."""
    (tmp_path / "real").mkdir()
    labels = {"labels": 300, "prompts": 90, "positive": 40, "negative": 20, "mean_cost": 0.0667}
    curve = {"lenience": [point(0.5, 0.03, 0.0)], "lookahead": [point(0.5, 0.02, 0.01)]}
    found = {"labels": labels, "r2": {"lookahead": -0.01}, "curve": curve}
    (tmp_path / "real" / "held-out-costs-gsm8k.json").write_text(json.dumps(found))
    for name in ("_decoding", "_curve", "_labels"):
        monkeypatch.setattr(render_counterfactual, name, lambda study: "")
    (tmp_path / next(iter(render_counterfactual.COMMANDS))).write_text("{}")
    text = studies(tmp_path)["A published pair"]
    assert "300 rejections of 90 completions" in text
    assert "turns 40 right answers into wrong ones and 20 wrong ones into right ones; the mean cost is 6.67" in text
    assert "| p / max p, as lenience: cost | - | 3.00 (2.00 to 4.00) |" in text
    assert "| lookahead | -1.0% | 1.00 (0.00 to 2.00) |" in text
