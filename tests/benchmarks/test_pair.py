"""`benchmarks/pair.py` on a tiny pair: which prompts are measured, what is pooled, kept and compared."""

import argparse
import contextlib
import itertools
import json
import shutil
import sys
from pathlib import Path

import pytest

from benchmarks import pair as pair_study
from hf_diversed import load_demo_pair
from hf_diversed.evaluation import read_results
from hf_diversed.evaluation.decoder import Decoder, Method, Sampling, encode
from hf_diversed.files import append_lines
from hf_diversed.generation.runner import RaggedModel
from hf_diversed.tasks import PromptedTask, get_task
from hf_diversed.tasks.summaries import rouge2
from hf_diversed.verifiers.names import LOSSLESS, PLAIN
from hf_diversed.zoo import load_pair
from tests.tiny import first_layers


GREEDY = Sampling(temperature=0.0, max_new_tokens=6)


def write_lines(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run the script with options on four problems, and read its report."""
    pair = load_demo_pair()
    pair.tokenizer.chat_template = "{% for message in messages %}{{ message.content }}\n{% endfor %}Answer:"
    for name, layers in (("target", 2), ("draft", 1)):
        first_layers(pair.target, layers).save_pretrained(tmp_path / name)
        pair.tokenizer.save_pretrained(tmp_path / name)
    problems = [{"question": f"What is {10**n} and {n}?", "answer": f"#### {10**n + n}"} for n in range(4)]
    write_lines(tmp_path / "gsm8k", problems)
    given = f"--target {tmp_path}/target --draft {tmp_path}/draft --output {tmp_path}/out --num-examples 2".split()
    given += ["--batch-size", "2", "--max-new-tokens", "6", "--dtype", "float32"]

    def run(*options: str, name: str = "gsm8k") -> dict:
        monkeypatch.setattr(sys, "argv", ["pair.py", *given, "--data", f"gsm8k={tmp_path / 'gsm8k'}", *options])
        pair_study.main()
        return json.loads((tmp_path / "out" / f"qwen-coder-{name}.json").read_text())

    return run


def test_parts_are_pooled_and_kept(run, tmp_path, monkeypatch):
    """Catches repeated prompts or batches, a pool of one part only, and copies with completions."""
    both = run("--methods", f"{PLAIN},{LOSSLESS}")
    mixed = run("--methods", PLAIN, "--parts", "2")
    assert [(row["method"], row["n"]) for row in mixed["records"]] == [(PLAIN, 4), (LOSSLESS, 2)]
    assert mixed["records"][1] == both["records"][1]
    report = run("--methods", f"{PLAIN},{LOSSLESS}", "--parts", "2")
    assert [(row["method"], row["n"]) for row in report["records"]] == [(PLAIN, 4), (LOSSLESS, 4)]
    parts = [read_results(tmp_path / "out" / "gsm8k" / f"part-{part}") for part in range(2)]
    assert parts[0].header["data"] != parts[1].header["data"]
    rows = [part.entries[LOSSLESS, 0, 0]["rows"] for part in parts]
    accepted, drafted = (sum(sum(row[name]) for row in rows) for name in ("num_accepted", "num_drafted"))
    assert report["records"][1]["acceptance_rate"] == pytest.approx(accepted / drafted)
    assert len(report["provenance"]["sessions"]) == 3  # one for the first part, two for the second
    monkeypatch.setattr(pair_study, "load", lambda _: pytest.fail("the models are loaded"))
    again = run("--report-only", "--parts", "2", "--copy-batches", str(tmp_path / "copies"))
    assert again["records"] == report["records"]
    assert again["provenance"]["evaluations"] == [part.header for part in parts]
    copied = read_results(tmp_path / "copies" / "gsm8k" / "part-0").entries[LOSSLESS, 0, 0]["rows"]
    assert copied == {name: values for name, values in rows[0].items() if name != "text"}


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
    """Catches a comparison with the target alone, which drafts nothing, and one on parts that one has not finished."""
    load_demo_pair().heads["math"].save_pretrained(tmp_path / "head")
    head, cascade = f"diversed:{tmp_path / 'head'}@0", "spec_cascade:token_v3:0.5"
    compared, exact = run("--methods", f"{PLAIN},{LOSSLESS},{head}")["comparisons"]
    assert (compared["method"], compared["minus"]) == (head, LOSSLESS)
    assert (exact["method"], exact["minus"]) == (head, f"{PLAIN}, {LOSSLESS}")
    assert "acceptance_rate" not in exact
    assert compared["acceptance_rate"] > 0.0  # at strictness 0, every draft token is accepted
    more = run("--methods", f"{PLAIN},{cascade}", "--parts", "2")["comparisons"]
    pairs = [(row["method"], row["minus"]) for row in more]
    with_exact = [(method, f"{PLAIN}, {LOSSLESS}") for method in (head, cascade)]
    assert sorted(pairs) == sorted([(head, LOSSLESS), (head, cascade), (cascade, LOSSLESS), *with_exact])
    assert compared in more  # on the first part, which both have finished


def test_prompts_are_held_out(tmp_path):
    """Catches prompts that a head may be trained on, the order of the file, and lost records."""
    records = {
        "mbpp": [{"text": "", "code": "", "test_list": ["assert True"], "task_id": n} for n in range(1, 975)],
        "gsm8k": [{"question": str(n), "answer": f"#### {n}", "task_id": n} for n in range(1200)],
        "scitldr": [{"abstract": str(n), "tldr": ["A."], "task_id": n} for n in range(800)],
    }
    files = {name: write_lines(tmp_path / name, rows) for name, rows in records.items()}
    chosen = {name: [row["task_id"] for row in pair_study.chosen_records(name, files[name])] for name in files}
    assert sorted(chosen["mbpp"]) == list(range(11, 511)) != chosen["mbpp"]
    assert sorted(chosen["gsm8k"]) == list(range(200, 1200))
    splits = pair_study.split_scitldr(records["scitldr"])
    numbers = {name: [row["task_id"] for row in rows] for name, rows in splits.items()}
    assert {name: len(split) for name, split in numbers.items()} == {"train": 320, "validation": 80, "test": 400}
    joined = list(itertools.chain(*numbers.values()))
    assert sorted(joined) == list(range(800)) != joined
    assert sorted(chosen["scitldr"]) == sorted(numbers["test"])
    with pytest.raises(ValueError, match="800 records, got 799"):
        pair_study.split_scitldr(records["scitldr"][1:])


def test_articles_of_spec_bench(tmp_path):
    """Catches prompts of other categories, and an instruction that stands twice."""
    rows = [
        {"category": "qa", "turns": ["Why?"]},
        {"category": "summarization", "turns": ["Summarize: It rained."]},
        {"category": "summarization", "turns": ["Summarize: We measured it."]},
    ]
    found = pair_study.chosen_records("cnndm", write_lines(tmp_path / "specbench", rows))
    assert [record["article"] for record in found] == ["It rained.", "We measured it."]


def test_the_target_is_decoded_without_draft_tokens(run, tmp_path):
    """Catches draft tokens in `target`, and completions that differ from those of transformers."""
    run("--methods", PLAIN, "--temperature", "0", name="gsm8k-t0")
    rows = read_results(tmp_path / "out" / "gsm8k-t0" / "part-0").entries[PLAIN, 0, 0]["rows"]
    assert rows["num_rounds"] == rows["tokens"]
    pair = load_pair(str(tmp_path / "target"), str(tmp_path / "draft"), "cpu", dtype="float32")
    records = pair_study.chosen_records("gsm8k", tmp_path / "gsm8k")
    task, decode = PromptedTask(get_task("gsm8k"), pair.tokenizer, chat=True), Decoder(pair, GREEDY)
    prompts = encode(pair.tokenizer, [task.prompt(records[index]) for index in rows["prompt"]], False)
    found = decode(Method(PLAIN), prompts, seed=0)
    assert [decode.text(ids) for ids in found.tokens] == rows["text"]


def test_methods_are_timed_beside_the_target(run):
    """Catches a missing method or batch size, and times of another batch or sample."""
    options = ["--seconds", "--gamma", "2", "--batch-sizes", "1,2", "--samples-per-prompt", "2"]
    options += ["--temperature", "0.7", "--top-k", "1"]
    (record,) = run(*options, "--methods", f"{PLAIN},{LOSSLESS}", name="speed-gsm8k-t0.7-k1")["records"]
    assert (record["num_assistant_tokens"], record["top_k"]) == (2, 1)
    methods = [{PLAIN, "upstream", "transformers", LOSSLESS}, {PLAIN, LOSSLESS}]  # transformers' at batch size 1 only
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


def test_a_report_of_summaries_follows_from_its_copies(tmp_path):
    """Catches scores that are lost with the texts or are of another part's records, and a comparison with the nearest
    fixed weight, or with weights that accept less or more only."""
    rows = [{"abstract": f"Abstract {n}.", "tldr": [f"one two three four {n}"]} for n in range(800)]
    arguments = argparse.Namespace(data={"scitldr": str(write_lines(tmp_path / "scitldr", rows))}, parts=2)
    vars(arguments).update(num_examples=2, output=tmp_path / "out", device="cpu", temperature=1.0, top_k=0, top_p=1.0)
    methods = {LOSSLESS: (4, "one two"), "lenience:0.1": (7, "one two three"), "static:0.7": (6, "one two")}
    methods["static:0.3"] = (8, "zwei")
    for part in range(2):
        references = [record["tldr"][0] for record in pair_study.part_records("scitldr", part, arguments)]
        header = {"task": "scitldr", "metric": "rouge2", "n": 2, "num_batches": 1, "max_new_tokens": 9}
        header |= {"target": {"name": "a"}, "draft": {"name": "b"}}
        lines = [header | {"settings": {"samples_per_prompt": 1, "seed": part}}, {"provenance": {"time": "2026"}}]
        for method, (accepted, words) in methods.items():
            texts = [f"{words} {reference.split()[-1]}" for reference in references]
            rows = {"prompt": [0, 1], "text": texts, "tokens": [4, 4], "cut_off": [False, False]}
            rows |= {"num_rounds": [2, 2], "num_drafted": [10, 10], "num_accepted": [accepted] * 2}
            rows |= {"num_rejected": [1, 1], "score": list(map(rouge2, texts, references))}
            lines.append(
                {"method": method, "definition": method, "batch": 0, "sample": 0, "seconds": 1.0, "rows": rows}
            )
        folder = pair_study.part_folder("scitldr", part, arguments)
        folder.mkdir(parents=True)
        append_lines(folder / "batches-0.jsonl", lines)
    pair_study.write_report("scitldr", arguments)
    report = json.loads((tmp_path / "out" / "qwen-coder-scitldr.json").read_text())
    records = {record["method"]: record for record in report["records"]}
    lossless, lenience, zwei = 6 / 8, 8 / 9, 2 / 7  # ROUGE-1: words of the text in a summary of five words
    assert records["lenience:0.1"]["rouge1"] == pytest.approx(lenience)
    assert records["static:0.3"]["unknown_word"] == 1.0
    difference = next(row for row in report["comparisons"] if row["minus"] == LOSSLESS and "lenience" in row["method"])
    assert difference["rouge1"] == pytest.approx(lenience - lossless)
    (above,) = report["at_equal_acceptance"]  # lossless accepts less than both weights
    assert (above["method"], above["minus"], above["n"]) == ("lenience:0.1", "static", 4)
    assert above["rouge1"] == pytest.approx(lenience - (lossless + zwei) / 2)
    assert above["quality"] == pytest.approx(4 / 7 - (2 / 6 + 0.0) / 2)
    pair_study.copy_batches(tmp_path / "out", tmp_path / "copies", arguments)
    copies = [read_results(tmp_path / "copies" / "scitldr" / f"part-{part}") for part in range(2)]
    assert "text" not in copies[1].entries[LOSSLESS, 0, 0]["rows"]
    computed = [pair_study.without_times(record) for record in pair_study.summarize_parts(copies)]
    assert json.loads(json.dumps(computed)) == report["records"]


@pytest.mark.parametrize(("has_instructions", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_default_dtype_suits_the_cpu(has_instructions, dtype, monkeypatch):
    """Catches bfloat16 on a CPU without instructions for it, which then has no packed layers."""
    monkeypatch.setattr(pair_study, "has_bfloat16_instructions", lambda: has_instructions)
    monkeypatch.setattr("sys.argv", ["pair"])
    assert pair_study._arguments().dtype == dtype
