"""Every logits processor of transformers: over ragged rows it acts as in plain `generate`, or raises an error."""

import pytest
import torch
import transformers as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as lp

from hf_diversed import LosslessVerifier, support
from hf_diversed.generation.processing import BlockProcessor
from hf_diversed.generation.rows import PerRow, RaggedRows
from tests import tiny, versions


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


def assert_same_scores(ours, plain, prompt=PROMPT, raw=True):
    """Same tokens; same processed scores and raw logits wherever a token was emitted."""
    assert ours.sequences.tolist() == plain.sequences.tolist()
    assert len(ours.scores) == len(ours.logits) == len(plain.scores) == plain.sequences.shape[1] - prompt
    for step, emitted in enumerate(plain.sequences[:, prompt:].ne(tiny.PAD).T):
        for mine, theirs in [(ours.scores, plain.scores)] + [(ours.logits, plain.logits)] * raw:
            torch.testing.assert_close(mine[step][emitted], theirs[step][emitted], atol=1e-4, rtol=1e-4)


def acts(out):
    return any(not torch.equal(after, before) for after, before in zip(out.scores, out.logits))


class Upset(tf.LogitsProcessor):
    """Returns an infinite and a NaN score, which `InfNanRemoveLogitsProcessor` replaces."""

    def __call__(self, input_ids, scores):
        rows = torch.arange(len(scores))
        scores = scores.index_put((rows, (input_ids[:, -1] * 7) % tiny.VOCAB_SIZE), torch.tensor(torch.inf))
        return scores.index_put((rows, (input_ids[:, -2] * 5) % tiny.VOCAB_SIZE), torch.tensor(torch.nan))


def allowed(batch_id, ids):
    """Tokens congruent to a function of the row, the length and the last id."""
    return [token for token in range(3, tiny.VOCAB_SIZE) if (token + batch_id + len(ids) + int(ids[-1])) % 3]


def one(processor):
    return {"logits_processor": tf.LogitsProcessorList([processor])}


