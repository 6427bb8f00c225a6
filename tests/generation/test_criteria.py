"""Where rows end: EOS, length, stop strings, time and users' criteria, in the middle of blocks and on ragged rows."""

import copy
import gc
import weakref
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import transformers as tf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers.generation import stopping_criteria as sc

from hf_diversed import LosslessVerifier
from hf_diversed.generation.processing import StopTracker, stop_criterion
from hf_diversed.generation.rows import PerRow, RaggedRows
from hf_diversed.support import sort_criteria
from tests import tiny
from tests.engines.modes import STATIC, TRACED


PROMPT, NEW, GAMMA = 9, 10, 4
STEPS = (1, 2, 4, 5, 6)  # ends on the first and last draft tokens of a block, its bonus token, and in the block after


@pytest.fixture(scope="module")
def target():
    return tiny.tiny_model("llama", seed=23)  # its text varies and has no pad in it


@pytest.fixture(scope="module", params=["perfect", "noisy"])
def pair(request, target):
    """Draft models whose blocks are all accepted, so that ends fall inside them, or that make rows ragged."""
    return target, target if request.param == "perfect" else tiny.tiny_draft(target)


@pytest.fixture(scope="module")
def text(target):
    """The greedy text without any end, `[4, NEW]`."""
    return plain(target, eos_token_id=None)[:, PROMPT:]


