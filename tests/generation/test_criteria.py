"""Where rows end: stop strings of generation configs, the rows after a round, time, and confidence; others are in
`CASES`."""

import copy
import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
import transformers as tf
from transformers.generation import stopping_criteria as sc

from hf_diversed.generation.processing import StopTracker, stop_criterion
from hf_diversed.generation.rows import PerRow, RaggedRows
from hf_diversed.support import split_criteria
from tests import tiny
from tests.generation import test_equals_reference as table


PROMPT, NEW, GAMMA = 9, 10, 4


@pytest.fixture(scope="module")
def pair():
    target = tiny.tiny_model("llama", seed=23)  # its text varies and has no pad in it
    return target, tiny.tiny_draft(target)


@pytest.fixture(scope="module")
def text(pair):
    """The greedy text without any end, `[4, NEW]`."""
    return plain(pair[0], eos_token_id=None)[:, PROMPT:]


@pytest.fixture(scope="module")
def tokenizer():
    return table.tokenizer()


def plain(target, **kwargs):
    return target.generate(**tiny.ragged_batch(4, PROMPT), **{"max_new_tokens": NEW, "do_sample": False, **kwargs})


def relaxed(pair, **kwargs):
    return plain(pair[0], assistant_model=pair[1], verifier="lossless", num_assistant_tokens=GAMMA, **kwargs)


@pytest.fixture
def own_config(pair, monkeypatch):
    """The target's generation config, which a test may change."""
    monkeypatch.setattr(pair[0], "generation_config", copy.deepcopy(pair[0].generation_config))
    return pair[0].generation_config


@pytest.mark.parametrize("owner", ["passed", "model"])
def test_stop_strings_of_a_generation_config(pair, text, tokenizer, own_config, owner):
    """Catches stop strings that are read from the keyword only, and configs that the call changes."""
    stops = [tokenizer.decode(text[0, 1:3])[:-1], tokenizer.decode(text[3, 4:5])]
    kwargs = {"tokenizer": tokenizer}
    if owner == "passed":
        kwargs["generation_config"] = tf.GenerationConfig(stop_strings=stops, pad_token_id=tiny.PAD)
    else:
        own_config.stop_strings = stops
    expected = plain(pair[0], **kwargs)
    assert expected[0, PROMPT:].ne(tiny.PAD).sum() <= 3
    configs = [config for config in (own_config, kwargs.get("generation_config")) if config is not None]
    before = [config.to_dict() for config in configs]
    assert torch.equal(relaxed(pair, **kwargs), expected)
    assert [config.to_dict() for config in configs] == before
    assert pair[0].generation_config is own_config


def test_no_stop_strings_on_request(pair, text, tokenizer, own_config):
    """Catches stop strings of the model's generation config that `stop_strings=None` does not switch off."""
    own_config.stop_strings = [tokenizer.decode(text[0, 5:6])]
    expected = plain(pair[0], stop_strings=None, tokenizer=tokenizer)
    assert torch.equal(relaxed(pair, stop_strings=None, tokenizer=tokenizer), expected)


def test_a_missing_tokenizer(pair, own_config):
    """Catches a missing tokenizer that is found after a forward, and a config without its stop strings afterwards."""
    for config in ({"stop_strings": "w5"}, {}):
        own_config.stop_strings = None if config else "w5"
        before = own_config.to_dict()
        with pytest.raises(ValueError, match="tokenizer"):
            relaxed(pair, **config)
        assert own_config.to_dict() == before


def test_a_callers_criterion_of_stop_strings_replaces_the_configured_one(pair, text, tokenizer):
    """Catches two criteria where upstream uses the caller's only, and a list of the caller that is extended."""
    first, second = (tokenizer.decode(text[1, column : column + 1]) for column in (3, 6))
    criteria = tf.StoppingCriteriaList([tf.StopStringCriteria(tokenizer, [second])])
    call = {"stopping_criteria": criteria, "stop_strings": first, "tokenizer": tokenizer}
    assert torch.equal(relaxed(pair, **call), plain(pair[0], **call))
    assert len(criteria) == 1


def test_rows_leave_the_batch_at_a_stop_string(pair, text, tokenizer, rows_left):
    """Catches stopped rows that stay in the batch, and statistics of another row."""
    noisy = pair[0], tiny.tiny_draft(pair[0], noise=0.35)
    stops = {"stop_strings": [tokenizer.decode(text[row, 0:2]) for row in (0, 2)], "tokenizer": tokenizer}
    out = relaxed(noisy, **stops, return_dict_in_generate=True)
    assert torch.equal(out.sequences, plain(pair[0], **stops))
    emitted = out.sequences[:, PROMPT:].ne(tiny.PAD).sum(dim=1).tolist()
    assert emitted[0] == 2 < emitted[1]
    assert rows_left
    assert [row.num_emitted for row in out.stats.per_row] == emitted