# What to pass to `generate`, per class. Warpers that `generate` only builds for sampling come as instances.
SERVED = {
    lp.MinLengthLogitsProcessor: {"min_length": PROMPT + 7},
    lp.MinNewTokensLengthLogitsProcessor: {"min_new_tokens": 7},
    lp.TemperatureLogitsWarper: one(lp.TemperatureLogitsWarper(0.7)),
    lp.RepetitionPenaltyLogitsProcessor: {"repetition_penalty": 1.8},
    lp.EncoderRepetitionPenaltyLogitsProcessor: {"encoder_repetition_penalty": 1.8},
    lp.TopPLogitsWarper: one(lp.TopPLogitsWarper(0.5)),
    lp.TopKLogitsWarper: one(lp.TopKLogitsWarper(3)),
    lp.TopHLogitsWarper: one(lp.TopHLogitsWarper(0.4)),
    lp.MinPLogitsWarper: one(lp.MinPLogitsWarper(0.2)),
    lp.TypicalLogitsWarper: one(lp.TypicalLogitsWarper(0.4)),
    lp.EpsilonLogitsWarper: one(lp.EpsilonLogitsWarper(0.05)),
    lp.EtaLogitsWarper: one(lp.EtaLogitsWarper(0.1)),
    lp.NoRepeatNGramLogitsProcessor: {"no_repeat_ngram_size": 1},
    lp.EncoderNoRepeatNGramLogitsProcessor: {"encoder_no_repeat_ngram_size": 1},
    lp.SequenceBiasLogitsProcessor: {"sequence_bias": [[[token], -4.0] for token in range(4, 64, 3)]},
    lp.NoBadWordsLogitsProcessor: {"bad_words_ids": [[token] for token in range(4, 64, 3)]},
    lp.PrefixConstrainedLogitsProcessor: {"prefix_allowed_tokens_fn": allowed},
    lp.ForcedBOSTokenLogitsProcessor: {"forced_bos_token_id": tiny.BOS},
    lp.ForcedEOSTokenLogitsProcessor: {"forced_eos_token_id": tiny.EOS, "max_new_tokens": 4},
    lp.InfNanRemoveLogitsProcessor: {
        "logits_processor": tf.LogitsProcessorList([Upset(), lp.InfNanRemoveLogitsProcessor()])
    },
    lp.ExponentialDecayLengthPenalty: {"exponential_decay_length_penalty": (2, 1.6)},
    lp.LogitNormalization: {"renormalize_logits": True},
    lp.SuppressTokensAtBeginLogitsProcessor: {"begin_suppress_tokens": list(range(4, 64, 2))},
    lp.SuppressTokensLogitsProcessor: {"suppress_tokens": list(range(4, 64, 3))},
    lp.WatermarkLogitsProcessor: {"watermarking_config": tf.WatermarkingConfig(bias=4.0, greenlist_ratio=0.3)},
}
SELF_HASH = tf.WatermarkingConfig(bias=4.0, seeding_scheme="selfhash", context_width=3)
# Further settings of the same classes, where the first does not show all they do.
MORE = {
    "sequence_bias_pairs": {"sequence_bias": [[[a, b], 6.0] for a in range(4, 64) for b in (a // 2, 63 - a // 3)]},
    "bad_words_pairs": {"bad_words_ids": [[a, b] for a in range(4, 64) for b in range(3 + a % 3, 64, 3)]},
    "no_repeat_bigrams": {"no_repeat_ngram_size": 2, "suppress_tokens": list(range(6, 64))},
    "watermark_selfhash": {"watermarking_config": SELF_HASH, "max_new_tokens": 4},
    "several": {
        **{"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 4, "renormalize_logits": True},
        **{"prefix_allowed_tokens_fn": allowed, "exponential_decay_length_penalty": (4, 1.3)},
        **one(lp.TopKLogitsWarper(20)),
    },
}
MARKS = {"several": versions.since("5.19", "makes NaN of an EOS that is forbidden (exponential_decay_length_penalty)")}
CASES = [pytest.param(kwargs, id=cls.__name__) for cls, kwargs in SERVED.items()]
CASES += [pytest.param(kwargs, id=name, marks=MARKS.get(name, ())) for name, kwargs in MORE.items()]


def test_table_covers_every_processor_of_transformers():
    """Catches a release with a new processor that is neither supported nor refused: it would be called per column."""
    members = [member for member in vars(lp).values() if isinstance(member, type)]
    known = {m for m in members if issubclass(m, lp.LogitsProcessor) and m is not lp.LogitsProcessor}
    assert len(known) >= 30
    assert set(SERVED) | set(support.REFUSED_PROCESSORS) == known
    assert not set(SERVED) & set(support.REFUSED_PROCESSORS)
    assert set(SERVED) > support.POINTWISE_PROCESSORS


@pytest.mark.parametrize("kwargs", CASES)
def test_ragged_lossless_is_plain_generate(pair, kwargs):
    """Catches a processor that receives other lengths, draft tokens or stale ids than in plain `generate`."""
    inputs, prompt = tiny.ragged_batch(4, PROMPT), PROMPT
    if "forced_bos_token_id" in kwargs:  # acts at the very first column only
        inputs, prompt = {"input_ids": torch.tensor([[5], [9], [17], [33]])}, 1
    plain = run(pair[0], inputs, **kwargs)
    ours = relaxed(pair, inputs, **kwargs)
    assert acts(plain)
    assert_same_scores(ours, plain, prompt)
    assert ours.stats.num_drafted > 0


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


class Bias(tf.LogitsProcessor):
    """A processor that depends on row, prefix and, since it multiplies, on its place in the list."""

    def __init__(self, salt):
        self.salt = salt

    def __call__(self, input_ids, scores):
        generator = torch.Generator()
        factors = []
        for row, ids in enumerate(input_ids.tolist()):
            generator.manual_seed(hash((self.salt, row, *ids)) % 2**31)
            factors.append(0.3 + torch.rand(scores.shape[1], generator=generator))
        return scores * torch.stack(factors) + self.salt


class InPlaceBias(Bias):
    def __call__(self, input_ids, scores):
        scores.copy_(super().__call__(input_ids, scores))
        return scores


def test_raw_logits_stay_raw(pair):
    """Catches an in-place processor that changes the raw logits; upstream has that bug, so the reference copies."""
    inputs = tiny.ragged_batch(4, PROMPT)
    plain = run(pair[0], inputs, **one(Bias(3)))
    ours = relaxed(pair, inputs, **one(InPlaceBias(3)))
    assert acts(plain)
    assert_same_scores(ours, plain)


def test_raw_logits_for_verifiers_stay_raw(pair):
    """Catches an in-place processor that changes the raw logits which cascades use, of either model."""

    class Raw(LosslessVerifier):
        needs_raw_logits = True

        def __call__(self, input_ids, draft, target):
            seen.append((draft.raw_logits.clone(), target.raw_logits.clone()))
            return super().__call__(input_ids, draft, target)

    runs = []
    for processor in (Bias(3), InPlaceBias(3)):
        seen = []
        relaxed(pair, tiny.ragged_batch(1, PROMPT), Raw(), **one(processor))
        runs.append(seen)
    assert len(runs[0]) == len(runs[1]) > 1
    for copied, in_place in zip(*runs):
        for mine, theirs in zip(in_place, copied):
            torch.testing.assert_close(mine, theirs)


def test_scores_without_processors_do_not_alias_logits(pair):
    """Catches scores and logits that share memory: a user's change of one would change the other."""
    out = relaxed(pair, tiny.ragged_batch(4, PROMPT))
    assert_same_scores(out, run(pair[0], tiny.ragged_batch(4, PROMPT)))
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


class CommonPrefix(tf.LogitsProcessor):
    """Adds the sum of the ids to one logit; keeps its input, and subtracts only the ids that have changed since."""

    def __init__(self):
        self.ids, self.sum = torch.zeros(0, dtype=torch.long), 0

    def __call__(self, input_ids, scores):
        new = input_ids[0]
        shared = min(len(new), len(self.ids))
        common = int((new[:shared] == self.ids[:shared]).long().cumprod(0).sum())
        self.sum += int(new[common:].sum()) - int(self.ids[common:].sum())
        self.ids = new
        scores[:, 7 + self.sum % 11] += 3.0
        return scores


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


@pytest.mark.parametrize("eos_token_id", [None, 1])
def test_a_processor_may_keep_its_input(pair, eos_token_id):
    """Catches a prefix whose memory is overwritten by later draft tokens, and rows that are not contiguous."""
    for seed in range(4):
        inputs = tiny.ragged_batch(1, PROMPT, seed)
        call = {"eos_token_id": eos_token_id, "pad_token_id": tiny.PAD}
        plain = run(pair[0], inputs, **one(CommonPrefix()), **call)
        assert torch.equal(relaxed(pair, inputs, **one(CommonPrefix()), **call).sequences, plain.sequences)

    def contiguous(input_ids, scores):
        assert input_ids.is_contiguous()
        return scores

    relaxed(pair, tiny.ragged_batch(3, PROMPT), **one(contiguous), eos_token_id=eos_token_id, pad_token_id=tiny.PAD)


def test_a_processor_may_return_another_dtype(pair):
    """Catches scores of float64 that are not converted, although plain `generate` supports them."""

    class Double(Bias):
        def __call__(self, input_ids, scores):
            return super().__call__(input_ids, scores).double()

    inputs = tiny.ragged_batch(4, PROMPT)
    plain = run(pair[0], inputs, **one(Double(3)))
    assert torch.equal(relaxed(pair, inputs, **one(Double(3))).sequences, plain.sequences)


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
    chain = [lp.TopKLogitsWarper(7), Bias(1), lp.TemperatureLogitsWarper(0.5), InPlaceBias(2)]
    chain = data.draw(st.permutations(chain))
    given_scores = scores.clone()
    got = BlockProcessor(tf.LogitsProcessorList(chain))(rows, scores, offset, known(counts))
    assert torch.equal(scores, given_scores)
    for row in range(batch):
        for k in range(counts[row]):
            ids = rows.ids[:, : rows.lengths.host[row] + offset + k]
            expected = tf.LogitsProcessorList(chain)(ids, given_scores[:, k].clone())
            torch.testing.assert_close(got[row, k], expected[row])
