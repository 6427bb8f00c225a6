"""The evaluation loop on tiny random models: its records, interruption and continuation."""

import json
import sys

import pytest
import torch

from hf_diversed import DiversedHead, DiversedHeadConfig
from hf_diversed.evaluation import EvaluationSettings, evaluate, read_results
from hf_diversed.zoo.loader import Pair
from tests.evaluation.fakes import Interrupted, LetterTask, examples, tiny_pair


METHODS = ["target", "lossless", "static:0.5", "static:0.0", "diversed"]
FEW = ["target", "static:0.5"]
TIMES = ("seconds_per_sample", "tokens_per_second")


@pytest.fixture(scope="module")
def head() -> DiversedHead:
    torch.manual_seed(0)
    return DiversedHead(DiversedHeadConfig(32, 32)).eval()


def settings(**changes) -> EvaluationSettings:
    return EvaluationSettings(**{"batch_size": 3, "num_assistant_tokens": 2, **changes})


def timeless(records: list[dict]) -> list[dict]:
    return [{name: value for name, value in record.items() if name not in TIMES} for record in records]


def rows(folder, column: str) -> dict:
    """Return one column of all finished calls."""
    return {key: entry["rows"][column] for key, entry in read_results(folder).entries.items()}


@pytest.fixture(scope="module")
def whole(pair, head, tmp_path_factory):
    """An uninterrupted evaluation: its records and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    chosen = settings(samples_per_prompt=2)
    return evaluate(pair, LetterTask(), examples(5), METHODS, chosen, head=head, output=folder), folder


def test_the_report_is_what_is_returned(whole):
    """Catches NaN in JSON, missing bounds, and numbers where a method has none."""
    records, folder = whole
    for record in records:
        json.dumps(record, allow_nan=False)
        assert record.keys() == records[0].keys()
        assert (record["acceptance_rate"] is None) == (record["quality_drop"] is None) == (record is records[0])
        for name in ("quality", "acceptance_rate", "quality_drop"):
            if record[name] is not None:
                low, high = record[f"{name}_ci"]
                assert low <= record[name] <= high
    assert [record["method"] for record in records] == METHODS
    written = json.loads((folder / "evaluation.json").read_text())
    assert written["records"] == records
    assert written["provenance"]["evaluation"]["settings"]["samples_per_prompt"] == 2
    assert written["provenance"]["methods"]["static:0.5"] == "StaticEnsembleVerifier(weight=0.5)"
    assert {"versions", "git_commit", "device"} <= written["provenance"].keys()


def test_records_contain_the_calls_statistics(whole):
    """Catches statistics of other rows, of other methods, or with the wrong denominator."""
    records, folder = whole
    entries = read_results(folder).entries
    assert len(entries) == len(METHODS) * 2 * 2
    totals: dict[str, list[float]] = {}
    for record in records:
        mine = [entry["rows"] for (method, _, _), entry in entries.items() if method == record["method"]]
        column = {name: [value for part in mine for value in part[name]] for name in mine[0]}
        assert sorted(column["prompt"]) == sorted([*range(5), *range(5)])
        assert record["quality"] == pytest.approx(sum(column["score"]) / 10)
        assert record["mean_tokens"] == pytest.approx(sum(column["tokens"]) / 10)
        assert record["cut_off_rate"] == pytest.approx(sum(column["cut_off"]) / 10)
        assert 0 < record["cut_off_rate"] <= sum(length == 6 for length in column["tokens"]) / 10
        pairs = list(zip(column["prompt"], column["score"]))
        totals[record["method"]] = [sum(score for index, score in pairs if index == prompt) for prompt in range(5)]
        if record["method"] == "target":
            continue
        gains = [own - plain for own, plain in zip(totals[record["method"]], totals["target"])]
        assert record["prompts_better"] == sum(gain > 0 for gain in gains)
        assert record["prompts_worse"] == sum(gain < 0 for gain in gains)
        accepted, drafted = sum(column["num_accepted"]), sum(column["num_drafted"])
        assert record["acceptance_rate"] == pytest.approx(accepted / drafted)
        assert record["verified_acceptance_rate"] == pytest.approx(accepted / (accepted + sum(column["num_rejected"])))
        assert record["block_efficiency"] == pytest.approx(sum(column["tokens"]) / sum(column["num_rounds"]))
        assert record["mean_rounds"] * len(column["tokens"]) == pytest.approx(sum(column["num_rounds"]))
        assert record["quality_drop"] == pytest.approx(records[0]["quality"] - record["quality"])
    by_name = {record["method"]: record for record in records}
    assert by_name["static:0.0"]["acceptance_rate"] == 1


def test_each_method_is_in_turn_the_first(whole):
    """Catches one method that always runs first, and a batch that not all methods decode before the next one."""
    calls = list(read_results(whole[1]).entries)
    groups = [calls[start : start + len(METHODS)] for start in range(0, len(calls), len(METHODS))]
    assert [len({call[1:] for call in group}) for group in groups] == [1] * 4
    assert [group[0][0] for group in groups] == METHODS[:4]


def test_an_interrupted_run_gives_the_same_table(pair, whole, tmp_path):
    """Catches seeds that depend on earlier calls or other methods, and repeated calls."""
    chosen, calls = settings(samples_per_prompt=2), 4
    with pytest.raises(Interrupted):
        evaluate(pair, LetterTask(calls_left=calls), examples(5), FEW, chosen, output=tmp_path)
    assert (tmp_path / "batches-0.jsonl").read_bytes().count(b"\n") == 2 + calls  # the header and the session
    task = LetterTask()
    records = evaluate(pair, task, examples(5), FEW, chosen, output=tmp_path)
    assert task.num_calls == len(FEW) * 2 * 2 - calls
    assert timeless(records) == timeless([record for record in whole[0] if record["method"] in FEW])
    assert rows(tmp_path, "text").items() < rows(whole[1], "text").items()
    done = LetterTask()
    assert evaluate(pair, done, examples(5), FEW, chosen, output=tmp_path) == records
    assert done.num_calls == 0


def test_a_report_names_the_sessions_that_measured(pair, tmp_path, monkeypatch):
    """Catches the machine, versions and commit of a later call in place of those of the measurement."""
    evaluate(pair, LetterTask(), examples(3), FEW[:1], settings(), output=tmp_path)
    module = sys.modules["hf_diversed.evaluation.evaluate"]  # the package has a function of this name
    monkeypatch.setattr(module, "provenance", lambda *_: {"git_commit": "later", "time": "2999"})
    evaluate(pair, LetterTask(), examples(3), FEW[:1], settings(), output=tmp_path)
    found = json.loads((tmp_path / "batches-0.jsonl").read_text().splitlines()[1])["provenance"]
    written = json.loads((tmp_path / "evaluation.json").read_text())["provenance"]
    assert {name: written[name] for name in found} == found
    assert written["sessions"] == []
    evaluate(pair, LetterTask(), examples(3), FEW, settings(), output=tmp_path)
    written = json.loads((tmp_path / "evaluation.json").read_text())["provenance"]
    assert {name: written[name] for name in found} == found
    assert written["sessions"] == [{"git_commit": "later", "time": "2999"}]


def test_methods_may_be_added_later(pair, whole, tmp_path):
    """Catches a method added later with other prompts or seeds, and results of the first one that are lost."""
    chosen = settings(samples_per_prompt=2)
    evaluate(pair, LetterTask(), examples(5), ["target"], chosen, output=tmp_path)
    task = LetterTask()
    records = evaluate(pair, task, examples(5), ["static:0.5"], chosen, output=tmp_path)
    assert [record["method"] for record in records] == ["static:0.5", "target"]
    assert records[0]["reference"] == "target"
    assert task.num_calls == 4
    assert timeless(records[::-1]) == timeless([record for record in whole[0] if record["method"] in FEW])


@pytest.mark.parametrize(("stop_strings", "pad_is_eos"), [([], True), (["q", "Z"], False)])
def test_greedy_lossless_is_plain_decoding(pair, tmp_path, stop_strings, pad_is_eos):
    """Catches lengths that count padding or omit the EOS, in plain decoding."""
    if pad_is_eos:
        pair = Pair(pair.target, pair.draft, tiny_pair().tokenizer)
        pair.tokenizer.pad_token = pair.tokenizer.eos_token
    task = LetterTask(stop_strings=stop_strings, max_new_tokens=16)
    records = evaluate(pair, task, examples(6), ["target", "lossless"], settings(temperature=0), output=tmp_path)
    for column in ("text", "tokens", "score"):
        found = rows(tmp_path, column)
        assert [found["target", batch, 0] for batch in range(2)] == [found["lossless", batch, 0] for batch in range(2)]
    lengths = [length for part in rows(tmp_path, "tokens").values() for length in part]
    assert min(lengths) < max(lengths) == 16  # some rows end early
    assert records[1]["quality_drop"] == 0


def test_seeds_depend_on_prompt_and_sample_only(pair, whole):
    """Catches two samples of one prompt with the same seed, and methods with different seeds."""
    texts = rows(whole[1], "text")
    assert texts["target", 0, 0] != texts["target", 0, 1]
    # w = 1/2 by a head and by a constant: one seed, one text
    calls = [(batch, sample) for batch in (0, 1) for sample in (0, 1)]
    assert all(texts[("diversed", *call)] == texts[("static:0.5", *call)] for call in calls)
    seeds = {settings(seed=seed).call_seed(b, s) for seed in range(3) for b in range(5) for s in range(5)}
    assert len(seeds) == 75
    assert all(0 <= seed < 2**63 for seed in seeds)
