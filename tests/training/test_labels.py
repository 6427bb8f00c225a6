"""Labels of rejections against fresh forward passes, plain decoding, and interrupted runs."""

import dataclasses
import json
import math

import pytest
import torch

from hf_diversed import _compat, load_demo_pair
from hf_diversed.features import distribution_features, drafted_token_features
from hf_diversed.harness.pair import Pair
from hf_diversed.harness.prompts import left_padded
from hf_diversed.harness.sampling import Sampling
from hf_diversed.tasks import Task
from hf_diversed.training.labels import LabelRun, Labels, LabelSettings, cut, joined_cache, load_labels, make_labels
from tests.tiny import tiny_model
from tests.training import runs


PROMPTS = runs.PROMPTS[:6]
RECORDS = runs.rows(PROMPTS)


class Letters(Task):
    """Scores the share of letters, and keeps the completions that were scored."""

    name, metric, stop_strings = "letters", "letters", ()

    def __init__(self, fail_after: int | None = None):
        self.seen: list[str] = []
        self.fail_after = fail_after

    def score_batch(self, completions, records):
        if self.fail_after is not None and len(self.seen) >= self.fail_after:
            raise RuntimeError("interrupted")
        self.seen += completions
        return runs.letters(completions)


@pytest.fixture(scope="module")
def pair() -> Pair:
    return Pair(*runs.pair(), runs.tokenizer())


def sampling(temperature: float = 1.0) -> Sampling:
    return Sampling(temperature, num_assistant_tokens=3, max_new_tokens=10, batch_size=3)


TWICE = LabelSettings(continuations=2)


def label(pair, path, task=None, settings=TWICE, **changes):
    task = Letters() if task is None else task
    return make_labels(pair, task, PROMPTS, RECORDS, sampling(**changes), settings, path, progress=False)


@pytest.fixture(scope="module")
def finished(pair, tmp_path_factory) -> tuple[Labels, str]:
    """Labels of an uninterrupted run, and the text of their file."""
    path = tmp_path_factory.mktemp("finished") / "labels.jsonl"
    return label(pair, path), path.read_text()


@torch.no_grad()
def test_inputs_are_those_of_the_rejected_token(pair):
    """Catches inputs of the residual token, of another position, or a state before the draft token is read."""
    run = LabelRun(pair, Letters(), sampling(), LabelSettings())
    prompts = [list(ids) for ids in pair.tokenizer(PROMPTS)["input_ids"]]
    chosen, completions = run.rejections(prompts, seed=0)
    assert len(chosen) > len(prompts)
    for found in chosen:
        prefix = prompts[found["row"]] + completions[found["row"]][: found["position"]]
        kept, replaced = found["tokens"]
        out = pair.target(torch.tensor([[*prefix, kept]]), output_hidden_states=True)
        p = out.logits[0, -2].softmax(-1)
        q = pair.draft(torch.tensor([prefix])).logits[0, -1].softmax(-1)
        assert p[kept] < q[kept]
        assert p[replaced] > q[replaced]
        assert completions[found["row"]][found["position"]] == replaced
        expected = {
            "features": distribution_features(p, q),
            "token": drafted_token_features(p, q, torch.tensor(kept)),
            "target_after": out.hidden_states[-1][0, -1],
        }
        for name, values in expected.items():
            torch.testing.assert_close(torch.tensor(found["inputs"][name]), values, rtol=2e-3, atol=2e-3)
        there = torch.tensor(found["inputs"]["lookahead"])[:, -1]
        assert there.sum() <= 2  # of 3 draft tokens
        assert there.diff().max() <= 0


def greedy(pair, ids: torch.Tensor, count: int) -> torch.Tensor:
    """Ids `[1, S]` and `count` tokens of the target after them; a random model also emits the id of padding."""
    if count == 0:
        return ids[0]
    mask = torch.ones_like(ids)
    return pair.target.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=count)[0]


