"""What logits processors receive over ragged rows, and those that are refused; others are in `CASES`."""

import pytest
import torch
import transformers as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as lp

from hf_diversed import LosslessVerifier, support
from hf_diversed.generation.processing import BlockProcessor
from hf_diversed.generation.rows import PerRow, RaggedRows
from tests import tiny
from tests.generation.test_equals_reference import Bias, InPlace


PROMPT, NEW, GAMMA = 9, 10, 4


@pytest.fixture(scope="module")
def pair():
    """A pair whose greedy rows end at different columns: two tokens of its own text are made EOS ids."""
    target = tiny.tiny_model("llama", seed=23)
    text = target.generate(**tiny.ragged_batch(4, PROMPT), max_new_tokens=NEW, do_sample=False)[:, PROMPT:]
    eos = [tiny.EOS, int(text[1, 4]), int(text[3, 6])]
    target.generation_config.eos_token_id = eos
    ends = [int(torch.isin(row, torch.tensor(eos)).long().cumsum(0).eq(0).sum()) for row in text]
    assert len(set(ends)) >= 3, ends
    return target, tiny.tiny_draft(target)


def run(model, inputs, **kwargs):
    settings = {"max_new_tokens": NEW, "do_sample": False, "return_dict_in_generate": True, **kwargs}
    return model.generate(**inputs, **settings, output_scores=True, output_logits=True)


def relaxed(pair, inputs, verifier=None, **kwargs):
    target, draft = pair
    settings = {"verifier": verifier or LosslessVerifier(), "num_assistant_tokens": GAMMA}
    return run(target, inputs, assistant_model=draft, **settings, **kwargs)


def one(processor):
    return {"logits_processor": tf.LogitsProcessorList([processor])}


def test_processors_receive_the_rows_that_have_a_position(pair, monkeypatch):
    """Catches all rows that are processed at every column, and settings of another row."""
    sizes, call = [], lp.RepetitionPenaltyLogitsProcessor.__call__

    def recording(self, input_ids, scores):
        sizes.append(len(scores))
        return call(self, input_ids, scores)

    monkeypatch.setattr(lp.RepetitionPenaltyLogitsProcessor, "__call__", recording)
    inputs = tiny.ragged_batch(4, PROMPT)
    plain = run(pair[0], inputs, repetition_penalty=1.8)
    assert set(sizes) == {4}
    sizes.clear()
    ours = relaxed(pair, inputs, repetition_penalty=1.8)
    assert torch.equal(ours.sequences, plain.sequences)
    assert min(sizes) == 1
    assert sum(sizes) < 0.7 * 4 * len(sizes)


