"""One round's outcome: acceptance probabilities, accepted tokens, next token. Tensors in, tensors out.

Knows nothing of models, caches or the host, and draws nothing: this is the part of a round that can be compiled.
"""

from dataclasses import dataclass, fields, replace

import torch

from hf_diversed.blocks import DraftOutput, TargetOutput, Verdict, VerifyOutput
from hf_diversed.generation.rows import is_one_of
from hf_diversed.sampling import RoundNoise, count_accepted, draw
from hf_diversed.verifiers.base import Memory, Verifier


@dataclass(frozen=True, eq=False)
class Round:
    """Everything about one round; `draft` and `verdict` are None where no row had drafts. `greedy`: see `judge`."""

    draft: DraftOutput | None
    target: TargetOutput
    round_noise: RoundNoise
    verdict: Verdict | None
    outcome: VerifyOutput
    greedy: torch.Tensor | None = None


def judge(
    verifier: Verifier,
    input_ids: torch.Tensor,
    draft: DraftOutput | None,
    target: TargetOutput,
    memory: Memory,
    eos_ids: torch.Tensor | None,
    round_noise: RoundNoise,
    greedy: torch.Tensor | None = None,
) -> Round:
    """`judge_alike`; or both ways, and each row by its own, where a batch that draws has greedy rows, bool `[B]`.

    Rules are written for blocks that were drawn, or not, as a whole: mixed batches pay for both.
    """
    drawn = judge_alike(verifier, input_ids, draft, target, memory, eos_ids, round_noise)
    if greedy is None:
        return drawn
    undrawn = None if draft is None else replace(draft, sampled=False)
    best = judge_alike(verifier, input_ids, undrawn, target, memory, eos_ids, RoundNoise())
    return _mixed(greedy, best, drawn)


