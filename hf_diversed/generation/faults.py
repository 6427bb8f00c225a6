"""Values of a round that make its tokens invalid: NaN, infinity, and invalid probabilities of a verifier."""

import torch

from hf_diversed.blocks import DraftOutput, TargetOutput, Verdict
from hf_diversed.verifiers.base import Verifier


# Error messages by code in `Round.faults`; 0 means that a row is valid.
FAULTS = (
    "",
    "the target's scores are not finite (NaN or inf) at a position that determines a token; check its weights and "
    "dtype (float16 overflows where bfloat16 does not), and processors that forbid every token or set +inf.",
    "the draft model's scores are not finite (NaN or inf) at a verified position; check its weights and dtype "
    "(float16 overflows where bfloat16 does not), and processors that forbid every token or set +inf.",
    "{verifier} returned an acceptance probability or a distribution that is not finite, although both models' "
    "scores are finite; check its settings, and the weights and hidden states that its head uses.",
    "{verifier} returned invalid probabilities: acceptance probabilities must lie in [0, 1], and be 0 or 1 in greedy "
    "decoding (`DraftOutput.sampled` is False), the emitted distribution (`Trace.emitted_probs`) must be non-negative "
    "and sum to 1 at every position, and the residual distribution (`Verdict.replacement`) must be non-negative with "
    "a positive sum. Check the verifier's arithmetic.",
)
INVALID_PROBS = len(FAULTS) - 1
_ROUNDING = 1e-3


def find_faults(
    draft: DraftOutput | None,
    target: TargetOutput,
    verdict: Verdict | None,
    num_accepted: torch.Tensor,
    next_probs: torch.Tensor,
    samples_next: torch.Tensor,
) -> torch.Tensor:
    """Index into `FAULTS` for every row, long `[B]`. Only positions that the emitted tokens depend on are checked.

    Args:
        next_probs: `[B, V]`, distribution of the next token. samples_next: bool `[B]`, rows that emit that token;
            False if the last accepted draft token is EOS.
    """

    def any_not_finite(values: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
        return (~torch.isfinite(values) & used).any(dim=-1)

    positions = torch.arange(target.scores.shape[1], device=num_accepted.device)
    reached = positions < (num_accepted + samples_next)[:, None]
    # `amax` propagates NaN and inf, and is -inf if every token is forbidden, so checking it is enough.
    target_faults = any_not_finite(target.top, reached)
    if draft is None or verdict is None:
        return target_faults.long()
    verified = (positions <= num_accepted[:, None])[:, :-1] & draft.active
    verifier_faults = any_not_finite(verdict.accept_prob, verified)
    verifier_faults |= any_not_finite(next_probs.amax(dim=-1, keepdim=True), samples_next[:, None])
    draft_faults = any_not_finite(draft.top, verified)
    return torch.where(target_faults, 1, torch.where(draft_faults, 2, 3 * verifier_faults.long()))


def find_invalid_probs(
    verifier: Verifier,
    verdict: Verdict,
    draft: DraftOutput,
    target: TargetOutput,
    replacement: torch.Tensor,
    rejected: torch.Tensor,
) -> torch.Tensor:
    """Return rows with invalid probabilities of a user-defined verifier, bool `[B]`. `find_faults` checks for NaN.

    Args:
        replacement: `[B, V]`, value of `verdict.replacement` at one position per row.
        rejected: bool `[B]`, rows that rejected a token. The others do not use the replacement, which may be 0.

    Raises:
        ValueError: for a wrong shape.
    """
    block, vocabulary = draft.tokens.shape, target.scores.shape[2:]
    emitted = None if verdict.trace.emitted_probs is None else verdict.trace.emitted_probs()
    shapes = {
        "accept_prob": (verdict.accept_prob, block),
        "replacement": (replacement, block[:1] + vocabulary),
        "the emitted distribution": (emitted, block + vocabulary),
    }
    for name, (values, expected) in shapes.items():
        if values is not None and values.shape != expected:
            raise ValueError(
                f"{type(verifier).__name__}: {name} must have shape {list(expected)}, got {list(values.shape)}."
            )
    accept_prob = verdict.accept_prob.float()
    allowed = accept_prob.clamp(0.0, 1.0) if draft.sampled else (accept_prob > 0.5).float()
    wrong = (accept_prob - allowed).abs() > _ROUNDING
    if emitted is not None:
        wrong |= (emitted.amin(-1) < 0.0) | ((emitted.sum(-1) - 1.0).abs() > _ROUNDING)
    rows = (wrong & draft.active).any(-1)
    if draft.sampled:
        rows |= (replacement.amin(-1) < 0.0) | (rejected & (replacement.sum(-1) <= 0.0))
    return rows