@pytest.fixture
def stopped(tokenizer):
    """Return the ends of two rows after a round: prompts of one token, followed by w10, w11 and so on."""
    rows = RaggedRows(torch.tensor([[4], [5]]), 9, GAMMA, [tiny.EOS], tiny.PAD)
    rows.ids[:, 1:] = torch.arange(10, 10 + rows.ids.shape[1] - 1)

    def stopped(strings, starts, lengths, ends):
        rows.lengths, rows.ends[:] = PerRow(lengths, torch.tensor(lengths)), ends
        rows.send_ends()
        criteria = [*(sc.StopStringCriteria(tokenizer, string) for string in strings), sc.EosTokenCriteria(tiny.EOS)]
        StopTracker(rows, split_criteria(tf.StoppingCriteriaList(criteria))).update(starts, lambda column: None)
        return rows.ends

    return stopped


def test_a_stop_string_does_not_wait_for_slower_rows(stopped):
    """Catches a row that continues until all rows have reached the column of its stop string."""
    assert stopped(["w12"], [1, 1], [6, 2], [None, None]) == [4, None]


def test_rejected_draft_tokens_do_not_stop_a_row(stopped):
    """Catches a stop string behind the last token of a row that has fewer new tokens than others."""
    assert stopped(["w12"], [1, 1], [2, 6], [None, None]) == [None, 4]


def test_criteria_of_different_lengths(stopped):
    """Catches ids that are cut to the length of a shorter stop string."""
    assert stopped(["w50", "w10 w11 w12 w13"], [1, 1], [6, 6], [None, None]) == [5, 5]


def test_finished_rows_are_not_read_behind_their_buffer(stopped):
    """Catches new positions of a fast row that do not exist in a row that ended at the maximum length."""
    assert stopped(["w16"], [9, 4], [9, 9], [9, None]) == [9, 8]


def test_a_criterion_is_made_once(monkeypatch, pair, tokenizer):
    """Catches criteria built at every call, those of other strings or tokenizers, and a tokenizer kept alive."""
    made, init = [], tf.StopStringCriteria.__init__
    monkeypatch.setattr(tf.StopStringCriteria, "__init__", lambda *args: made.append(args[2]) or init(*args))
    own = copy.deepcopy(tokenizer)
    for strings in ("w9", "w9", ["w9"], ["w9", "w8"]):
        relaxed(pair, stop_strings=strings, tokenizer=own)
    assert made == [["w9"], ["w9", "w8"]]
    assert stop_criterion(own, "w9") is not stop_criterion(own, "w9")  # threads move its tensors between devices
    own.add_tokens(["another"])
    relaxed(pair, stop_strings="w9", tokenizer=own)
    assert made[2:] == [["w9"]]
    gone = weakref.ref(own)
    del own
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("limit", [0.5, 3.5])
def test_max_time(pair, monkeypatch, limit):
    """Catches a time limit that is checked between blocks only. The clock advances at every reading."""

    def ticking(**extra):
        ticks = iter(range(1000))
        monkeypatch.setattr(sc, "time", SimpleNamespace(time=lambda: next(ticks), **extra))

    ticking()
    expected = plain(pair[0], max_time=limit)
    assert expected.shape[1] == PROMPT + int(limit) + 1
    ticking()
    assert relaxed(pair, max_time=limit).tolist() == expected.tolist()


def test_confidence_criterion_at_batch_one(pair):
    """Catches other scores for upstream's own criterion that uses them (it returns a bare bool, for one row)."""
    target, draft = pair
    lengths = set()
    for threshold in (0.1, 0.21, 0.23):
        call = {"input_ids": tiny.ragged_batch(1, PROMPT)["input_ids"], "max_new_tokens": NEW, "do_sample": False}
        call |= {"return_dict_in_generate": True, "output_scores": True}
        call["stopping_criteria"] = tf.StoppingCriteriaList([sc.ConfidenceCriteria(threshold)])
        expected = target.generate(**call).sequences
        assert torch.equal(target.generate(**call, assistant_model=draft, verifier="lossless").sequences, expected)
        lengths.add(expected.shape[1])
    assert len(lengths) > 1


def test_relaxed_rows_end_as_they_do_alone(pair, text, tokenizer):
    """Catches rounds that end elsewhere in a batch than alone when a criterion ends rows."""
    target, inputs = pair[0], tiny.ragged_batch(4, PROMPT)
    given = {
        "assistant_model": tiny.tiny_draft(target, noise=0.35),
        "verifier": "static:0.3",
        "num_assistant_tokens": GAMMA,
    }
    ends = {"stop_strings": [tokenizer.decode(text[0, 5:6]), tokenizer.decode(text[3, 3:4])], "tokenizer": tokenizer}
    ends |= {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": [tiny.EOS, int(text[1, 6])]}
    batch = target.generate(**inputs, **given, **ends)
    for row in range(4):
        prompt = inputs["input_ids"][row : row + 1, inputs["attention_mask"][row].bool()]
        alone = target.generate(input_ids=prompt, **given, **ends)[0, prompt.shape[1] :].tolist()
        assert batch[row, PROMPT:].tolist() == alone + [tiny.PAD] * (batch.shape[1] - PROMPT - len(alone))
