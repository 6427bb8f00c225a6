"""Prompt lookup: upstream's matches, the distributions under a one-hot q, and rows without a match.

`tests/fuzz` compares it with a naive reference: padding, ends, forbidden tokens, and rows that were removed.
"""

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from transformers import GenerationConfig
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

import hf_diversed
from hf_diversed import LosslessVerifier, StaticEnsembleVerifier, diversed_decoding
from hf_diversed.blocks import DraftOutput
from hf_diversed.generation.drafting import ModelDrafter
from hf_diversed.generation.prompt_lookup import CopyingDrafter, PromptLookupDrafter
from hf_diversed.verifiers import PhaseVerifier
from tests.tiny import EOS, PAD, VOCAB_SIZE, ragged_batch, tiny_draft, tiny_model
from tests.verifier_cases import DISTRIBUTION_CASES, Probs, enumerate_emitted, make_block, weights_of


GAMMA = 4


@pytest.fixture(scope="module")
def target():
    return tiny_model("llama")


def repetitive_batch(batch_size=4, length=16):
    """Left-padded prompts that contain everything twice."""
    batch = ragged_batch(batch_size, length // 2)
    ids = torch.cat([batch["input_ids"], batch["input_ids"]], dim=1)
    mask = torch.cat([batch["attention_mask"], torch.ones_like(batch["attention_mask"])], dim=1)
    return {"input_ids": torch.where(ids == PAD, torch.where(mask == 1, 7, PAD), ids), "attention_mask": mask}


def lookup(target, verifier, inputs, **kwargs):
    settings = {"max_new_tokens": 24, "do_sample": False, "return_dict_in_generate": True}
    given = {**settings, "prompt_lookup_num_tokens": GAMMA, **kwargs}
    return target.generate(**inputs, verifier=verifier, **given)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_processor_receives_no_prefix_that_it_forbids(target, rows):
    """Catches copied tokens that are processed after a forbidden one, which a trie of texts does not contain."""
    ids = torch.tensor([[5, 6, 7, 8, 9, 10, 11, 5, 6, 7]]).repeat(rows, 1)
    texts = [[8, 20, 21, 22, EOS], [8, 9, 23, 24, EOS]]

    def allowed(row, prefix):
        new = prefix[ids.shape[1] :].tolist()
        if EOS in new:
            return [PAD]
        return sorted({text[len(new)] for text in texts if text[: len(new)] == new and len(text) > len(new)})

    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    call = {"prefix_allowed_tokens_fn": allowed, "max_new_tokens": 8, "do_sample": False}
    out = lookup(target, "lossless", inputs, **call)
    assert torch.equal(out.sequences, target.generate(**inputs, **call))
    assert out.stats.num_accepted


@pytest.mark.parametrize("ngram_size", [1, 3])
def test_lossless_greedy_is_plain_generate(target, ngram_size):
    """Invariant 1. Catches wrong columns where rows have different numbers of draft tokens."""
    inputs = repetitive_batch()
    out = lookup(target, "lossless", inputs, max_matching_ngram_size=ngram_size)
    assert torch.equal(out.sequences, target.generate(**inputs, max_new_tokens=24, do_sample=False))
    assert out.stats.num_accepted > 0
    assert out.stats.draft_forwards == 0
    assert len({row.num_drafted for row in out.stats.per_row}) > 1


@pytest.mark.parametrize("ngram_size", [None, 3])
def test_looks_up_what_upstream_looks_up(target, ngram_size, monkeypatch):
    """Catches another match, length or n-gram size than upstream's: same prefixes, same candidates."""
    calls = []
    inner = PromptLookupCandidateGenerator.get_candidates

    def spy(self, input_ids, **kwargs):
        candidates, _ = inner(self, input_ids, **kwargs)
        calls.append((input_ids[0].tolist(), candidates[0, input_ids.shape[1] :].tolist()))
        return candidates, None

    monkeypatch.setattr(PromptLookupCandidateGenerator, "get_candidates", spy)
    kwargs = {"prompt_lookup_num_tokens": GAMMA, "max_matching_ngram_size": ngram_size}
    for seed in range(3):
        prompt = {"input_ids": ragged_batch(seed=seed)["input_ids"][:1].repeat(1, 2)}
        theirs = target.generate(**prompt, max_new_tokens=24, do_sample=False, **kwargs)
        expected = calls.copy()
        calls.clear()
        ours = lookup(target, "lossless", prompt, **kwargs).sequences
        # Where one token is left nothing can be drafted: upstream asks all the same, and drops the answer.
        limit = prompt["input_ids"].shape[1] + 23
        assert calls == [call for call in expected if len(call[0]) < limit]
        assert torch.equal(ours, theirs)
        calls.clear()


SERVED = [
    case for case in DISTRIBUTION_CASES if not (case.make().needs_hidden_states or case.make().needs_draft_confidence)
]


def one_hot_block(sampled=True):
    """The blocks of the matrix tests with a one-hot q, at likely and unlikely tokens."""
    draft, target = make_block()
    tokens = torch.randint(draft.scores.shape[-1], draft.tokens.shape, generator=torch.Generator().manual_seed(5))
    scores = torch.where(F.one_hot(tokens, draft.scores.shape[-1]) == 1, 0.0, -torch.inf)
    return DraftOutput(scores, None, scores, tokens=tokens, sampled=sampled), target


@pytest.mark.parametrize("case", SERVED, ids=lambda case: case.id)
def test_emitted_distribution(case):
    """Catches 0 * inf and -inf - -inf under a one-hot q, and any emitted distribution other than v, by enumeration."""
    draft, target = one_hot_block()
    found = enumerate_emitted(case.make(), draft, target)
    distribution = case.emitted(Probs.of(draft, target, found.weight))
    assert distribution.isfinite().all()
    torch.testing.assert_close(found.emitted, distribution, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("case", SERVED, ids=lambda case: case.id)
def test_greedy_token(case):
    """The same at temperature 0: the emitted token is the verifier's own."""
    draft, target = one_hot_block(sampled=False)
    verifier = case.make()
    verdict = verifier(torch.zeros(len(draft.tokens), 1, dtype=torch.long), draft, target)
    replaced = [verdict.replacement(torch.full((len(draft.tokens),), g)).argmax(-1) for g in range(3)]
    emitted = torch.where(verdict.accept_prob == 1.0, draft.tokens, torch.stack(replaced, dim=1))
    assert torch.equal(emitted, case.greedy(Probs.of(draft, target, weights_of(verifier, draft, target))))


def test_phases_end_in_rounds_without_drafts(target, monkeypatch):
    """After the end token decoding is lossless, whichever round emitted it. Catches a phase that ignores tokens of
    rounds that do not call the verifier, or that counts ids wrongly afterwards."""
    quiet, inner = set(), PromptLookupDrafter.propose

    def spy(self, counts):
        draft, found = inner(self, counts)
        if draft is None:
            quiet.add(self.rows.lengths.host[0])
        return draft, found

    monkeypatch.setattr(PromptLookupDrafter, "propose", spy)
    begin, ends_in_quiet = 63, 0
    repeated = ragged_batch()["input_ids"][:1].repeat(1, 2)
    prompt = torch.cat([torch.tensor([[begin]]), repeated], dim=1)
    for end in range(2, begin):
        quiet.clear()
        verifier = PhaseVerifier(StaticEnsembleVerifier(0.0), begin=begin, end=end)
        ids = lookup(target, verifier, {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)}).sequences
        ends = [column for column in range(prompt.shape[1], ids.shape[1] - 1) if ids[0, column] == end]
        if end in prompt or not ends or begin in ids[0, ends[0] :]:
            continue
        ends_in_quiet += ends[0] in quiet
        start = ids[:, : ends[0] + 1]
        plain = {"input_ids": start, "attention_mask": torch.ones_like(start)}
        assert torch.equal(ids, target.generate(**plain, max_length=ids.shape[1], do_sample=False)), end
    assert ends_in_quiet > 0


@pytest.mark.parametrize(("begin", "end"), [(9, EOS), (9, PAD), (PAD, 9), (EOS, 9)])
def test_phases_of_short_rows(target, begin, end):
    """Catches EOS and pads after the end of short rows that are read as tokens of theirs."""
    ids = repetitive_batch()["input_ids"].masked_fill(repetitive_batch()["input_ids"] <= EOS, 7)
    ids[:, 8] = 9
    verifier = PhaseVerifier(StaticEnsembleVerifier(0.0), begin=begin, end=end)
    together = lookup(target, verifier, {"input_ids": ids})
    for row, prompt in enumerate(ids):
        alone = lookup(target, verifier, {"input_ids": prompt[None]}).sequences[0]
        assert torch.equal(together.sequences[row, : len(alone)], alone)
    lossless = lookup(target, "lossless", {"input_ids": ids})
    is_lossless = together.stats.num_accepted == lossless.stats.num_accepted
    assert is_lossless == (begin == EOS)  # no phase begins: EOS ends the row


def test_ids_without_logits_are_not_copied(target):
    """Catches an index out of range for prompts with such an id, as the image token of Mllama."""
    wider = copy.deepcopy(target)
    embedding = torch.nn.Embedding(VOCAB_SIZE + 8, wider.config.hidden_size)
    embedding.weight.data[:VOCAB_SIZE] = wider.get_input_embeddings().weight.data
    wider.set_input_embeddings(embedding)
    ids = torch.tensor([[5, 6, 7, VOCAB_SIZE, 8, 9, 10, 5, 6]])
    call = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    out = lookup(wider, "lossless", call)
    assert out.stats.num_drafted > 0
    assert torch.equal(out.sequences, wider.generate(**call, max_new_tokens=24, do_sample=False))


def test_other_ways_to_select_prompt_lookup(target):
    """Catches prompt lookup that only the keyword selects: also attached pairs, configs and the loop itself can."""
    inputs = repetitive_batch(2)
    expected = lookup(target, "lossless", inputs).stats
    call = {"max_new_tokens": 24, "do_sample": False, "return_dict_in_generate": True}
    with hf_diversed.attach(target, tiny_draft(target), verifier="lossless"):
        assert target.generate(**inputs, **call).stats.draft_forwards > 0
        named = target.generate(**inputs, **call, prompt_lookup_num_tokens=GAMMA).stats
    config = GenerationConfig(**call, prompt_lookup_num_tokens=GAMMA, pad_token_id=PAD, eos_token_id=EOS)
    configured = target.generate(**inputs, generation_config=config, verifier="lossless").stats
    loop = functools.partial(diversed_decoding, verifier=LosslessVerifier())
    direct = target.generate(**inputs, **call, prompt_lookup_num_tokens=GAMMA, custom_generate=loop).stats
    assert named == configured == direct == expected
    records = lookup(target, "static:0.5", inputs, output_token_records=True).token_records
    assert (records.q[records.source == 0] == 1.0).all()


@pytest.mark.parametrize(("weight", "keeps_all"), [(0.0, True), (0.5, True), (0.75, False)])
def test_greedy_mixtures_keep_copies_up_to_one_half(target, weight, keeps_all):
    """The documentation states this. Catches a tie at w = 1/2 that emits the target's token."""
    out = lookup(target, StaticEnsembleVerifier(weight), repetitive_batch())
    assert out.stats.num_drafted > 0
    assert (out.stats.acceptance_rate == 1.0) == keeps_all


# Copies before a draft model.


@pytest.fixture
def blocks(monkeypatch):
    """Whether the draft tokens of each round were copied, and their number."""
    found, propose = [], CopyingDrafter.propose

    def watched(self, counts):
        draft, drafted = propose(self, counts)
        found.append((self.is_point_mass, 0 if draft is None else draft.tokens.shape[1]))
        return draft, drafted

    monkeypatch.setattr(CopyingDrafter, "propose", watched)
    return found


BOTH = {"prompt_lookup_num_tokens": 6, "num_assistant_tokens": 3, "verifier": "lossless"}


@pytest.mark.parametrize("schedule", ["constant", "confidence"])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_copies_before_a_draft_model_keep_greedy_decoding(pair, blocks, batch_size, schedule):
    """Catches a draft cache that lacks copied tokens, or holds rejected ones, in rows of different lengths."""
    for seed in range(3):
        batch = repetitive_batch(batch_size)
        call = {**batch, "max_new_tokens": 40, "do_sample": False, "eos_token_id": None}
        call["input_ids"] = (call["input_ids"] + seed * (call["input_ids"] > 4)).clamp_max(63)
        plain = pair[0].generate(**call)
        out = pair[0].generate(
            **call, **BOTH, assistant_model=pair[1], num_assistant_tokens_schedule=schedule, max_matching_ngram_size=1
        )
        assert torch.equal(out, plain)
    assert {copied for copied, _ in blocks} == {True, False}


def test_the_draft_model_catches_up_after_copies(pair, blocks, monkeypatch):
    """Catches draft tokens that the model would not choose after the text so far."""
    propose, target, draft = ModelDrafter.propose, *pair

    def checked(self, counts):
        block, drafted = propose(self, counts)
        text = self.rows.ids[:, : self.rows.lengths.host[0]]
        for token in [] if block is None else block.tokens[0]:
            assert int(draft(text).logits[0, -1].argmax()) == int(token)
            text = torch.cat([text, token[None, None]], dim=1)
        return block, drafted

    monkeypatch.setattr(ModelDrafter, "propose", checked)
    call = {**repetitive_batch(1), "max_new_tokens": 40, "do_sample": False, "max_matching_ngram_size": 1}
    target.generate(**call, **BOTH, assistant_model=draft)
    assert {copied for copied, _ in blocks} == {True, False}


def test_at_most_the_given_number_of_tokens_is_copied(pair, blocks):
    """Catches copies as long as the blocks of the draft model, and rows that are shorter than the copied text."""
    ids = torch.tensor([[0, 5, 5, 5], [0, 0, 9, 9]])
    batch = {"input_ids": ids, "attention_mask": (ids > 0).long(), "max_new_tokens": 40, "do_sample": False}
    plain = pair[0].generate(**batch, eos_token_id=None)
    call = {**batch, **BOTH, "prompt_lookup_num_tokens": 2, "num_assistant_tokens": 5, "max_matching_ngram_size": 1}
    assert torch.equal(pair[0].generate(**call, assistant_model=pair[1], eos_token_id=None), plain)
    assert max(width for copied, width in blocks if copied) == 2
    assert max(width for copied, width in blocks if not copied) == 5


def test_copies_before_a_draft_model_keep_the_distribution(pair, blocks):
    """Catches a copied token that is verified with q of the draft model."""
    target, draft = pair
    ids, rows = repetitive_batch(1)["input_ids"], 20_000
    torch.manual_seed(0)
    out = target.generate(
        ids.expand(rows, -1), attention_mask=torch.ones(rows, ids.shape[1], dtype=torch.long), **BOTH,
        assistant_model=draft, do_sample=True, top_k=0, max_new_tokens=2, max_matching_ngram_size=3,
    )  # fmt: skip
    assert blocks[0][0]
    with torch.no_grad():
        p = torch.softmax(target(ids).logits[0, -1].double(), dim=-1)
    found = torch.bincount(out[:, ids.shape[1]], minlength=len(p)).double() / rows
    assert (found - p).abs().sum() < 3 * (p * (1 - p) / rows).sqrt().sum()