def test_branches_are_those_of_plain_greedy_decoding(pair, tmp_path):
    """Catches branches that are exchanged or continued from the wrong text, too long or by the draft model."""
    task = Letters()
    path = tmp_path / "new" / "labels.jsonl"
    labels = label(pair, path, task, LabelSettings(continuations=1), temperature=0.0)
    lines = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    found = [label for line in lines for label in line["labels"]]
    assert len(found) == len(labels.cost) > 3
    for index, item in enumerate(found):
        ids = pair.tokenizer(PROMPTS[item["prompt"]], return_tensors="pt").input_ids
        plain = greedy(pair, ids, 10)[ids.shape[1] :]
        assert int(plain[item["position"]]) == item["tokens"][1]
        start = torch.cat([ids[0], plain[: item["position"]], torch.tensor(item["tokens"][:1])])[None]
        ended = item["tokens"][0] == pair.target.generation_config.eos_token_id
        left = 0 if ended else 10 - item["position"] - 1
        kept = greedy(pair, start, left)[ids.shape[1] :]
        scores = runs.letters([pair.tokenizer.decode(ids, skip_special_tokens=True) for ids in (kept, plain)])
        assert [item["kept"], item["replaced"]] == [pytest.approx([score]) for score in scores]
        assert labels.cost[index] == pytest.approx(scores[1] - scores[0])


def test_one_continuation_at_temperature_0(pair, tmp_path):
    """Catches identical continuations that are decoded several times, and a noise of 0."""
    labels = label(pair, tmp_path / "labels.jsonl", settings=TWICE, temperature=0.0)
    assert labels.scores.shape[-1] == labels.settings["continuations"] == 1
    assert math.isnan(labels.noise)
    done = Letters()
    label(pair, tmp_path / "labels.jsonl", done, TWICE, temperature=0.0)
    assert done.seen == []


def test_branches_share_a_cache(pair):
    """Catches keys and values of another text or position, and padding that is read."""
    run = LabelRun(pair, Letters(), sampling(), LabelSettings())
    prompts = [list(ids) for ids in pair.tokenizer(PROMPTS)["input_ids"]]
    chosen, completions = run.rejections(prompts, seed=0)
    lengths = [len(prompts[one["row"]]) + one["position"] + 1 for one in chosen]
    assert len(set(lengths)) > 2
    cache = joined_cache([run._key_values(prompts[one["row"]] + completions[one["row"]]) for one in chosen], lengths)
    texts = [(prompts[one["row"]] + completions[one["row"]])[:length] for one, length in zip(chosen, lengths)]
    inputs = left_padded(texts, pair.tokenizer.pad_token_id, "cpu")
    settings = {"max_new_tokens": 4, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    plain = pair.target.generate(**inputs, **settings)
    shared = pair.target.generate(**inputs, **settings, **{_compat.CACHE_ARGUMENT: cache})
    assert torch.equal(plain.sequences, shared.sequences)
    for expected, logits in zip(plain.logits, shared.logits):
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_a_stop_string_that_begins_in_the_branch():
    """Catches a continuation past a stop string whose first token is the branch's."""
    embedded = load_demo_pair()
    ids = embedded.tokenizer("Question: Mia has 74 dollars.\nAnswer:", return_tensors="pt").input_ids
    plain = greedy(embedded, ids, 6)[ids.shape[1] :].tolist()
    stopping = dataclasses.replace(sampling(temperature=0.0), stop_strings=(embedded.tokenizer.decode(plain[:2]),))
    run = LabelRun(embedded, Letters(), stopping, LabelSettings())
    assert run._continued([plain[:1]], [0], [ids[0].tolist()], [plain], seed=0) == [plain[:2]]


def test_agreement_needs_no_reference(pair, tmp_path):
    """Catches branches that are compared with the reference, or with another prompt's completion."""

    class Agreeing(Letters):
        def score_batch(self, completions, records):
            raise AssertionError("there is no reference")

        def agreement_batch(self, completions, answers, records):
            compared.extend(zip(completions, answers))
            return [float(completion == answer) for completion, answer in zip(completions, answers)]

    compared: list[tuple[str, str]] = []
    settings = LabelSettings(continuations=1, agreement=True)
    labels = label(pair, tmp_path / "labels.jsonl", Agreeing(), settings, temperature=0.0)
    assert labels.settings["metric"] == "agreement"
    assert (labels.scores[:, 1] == 1.0).all()  # at temperature 0, the replaced branch is the completion
    assert len(compared) == 2 * len(labels.cost)
    assert 0.0 < labels.cost.mean() <= 1.0


def test_an_interrupted_run_continues(pair, finished, tmp_path):
    """Catches batches that are lost, repeated, or drawn with other random numbers after an interruption."""
    whole, path = finished[0], tmp_path / "broken.jsonl"
    with pytest.raises(RuntimeError, match="interrupted"):
        label(pair, path, Letters(fail_after=1))
    with path.open("a") as file:
        file.write('{"batch": 1, "la')  # torn
    first = len(load_labels(path).cost)
    assert 0 < first < len(whole.cost)
    continued = label(pair, path)
    assert torch.equal(continued.scores, whole.scores)
    assert torch.equal(continued.prompt, whole.prompt)
    done = Letters()
    label(pair, path, done)
    assert done.seen == []


def test_batches_in_any_order_are_counted_once(pair, finished, tmp_path):
    """Catches a batch that is skipped because a later one is in the file, and one that two processes have made."""
    path, (whole, text) = tmp_path / "labels.jsonl", finished
    header, first, *others = text.splitlines()
    path.write_text("\n".join([header, *others, others[-1]]) + "\n")
    again = label(pair, path)
    assert torch.equal(again.cost.sort().values, whole.cost.sort().values)
    assert path.read_text().splitlines()[-1] == first


def test_a_file_of_other_settings_or_prompts_is_refused(pair, finished, tmp_path):
    """Catches an interrupted run that continues with another split, another number of shots or other answers."""
    path = tmp_path / "labels.jsonl"
    path.write_text(finished[1])
    with pytest.raises(ValueError, match=r"written with other settings \(seed: 0 there, 1 here\)"):
        label(pair, path, settings=dataclasses.replace(TWICE, seed=1))
    for prompts, records in ((PROMPTS[::-1], RECORDS), (PROMPTS, RECORDS[::-1])):
        with pytest.raises(ValueError, match=r"written with other settings \(data: "):
            make_labels(pair, Letters(), prompts, records, sampling(), TWICE, path, progress=False)


@pytest.mark.parametrize(
    ("number", "content"),
    [
        (1, '{"prompt": "a"}'),
        (2, '{"prompt": "a"}'),
        (2, '{"batch": 0, "labels": 3}'),
        (3, '{"batch": 1, "labels": [{"kept": [0.5]}]}'),
    ],
)
def test_a_damaged_line_is_named(finished, tmp_path, number, content):
    """Catches a KeyError in `train --labels` for a file that contains no labels, or a damaged line of labels."""
    path, lines = tmp_path / "labels.jsonl", finished[1].splitlines()
    lines[number - 1] = content
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=rf"labels.jsonl, line {number} was not written by .* Pass the --output"):
        load_labels(path)


