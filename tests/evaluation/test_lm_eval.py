"""The harness's own command on the embedded pair, and errors of the model class."""

import json
import sys
import warnings
from pathlib import Path

import datasets
import pytest
import torch

from hf_diversed.tasks import get_task, load_records
from hf_diversed.zoo.loader import WEIGHTS
from tests.commands import succeed


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what importing the harness warns of is not ours to fix
    from lm_eval.api.instance import Instance
    from lm_eval.tasks import TaskManager

    from hf_diversed.evaluation import lm_eval as harness


NUM_PROMPTS = 16
TASK = """
task: word_problems
dataset_path: json
dataset_kwargs: {data_files: {test: RECORDS}}
output_type: generate_until
test_split: test
doc_to_text: prompt
doc_to_target: answer
generation_kwargs: {until: ["\\nQuestion:"], max_gen_toks: 128, do_sample: false}
filter_list:
  - name: final-answer
    filter:
      - {function: regex, regex_pattern: 'The answer is (\\d+)\\.\\s*$'}
      - {function: take_first}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
"""


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("records") / "records.jsonl"
    drawn = load_records(get_task("math"), "test", NUM_PROMPTS, seed=0)
    path.write_text("".join(json.dumps(record) + "\n" for record in drawn))
    return path


PAIR = {"pretrained": str(WEIGHTS / "target"), "assistant": str(WEIGHTS / "draft")}
PAIR |= {"tokenizer": str(WEIGHTS / "tokenizer"), "dtype": "float32"}


def language_model(**arguments) -> harness.DiversedLM:
    return harness.DiversedLM(**PAIR | {"device": "cpu"} | arguments)


def requests(records: Path, count: int, task: str = "word_problems", **options) -> list[Instance]:
    prompts = [json.loads(line)["prompt"] for line in records.read_text().splitlines()[:count]]
    options = {"until": ["\nQuestion:"], "max_gen_toks": 24} | options
    return [Instance("generate_until", {}, (text, options), 0, (task, index, 1)) for index, text in enumerate(prompts)]


def test_command_agrees_with_evaluate(records, tmp_path, monkeypatch):
    """Catches a draft model, a verifier or stop strings that do not reach the loop, prompts that are encoded
    differently, answers in another order, statistics that count removed tokens, and a results file without them."""
    (tmp_path / "words.yaml").write_text(TASK.replace("RECORDS", str(records)))
    options = "run --model hf-diversed --tasks word_problems --include_path . --device cpu --batch_size 4"
    models = ",".join(f"{name}={value}" for name, value in PAIR.items())
    monkeypatch.setattr(sys, "argv", ["lm_eval", *options.split(), "--output_path", "out", "--model_args", models])
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    # The harness's own tasks are not read, which would take 20 seconds.
    monkeypatch.setattr(TaskManager.__init__, "__defaults__", (None, None, False, None))
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        harness.cli_evaluate()
    (written,) = (tmp_path / "out").rglob("results_*.json")
    found = json.loads(written.read_text())
    stats = found["config"]["hf_diversed"]["tasks"]["word_problems"]

    output = tmp_path / "evaluation"
    options = f"--task math --methods lossless --temperature 0 --batch-size 4 --num-examples {NUM_PROMPTS}"
    succeed("evaluate", *options.split(), "--data-file", str(records), "--output", str(output))
    (expected,) = json.loads((output / "evaluation.json").read_text())["records"]
    assert 0 < expected["quality"] < 1
    assert found["results"]["word_problems"]["exact_match,final-answer"] == pytest.approx(expected["quality"])
    assert stats["num_samples"] == NUM_PROMPTS
    assert stats["draft_acceptance_rate"] == pytest.approx(expected["acceptance_rate"])
    assert stats["mean_acceptance_length"] == pytest.approx(expected["block_efficiency"])


