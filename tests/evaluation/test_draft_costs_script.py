"""The cost model of draft models: the timings, and the speedup that theory predicts from them."""

import json
import sys

import pytest
import torch

from benchmarks import draft_costs
from hf_diversed import _compat
from hf_diversed.theory import ForwardTimes, best_gamma
from tests.tiny import tiny_model


def test_needed_acceptance_is_where_the_gain_begins():
    """Catches an acceptance that is too low or too high, and a speedup that cannot be reached."""
    times = ForwardTimes(1.0, 0.1, 0.05, 0.2)
    for gain in (1.0, 1.5):
        rate = draft_costs.needed(gain, times)
        survival = [[(rate + shift) ** count for count in range(1, 13)] for shift in (0.0, -1e-3)]
        assert best_gamma(survival[0], times)[1] >= gain > best_gamma(survival[1], times)[1]
    assert draft_costs.needed(1.5, ForwardTimes(1.0, 1.0)) is None


def test_costs_are_those_of_a_round():
    """Catches extra positions that count as whole forwards, and a missing overhead."""
    costs = {"target": 0.1, "block": 0.15, "overhead": 0.02, "drafts": {"4 layers": 0.01}}
    found = draft_costs.summary("4 layers", costs)
    assert (found["milliseconds"], found["cost_ratio"]) == (pytest.approx(10.0), pytest.approx(0.1))
    best = found["by_acceptance"]["0.8"]
    length = sum(0.8**count for count in range(1, best["gamma"] + 1))
    assert best["speedup"] == pytest.approx((length + 1) * 0.1 / (best["gamma"] * 0.02 + 0.1 + 0.02))
    assert list(found["needed"]) == ["1", "1.5"]


def test_a_step_leaves_the_cache_as_it_was():
    """Catches a context that grows in each repetition, so that later ones take longer."""
    model, widths = tiny_model("llama"), []

    def note(module, args, kwargs):
        widths.append((kwargs["input_ids"].shape[1], kwargs[_compat.CACHE_ARGUMENT].get_seq_length()))

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    with torch.inference_mode():
        run = draft_costs.step(model, 3, 9)
        run()
        run()
    handle.remove()
    assert widths == [(9, 0), (3, 9), (3, 9)]


def test_the_script_writes_what_it_measured(tmp_path, monkeypatch, capsys):
    """Catches a report without its provenance, and draft models that are stored under each other's name."""
    folder, output = tmp_path / "target", tmp_path / "costs" / "out.json"
    tiny_model("llama").save_pretrained(folder)
    options = f"--target {folder} --layers 1,2 --vocabulary 16,0,64 --context 8 --repeats 2 --new-tokens 6".split()
    monkeypatch.setattr(sys, "argv", ["draft_costs.py", *options, "--output", str(output)])
    threads = torch.get_num_threads()
    draft_costs.main()
    torch.set_num_threads(threads)
    report = json.loads(output.read_text())
    names = [f"{layers} layers, {size} ids" for layers in (1, 2) for size in (16, 64)]
    assert [record["draft"] for record in report["records"]] == names == list(report["costs"]["drafts"])
    assert all(seconds > 0 for seconds in report["costs"]["drafts"].values())
    assert report["costs"]["overhead"] >= 0
    assert report["provenance"]["threads"] == 1
    assert "CPU time" in capsys.readouterr().out