@pytest.fixture(scope="module")
def tokenizer():
    """One word per id; spaces between words."""
    words = {"<pad>": tiny.PAD, "<eos>": tiny.EOS, "<bos>": tiny.BOS, "abcdef": 3}
    words |= {f"w{token:02d}": token for token in range(4, tiny.VOCAB_SIZE)}
    model = Tokenizer(WordLevel(words, unk_token="<pad>"))
    model.pre_tokenizer = WhitespaceSplit()
    return tf.PreTrainedTokenizerFast(tokenizer_object=model, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>")


def plain(target, **kwargs):
    return target.generate(**tiny.ragged_batch(4, PROMPT), **{"max_new_tokens": NEW, "do_sample": False, **kwargs})


def relaxed(pair, verifier=None, **kwargs):
    target, draft = pair
    settings = {"verifier": verifier or LosslessVerifier(), "num_assistant_tokens": GAMMA}
    settings["return_dict_in_generate"] = True
    return plain(target, assistant_model=draft, **settings | kwargs)


def assert_same(pair, criterion=None, **kwargs):
    """Decode plainly and losslessly with a new `criterion()` each, compare the tokens and return both outputs."""

    def given():
        return kwargs if criterion is None else {**kwargs, "stopping_criteria": tf.StoppingCriteriaList([criterion()])}

    expected, out = plain(pair[0], **given()), relaxed(pair, **given())
    expected = getattr(expected, "sequences", expected)
    assert out.sequences.tolist() == expected.tolist()
    return expected, out


def check_stats(pair, out):
    """Every emitted token counts once, and none after a row's end; a perfect draft model is always accepted."""
    target, draft = pair
    emitted = int(out.sequences[:, PROMPT:].ne(tiny.PAD).sum())
    assert out.stats.num_emitted == emitted
    if draft is target:
        assert out.stats.num_drafted == out.stats.num_accepted
        assert out.stats.num_rejected == 0


@pytest.mark.parametrize("step", STEPS)
def test_eos_inside_a_block(pair, text, step):
    """Catches tokens emitted after an EOS that was drafted and accepted, and rows that do not end there."""
    eos = [tiny.EOS, int(text[0, step - 1]), int(text[2, -step])]
    expected, out = assert_same(pair, eos_token_id=eos)
    assert expected[0, PROMPT:].ne(tiny.PAD).sum() <= step
    check_stats(pair, out)


@pytest.mark.parametrize("new", STEPS)
def test_length_cut(pair, new):
    """Catches blocks that exceed `max_length`, and draft tokens after the last token that are counted."""
    expected, out = assert_same(pair, max_new_tokens=new)
    assert expected.shape[1] == PROMPT + new
    check_stats(pair, out)
    by_length = relaxed(pair, max_new_tokens=None, max_length=PROMPT + new).sequences
    assert by_length.tolist() == expected.tolist()


@pytest.mark.parametrize("new", [3, 5])
def test_users_max_length_criterion_replaces_the_configs(pair, new):
    """Catches the smaller of two lengths: in upstream a passed MaxLengthCriteria takes precedence, longer or not."""
    expected, _ = assert_same(pair, partial(tf.MaxLengthCriteria, PROMPT + new), max_new_tokens=4)
    assert expected.shape[1] == PROMPT + new


@pytest.fixture
def own_config(target, monkeypatch):
    """The target's generation config, which a test may change."""
    monkeypatch.setattr(target, "generation_config", copy.deepcopy(target.generation_config))
    return target.generation_config


@pytest.mark.parametrize(
    ("source", "step"),
    [
        *(("kwarg", step) for step in STEPS),
        *((f"{whose} config", step) for whose in ("passed", "model") for step in (2, 5)),
    ],
)
def test_stop_strings_inside_a_block(pair, text, tokenizer, own_config, source, step):
    """Catches stop strings that end in the middle of an accepted block and are searched for at its end only. The
    strings may be in the passed or in the model's generation config only; both must stay unchanged."""
    target = pair[0]
    stops = [tokenizer.decode(text[0, step - 1 : step + 1])[:-1], tokenizer.decode(text[3, 4:5])]
    kwargs = {"tokenizer": tokenizer}
    if source == "kwarg":
        kwargs["stop_strings"] = stops
    elif source == "passed config":
        kwargs["generation_config"] = tf.GenerationConfig(stop_strings=stops, pad_token_id=tiny.PAD)
    else:
        own_config.stop_strings = stops
    expected = plain(target, **kwargs)
    assert expected[0, PROMPT:].ne(tiny.PAD).sum() <= step + 1

    configs = [config for config in (own_config, kwargs.get("generation_config")) if config is not None]
    before = [config.to_dict() for config in configs]
    out = relaxed(pair, **kwargs)
    assert out.sequences.tolist() == expected.tolist()
    check_stats(pair, out)
    assert [config.to_dict() for config in configs] == before
    assert target.generation_config is own_config


@pytest.mark.parametrize(("mode", "engine"), [(STATIC, "static"), (TRACED, "compiled")], ids=["static", "traced"])
def test_stop_strings_over_static_shapes(target, text, tokenizer, mode, engine):
    """Catches tokens after a stop string in rounds of fixed width."""
    pair = target, tiny.tiny_draft(target)
    stops = {"stop_strings": [tokenizer.decode(text[row, 1 + row : 3 + row]) for row in range(3)]}
    stops["tokenizer"] = tokenizer
    expected, out = plain(target, **stops), relaxed(pair, **stops, **mode)
    assert out.sequences.tolist() == expected.tolist()
    assert expected[:, PROMPT:].ne(tiny.PAD).sum(dim=1).tolist() == [3, 4, 5, NEW]
    assert out.stats.engine == engine
    check_stats(pair, out)


@pytest.mark.parametrize("first", ["w20", "<pad>", ""])
def test_stop_strings_longer_than_the_text(pair, tokenizer, first):
    """Catches stop strings that are matched with ids before the first one, which the text does not have."""
    prompt = torch.tensor([[20]])
    call = {"input_ids": prompt, "max_new_tokens": NEW, "do_sample": False, "tokenizer": tokenizer}
    text = pair[0].generate(**call)[0]
    call["stop_strings"] = [f"{first} {tokenizer.decode(text[:4])}".strip(), "w50 " * 20]
    expected = pair[0].generate(**call)
    assert (expected.shape[1] == 4) == (not first)
    assert pair[0].generate(**call, assistant_model=pair[1], verifier="lossless").tolist() == expected.tolist()


def test_rows_leave_the_batch_at_a_stop_string(target, text, tokenizer, rows_left):
    """Catches stopped rows that stay in the batch, and statistics of another row."""
    draft = tiny.tiny_draft(target, noise=0.35)
    stops = {"stop_strings": [tokenizer.decode(text[row, 0:2]) for row in (0, 2)], "tokenizer": tokenizer}
    expected, out = assert_same((target, draft), **stops)
    emitted = expected[:, PROMPT:].ne(tiny.PAD).sum(dim=1).tolist()
    assert emitted[0] == 2 < emitted[1]
    assert rows_left
    assert [row.num_emitted for row in out.stats.per_row] == emitted


def test_stop_strings_without_eos(pair, text, tokenizer):
    """Catches rows that end at their stop string, although plain `generate` continues them without an EOS."""
    stops = [tokenizer.decode(text[row, 1 : 3 + row]) for row in range(4)]
    expected, _ = assert_same(pair, stop_strings=stops, tokenizer=tokenizer, eos_token_id=None)
    assert PROMPT + 3 < expected.shape[1] < PROMPT + NEW
    assert expected.ne(tiny.PAD)[0].all()


def test_scores_are_zero_after_a_stop_string(pair, text, tokenizer):
    """Catches scores of tokens that were emitted in the same round, after the stop string."""
    stops = {"stop_strings": tokenizer.decode(text[0, 0:2]), "tokenizer": tokenizer, "output_scores": True}
    _, out = assert_same(pair, return_dict_in_generate=True, **stops)
    assert all(scores[0].count_nonzero() for scores in out.scores[:2])
    assert not any(scores[0].count_nonzero() for scores in out.scores[2:])
    assert all(scores[1].count_nonzero() for scores in out.scores)


@pytest.fixture
def stopped(tokenizer):
    """Return the ends of two rows after a round: prompts of one token, followed by w10, w11 and so on."""
    rows = RaggedRows(torch.tensor([[4], [5]]), 9, GAMMA, [tiny.EOS], tiny.PAD)
    rows.ids[:, 1:] = torch.arange(10, 10 + rows.ids.shape[1] - 1)

    def stopped(strings, starts, lengths, ends):
        rows.lengths, rows.ends[:] = PerRow(lengths, torch.tensor(lengths)), ends
        rows.send_ends()
        criteria = [*(sc.StopStringCriteria(tokenizer, string) for string in strings), sc.EosTokenCriteria(tiny.EOS)]
        StopTracker(rows, sort_criteria(tf.StoppingCriteriaList(criteria))).update(starts, lambda column: None)
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
    for strings in ("w09", "w09", ["w09"], ["w09", "w08"]):
        relaxed(pair, stop_strings=strings, tokenizer=own)
    assert made == [["w09"], ["w09", "w08"]]
    assert stop_criterion(own, "w09") is not stop_criterion(own, "w09")  # threads move its tensors between devices
    own.add_tokens(["another"])
    relaxed(pair, stop_strings="w09", tokenizer=own)
    assert made[2:] == [["w09"]]
    gone = weakref.ref(own)
    del own
    gc.collect()
    assert gone() is None


def test_one_stop_string_and_no_tokenizer(pair, text, tokenizer, own_config):
    """Catches one string treated as a list of letters, and a missing tokenizer found after a forward."""
    stop = tokenizer.decode(text[1, 3:4])
    assert_same(pair, stop_strings=stop, tokenizer=tokenizer)
    for config in ({"stop_strings": stop}, {}):
        own_config.stop_strings = None if config else stop
        before = own_config.to_dict()
        with pytest.raises(ValueError, match="tokenizer"):
            relaxed(pair, **config)
        assert own_config.to_dict() == before


def test_no_stop_strings_on_request(pair, text, tokenizer, own_config):
    """Catches stop strings of the model's generation config that `stop_strings=None` does not switch off."""
    own_config.stop_strings = [tokenizer.decode(text[0, 5:6])]
    assert_same(pair, stop_strings=None, tokenizer=tokenizer)


def test_stop_strings_beside_users_criteria(pair, text, tokenizer):
    """Catches our stop-string criterion appended to the caller's list of criteria, or replacing it."""
    stop, eos = tokenizer.decode(text[1, 3:4]), int(text[2, 5])
    call = {"stop_strings": stop, "tokenizer": tokenizer, "eos_token_id": eos}
    assert_same(pair, partial(StopAfter, 8), **call)
    mine = tf.StoppingCriteriaList([StopAfter(8)])
    relaxed(pair, stopping_criteria=mine, **call)
    assert len(mine) == 1


def test_a_callers_stop_strings_replace_the_configured_ones(pair, text, tokenizer):
    """Catches two criteria where upstream uses the caller's only."""
    first, second = (tokenizer.decode(text[1, column : column + 1]) for column in (3, 6))
    assert_same(pair, partial(tf.StopStringCriteria, tokenizer, [second]), stop_strings=first, tokenizer=tokenizer)


class StopAfter(tf.StoppingCriteria):
    """A user's criterion whose state indexes rows: row i stops at column number count + 2 i, or after certain ids."""

    def __init__(self, count, ids=()):
        self.count, self.ids, self.columns, self.seen = count, set(ids), [], [0] * 4

    def __call__(self, input_ids, scores, **kwargs):
        assert input_ids.shape[0] == 4
        self.columns.append(input_ids.shape[1])
        for row, last in enumerate(input_ids[:, -1].tolist()):
            self.seen[row] += 1 if last not in self.ids else 100
        return torch.tensor([seen >= self.count + 2 * row for row, seen in enumerate(self.seen)])


@pytest.mark.parametrize("eos", [tiny.EOS, None], ids=["eos", "no eos"])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_stateful_user_criterion(pair, text, count, eos):
    """Catches columns that are skipped, repeated or passed out of order to a criterion that counts its calls per row.
    Without an EOS, plain `generate` cannot pad, so stopped rows continue until all have stopped."""
    theirs, mine = (StopAfter(count, ids=[int(text[3, 4])]) for _ in range(2))
    expected, out = assert_same(pair, iter([theirs, mine]).__next__, eos_token_id=eos)
    assert mine.columns == theirs.columns == list(range(PROMPT + 1, expected.shape[1] + 1))
    assert mine.seen == theirs.seen
    if eos is None:
        assert expected.ne(tiny.PAD)[0].all()
    else:
        check_stats(pair, out)


class StopOn(tf.StoppingCriteria):
    """A criterion without state: true at certain ids, and false again after them."""

    def __init__(self, ids):
        self.ids = torch.tensor(ids)

    def __call__(self, input_ids, scores, **kwargs):
        return torch.isin(input_ids[:, -1], self.ids)


@pytest.mark.parametrize("eos", [tiny.EOS, None], ids=["eos", "no eos"])
def test_criterion_without_state(pair, text, eos):
    """Catches a stopped row that counts as running again: without an EOS it continues, but remains stopped."""
    ids = [int(text[row, step]) for row, step in enumerate((2, 6, 4, 1))]
    expected, _ = assert_same(pair, partial(StopOn, ids), eos_token_id=eos)
    assert PROMPT + 5 <= expected.shape[1] < PROMPT + NEW


def test_criterion_with_eos_ids_of_its_own(pair):
    """Catches rows that continue after a criterion with `eos_token_id`: upstream pads them in any case."""

    class Named(StopAfter):
        eos_token_id = 5

    expected, _ = assert_same(pair, partial(Named, 2), eos_token_id=None)
    assert not expected[0, PROMPT + 2 :].any()


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
    assert relaxed(pair, max_time=limit).sequences.tolist() == expected.tolist()


class StopWhenSure(tf.StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        assert len(scores) == input_ids.shape[1] - PROMPT
        return scores[-1].softmax(-1).amax(-1) > 0.8


def test_criterion_that_reads_scores(pair):
    """Catches scores that are passed per block, or those of rows that are ahead."""
    expected, _ = assert_same(pair, StopWhenSure, return_dict_in_generate=True, output_scores=True)
    assert expected[:, -1].eq(tiny.PAD).any()


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


def test_users_eos_criterion(pair, text):
    """Catches EOS ids of a passed criterion that are ignored, with or without EOS ids in the config."""
    for eos in (tiny.EOS, None):
        criterion = partial(sc.EosTokenCriteria, [int(text[0, 2]), int(text[2, 5])])
        expected, _ = assert_same(pair, criterion, eos_token_id=eos)
        assert expected[0, -1] == tiny.PAD


def test_every_criterion_of_transformers_is_tested_here():
    """Catches a release with a new stopping criterion that is neither supported nor refused."""
    members = [member for member in vars(sc).values() if isinstance(member, type)]
    known = {m for m in members if issubclass(m, sc.StoppingCriteria) and m is not sc.StoppingCriteria}
    names = {"MaxLengthCriteria", "MaxTimeCriteria", "StopStringCriteria", "EosTokenCriteria", "ConfidenceCriteria"}
    assert {member.__name__ for member in known} == names


def test_relaxed_rows_end_as_they_do_alone(target, text, tokenizer):
    """Catches rounds that end elsewhere in a batch than alone when a criterion ends rows."""
    draft, inputs = tiny.tiny_draft(target, noise=0.35), tiny.ragged_batch(4, PROMPT)
    given = {"assistant_model": draft, "verifier": "static:0.3", "num_assistant_tokens": GAMMA}
    ends = {"stop_strings": [tokenizer.decode(text[0, 5:6]), tokenizer.decode(text[3, 3:4])], "tokenizer": tokenizer}
    ends |= {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": [tiny.EOS, int(text[1, 6])]}
    batch = target.generate(**inputs, **given, **ends)
    for row in range(4):
        prompt = inputs["input_ids"][row : row + 1, inputs["attention_mask"][row].bool()]
        alone = target.generate(input_ids=prompt, **given, **ends)[0, prompt.shape[1] :].tolist()
        assert batch[row, PROMPT:].tolist() == alone + [tiny.PAD] * (batch.shape[1] - PROMPT - len(alone))