def _mixed(rows: torch.Tensor, best: Round, drawn: Round) -> Round:
    """The outcomes of `rows`, bool `[B]`, from `best`, the others' from `drawn`."""

    def pick(mine: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return torch.where(rows.view(-1, *[1] * (mine.ndim - 1)), mine, other)

    def pick_known(mine: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
        return None if mine is None or other is None else pick(mine, other)

    names = [item.name for item in fields(VerifyOutput)]
    outcome = VerifyOutput(**{name: pick(getattr(best.outcome, name), getattr(drawn.outcome, name)) for name in names})
    one, other = best.verdict, drawn.verdict
    if one is None or other is None:
        return Round(drawn.draft, drawn.target, drawn.round_noise, None, outcome, rows)
    mine, others = one.trace, other.trace
    trace = replace(
        others,
        weight=pick_known(mine.weight, others.weight),
        tv=pick_known(mine.tv, others.tv),
        bias=pick_known(mine.bias, others.bias),
    )
    accept_prob, state = pick(one.accept_prob, other.accept_prob), pick_known(one.state, other.state)
    verdict = Verdict(accept_prob, other.replacement, state, trace)
    return Round(drawn.draft, drawn.target, drawn.round_noise, verdict, outcome, rows)


def judge_alike(
    verifier: Verifier,
    input_ids: torch.Tensor,
    draft: DraftOutput | None,
    target: TargetOutput,
    memory: Memory,
    eos_ids: torch.Tensor | None,
    round_noise: RoundNoise,
) -> Round:
    """Run the verifier on a block, accept a prefix of it and draw the next token.

    Args:
        input_ids: long `[B, L]`, the ids so far. draft: None where no row has drafts; then no rule is asked.
        memory: what the rule knows of each row. eos_ids: long `[E]`, on the device; None where there are none.
        round_noise: all None for greedy decoding.
    """
    own_law = target.at if round_noise.noise is None else target.probs
    if draft is None:
        verdict, num_drafted = None, torch.zeros_like(target.scores[:, 0, 0], dtype=torch.long)
        num_accepted, on_draft = num_drafted, torch.zeros_like(num_drafted, dtype=torch.bool)
        law = own_law(num_accepted)
    else:
        verdict, num_drafted = memory.ask(verifier, input_ids, draft, target), draft.num_drafted
        uniforms = torch.full_like(verdict.accept_prob, 0.5) if round_noise.uniforms is None else round_noise.uniforms
        num_accepted = count_accepted(verdict.accept_prob, uniforms, num_drafted)
        all_kept = num_accepted >= num_drafted
        last = num_accepted.clamp_max(draft.tokens.shape[1] - 1)
        replacement = verdict.replacement(last)
        law = torch.where(all_kept[:, None], own_law(num_accepted), replacement)
        on_draft = all_kept & (is_one_of(draft.tokens, eos_ids) & draft.active).any(dim=-1)
    next_token = draw(law, round_noise.noise)
    faults = find_faults(draft, target, verdict, num_accepted, law, ~on_draft)
    if draft is not None and verdict is not None and verifier.needs_check and not memory.is_checked:
        wrong = find_no_distribution(verifier, verdict, draft, target, replacement)
        faults = torch.where((faults == 0) & wrong, NO_DISTRIBUTION, faults)
    outcome = VerifyOutput(
        num_drafted=num_drafted,
        num_accepted=num_accepted,
        next_token=next_token,
        num_emitted=num_accepted + 1 - on_draft.long(),
        ended=on_draft | is_one_of(next_token, eos_ids),
        faults=faults,
    )
    return Round(draft, target, round_noise, verdict, outcome)


# What a row's numbers can suffer from, as its part of a round's one transfer says it; 0 is nothing.
FAULTS = (
    "",
    "the target's scores are not finite (nan or inf) where a token was to be chosen, so its law is none; look at its "
    "weights and dtype (float16 overflows where bfloat16 does not), and at processors that forbid every token.",
    "the draft's scores are not finite (nan or inf) where a token was to be verified, so its law is none; look at its "
    "weights and dtype (float16 overflows where bfloat16 does not), and at processors that forbid every token.",
    "{rule} gave an acceptance or a law that is not finite though both models' scores are; look at its settings, and "
    "at the weights of its head and the hidden states that it reads, if any.",
    "{rule} returned values that are no distribution: acceptance probabilities must lie in [0, 1], the emitted "
    "distribution (`Trace.emitted_probs`) must be non-negative and sum to 1 at every position, and the "
    "replacement must be non-negative with a positive sum. Check the verifier's arithmetic.",
)
NO_DISTRIBUTION = len(FAULTS) - 1
_ROUNDING = 1e-3


def find_no_distribution(
    verifier: Verifier, verdict: Verdict, draft: DraftOutput, target: TargetOutput, replacement: torch.Tensor
) -> torch.Tensor:
    """Rows in which a caller's verifier returned no probabilities, bool `[B]`. NaN is left to `find_faults`.

    Args:
        replacement: `[B, V]`, what the verdict returned for one position per row.

    Raises:
        ValueError: on a wrong shape.
    """
    block, vocabulary = draft.tokens.shape, target.scores.shape[2:]
    emitted = None if verdict.trace.emitted_probs is None else verdict.trace.emitted_probs()
    shapes = {
        "accept_prob": (verdict.accept_prob, block),
        "replacement": (replacement, block[:1] + vocabulary),
        "the emitted distribution": (emitted, block + vocabulary),
        "state": (verdict.state, (block[0], block[1] + 1, verifier.state_width)),
    }
    for name, (values, expected) in shapes.items():
        if values is not None and values.shape != expected:
            raise ValueError(
                f"{type(verifier).__name__}: {name} must have shape {list(expected)}, got {list(values.shape)}."
            )
    wrong = (verdict.accept_prob < 0.0) | (verdict.accept_prob > 1.0 + _ROUNDING)
    if emitted is not None:
        wrong |= (emitted.amin(-1) < 0.0) | ((emitted.sum(-1) - 1.0).abs() > _ROUNDING)
    rows = (wrong & draft.active).any(-1)
    if draft.sampled:
        rows |= (replacement.amin(-1) < 0.0) | (replacement.sum(-1) <= 0.0)
    return rows


def find_faults(
    draft: DraftOutput | None,
    target: TargetOutput,
    verdict: Verdict | None,
    num_accepted: torch.Tensor,
    law: torch.Tensor,
    draws: torch.Tensor,
) -> torch.Tensor:
    """Index into `FAULTS` for every row, long `[B]`: of the positions that this round's tokens hang on.

    Args:
        law: `[B, V]`, what the next token is drawn from. draws: bool `[B]`, rows that emit that token: not those whose
            last accepted draft is EOS.
    """

    def strikes(values: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
        return (~torch.isfinite(values) & used).any(dim=-1)

    positions = torch.arange(target.scores.shape[1], device=num_accepted.device)
    reached = positions < (num_accepted + draws)[:, None]
    # The best score tells of all: nan and inf carry over to it, and it is -inf where every token is forbidden.
    fault = strikes(target.top, reached).long()
    if draft is None or verdict is None:
        return fault
    verified = (positions <= num_accepted[:, None])[:, :-1] & draft.active
    of_rule = strikes(verdict.accept_prob, verified) | strikes(law.amax(dim=-1, keepdim=True), draws[:, None])
    later = torch.where(of_rule, 3, fault)
    later = torch.where(strikes(draft.top, verified), 2, later)
    return torch.where(fault > 0, fault, later)
