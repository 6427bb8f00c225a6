"""The law that stock rejection sampling emits with our logits, by enumeration of all drafts: no Monte Carlo."""

from dataclasses import replace

import pytest
import torch

from hf_diversed.serving.vllm.law import COLUMNS, Asked, rule_logits, served_logits
from hf_diversed.verifiers import LosslessVerifier, StaticEnsembleVerifier
from tests.serving.kernels import emitted, judge
from tests.verifier_cases import KINDS, LAW_CASES, VOCAB, Laws, VerifierCase, enumerate_law, make_block


TOLERANCE = 2e-6  # rules and kernels compute in float32
CUT = ("truncated", "disjoint")


def is_served(case: VerifierCase) -> bool:
    """Vllm shows its sampler neither hidden states nor raw logits; `admission` refuses the others by name."""
    verifier = case.make()
    return not verifier.needs_hidden_states and not verifier.needs_raw_logits


SERVED = [case for case in LAW_CASES if is_served(case)]
LOOKED_UP = [case for case in SERVED if not case.make().needs_draft_confidence]
every_case = pytest.mark.parametrize("case", SERVED, ids=lambda case: case.id)


def laws(*kinds: str, rows: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Processed target logits and draft probabilities, float32 `[M, V]`."""
    draft, target = make_block(*kinds, rows=rows)
    return target.scores[:, :-1].flatten(0, 1), draft.probs().flatten(0, 1)


def every_draft(verifier, logits: torch.Tensor, q: torch.Tensor | None) -> torch.Tensor:
    """Our logits for every token that each row could have drafted: `[M, V, V]`."""
    rows = len(logits)
    tokens = torch.arange(VOCAB).repeat(rows)
    spread = [None if law is None else law.repeat_interleave(VOCAB, 0) for law in (logits, q)]
    dials = verifier.dials(len(tokens), tokens.device)
    return rule_logits(verifier, *spread, tokens, dials).unflatten(0, (rows, VOCAB))


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected.double(), rtol=0.0, atol=TOLERANCE)


@every_case
def test_emits_the_law_of_the_rule(case: VerifierCase):
    """Catches any error in v: a share that goes to tokens which may not replace, a weight of the wrong token, a law
    that the kernels' own normalisation bends. Full supports, so that the papers' formulas hold as they stand."""
    kinds = ("random", "ties", "equal")
    draft, target = make_block(*kinds)
    verifier = case.make()
    logits, q = target.scores[:, :-1].flatten(0, 1), draft.probs().flatten(0, 1)
    ours = every_draft(verifier, logits, q)
    found = emitted(*judge(ours, q[:, None].expand_as(ours)), q.double())
    weight = enumerate_law(verifier, draft, target).weight
    close(found, case.law(Laws.of(draft, target, weight)).flatten(0, 1))


@every_case
def test_keeps_and_replaces_as_generate_does(case: VerifierCase):
    """Catches the right law by another process: where rounds end, and so the text, depends on every draft's own coin.
    Cut laws, denormal ones and equal ones are among these; what the target cut is never kept."""
    verifier = case.make()
    # Contrast reads the draft's scores, and of those that underflow the engine's probabilities know nothing.
    kinds = [kind for kind in KINDS if kind != "denormal" or not verifier.needs_draft_confidence]
    draft, target = make_block(*kinds)
    logits, q = target.scores[:, :-1].flatten(0, 1), draft.probs().flatten(0, 1)
    ours = every_draft(verifier, logits, q)
    kept, replacement = judge(ours, q[:, None].expand_as(ours))
    rule = enumerate_law(verifier, draft, target)
    accept = torch.where(logits == -torch.inf, 0.0, rule.accept.flatten(0, 1))
    left = rule.replacement.flatten(0, 1)
    # A rule that may draw the rejected draft once more: that counts as keeping it, and goes on behind it.
    again = left.diagonal(dim1=-2, dim2=-1)
    expected = accept + (1.0 - accept) * again
    drawn = q.double()
    close(drawn * kept, drawn * expected)
    others = left.masked_fill(torch.eye(VOCAB, dtype=torch.bool), 0.0)
    others = others / others.sum(-1, keepdim=True).clamp_min(1e-300)
    close((drawn * (1.0 - kept))[..., None] * replacement, (drawn * (1.0 - expected))[..., None] * others)


@every_case
def test_sure_drafts_are_kept_for_sure(case: VerifierCase):
    """Catches rounding that lets a kernel reject what the rule keeps: nothing would be there to replace it."""
    verifier = case.make()
    kinds = ("random", "ties") if verifier.needs_draft_confidence else ("random", "ties", "equal")
    logits, q = laws(*kinds)
    draft, target = make_block(*kinds, rows=4)
    sure = enumerate_law(verifier, draft, target).accept.flatten(0, 1) == 1.0
    ours = every_draft(verifier, logits, q)
    p = ours.softmax(-1, dtype=torch.float32).diagonal(dim1=-2, dim2=-1)
    assert (p / q)[sure].ge(1.0).all()


@pytest.mark.parametrize("case", LOOKED_UP, ids=lambda case: case.id)
def test_looked_up_drafts_are_one_hot(case: VerifierCase):
    """Catches q of some draft where a token was looked up: kernels take q = 1 for it and p without it as residual."""
    verifier = case.make()
    draft, target = make_block("random", "ties")
    logits = target.scores[:, :-1].flatten(0, 1)
    ours = every_draft(verifier, logits, None)
    one_hot = torch.eye(VOCAB).expand_as(ours)
    kept, replacement = judge(ours, one_hot)
    for token in range(VOCAB):
        certain = replace(draft, scores=torch.full_like(draft.scores, -torch.inf))
        certain.scores[..., token] = 0.0
        rule = enumerate_law(verifier, certain, target)
        found = emitted(kept, replacement, one_hot[:, token].double())
        close(found, rule.emitted.flatten(0, 1))


@pytest.mark.parametrize("kind", CUT)
@every_case
def test_cut_tokens_never_come_out(case: VerifierCase, kind: str):
    """Catches a draft's token outside of the request's top-k that a permissive weight lets through."""
    logits, q = laws(kind)
    ours = every_draft(case.make(), logits, q)
    found = emitted(*judge(ours, q[:, None].expand_as(ours)), q.double())
    assert (found[logits == -torch.inf] == 0.0).all()
    close(found.sum(-1), torch.ones(len(found)))


def static(weight: float = 0.3) -> StaticEnsembleVerifier:
    return StaticEnsembleVerifier(weight)


def table(*asked: Asked) -> torch.Tensor:
    return torch.tensor([item.row() for item in asked])


def test_rows_that_stay_keep_their_bits():
    """Catches lossless and greedy rows that are recomputed because a neighbour is relaxed."""
    logits, q = laws("random")
    relaxed = Asked(rule=1)
    asked = [Asked(), relaxed, relaxed.at(temperature=0.0), relaxed]
    tokens = torch.ones(4, dtype=torch.int32)
    served = served_logits([static()], set(asked), table(*asked), logits[:4], q[:4], tokens)
    for row, stays in enumerate((True, False, True, False)):
        assert torch.equal(served[row], logits[row]) == stays
    nothing = served_logits([static()], {Asked()}, table(*[Asked()] * 4), logits[:4], q[:4], tokens)
    assert nothing.data_ptr() == logits.data_ptr()


def test_every_row_has_its_own_rule_and_dials():
    """Catches a dial or a rule that leaks to the neighbours: each row must be what it is alone."""
    logits, q = laws("random")
    rules = [static(0.2), LosslessVerifier(), static(0.9)]
    asked = [
        Asked(1),
        Asked(1, max_bias=0.05),
        Asked(1, max_ratio=0.5),
        Asked(1, max_bias=0.02, max_ratio=0.9),
        Asked(2),
        Asked(3, max_bias=0.0),
        Asked(3),
    ]
    tokens = q[: len(asked)].argmax(-1)
    together = served_logits(rules, set(asked), table(*asked), logits[: len(asked)], q[: len(asked)], tokens)
    for row, item in enumerate(asked):
        mine = slice(row, row + 1)
        alone = served_logits(rules, {item}, table(item), logits[mine], q[mine], tokens[mine])
        torch.testing.assert_close(together[mine], alone, rtol=1e-6, atol=1e-7)
    assert len({tuple(values.tolist()) for values in together.softmax(-1)}) == len(asked)


@pytest.mark.parametrize(("dial", "value"), [("max_bias", 0.07), ("max_bias", 0.0), ("max_ratio", 0.4)])
def test_bounds_of_a_request_hold_for_the_emitted_law(dial: str, value: float):
    """Catches a bound that is a wish: TV(v, p) <= max_bias and v <= p / max_ratio, of what comes out."""
    logits, q = laws("random", "ties", rows=8)
    asked = Asked(1, **{dial: value})
    rows = len(logits) * VOCAB
    tokens = torch.arange(VOCAB).repeat(len(logits))
    spread = [law.repeat_interleave(VOCAB, 0) for law in (logits, q)]
    ours = served_logits([static(0.0)], {asked}, table(*[asked] * rows), *spread, tokens)
    ours = ours.unflatten(0, (len(logits), VOCAB))
    found = emitted(*judge(ours, q[:, None].expand_as(ours)), q.double())
    p = logits.double().softmax(-1)
    if dial == "max_bias":
        bias = (found - p).clamp_min(0.0).sum(-1)
        assert bias.max() <= value + TOLERANCE
        assert bias.max() > value - 10 * TOLERANCE  # and no stricter than asked
    else:
        assert (found <= p / value + TOLERANCE).all()


def test_the_table_has_a_column_for_everything_asked():
    assert len(Asked(2, 0.1, 0.2, 0.3).row()) == COLUMNS
    assert Asked(2, 0.1, 0.2, 0.3).row() == [2.0, 0.1, 0.2, 0.3]
