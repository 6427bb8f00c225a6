"""The distribution that stock rejection sampling emits with the plugin's logits, by enumeration of draft tokens."""

from dataclasses import replace

import pytest
import torch

from hf_diversed.serving.vllm.logits import RequestSettings, served_logits, verifier_logits
from hf_diversed.verifiers import LosslessVerifier, StaticEnsembleVerifier
from tests.serving.kernels import emitted, verify
from tests.verifier_cases import DISTRIBUTION_CASES, KINDS, VOCAB, VerifierCase, enumerate_emitted, make_block


TOLERANCE = 2e-6  # verifiers and kernels compute in float32
CUT = ("truncated", "disjoint")


def is_served(case: VerifierCase) -> bool:
    """Return whether vLLM's sampler receives what the verifier reads: no hidden states, no raw logits."""
    verifier = case.make()
    return not verifier.needs_hidden_states and not verifier.needs_raw_logits


SERVED = [case for case in DISTRIBUTION_CASES if is_served(case)]
ONE_HOT = [case for case in SERVED if not case.make().needs_draft_confidence]
every_case = pytest.mark.parametrize("case", SERVED, ids=lambda case: case.id)


def distributions(*kinds: str, rows: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Return processed target logits and draft probabilities, float32 `[M, V]`."""
    draft, target = make_block(*kinds, rows=rows)
    return target.scores[:, :-1].flatten(0, 1), draft.probs().flatten(0, 1)


def every_draft(verifier, logits: torch.Tensor, q: torch.Tensor | None) -> torch.Tensor:
    """Return `verifier_logits` for every draft token of each row: `[M, V, V]`."""
    rows = len(logits)
    tokens = torch.arange(VOCAB).repeat(rows)
    spread = [None if values is None else values.repeat_interleave(VOCAB, 0) for values in (logits, q)]
    values = verifier.row_values(len(tokens), tokens.device)
    return verifier_logits(verifier, *spread, tokens, values).unflatten(0, (rows, VOCAB))


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected.double(), rtol=0.0, atol=TOLERANCE)


@every_case
def test_accepts_and_replaces_as_generate_does(case: VerifierCase):
    """Catches the right distribution from other acceptance probabilities, which change where rounds end. Includes
    truncated, denormal and equal distributions; tokens that the target excludes are never accepted."""
    verifier = case.make()
    # The contrastive verifier reads draft scores, which engines do not have where the probabilities underflow.
    kinds = [kind for kind in KINDS if kind != "denormal" or not verifier.needs_draft_confidence]
    draft, target = make_block(*kinds)
    logits, q = target.scores[:, :-1].flatten(0, 1), draft.probs().flatten(0, 1)
    ours = every_draft(verifier, logits, q)
    kept, replacement = verify(ours, q[:, None].expand_as(ours))
    enumerated = enumerate_emitted(verifier, draft, target)
    accept = torch.where(logits == -torch.inf, 0.0, enumerated.accept.flatten(0, 1))
    left = enumerated.replacement.flatten(0, 1)
    # A verifier whose residual can return the rejected token: that counts as acceptance.
    again = left.diagonal(dim1=-2, dim2=-1)
    expected = accept + (1.0 - accept) * again
    drawn = q.double()
    close(drawn * kept, drawn * expected)
    others = left.masked_fill(torch.eye(VOCAB, dtype=torch.bool), 0.0)
    others = others / others.sum(-1, keepdim=True).clamp_min(1e-300)
    close((drawn * (1.0 - kept))[..., None] * replacement, (drawn * (1.0 - expected))[..., None] * others)


@every_case
def test_certain_draft_tokens_are_accepted(case: VerifierCase):
    """Catches rounding that lets a kernel reject a certain token, for which there is no residual distribution."""
    verifier = case.make()
    kinds = ("random", "ties") if verifier.needs_draft_confidence else ("random", "ties", "equal")
    logits, q = distributions(*kinds)
    draft, target = make_block(*kinds, rows=4)
    certain = enumerate_emitted(verifier, draft, target).accept.flatten(0, 1) == 1.0
    ours = every_draft(verifier, logits, q)
    p = ours.softmax(-1, dtype=torch.float32).diagonal(dim1=-2, dim2=-1)
    assert (p / q)[certain].ge(1.0).all()


@pytest.mark.parametrize("case", ONE_HOT, ids=lambda case: case.id)
def test_deterministic_drafts_are_one_hot(case: VerifierCase):
    """Catches other draft probabilities than one-hot ones: kernels use q = 1 and p without the token as residual."""
    verifier = case.make()
    draft, target = make_block("random", "ties")
    logits = target.scores[:, :-1].flatten(0, 1)
    ours = every_draft(verifier, logits, None)
    one_hot = torch.eye(VOCAB).expand_as(ours)
    kept, replacement = verify(ours, one_hot)
    for token in range(VOCAB):
        certain = replace(draft, scores=torch.full_like(draft.scores, -torch.inf))
        certain.scores[..., token] = 0.0
        enumerated = enumerate_emitted(verifier, certain, target)
        found = emitted(kept, replacement, one_hot[:, token].double())
        close(found, enumerated.emitted.flatten(0, 1))


@pytest.mark.parametrize("kind", CUT)
@every_case
def test_excluded_tokens_are_never_emitted(case: VerifierCase, kind: str):
    """Catches an accepted draft token outside the request's top-k."""
    logits, q = distributions(kind)
    ours = every_draft(case.make(), logits, q)
    found = emitted(*verify(ours, q[:, None].expand_as(ours)), q.double())
    assert (found[logits == -torch.inf] == 0.0).all()
    close(found.sum(-1), torch.ones(len(found)))


def static(weight: float = 0.3) -> StaticEnsembleVerifier:
    return StaticEnsembleVerifier(weight)


def table(*settings: RequestSettings) -> torch.Tensor:
    return torch.tensor([one.row() for one in settings])


def test_lossless_rows_are_bit_identical():
    """Catches lossless and greedy rows that are recomputed because another row is relaxed."""
    logits, q = distributions("random")
    relaxed = RequestSettings(verifier=1)
    settings = [RequestSettings(), relaxed, relaxed.at(temperature=0.0), relaxed]
    tokens = torch.ones(4, dtype=torch.int32)
    served = served_logits([static()], set(settings), table(*settings), logits[:4], q[:4], tokens)
    for row, stays in enumerate((True, False, True, False)):
        assert torch.equal(served[row], logits[row]) == stays
    nothing = served_logits(
        [static()], {RequestSettings()}, table(*[RequestSettings()] * 4), logits[:4], q[:4], tokens
    )
    assert nothing.data_ptr() == logits.data_ptr()


@pytest.mark.parametrize("sampled", [True, False], ids=["sampled", "one-hot"])
def test_draft_tokens_without_an_id_keep_the_targets_logits(sampled: bool):
    """Catches -1, which runner V2 gives to draft tokens that a grammar excludes, used as an index."""
    logits, q = distributions("random")
    tokens = torch.tensor([1, -1, 2, -1], dtype=torch.int32)
    relaxed = RequestSettings(verifier=1)
    served = served_logits(
        [static()], {relaxed}, table(*[relaxed] * 4), logits[:4], q[:4] if sampled else None, tokens
    )
    assert [torch.equal(*rows) for rows in zip(served, logits)] == [False, True, False, True]


@pytest.mark.parametrize("rows_per_chunk", [3, 100])
def test_every_row_has_its_own_verifier_and_settings(rows_per_chunk: int, monkeypatch: pytest.MonkeyPatch):
    """Catches a setting or verifier that affects other rows, and a chunk with the settings of another: each row must
    equal the same row alone."""
    logits, q = distributions("random")
    monkeypatch.setattr("hf_diversed.serving.vllm.logits._CHUNK", rows_per_chunk * logits.shape[-1])
    verifiers = [static(0.2), LosslessVerifier(), static(0.9)]
    settings = [
        RequestSettings(1),
        RequestSettings(1, max_bias=0.05),
        RequestSettings(1, max_ratio=2.0),
        RequestSettings(1, max_bias=0.02, max_ratio=1.1),
        RequestSettings(2),
        RequestSettings(3, max_bias=0.0),
        RequestSettings(3),
    ]
    tokens = q[: len(settings)].argmax(-1)
    together = served_logits(
        verifiers, set(settings), table(*settings), logits[: len(settings)], q[: len(settings)], tokens
    )
    for row, item in enumerate(settings):
        mine = slice(row, row + 1)
        alone = served_logits(verifiers, {item}, table(item), logits[mine], q[mine], tokens[mine])
        torch.testing.assert_close(together[mine], alone, rtol=1e-6, atol=1e-7)
    assert len({tuple(values.tolist()) for values in together.softmax(-1)}) == len(settings)


@pytest.mark.parametrize(("name", "value"), [("max_bias", 0.07), ("max_bias", 0.0), ("max_ratio", 2.5)])
def test_bounds_of_a_request_hold_for_the_emitted_distribution(name: str, value: float):
    """Catches a bound that does not hold: TV(v, p) <= max_bias and v <= max_ratio p of the emitted distribution."""
    logits, q = distributions("random", "ties", rows=8)
    tokens = torch.arange(VOCAB).repeat(len(logits))
    spread = [values.repeat_interleave(VOCAB, 0) for values in (logits, q)]
    settings = RequestSettings(1, **{name: value})
    ours = served_logits([static(0.0)], {settings}, table(*[settings] * len(tokens)), *spread, tokens)
    ours = ours.unflatten(0, (len(logits), VOCAB))
    found = emitted(*verify(ours, q[:, None].expand_as(ours)), q.double())
    p = logits.double().softmax(-1)
    if name == "max_bias":
        bias = (found - p).clamp_min(0.0).sum(-1)
        assert bias.max() <= value + TOLERANCE
        assert bias.max() > value - 10 * TOLERANCE  # and no stricter than requested
    else:
        assert (found <= value * p + TOLERANCE).all()
        assert (found / p)[p > 1e-3].max() > value * (1 - 1e-3)  # and no stricter than requested
