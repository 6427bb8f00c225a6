"""Calls of `generate` against two references, over engines, sources of draft tokens and batch sizes.

Greedy decoding with a lossless verifier returns the text of plain `generate`. Sampling and other verifiers return the
text of the naive decoder (`tests/reference.py`) with the same random numbers. Each case names the fault it catches.
"""

import copy
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers as tf
from transformers.generation import logits_process as lp
from transformers.generation import stopping_criteria as sc
from transformers.modeling_layers import MtpModel

from hf_diversed import (
    DiversedVerifier,
    PhaseVerifier,
    StaticEnsembleVerifier,
    diversed_decoding,
    support,
)
from hf_diversed.generation.rows import RaggedRows
from hf_diversed.verifiers import build_verifier
from tests import versions
from tests.generation import sources
from tests.generation.modes import STATIC, TRACED
from tests.reference import Lookup, Recorder, naive_decoding
from tests.tiny import (
    BOS,
    EOS,
    PAD,
    VOCAB_SIZE,
    Listener,
    first_layers,
    ragged_batch,
    tiny_draft,
    tiny_head,
    tiny_model,
    word_tokenizer,
)
from tests.verifier_cases import VERIFIER_CASES


PROMPT, NEW = 12, 12
SOME_ENDS = [EOS, 9, 17, 26, 33, 41, 50, 57]  # EOS ids with which rows end at different lengths
ENGINES = {"eager": {}, "static": STATIC, "traced": TRACED}


class Run(NamedTuple):
    """An engine, a source of draft tokens, and the number of prompts."""

    engine: str
    source: str
    rows: int


ONE, BATCH, STATIC_BATCH = Run("eager", "draft", 1), Run("eager", "draft", 4), Run("static", "draft", 3)
LOOKUP, STATIC_LOOKUP = Run("eager", "lookup", 4), Run("static", "lookup", 3)  # a fourth row is added to three
EVERYWHERE = [
    *(ONE, BATCH, STATIC_BATCH, LOOKUP, STATIC_LOOKUP),
    *(Run("eager", "same", 4), Run("eager", "copies", 1), Run("eager", "copies", 4)),
    *(Run("eager", "own", 4), Run("eager", "mtp", 1)),
]
SOME = [BATCH, LOOKUP, STATIC_BATCH]
DRAFT_MODELS = [run for run in EVERYWHERE if run.source in ("draft", "same", "copies") and run.engine == "eager"]


@dataclass(frozen=True)
class Case:
    """Keywords of a call.

    Attributes:
        catches: the fault that the case catches.
        call: keywords of `generate`. Instances in it are copied for each call. Greedy and lossless unless set.
        runs: where it is run. gamma: draft tokens per round.
    """

    id: str
    catches: str
    call: dict[str, Any]
    runs: Sequence[Run] = tuple(EVERYWHERE)
    gamma: Any = 4


def given(*processors) -> dict[str, Any]:
    return {"logits_processor": tf.LogitsProcessorList(processors)}


# Lengths and ends of rows.


class StopAfter(tf.StoppingCriteria):
    """Has a state that indexes rows: row i stops after count + 2 i calls."""

    def __init__(self, count):
        self.count, self.seen = count, []

    def __call__(self, input_ids, scores, **kwargs):
        self.seen.append(input_ids.clone())
        return torch.tensor([len(self.seen) >= self.count + 2 * row for row in range(len(input_ids))])


class StopOn(tf.StoppingCriteria):
    """Has no state: true at certain ids, and false again after them."""

    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores, **kwargs):
        self.seen.append(input_ids.clone())
        return input_ids[:, -1] % 7 == 3


class WithEosIds(StopAfter):
    eos_token_id = 5