@pytest.mark.parametrize("cls", support.REFUSED_PROCESSORS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("derived", [False, True], ids=["itself", "subclass"])
def test_refused_by_name(pair, cls, derived):
    """Catches processors that call models or count calls, also under the name of a subclass."""
    cls = type("Mine", (cls,), {}) if derived else cls
    with pytest.raises(ValueError, match=cls.__name__):
        relaxed(pair, tiny.ragged_batch(2, PROMPT), **one(cls.__new__(cls)))


def test_raw_logits_stay_raw(pair):
    """Catches an in-place processor that changes raw logits, those of the result or those that verifiers receive of
    either model. Upstream has that bug."""

    class Raw(LosslessVerifier):
        needs_raw_logits = True

        def __call__(self, input_ids, draft, target):
            seen.append((draft.raw_logits.clone(), target.raw_logits.clone()))
            return super().__call__(input_ids, draft, target)

    results = []
    for processor in (Bias(), InPlace()):
        seen: list = []
        out = relaxed(pair, tiny.ragged_batch(1, PROMPT), Raw(), **one(processor))
        results.append([out.scores, out.logits, *seen])
    assert len(results[0]) == len(results[1]) > 3
    for copied, in_place in zip(*results):
        for mine, theirs in zip(in_place, copied, strict=True):
            torch.testing.assert_close(mine, theirs)


def test_scores_without_processors_do_not_alias_logits(pair):
    """Catches scores and logits that share memory: a user's change of one would change the other."""
    out = relaxed(pair, tiny.ragged_batch(4, PROMPT))
    before = out.logits[0].clone()
    out.scores[0].zero_()
    assert torch.equal(out.logits[0], before)


def test_processors_receive_what_plain_generate_passes(pair):
    """Catches calls with some of the rows, with draft tokens of another row, or with rows that do not look finished. A
    row that is shorter than the column is passed with its ids, an EOS and pads, as a grammar expects."""

    class Spy(tf.LogitsProcessor):
        def __call__(self, input_ids, scores):
            assert input_ids.shape[0] == scores.shape[0] == 4
            calls.append(input_ids.clone())
            return scores

    target, _ = pair
    inputs = tiny.ragged_batch(4, PROMPT)
    calls = []
    plain = run(target, inputs, **one(Spy())).sequences
    calls = []
    relaxed(pair, inputs, **one(Spy()))
    assert {ids.shape[1] for ids in calls} >= set(range(PROMPT, plain.shape[1]))
    for column in range(PROMPT, plain.shape[1]):
        shown = [ids for ids in calls if ids.shape[1] == column]
        for row in range(4):
            if plain[row, column] != tiny.PAD:  # the row emitted something here: some call showed its true prefix
                assert any(torch.equal(ids[row], plain[row, :column]) for ids in shown)
    padded = [ids.tolist() for call in calls for ids in call if ids[-1] == tiny.PAD]
    assert padded
    for ids in padded:
        end = next(index for index in range(len(ids), 0, -1) if ids[index - 1] != tiny.PAD)
        assert ids[end - 1] in target.generation_config.eos_token_id
    final = plain[:, :-1]
    ended = [row for row in range(4) if final[row, -1] == tiny.PAD]
    assert ended
    last = calls[-1]
    for row in ended:
        assert last[row].tolist() == (plain[row].tolist() + [tiny.PAD] * NEW)[: last.shape[1]]


class Counting(tf.LogitsProcessor):
    """Counts its calls, and forces a token in the third one."""

    calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        return scores.index_fill(1, torch.tensor([7]), 1e4) if self.calls == 3 else scores


def test_a_refused_processor_is_as_it_was(pair):
    """Catches numbers that the check leaves behind, with which plain `generate` would return another text."""
    inputs, counting = tiny.ragged_batch(2, PROMPT), Counting()
    with pytest.raises(ValueError, match="Counting counts its calls in its attribute 'calls'"):
        relaxed(pair, inputs, **one(counting))
    expected = run(pair[0], inputs, **one(Counting())).sequences
    assert expected[0, PROMPT + 2] == 7
    assert torch.equal(run(pair[0], inputs, **one(counting)).sequences, expected)


def test_processors_are_called_twice_on_the_prompts_first(pair):
    """Catches a check of single rows, of other ids than the prompts, and of scores of another width."""
    calls = []

    def recording(input_ids, scores):
        calls.append((input_ids, scores.shape))
        return scores.log_softmax(dim=-1)

    inputs = tiny.ragged_batch(4, PROMPT)
    relaxed(pair, inputs, **one(recording))
    for ids, shape in calls[:2]:
        assert torch.equal(ids, inputs["input_ids"])
        assert shape == (4, tiny.VOCAB_SIZE)


def known(numbers: list[int]) -> PerRow:
    return PerRow(numbers, torch.tensor(numbers))


@pytest.mark.parametrize(("width", "expected"), [(5, [1, 3, 5, 0]), (4, [1, 3, 4, 0])])
def test_positions_after_a_rows_draft_tokens_are_not_used(width, expected):
    """Catches processors that also run after a row's own draft tokens, or in finished rows."""
    rows = RaggedRows(torch.full((4, 3), 7), 24, 0, eos_ids=[1], pad_id=0)
    rows.advance(known([1, 1, 1, 1]), PerRow([0, 0, 0, 1], torch.tensor([False, False, False, True])))
    used = rows.scored(known([0, 2, 4, 2]), width)
    assert used.host == used.device.tolist() == expected


@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data(), batch=st.integers(1, 4), block=st.integers(1, 5), offset=st.integers(0, 3))
def test_block_is_the_processor_row_by_row(data, batch, block, offset):
    """Catches wrong columns of rows, offsets or counts: each position alone is the reference."""
    prompt, vocab = 3, 11
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    rows = RaggedRows(torch.randint(4, vocab, (batch, prompt), generator=generator), 24, 0, eos_ids=[1], pad_id=0)
    rows.ids[:, prompt:] = torch.randint(4, vocab, (batch, 24 - prompt), generator=generator)
    none_ended = PerRow([0] * batch, torch.zeros(batch, dtype=torch.bool))
    rows.advance(known([data.draw(st.integers(0, 6)) for _ in range(batch)]), none_ended)
    counts = [data.draw(st.integers(0, block)) for _ in range(batch)]
    scores = torch.randn(batch, block, vocab, generator=generator)
    chain = [lp.TopKLogitsWarper(7), Bias(), lp.TemperatureLogitsWarper(0.5), InPlace()]
    chain = data.draw(st.permutations(chain))
    given_scores = scores.clone()
    got = BlockProcessor(tf.LogitsProcessorList(chain))(rows, scores, offset, known(counts))
    assert torch.equal(scores, given_scores)
    for row in range(batch):
        for k in range(counts[row]):
            ids = rows.ids[:, : rows.lengths.host[row] + offset + k]
            expected = tf.LogitsProcessorList(chain)(ids, given_scores[:, k].clone())
            torch.testing.assert_close(got[row, k], expected[row])