def test_statistics_by_task(records):
    """Catches statistics stored under another task, answers of other tasks, and lost options."""
    lm = language_model(method="static:0.5", num_assistant_tokens=3, batch_size=2)
    sampled = {"do_sample": True, "temperature": 1.0, "top_k": 0}
    greedy, drawn = requests(records, 3, "greedy"), requests(records, 2, "drawn", **sampled)
    mixed = [greedy[0], drawn[0], greedy[1], drawn[1], greedy[2]]
    answers = lm.generate_until(mixed, disable_tqdm=True)
    assert [answers[0], answers[2], answers[4]] == lm.generate_until(greedy, disable_tqdm=True)
    info = lm.get_model_info()["hf_diversed"]
    assert info["method"] == "static:0.5"
    assert {task: stats["num_samples"] for task, stats in info["tasks"].items()} == {"greedy": 6, "drawn": 2}
    for stats in info["tasks"].values():
        assert stats["mean_weight"] == pytest.approx(0.5)
        assert 0 < stats["draft_acceptance_rate"] < 1
        assert 1 < stats["mean_acceptance_length"] <= 4
        assert len(stats["num_accepted_tokens_per_pos"]) == 3


def test_a_row_stops_at_its_own_stop(records):
    """Catches rows that continue until the last one of the batch stops, and would count in the statistics."""
    lm = language_model(batch_size=4)
    assert lm.get_model_info()["hf_diversed"]["num_assistant_tokens"] == 5  # the default is recorded
    alone = language_model(batch_size=1)
    assert [model.options["num_assistant_tokens"] for model in (lm, alone)] == [5, 5]  # not the schedule of `generate`
    # Letters that come at different places in different rows.
    asked = requests(records, 4, until=["er", "."], max_gen_toks=32)
    assert lm.generate_until(asked, disable_tqdm=True) == alone.generate_until(asked, disable_tqdm=True)
    assert lm.stats["word_problems"].num_emitted == alone.stats["word_problems"].num_emitted < 4 * 32


@pytest.mark.parametrize("method", ["target", "lossless"])
def test_a_stop_string_does_not_begin_in_the_prompt(records, method):
    """Catches answers that end because the prompt contains the beginning of a stop string, and "target" with a draft
    model."""
    lm = language_model(method=method, batch_size=1)
    (answer,) = lm.generate_until(requests(records, 1), disable_tqdm=True)
    (asked,) = requests(records, 1)
    stop = asked.args[0][-1] + answer[:4]
    assert stop not in answer
    assert lm.generate_until(requests(records, 1, until=[stop]), disable_tqdm=True) == [answer]
    assert (lm.stats["word_problems"].num_rounds == 0) == (method == "target")


def test_the_strictness_reaches_the_head(records):
    """Catches a strictness that is dropped, and a draft model in another dtype."""
    head = str(WEIGHTS / "heads" / "math")
    models = [
        language_model(head=head, method=method, batch_size=4, dtype="bfloat16")
        for method in ("diversed@0", None, "diversed@1")
    ]
    rates = []
    for lm in models:
        assert lm.options["assistant_model"].dtype == lm.model.dtype
        lm.generate_until(requests(records, 4), disable_tqdm=True)
        rates.append(lm.stats["word_problems"].acceptance_rate)
    assert rates[0] == 1.0 > rates[2]
    assert [lm.method.verifier.strictness for lm in models] == [[0.0], [0.5], [1.0]]


def test_likelihoods_are_refused(monkeypatch):
    """Catches a likelihood of the target alone that is reported for a verifier."""
    lm = language_model()
    monkeypatch.setattr(lm.model, "forward", lambda **_: pytest.fail("a forward pass"))
    request = Instance("loglikelihood", {}, ("Question:", " 2"), 0, ("hellaswag", 0, 1))
    with pytest.raises(ValueError, match="generation tasks only, but hellaswag needs"):
        lm.loglikelihood([request])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"method": "nonsense", "assistant": "org/draft"}, "unknown verifier 'nonsense'"),
        ({}, "needs a draft model"),
    ],
)
def test_arguments_that_do_not_fit(arguments, words, monkeypatch):
    """Catches errors that are reported only after the models have been loaded, or never."""
    monkeypatch.setattr(harness.HFLM, "__init__", lambda *_, **__: pytest.fail("the model is loaded"))
    with pytest.raises(ValueError, match=words):
        harness.DiversedLM("org/target", **arguments)
