"""`benchmarks/pair.py` on a tiny pair: which prompts are measured, what is pooled, kept and compared."""

import argparse
import contextlib
import itertools
import json
import shutil
import sys

import pytest

from benchmarks import pair as pair_study
from hf_diversed import load_demo_pair
from hf_diversed.evaluation import read_results
from hf_diversed.files import append_lines
from hf_diversed.generation.runner import RaggedModel
from hf_diversed.tasks import PromptedTask, get_task
from hf_diversed.tasks.summaries import rouge2
from hf_diversed.verifiers.names import LOSSLESS, PLAIN
from hf_diversed.zoo import load_pair
from tests.tiny import first_layers


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run the script with options on four problems, and read its report."""
    pair = load_demo_pair()
    pair.tokenizer.chat_template = "{% for message in messages %}{{ message.content }}\n{% endfor %}Answer:"
    for name, layers in (("target", 2), ("draft", 1)):
        first_layers(pair.target, layers).save_pretrained(tmp_path / name)
        pair.tokenizer.save_pretrained(tmp_path / name)
    problems = [{"question": f"What is {10**n} and {n}?", "answer": f"#### {10**n + n}"} for n in range(4)]
    (tmp_path / "gsm8k").write_text("".join(json.dumps(row) + "\n" for row in problems))
    given = f"--target {tmp_path}/target --draft {tmp_path}/draft --output {tmp_path}/out --num-examples 2".split()
    given += ["--batch-size", "2", "--max-new-tokens", "6", "--dtype", "float32"]

    def run(*options: str, name: str = "gsm8k") -> dict:
        monkeypatch.setattr(sys, "argv", ["pair.py", *given, "--data", f"gsm8k={tmp_path / 'gsm8k'}", *options])
        pair_study.main()
        return json.loads((tmp_path / "out" / f"qwen-coder-{name}.json").read_text())

    return run


def without_text(rows: dict) -> dict:
    return {name: values for name, values in rows.items() if name != "text"}


def test_parts_are_pooled_and_kept(run, tmp_path, monkeypatch):
    """Catches repeated prompts or batches, a pool of one part only, copies with completions, and one dtype for two."""
    first = run("--methods", PLAIN)
    assert [(row["method"], row["n"]) for row in first["records"]] == [(PLAIN, 2)]
    both = run("--methods", f"{PLAIN},{LOSSLESS}")
    mixed = run("--methods", PLAIN, "--parts", "2")
    assert [(row["method"], row["n"]) for row in mixed["records"]] == [(PLAIN, 4), (LOSSLESS, 2)]
    assert mixed["records"][1] == both["records"][1]
    report = run("--methods", f"{PLAIN},{LOSSLESS}", "--parts", "2")
    assert [(row["method"], row["n"]) for row in report["records"]] == [(PLAIN, 4), (LOSSLESS, 4)]
    files = sorted((tmp_path / "out").rglob("batches-0.jsonl"))
    lines = [json.loads(line) for path in files for line in path.read_text().splitlines()[1:]]
    entries = [line for line in lines if "method" in line]
    assert len({json.loads(path.read_text().splitlines()[0])["data"] for path in files}) == len(files) == 2
    rows = [entry["rows"] for entry in entries if entry["method"] == LOSSLESS]
    accepted, drafted = (sum(sum(row[name]) for row in rows) for name in ("num_accepted", "num_drafted"))
    assert report["records"][1]["acceptance_rate"] == pytest.approx(accepted / drafted)
    sizes = [path.stat().st_size for path in files]
    copies = ("--copy-batches", str(tmp_path / "copies"))
    assert run("--methods", f"{PLAIN},{LOSSLESS}", "--parts", "2", *copies)["records"] == report["records"]
    assert [path.stat().st_size for path in files] == sizes
    copied = read_results(tmp_path / "copies" / "gsm8k" / "part-0").entries
    original = read_results(tmp_path / "out" / "gsm8k" / "part-0").entries
    assert copied == {key: entry | {"rows": without_text(entry["rows"])} for key, entry in original.items()}
    assert [header["n"] for header in report["provenance"]["evaluations"]] == [4]
    assert len(report["provenance"]["sessions"]) == 4  # two for each part
    files[1].write_text(files[1].read_text().replace('"dtype": "float32"', '"dtype": "float64"'))
    monkeypatch.setattr(pair_study, "load", lambda _: pytest.fail("the models are loaded"))
    report = run("--report-only", "--parts", "2")
    headers = [(header["n"], header["target"]["dtype"]) for header in report["provenance"]["evaluations"]]
    assert headers == [(2, "float32"), (2, "float64")]


@pytest.mark.parametrize("batch_size", ["2", "1"])
def test_prefill_is_shared_without_a_change(run, tmp_path, monkeypatch, batch_size):
    """Catches a repeated prefill of the same prompts, and copied keys and values that change the results."""
    forwards, prefill_columns = [], RaggedModel.prefill_columns
    monkeypatch.setattr(RaggedModel, "prefill_columns", lambda *args: (forwards.append(1), prefill_columns(*args)))
    methods, folder = [LOSSLESS, "lenience:0.3", "static:0.5"], tmp_path / "out" / "gsm8k" / "part-0"
    options = ("--methods", ",".join(methods), "--batch-size", batch_size)
    run(*options)
    assert len(forwards) == {"1": 4, "2": 2}[batch_size]  # of the target and of the draft; the first one warms up
    entries = read_results(folder).entries
    shared = {key: entry["rows"] for key, entry in entries.items()}
    assert len({tuple(entry["rows"]["text"]) for entry in entries.values()}) > 1
    shutil.rmtree(folder)
    monkeypatch.setattr(pair_study, "shared_prefill", contextlib.nullcontext)
    run(*options)
    assert {key: entry["rows"] for key, entry in read_results(folder).entries.items()} == shared


def test_heads_are_compared_with_the_other_methods(run, tmp_path):
    """Catches a comparison with the target alone, which drafts nothing, and one with swapped signs."""
    load_demo_pair().heads["math"].save_pretrained(tmp_path / "head")
    head = f"diversed:{tmp_path / 'head'}@0"  # accepts every draft token
    report = run("--methods", f"{PLAIN},{LOSSLESS},{head}")
    compared, exact = report["comparisons"]
    assert (compared["method"], compared["minus"]) == (head, LOSSLESS)
    assert (exact["method"], exact["minus"]) == (head, f"{PLAIN}, {LOSSLESS}")
    assert "acceptance_rate" not in exact
    scores = [record["quality"] for record in report["records"]]
    assert exact["quality"] == pytest.approx(scores[2] - (scores[0] + scores[1]) / 2)
    cascade = "spec_cascade:token_v3:0.5"
    more = run("--methods", f"{PLAIN},{cascade}", "--parts", "2")["comparisons"]
    pairs = [(row["method"], row["minus"]) for row in more]
    with_exact = [(method, f"{PLAIN}, {LOSSLESS}") for method in (head, cascade)]
    assert sorted(pairs) == sorted([(head, LOSSLESS), (head, cascade), (cascade, LOSSLESS), *with_exact])
    assert compared["n"] == 2
    assert compared in more  # on the first part, which both have finished
    assert compared["acceptance_rate"] == pytest.approx(1.0 - report["records"][1]["acceptance_rate"])
    assert compared["acceptance_rate"] > 0.0


def test_prompts_are_held_out(tmp_path):
    """Catches training problems of MBPP, and problems of GSM8K that a head may be trained on."""
    mbpp = [{"text": "", "code": "", "test_list": ["assert True"], "task_id": n} for n in range(1, 975)]
    gsm8k = [{"question": str(n), "answer": f"#### {n}"} for n in range(1200)]
    for name, rows in (("mbpp", mbpp), ("gsm8k", gsm8k)):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    chosen = [row["task_id"] for row in pair_study.chosen_records("mbpp", tmp_path / "mbpp")]
    assert sorted(chosen) == list(range(11, 511)) != chosen
    chosen = [int(row["question"]) for row in pair_study.chosen_records("gsm8k", tmp_path / "gsm8k")]
    assert sorted(chosen) == list(range(200, 1200))


def test_abstracts_are_split(tmp_path):
    """Catches test prompts that a head may be trained on, a split by the order of the file, and lost records."""
    records = [{"abstract": str(n), "tldr": ["A."]} for n in range(800)]
    (tmp_path / "scitldr").write_text("".join(json.dumps(row) + "\n" for row in records))
    splits = pair_study.split_scitldr(records)
    numbers = {name: [int(row["abstract"]) for row in rows] for name, rows in splits.items()}
    assert {name: len(split) for name, split in numbers.items()} == {"train": 320, "validation": 80, "test": 400}
    joined = list(itertools.chain(*numbers.values()))
    assert sorted(joined) == list(range(800)) != joined
    chosen = [int(row["abstract"]) for row in pair_study.chosen_records("scitldr", tmp_path / "scitldr")]
    assert sorted(chosen) == sorted(numbers["test"])
    with pytest.raises(ValueError, match="800 records, got 799"):
        pair_study.split_scitldr(records[1:])


def test_the_target_is_decoded_without_draft_tokens(run, tmp_path):
    """Catches draft tokens in `target`, and completions that differ from those of transformers."""
    run("--methods", PLAIN, "--temperature", "0", name="gsm8k-t0")
    (rows,) = (entry["rows"] for entry in read_results(tmp_path / "out" / "gsm8k-t0" / "part-0").entries.values())
    assert rows["num_rounds"] == rows["tokens"]
    pair = load_pair(str(tmp_path / "target"), str(tmp_path / "draft"), "cpu", dtype="float32")
    records = pair_study.chosen_records("gsm8k", tmp_path / "gsm8k")[:2]
    task = PromptedTask(get_task("gsm8k"), pair.tokenizer, chat=True)
    expected = {}
    for index, record in enumerate(records):
        inputs = pair.tokenizer(task.prompt(record), return_tensors="pt", add_special_tokens=False)
        ids = pair.target.generate(**inputs, do_sample=False, max_new_tokens=6)[0, inputs["input_ids"].shape[1] :]
        expected[index] = pair.tokenizer.decode(ids, skip_special_tokens=True)
    assert dict(zip(rows["prompt"], rows["text"])) == expected


def test_methods_are_timed_beside_the_target(run):
    """Catches a missing method or batch size, and times of another batch or sample."""
    options = ["--seconds", "--gamma", "2", "--batch-sizes", "1,2", "--samples-per-prompt", "2"]
    options += ["--temperature", "0.7", "--top-k", "1"]
    (record,) = run(*options, "--methods", f"{PLAIN},{LOSSLESS}", name="speed-gsm8k-t0.7-k1")["records"]
    assert (record["num_assistant_tokens"], record["top_k"]) == (2, 1)
    methods = [{PLAIN, "upstream", "transformers", LOSSLESS}, {PLAIN, LOSSLESS}]  # batch size 1 only
    assert [set(part["methods"]) for part in record["seconds"]] == methods
    for part, num_batches in zip(record["seconds"], (2, 1)):
        for timed in part["methods"].values():
            assert [len(turn["tokens"]) for turn in timed["turns"]] == [num_batches] * 2
            assert timed["turns"][0]["tokens"] == part["methods"][PLAIN]["turns"][1]["tokens"]  # top-k 1: same answers


def test_summaries_have_more_scores_and_checks():
    """Catches checks of another answer, three words that count as a repetition, short or known words that count as
    unknown, and records of another part."""
    records = [
        {"abstract": "We sort.", "tldr": ["we sort numbers fast", "sorting"]},
        {"abstract": "", "tldr": ["x y"]},
    ]
    texts = ["We sort numbers fast", "we sort a we sort b", "a b c d e a b c d", "Underminstimate xyz"]
    rows = {"prompt": [0, 0, 0, 1], "text": texts, "score": [1.0, 0.25, 0.0, 0.0]}
    pair_study.annotate(rows, records, {"sort", "number", "fast"})
    assert rows["repeated"] == [0, 0, 1, 0]
    assert rows["unknown_word"] == [0, 0, 0, 1]
    assert rows["rouge1"][:2] == [1.0, pytest.approx(2 * (2 / 6) * (2 / 4) / (2 / 6 + 2 / 4))]
    assert rows["rougeL"][3] == 0.0
    with pytest.raises(ValueError, match="the scores are not those of these records"):
        pair_study.annotate(rows, records[::-1], set())


@pytest.fixture
def summaries(tmp_path):
    """Finished batches of two parts of SciTLDR, as `evaluate` writes them, and the arguments of the script."""
    records = [{"abstract": f"Abstract {n}.", "tldr": [f"one two three four {n}"]} for n in range(800)]
    (tmp_path / "scitldr").write_text("".join(json.dumps(row) + "\n" for row in records))
    arguments = argparse.Namespace(
        data={"scitldr": str(tmp_path / "scitldr")}, output=tmp_path / "out", num_examples=2, parts=2, device="cpu"
    )
    arguments.temperature, arguments.top_k, arguments.top_p = 1.0, 0, 1.0
    accepted = {LOSSLESS: 4, "lenience:0.1": 7, "static:0.7": 6, "static:0.3": 8}
    texts = {LOSSLESS: "one two", "lenience:0.1": "one two three", "static:0.7": "one two", "static:0.3": "zwei"}
    for part in range(2):
        chosen = pair_study.part_records("scitldr", part, arguments)
        settings = {"samples_per_prompt": 1, "seed": part}
        header = {"task": "scitldr", "metric": "rouge2", "n": 2, "num_batches": 1, "max_new_tokens": 9}
        header |= {"target": {"name": "a"}, "draft": {"name": "b"}, "settings": settings}
        lines = [header, {"provenance": {"time": "2026"}}]
        for method, text in texts.items():
            rows = {"prompt": [0, 1], "text": [text, text], "tokens": [4, 4], "cut_off": [False, False]}
            rows |= {"num_rounds": [2, 2], "num_drafted": [10, 10], "num_accepted": [accepted[method]] * 2}
            rows |= {"num_rejected": [1, 1], "weight_sum": [0.0, 0.0], "weight_count": [0, 0]}
            rows |= {"score": [rouge2(text, record["tldr"][0]) for record in chosen]}
            rows |= {"accepted_per_position": [[2], [2]]}
            entry = {"method": method, "definition": method, "batch": 0, "sample": 0, "seconds": 1.0, "rows": rows}
            lines.append(entry)
        folder = pair_study.part_folder("scitldr", part, arguments)
        folder.mkdir(parents=True)
        append_lines(folder / "batches-0.jsonl", lines)
    return arguments


def test_a_report_of_summaries_follows_from_its_copies(summaries, tmp_path):
    """Catches scores that are lost with the texts, and those of the first part's records for the second."""
    pair_study.write_report("scitldr", summaries)
    report = json.loads((tmp_path / "out" / "qwen-coder-scitldr.json").read_text())
    lenience = next(record for record in report["records"] if record["method"] == "lenience:0.1")
    assert lenience["rouge1"] == pytest.approx(2 * 3 / 8)  # three words of five
    difference = next(row for row in report["comparisons"] if row["minus"] == LOSSLESS and "lenience" in row["method"])
    assert difference["rouge1"] == pytest.approx(2 * 3 / 8 - 2 * 2 / 7)
    (above,) = report["at_equal_acceptance"]  # "zwei" has no word of the summary
    assert above["rouge1"] == pytest.approx(2 * 3 / 8 - (2 * 2 / 7 + 0) / 2)
    assert {record["method"]: record["unknown_word"] for record in report["records"]}["static:0.3"] == 1.0
    pair_study.copy_batches(tmp_path / "out", tmp_path / "copies", summaries)
    copies = [read_results(tmp_path / "copies" / "scitldr" / f"part-{part}") for part in range(2)]
    assert "text" not in copies[1].entries[LOSSLESS, 0, 0]["rows"]
    computed = [pair_study.without_times(record) for record in pair_study.summarize_parts(copies)]
    assert json.loads(json.dumps(computed)) == report["records"]


def test_quality_is_compared_at_equal_acceptance(summaries):
    """Catches a comparison with the nearest fixed weight, and with weights that accept less or more only."""
    parts = [read_results(pair_study.part_folder("scitldr", part, summaries)) for part in range(2)]
    (found,) = pair_study.at_equal_acceptance(parts)  # lossless accepts less than both weights
    two, three = rouge2("one two", "one two three four 1"), rouge2("one two three", "one two three four 1")
    assert (found["method"], found["minus"], found["n"]) == ("lenience:0.1", "static", 4)
    assert found["quality"] == pytest.approx(three - (two + 0.0) / 2)
