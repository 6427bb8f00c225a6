"""Stopping criteria and logits processors that the table of `test_equals_reference.py` cannot compare: sources of stop
strings, time, raw logits of the draft model, and processors that are refused."""

import copy
from types import SimpleNamespace

import pytest
import torch
import transformers as tf
from transformers.generation import stopping_criteria as sc

from hf_diversed import LosslessVerifier
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
    given = {"assistant_model": pair[1], "verifier": "lossless", "num_assistant_tokens": GAMMA}
    return plain(pair[0], **given | kwargs)


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


def test_a_callers_criterion_of_stop_strings_replaces_the_configured_one(pair, text, tokenizer):
    """Catches two criteria where upstream uses the caller's only, and a list of the caller that is extended."""
    first, second = (tokenizer.decode(text[1, column : column + 1]) for column in (3, 6))
    criteria = tf.StoppingCriteriaList([tf.StopStringCriteria(tokenizer, [second])])
    call = {"stopping_criteria": criteria, "stop_strings": first, "tokenizer": tokenizer}
    assert torch.equal(relaxed(pair, **call), plain(pair[0], **call))
    assert len(criteria) == 1


def test_a_criterion_is_made_once(monkeypatch, pair, tokenizer):
    """Catches criteria that are built at every call, which takes seconds, and those of other strings or tokens."""
    made, init = [], tf.StopStringCriteria.__init__
    monkeypatch.setattr(tf.StopStringCriteria, "__init__", lambda *args: made.append(args[2]) or init(*args))
    own = copy.deepcopy(tokenizer)
    for strings in ("w9", "w9", ["w9"], ["w9", "w8"]):
        relaxed(pair, stop_strings=strings, tokenizer=own)
    assert made == [["w9"], ["w9", "w8"]]
    own.add_tokens(["another"])
    relaxed(pair, stop_strings="w9", tokenizer=own)
    assert made[2:] == [["w9"]]


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


def one(processor):
    return {"logits_processor": tf.LogitsProcessorList([processor])}


def test_raw_logits_stay_raw(pair):
    """Catches an in-place processor that changes raw logits, those of the result or those that verifiers receive of
    either model. Upstream has that bug."""

    class Raw(LosslessVerifier):
        needs_raw_logits = True

        def __call__(self, input_ids, draft, target):
            seen.append((draft.raw_logits.clone(), target.raw_logits.clone()))
            return super().__call__(input_ids, draft, target)

    results = []
    for processor in (table.Bias(), table.InPlace()):
        seen: list = []
        returned = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
        out = relaxed(pair, verifier=Raw(), **one(processor), **returned)
        results.append([out.scores, out.logits, *seen])
    assert len(results[0]) == len(results[1]) > 3
    for copied, in_place in zip(*results):
        torch.testing.assert_close(in_place, copied)


class Counting(tf.LogitsProcessor):
    """Counts its calls, and forces a token in the third one."""

    calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        return scores.index_fill(1, torch.tensor([7]), 1e4) if self.calls == 3 else scores


def test_a_refused_processor_is_as_it_was(pair):
    """Catches numbers that the check leaves behind, with which plain `generate` would return another text."""
    counting = Counting()
    with pytest.raises(ValueError, match="Counting counts its calls in its attribute 'calls'"):
        relaxed(pair, **one(counting))
    expected = plain(pair[0], **one(Counting()))
    assert expected[0, PROMPT + 2] == 7
    assert torch.equal(plain(pair[0], **one(counting)), expected)
