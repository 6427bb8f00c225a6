"""Prompt lookup: the distributions under a one-hot q, ids without logits, ties, and copies before a draft model.

`tests/fuzz` compares it with a naive reference: padding, ends, forbidden tokens, and rows that were removed.
"""

import copy

import pytest
import torch
import torch.nn.functional as F

from hf_diversed.blocks import DraftOutput
from tests.generation.test_equals_reference import prompts
from tests.tiny import VOCAB_SIZE, Listener, generate
from tests.verifier_cases import DISTRIBUTION_CASES, Probs, enumerate_emitted, make_block, weights_of


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


def test_ids_without_logits_are_not_copied(pair):
    """Catches an index out of range for prompts with such an id, as the image token of Mllama."""
    wider = copy.deepcopy(pair[0])
    embedding = torch.nn.Embedding(VOCAB_SIZE + 8, wider.config.hidden_size)
    embedding.weight.data[:VOCAB_SIZE] = wider.get_input_embeddings().weight.data
    wider.set_input_embeddings(embedding)
    ids = torch.tensor([[5, 6, 7, VOCAB_SIZE, 8, 9, 10, 5, 6]])
    call = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 24, "do_sample": False}
    out = wider.generate(**call, verifier="lossless", prompt_lookup_num_tokens=4, return_dict_in_generate=True)
    assert out.stats.num_drafted > 0
    assert torch.equal(out.sequences, wider.generate(**call))


def test_records_of_copied_tokens(pair):
    """Catches a q of copied tokens other than 1."""
    call = {**prompts(2), "assistant_model": None, "prompt_lookup_num_tokens": 4, "output_token_records": True}
    records = generate(pair, **call, verifier="static:0.5", do_sample=False).token_records
    assert (records.q[records.source == 0] == 1.0).all()


@pytest.mark.parametrize(("weight", "keeps_all"), [(0.0, True), (0.5, True), (0.75, False)])
def test_greedy_mixtures_keep_copies_up_to_one_half(pair, weight, keeps_all):
    """The documentation states this. Catches a tie at w = 1/2 that emits the target's token."""
    call = {**prompts(4), "assistant_model": None, "prompt_lookup_num_tokens": 4, "do_sample": False}
    out = generate(pair, **call, verifier=f"static:{weight}", max_new_tokens=24)
    assert out.stats.num_drafted > 0
    assert (out.stats.acceptance_rate == 1.0) == keeps_all


@pytest.mark.parametrize("max_copied", [2, 6])
def test_copies_before_a_draft_model(pair, max_copied):
    """Catches a draft model's cache that lacks copied tokens or holds rejected ones, which lossless verification
    hides: the draft model equals the target here. Catches copies as long as the blocks of the draft model, and copied
    tokens that are verified with its q."""
    target, listener = pair[0], Listener()
    call = {**prompts(1), "do_sample": False, "max_new_tokens": 60, "eos_token_id": None, "streamer": listener}
    call |= {"assistant_model": copy.deepcopy(target), "num_assistant_tokens": 4, "verifier": "lossless"}
    target.generate(**call, prompt_lookup_num_tokens=max_copied, max_matching_ngram_size=1)
    copied, drafted = [], []
    for records, stats in listener.rounds[1:]:  # the forwards of the first round include the prefill
        (drafted if stats.draft_forwards else copied).append(stats)
        assert stats.draft_forwards or (records.q[records.source == 0] == 1.0).all()
    assert all(stats.num_accepted == stats.num_drafted for stats in drafted)
    assert max(stats.num_drafted for stats in drafted) == 4
    assert max(stats.num_drafted for stats in copied) == max_copied
    assert sum(stats.num_rejected for stats in copied) > 0


def test_rows_whose_neighbours_ended(pair):
    """Catches a row that is searched from the first token of another row, after rows were removed."""
    ids = torch.tensor([[5, 6, 7, 8, 9, 5, 6], [0, 0, 0, 0, 0, 0, 9]])
    mask = torch.tensor([[1] * 7, [0] * 6 + [1]])
    call = {"assistant_model": None, "verifier": "lossless", "prompt_lookup_num_tokens": 4, "do_sample": False}
    alone = generate(pair, input_ids=ids[:1], attention_mask=mask[:1], **call, eos_token_id=None)
    end = int(generate(pair, input_ids=ids[1:], attention_mask=mask[1:], **call, eos_token_id=None).sequences[0, 7])
    assert end not in alone.sequences
    order = torch.tensor([1, 1, 1, 0])  # three rows end after one token
    batch = generate(pair, input_ids=ids[order], attention_mask=mask[order], **call, eos_token_id=end)
    assert batch.stats.per_row[3].num_drafted == alone.stats.num_drafted