class StopWhenSure(tf.StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        assert len(scores) == input_ids.shape[1] - PROMPT
        return scores[-1].softmax(-1).amax(-1) > 0.8


@functools.cache
def tokenizer():
    words = [f"w{token}" for token in range(VOCAB_SIZE)]
    words[3] = "abcdef"  # upstream's criterion needs this word
    return word_tokenizer(words=words)


SCORES = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
STOPS = ["3 w", "0 w1", "5 w4", "w20"]  # within and across tokens

ENDS = [
    Case("one token", "A draft token where only one token is left.", {"max_new_tokens": 1}),
    Case("max_length", "Draft tokens after the last token.", {"max_new_tokens": None, "max_length": PROMPT + 7}, SOME),
    Case("gamma 1", "A cache that assumes several draft tokens.", {}, SOME, gamma=np.int64(1)),
    Case("gamma 1, all rows stay", "Finished rows that grow, as a processor needs all rows.",
         {"repetition_penalty": 1.3, "max_new_tokens": 24, "eos_token_id": None}, [BATCH, STATIC_BATCH], gamma=1),
    Case("gamma 9", "Columns beyond the first block.", {"max_new_tokens": 30}, SOME, gamma=9),
    Case("large gamma", "Memory for draft tokens that no row can have.", {}, SOME, gamma=10**9),
    Case("prefill in parts", "A part that the caches lack.", {"prefill_chunk_size": 5}, SOME),
    Case("eos", "Tokens after an accepted EOS.", {"eos_token_id": SOME_ENDS, "max_new_tokens": 20}),
    Case("user's length", "The smaller of two lengths.",
         {"stopping_criteria": [sc.MaxLengthCriteria(PROMPT + 15)]}, SOME),
    Case("stop strings", "A search at the ends of blocks only.", {"stop_strings": STOPS}),
    Case("stop strings, no eos", "Rows that end, although they cannot be padded.",
         {"stop_strings": STOPS[1:], "eos_token_id": None}, SOME),
    Case("stop strings, scores", "Scores after a stop string.", {"stop_strings": STOPS, **SCORES}, SOME),
    Case("stop strings of different lengths", "Ids that are cut to the length of a shorter one.",
         {"stopping_criteria": [sc.StopStringCriteria(tokenizer(), text) for text in ("w50", "w44 w10 w59 w54 w14")]},
         SOME),
    Case("long stop string", "Ids before the text.", {"stop_strings": ["w50 " * 30, "w20 " * 20]}, SOME),
    Case("stop strings, user's criterion", "Criteria that replace each other.",
         {"stop_strings": STOPS[2:], "stopping_criteria": [StopAfter(8)]}, SOME),
    Case("criterion with state", "Columns that are skipped or repeated.",
         {"stopping_criteria": [StopAfter(3)]}, [ONE, *SOME]),
    Case("criterion with state, no eos", "A stopped row that is padded, or another end of the call.",
         {"stopping_criteria": [StopAfter(1)], "eos_token_id": None}, SOME),
    Case("criterion without state", "A stopped row that runs again.", {"stopping_criteria": [StopOn()]}, SOME),
    Case("criterion with eos ids", "Rows that continue, although upstream pads them.",
         {"stopping_criteria": [WithEosIds(2)], "eos_token_id": None}, SOME),
    Case("eos criterion", "EOS ids of a criterion that are ignored.",
         {"stopping_criteria": [sc.EosTokenCriteria(SOME_ENDS)]}, SOME),
    Case("criterion that reads scores", "Scores of a block, or of other rows.",
         {"stopping_criteria": [StopWhenSure()], **SCORES}, SOME),
    Case("upstream's confidence criterion", "Scores of another position, or its bool in place of a tensor.",
         {"stopping_criteria": [sc.ConfidenceCriteria(0.3)], **SCORES}, [ONE]),
    Case("threshold", "Lengths or caches of a block that ended early.",
         {"assistant_confidence_threshold": 0.6, "max_new_tokens": 30}, DRAFT_MODELS, gamma=9),
    Case("confidence, processors", "The prefix of another position after a block that ended early.",
         {"num_assistant_tokens_schedule": "confidence", "repetition_penalty": 1.3, "no_repeat_ngram_size": 3},
         DRAFT_MODELS, gamma=9),
]  # fmt: skip


# Processors of transformers. Warpers that `generate` only builds for sampling come as instances.


class Upset(tf.LogitsProcessor):
    """Returns an infinite and a NaN score, which `InfNanRemoveLogitsProcessor` replaces."""

    def __call__(self, input_ids, scores):
        rows = torch.arange(len(scores))
        scores = scores.index_put((rows, (input_ids[:, -1] * 7) % VOCAB_SIZE), scores.new_tensor(torch.inf))
        return scores.index_put((rows, (input_ids[:, -2] * 5) % VOCAB_SIZE), scores.new_tensor(torch.nan))


def allowed(batch_id, ids):
    """Return ids that depend on the row, the length and the last id."""
    return [token for token in range(3, VOCAB_SIZE) if (token + batch_id + len(ids) + int(ids[-1])) % 3]


MANY = range(4, VOCAB_SIZE, 3)
PAIRS = [[[a, b], 6.0] for a in range(4, 64) for b in (a // 2, 63 - a // 3)]
SERVED = {
    lp.MinLengthLogitsProcessor: {"min_length": PROMPT + 7, "eos_token_id": SOME_ENDS},
    lp.MinNewTokensLengthLogitsProcessor: {"min_new_tokens": 7, "eos_token_id": SOME_ENDS},
    lp.TemperatureLogitsWarper: given(lp.TemperatureLogitsWarper(0.7)),
    lp.RepetitionPenaltyLogitsProcessor: {"repetition_penalty": 1.8},
    lp.EncoderRepetitionPenaltyLogitsProcessor: {"encoder_repetition_penalty": 1.8},
    lp.TopPLogitsWarper: given(lp.TopPLogitsWarper(0.5)),
    lp.TopKLogitsWarper: given(lp.TopKLogitsWarper(3)),
    lp.TopHLogitsWarper: given(lp.TopHLogitsWarper(0.4)),
    lp.MinPLogitsWarper: given(lp.MinPLogitsWarper(0.2)),
    lp.TypicalLogitsWarper: given(lp.TypicalLogitsWarper(0.4)),
    lp.EpsilonLogitsWarper: given(lp.EpsilonLogitsWarper(0.05)),
    lp.EtaLogitsWarper: given(lp.EtaLogitsWarper(0.1)),
    lp.NoRepeatNGramLogitsProcessor: {"no_repeat_ngram_size": 1},
    lp.EncoderNoRepeatNGramLogitsProcessor: {"encoder_no_repeat_ngram_size": 1},
    lp.SequenceBiasLogitsProcessor: {"sequence_bias": [[[token], -4.0] for token in MANY] + PAIRS},
    lp.NoBadWordsLogitsProcessor: {"bad_words_ids": [[a, b] for a in range(4, 64) for b in range(3 + a % 3, 64, 3)]},
    lp.PrefixConstrainedLogitsProcessor: {"prefix_allowed_tokens_fn": allowed},
    lp.ForcedBOSTokenLogitsProcessor: {"forced_bos_token_id": BOS, "input_ids": torch.tensor([[5], [9], [17], [33]])},
    lp.ForcedEOSTokenLogitsProcessor: {"forced_eos_token_id": EOS, "max_new_tokens": 4},
    lp.InfNanRemoveLogitsProcessor: given(Upset(), lp.InfNanRemoveLogitsProcessor()),
    lp.ExponentialDecayLengthPenalty: {"exponential_decay_length_penalty": (2, 1.6), "eos_token_id": SOME_ENDS},
    lp.LogitNormalization: {"renormalize_logits": True},
    lp.SuppressTokensAtBeginLogitsProcessor: {"begin_suppress_tokens": list(range(4, 64, 2))},
    lp.SuppressTokensLogitsProcessor: {"suppress_tokens": [*MANY]},
    lp.WatermarkLogitsProcessor: {"watermarking_config": tf.WatermarkingConfig(bias=4.0, greenlist_ratio=0.3)},
}


# Processors of users.


class Bias(tf.LogitsProcessor):
    """Depends on the row, the prefix and, since it multiplies, on its place in the list."""

    def __call__(self, input_ids, scores):
        rows = torch.arange(len(input_ids))[:, None]
        factors = (input_ids.sum(dim=1, keepdim=True) * 31 + rows * 7 + torch.arange(scores.shape[1])) % 11
        return scores * (0.3 + factors / 11) + 3


class InPlace(Bias):
    def __call__(self, input_ids, scores):
        return scores.copy_(super().__call__(input_ids, scores))


class NothingAfterEos(tf.LogitsProcessor):
    """A grammar that forbids every token after EOS."""

    def __call__(self, input_ids, scores):
        ended = torch.isin(input_ids[:, PROMPT:], torch.tensor(SOME_ENDS)).any(dim=1)
        return scores.masked_fill(ended[:, None], -torch.inf)


class EndsAtEos(tf.LogitsProcessor):
    """A matcher of a grammar, which must not be called after the end of its text."""

    def __call__(self, input_ids, scores):
        assert not torch.isin(input_ids[:, PROMPT:], torch.tensor(SOME_ENDS)).any()
        return scores


class Remembering(tf.LogitsProcessor):
    """Keeps its input, and adds only the ids that have changed since the last call."""

    def __init__(self):
        self.ids, self.sum = torch.zeros(0, dtype=torch.long), 0

    def __call__(self, input_ids, scores):
        new = input_ids[0]
        shared = min(len(new), len(self.ids))
        common = int((new[:shared] == self.ids[:shared]).long().cumprod(0).sum())
        self.sum += int(new[common:].sum()) - int(self.ids[common:].sum())
        self.ids = new
        return scores.index_fill(1, torch.tensor([7 + self.sum % 11]), 3.0)


def permitted(last: int) -> list[int]:
    return [token for token in range(3, VOCAB_SIZE) if (token + last) % 3]


def grammar(batch_id, ids):
    """Raises for a text that it forbids, as a trie does."""
    new = ids[PROMPT - 1 :].tolist()
    for last, token in itertools.pairwise(new):
        assert token in SOME_ENDS or (token == PAD and last in (PAD, *SOME_ENDS)) or token in permitted(last)
    return permitted(new[-1])


ROWS_OF_ONE = [run for run in EVERYWHERE if run.rows == 1]
PROCESSORS = [
    *(Case(cls.__name__, "Other ids, lengths or draft tokens.", SCORES | call,
           [BATCH] if cls in support.WARPERS else [BATCH, LOOKUP]) for cls, call in SERVED.items()),
    Case("several processors", "Another order, or one that is lost.",
         {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 4, "renormalize_logits": True,
          "prefix_allowed_tokens_fn": allowed, "exponential_decay_length_penalty": (4, 1.3),
          **given(lp.TopKLogitsWarper(20))}, SOME),
    Case("no repeated pairs", "A prefix without its last draft tokens.",
         {"no_repeat_ngram_size": 2, "suppress_tokens": list(range(6, 64))}),
    Case("users' processor", "Rows of another order, or of another prefix.", SCORES | given(Bias())),
    Case("processor in place", "Raw logits that a processor changes.", given(InPlace()), SOME),
    Case("nothing after EOS", "A check of the bonus position after an accepted EOS, or of finished rows.",
         {"eos_token_id": SOME_ENDS, "max_new_tokens": 30, **given(NothingAfterEos())}),
    Case("ends at EOS", "Positions that are scored after a drafted EOS.",
         {"eos_token_id": SOME_ENDS, "max_new_tokens": 30, **given(EndsAtEos())}, ROWS_OF_ONE, gamma=8),
    Case("remembering processor", "A prefix whose memory is overwritten by draft tokens.",
         given(Remembering()), ROWS_OF_ONE),
    Case("grammar", "A prefix that a processor has forbidden.",
         {"prefix_allowed_tokens_fn": grammar, "eos_token_id": SOME_ENDS}, SOME),
]  # fmt: skip


# Verifiers and temperatures.


MAKERS = {
    "diversed": lambda: DiversedVerifier(tiny_head(), strictness=0.4, max_bias=0.2),
    "token": lambda: DiversedVerifier(tiny_head(features="both", token_features=True), strictness=0.3),
    "token-bounds": lambda: DiversedVerifier(
        tiny_head(features="distribution", token_features=True), strictness=0.2, max_ratio=10.0
    ),
    "phase": lambda: PhaseVerifier(StaticEnsembleVerifier(0.1, max_bias=0.2), begin=21, end=34),
    "phase-eos": lambda: PhaseVerifier(StaticEnsembleVerifier(0.0), begin=9, end=EOS),
}
SPECS = [
    *("lossless", "static:0.3", "lenience:0.2", "lossy:0.5", "spec_cascade:token_v3:0.6", "fuzzy:0.3:kl"),
    *("contrastive", "typical", "top_k_relaxed:5:0.5", "mars:0.7", "fly:0.2:1", "block"),
]
# A verifier without a line above is run as the first row of `verifier_cases.py` has it.
OTHERS = {case.rule: case.make for case in reversed(VERIFIER_CASES)}
VERIFIERS = {**MAKERS, **{spec: functools.partial(build_verifier, spec) for spec in SPECS}}
VERIFIERS |= {rule: make for rule, make in OTHERS.items() if rule not in {name.split(":")[0] for name in VERIFIERS}}
SETTINGS = {
    "greedy": {"do_sample": False},
    "warped": {"do_sample": True, "temperature": 0.7, "top_k": 12, "top_p": 0.9},
    "sampled": {"do_sample": True, "top_k": 0},
}


# Sources that `tests/fuzz` does not have: draft models of other vocabularies, the caller's generator, and tracing.
NARROW, WIDE, OWN = (Run("eager", source, 4) for source in ("narrow", "wide", "own"))
RELAXED = [
    Case(
        f"{name}, {setting}",
        "Ids that one of the models lacks, raw distributions, and state of another row or of the call before.",
        {"verifier": VERIFIERS[name], "max_new_tokens": 8, **SETTINGS[setting]},
        runs,
        gamma=3,
    )
    for name, setting, runs in (
        ("static:0.3", "sampled", (NARROW, WIDE, Run("static", "narrow", 3))),
        ("static:0.3", "greedy", (NARROW, OWN)),
        ("spec_cascade:token_v3:0.6", "warped", (NARROW, WIDE)),
        ("diversed", "sampled", (NARROW,)),
        ("token-bounds", "warped", (NARROW, Run("traced", "shallow", 3))),  # `test_tracing.py` traces all verifiers
        ("contrastive", "warped", (NARROW,)),
        ("phase", "sampled", (WIDE,)),
        ("fuzzy:0.3:kl", "greedy", (WIDE, OWN)),
        ("block", "warped", (NARROW,)),
        ("fly:0.2:1", "sampled", (NARROW,)),
        ("fly:0.2:1", "greedy", (OWN,)),
        ("lenience:0.2", "greedy", (NARROW, OWN)),
    )
]


CASES = ENDS + PROCESSORS + RELAXED
LOOP_ARGUMENTS = ("assistant_model", "candidate_generator", "num_assistant_tokens")
OURS = ("verifier", "num_assistant_tokens_schedule", "assistant_confidence_threshold")  # not of plain `generate`


# Models, prompts and references.


@functools.cache
def target():
    return tiny_model("llama").double()


@functools.cache
def models(source: str):
    """Return the target and the draft model; None without one."""
    if source == "mtp":
        return sources.mtp("glm4_moe")[0], None
    if source in ("lookup", "own"):
        return target(), None
    if source == "same":
        return target(), copy.deepcopy(target())
    if source == "shallow":  # is traced in half the time
        shallow = first_layers(target(), 1).double()
        return shallow, tiny_draft(shallow, noise=0.15)
    draft = tiny_draft(target(), noise=0.15)
    if source in ("narrow", "wide"):
        draft.resize_token_embeddings({"narrow": 48, "wide": 80}[source], mean_resizing=False)
        with torch.no_grad():
            draft.get_output_embeddings().weight[VOCAB_SIZE:] = 2.0 * draft.get_output_embeddings().weight[18]
    return target(), draft


def prompts(rows: int) -> dict[str, torch.Tensor]:
    """Return left-padded prompts that contain everything twice."""
    batch = ragged_batch(rows, PROMPT // 2)
    mask = torch.cat([batch["attention_mask"], torch.ones_like(batch["attention_mask"])], dim=1)
    ids = torch.cat([batch["input_ids"], batch["input_ids"]], dim=1)
    return {"input_ids": ids.where((ids != PAD) | (mask == 0), 7), "attention_mask": mask}


def drafts(run: Run, gamma) -> dict[str, Any]:
    """Return the arguments that select a source of draft tokens."""
    lookup = {"prompt_lookup_num_tokens": gamma, "max_matching_ngram_size": 1}
    draft = {"assistant_model": models(run.source)[1], "num_assistant_tokens": gamma}
    own = {"candidate_generator": [sources.Copies() for _ in range(run.rows)], "num_assistant_tokens": gamma}
    mtp = {"use_mtp": True, "num_assistant_tokens": gamma}
    return {"lookup": lookup, "copies": draft | lookup, "own": own, "mtp": mtp}.get(run.source, draft)


class Falsy(Recorder):
    """Catches `random_source or RandomSource()`."""

    def __len__(self):
        return 0


class LastThree(Lookup):
    """The candidate generator `Copies` for the naive decoder."""

    def _continuation(self, text):
        return text[-3:]


@functools.cache
@torch.no_grad()
def forward(source: str, is_draft: bool, ids: tuple[int, ...]):
    """Return raw logits over the target's ids and last hidden states of one row; many cases share prefixes."""
    model = models(source)[is_draft]
    ids = torch.tensor([ids]).clamp_max(model.get_input_embeddings().num_embeddings - 1)
    out = model(ids, output_hidden_states=True)
    logits = F.pad(out.logits, (0, VOCAB_SIZE - out.logits.shape[-1]), value=-torch.inf)
    return logits.float(), out.hidden_states[-1]


@functools.cache
def plain_text(case_id: str, source: str, rows: int):
    """Return the output of plain `generate`, and the criteria it called."""
    case = next(case for case in CASES if case.id == case_id)
    call = keywords(case, rows)
    return models(source)[0].generate(**call), call.get("stopping_criteria", [])


def keywords(case: Case, rows: int) -> dict[str, Any]:
    """Return the keywords of plain `generate`."""
    call = {**prompts(rows), "max_new_tokens": NEW, "do_sample": False, "return_dict_in_generate": True}
    call |= copy.deepcopy({key: value for key, value in case.call.items() if key not in OURS})
    if "input_ids" in case.call:
        call["input_ids"], call["attention_mask"] = case.call["input_ids"][:rows], None
    if "stop_strings" in call:
        call["tokenizer"] = tokenizer()
    return call


# Tests.


def parameters(cases: list[Case]):
    newer = versions.since("5.23", "returns other logits than those that were sampled from")
    older = {"several processors": versions.since("5.19", "makes NaN of an EOS that is forbidden")}
    found = []
    for case in cases:
        for run in case.runs:
            marks = [newer] if run.source == "mtp" else [older[case.id]] if case.id in older else []
            found.append(pytest.param(case, run, id=f"{case.id}-{run.engine}-{run.source}-{run.rows}", marks=marks))
    return found


@pytest.fixture(autouse=True)
def mtp_weights(monkeypatch):
    monkeypatch.setattr(MtpModel, "from_pretrained", sources.random_mtp_model)


@pytest.mark.parametrize(("case", "run"), parameters(ENDS + PROCESSORS))
def test_lossless_greedy_is_plain_generate(case: Case, run: Run):
    """Catches the faults of the table, and records, streams or statistics that differ from the text."""
    expected, criteria = plain_text(case.id, run.source, run.rows)
    call, listener = keywords(case, run.rows), Listener()
    ours = {"verifier": "lossless", "output_token_records": True}
    ours |= {name: case.call[name] for name in OURS if name in case.call}
    ours |= drafts(run, case.gamma) | ENGINES[run.engine] | ({"streamer": listener} if run.rows == 1 else {})
    out = models(run.source)[0].generate(**call, **ours)
    assert out.sequences.tolist() == expected.sequences.tolist()
    for mine, theirs in zip(call.get("stopping_criteria", []), criteria):
        for columns in zip(getattr(mine, "seen", []), getattr(theirs, "seen", []), strict=True):
            assert torch.equal(*columns)
    check_report(out, run, call, listener)
    if run == BATCH and case in ENDS and expected.sequences.shape[1] == PROMPT + NEW:
        assert out.stats.num_accepted > 0
        assert out.stats.num_rejected > 0
    if expected.scores is not None:
        assert case in ENDS or any(not torch.equal(*both) for both in zip(expected.scores, expected.logits))
        check_scores(out, expected)


def check_report(out, run: Run, call: dict[str, Any], listener: Listener) -> None:
    """Compare records, statistics and the stream with the text."""
    stats, source = out.stats, out.token_records.source
    new = out.sequences[:, call["input_ids"].shape[1] :]
    assert torch.equal(out.token_records.tokens[source >= 0], new[source >= 0])
    assert (new[source < 0] == PAD).all()
    assert [row.num_emitted for row in stats.per_row] == (source >= 0).sum(dim=1).tolist()
    assert [row.num_accepted for row in stats.per_row] == (source == 0).sum(dim=1).tolist()
    assert stats.num_accepted == sum(stats.accepted_per_position) <= stats.num_drafted
    assert stats.engine.partition(" ")[0] == run.engine
    if run.rows == 1:
        assert listener.tokens == out.sequences[0].tolist()
        assert len(listener.rounds) == stats.num_rounds
        assert listener.ended == 1
    if run.source == "same":
        assert stats.num_drafted == stats.num_accepted


def check_scores(out, expected) -> None:
    """Compare scores and raw logits wherever a token was emitted; they are 0 elsewhere."""
    assert len(out.scores) == len(out.logits) == len(expected.scores)
    for step, is_emitted in enumerate(out.token_records.source.T >= 0):
        for mine, theirs in ((out.scores, expected.scores), (out.logits, expected.logits)):
            torch.testing.assert_close(mine[step][is_emitted], theirs[step][is_emitted], check_dtype=False)
            assert not mine[step][~is_emitted].any()


def test_every_processor_of_transformers_is_in_the_table():
    """Catches a release with a new processor that is neither supported nor refused: it would be called per column."""
    members = [member for member in vars(lp).values() if isinstance(member, type)]
    known = {each for each in members if issubclass(each, lp.LogitsProcessor) and each is not lp.LogitsProcessor}
    assert len(known) >= 30
    assert set(SERVED) | set(support.REFUSED_PROCESSORS) == known
    assert not set(SERVED) & set(support.REFUSED_PROCESSORS)
    assert set(SERVED) > support.POINTWISE_PROCESSORS


def test_every_criterion_of_transformers_is_known():
    """Catches a release with a new stopping criterion that is neither supported nor refused."""
    members = [member for member in vars(sc).values() if isinstance(member, type)]
    known = {each.__name__ for each in members if issubclass(each, sc.StoppingCriteria)} - {"StoppingCriteria"}
    names = {"MaxLengthCriteria", "MaxTimeCriteria", "StopStringCriteria", "EosTokenCriteria", "ConfidenceCriteria"}
    assert known == names


@pytest.mark.parametrize(("case", "run"), parameters(RELAXED))
def test_tokens_are_those_of_the_naive_decoder(case: Case, run: Run, monkeypatch):
    """Catches the faults of the table, in every second row: rows leave the batch in different rounds."""
    recorder, keep = Falsy(), RaggedRows.keep
    monkeypatch.setattr(
        RaggedRows, "keep", lambda rows, kept: recorder.events.append(("kept", kept)) or keep(rows, kept)
    )
    verifier, sampled, processors = case.call["verifier"](), case.call["do_sample"], []
    source = drafts(run, case.gamma)
    ours = {name: source.pop(name) for name in [*source] if name in LOOP_ARGUMENTS}
    ours |= {"verifier": verifier} | ({"random_source": recorder} if sampled else {})

    def loop(*args, logits_processor, **kwargs):
        processors.extend(logits_processor)
        return diversed_decoding(*args, logits_processor=logits_processor, **ours, **kwargs)

    torch.manual_seed(5)
    call = keywords(case, run.rows) | source | ENGINES[run.engine]
    result = models(run.source)[0].generate(**call, custom_generate=loop)
    assert result.stats.engine == {"traced": "compiled"}.get(run.engine, run.engine)
    out = result.sequences
    for row in range(0, run.rows, 2):
        prompt = call["input_ids"][row, call["attention_mask"][row].bool()][None]
        new = naive_decoding(
            *references(run.source),
            verifier,
            prompt,
            max_new_tokens=call["max_new_tokens"],
            gamma=case.gamma,
            eos_id=EOS,
            process=tf.LogitsProcessorList(processors),
            randomness=recorder.of_row(row) if sampled else None,
        )[0, prompt.shape[1] :]
        assert out[row, PROMPT:].tolist() == new.tolist() + [PAD] * (out.shape[1] - PROMPT - len(new))


def references(source: str):
    """Return the target and the source of draft tokens for the naive decoder."""
    draft = functools.partial(read, source, True)
    if source == "own":
        draft = LastThree(VOCAB_SIZE, 3, 1, bans=lambda ids: torch.zeros(VOCAB_SIZE, dtype=torch.bool))
    return functools.partial(read, source, False), draft


def read(source: str, is_draft: bool, ids, **_):
    return forward(source, is_draft, tuple(ids[0].tolist()))