def test_prompts_beyond_learned_positions_are_refused(tmp_path):
    """Catches an IndexError after hours of labelling."""
    models = [tiny_model("gpt2", seed) for seed in (0, 1)]
    prompts = ["a", "b" * 120]
    gpt2 = Pair(*models, runs.tokenizer())
    with pytest.raises(ValueError, match="prompt 1 of the data has 121 tokens; at most 118 fit, as the target has"):
        make_labels(gpt2, Letters(), prompts, runs.rows(prompts), sampling(), TWICE, tmp_path / "labels.jsonl")


@pytest.mark.parametrize("content", ["", '{"settings": {"se'])
def test_a_file_without_a_header_is_begun_again(pair, tmp_path, content):
    """Catches labels without their settings, after an interruption before the first line or in an empty file."""
    path = tmp_path / "labels.jsonl"
    path.write_text(content)
    assert len(label(pair, path, settings=LabelSettings(continuations=1)).cost) > 0


def test_cut_keeps_the_first_stop_string():
    assert cut("one\n\ntwo\n", ["\n\n", "two"]) == "one\n\n"
    assert cut("one", ["\n"]) == "one"


def test_overwrite(pair, finished, tmp_path):
    """Catches labels of other settings that are kept, and a file that is removed although a check fails."""
    path = tmp_path / "labels.jsonl"
    path.write_text(finished[1])
    agreement = dataclasses.replace(TWICE, agreement=True)
    with pytest.raises(ValueError, match="temperature"):
        make_labels(pair, Letters(), PROMPTS, RECORDS, sampling(), agreement, path, overwrite=True)
    assert path.read_text() == finished[1]
    other = LabelSettings(continuations=1, seed=1)
    make_labels(pair, Letters(), PROMPTS, RECORDS, sampling(), other, path, progress=False, overwrite=True)
    assert load_labels(path).settings["seed"] == 1


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("content", ['{"my": "settings"}', '{"prompt": "a"}\n{"prompt": "last, without a line end"}'])
def test_another_file_is_left_unchanged(pair, tmp_path, content, overwrite):
    """Catches a file of the user that is truncated, or that labels are written into."""
    path = tmp_path / "labels.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match="exists and contains no labels; pass another file"):
        make_labels(pair, Letters(), PROMPTS, RECORDS, sampling(), TWICE, path, overwrite=overwrite)
    assert path.read_text() == content
