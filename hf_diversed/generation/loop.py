"""The decoding loop and one round of it: draft a block, score it, verify it, and commit the accepted tokens.

A round with NaN, infinity or invalid probabilities of a verifier raises an error before any of its tokens is emitted.

`verify` is a function of tensors and can be compiled. In a round with a draft model, only `commit` copies data to
the host; prompt lookup, streamers and stopping criteria add transfers, and a rule that ends draft blocks early adds
one per draft token.
"""

from typing import TYPE_CHECKING

import torch

from hf_diversed.blocks import DraftOutput, Round, TargetOutput, Verdict
from hf_diversed.generation.recording import RecordedRound
from hf_diversed.generation.rows import PerRow, RaggedRows, is_one_of
from hf_diversed.outputs import GenerateDiversedOutput
from hf_diversed.sampling import RoundNoise, count_accepted, draw
from hf_diversed.verifiers.base import Verifier, call_verifier


if TYPE_CHECKING:
    from hf_diversed.generation.call import Call


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


def run(call: "Call") -> GenerateDiversedOutput | torch.Tensor:
    """Decode a call and return its value."""
    prefill(call)
    run_rounds(call)
    as_dict = call.generation_config.return_dict_in_generate
    return call.recorder.result(call.rows, call.forwards, call.report(), as_dict)


def prefill(call: "Call") -> None:
    """Fill both caches with all tokens of the prompts but the last, which are inputs of the first round."""
    chunk_size = call.generation_config.prefill_chunk_size
    if not call.drafter.requires_model_outputs:  # otherwise the first round processes the prompt
        call.target.prefill(call.rows.ids[:, : call.num_unread - 1], chunk_size)
        call.num_unread = 1
    call.drafter.prefill(chunk_size)


def run_rounds(call: "Call") -> None:
    """Decode until every row has ended."""
    rows, recorder = call.rows, call.recorder
    while rows.running:
        # Only the shortest running row is checked: a stopping criterion may still shorten the others.
        rows.check_positions(min(rows.lengths.host[row] for row in rows.running) + 1)
        round = run_round(call, call.gamma)  # draft a block, score it in one target forward, verify it
        recorded = commit(rows, round, call.verifier)  # accepted tokens, then the residual or bonus token
        recorder.add(recorded, round)
        call.stops.update(recorded.starts, recorder.scores_before)
        recorder.stream(rows, recorded, call.forwards)
        if round.draft is not None:
            call.drafter.rewind(round.draft.tokens.shape[1], recorded.accepted, round.target.scores)
        call.target.rewind()
        running = rows.running
        if call.may_compact and running and call.target.is_worth_compacting(len(running), len(rows.ends)):
            keep(call, torch.tensor(running, device=rows.ids.device))


def run_round(call: "Call", gamma: int) -> Round:
    """Draft up to `gamma` tokens per row, score them in one target forward, and verify them."""
    rows, verifier = call.rows, call.verifier
    draft, drafted = call.drafter.propose(rows.draft_limit(gamma))
    unread, call.num_unread = call.num_unread, 1  # the first round may read the whole prompt
    block = rows.last(unread) if draft is None else torch.cat([rows.last(unread), draft.tokens], dim=1)
    scored = block.shape[1] - unread + 1
    logits, hidden = call.target(block, rows.lengths + (-unread), keep=scored)
    logits = logits.to(rows.ids.device)
    scores = call.processor(rows, logits, offset=0, counts=rows.scored(drafted, scored))
    target = TargetOutput(scores, hidden, logits if call.keep_raw else None)
    round_noise = RoundNoise() if call.random_source is None else call.random_source.round_noise(scores)
    # Verifiers that do not read the ids get the prompt, which costs no copy.
    needs_ids = verifier.needs_input_ids
    input_ids = rows.view(max(rows.lengths.host), rows.lengths) if needs_ids else rows.ids[:, : rows.prompt_length]
    checks = call.needs_check
    if draft is not None:
        call.needs_check = False  # validate only the call's first verdict
    return (call.static or verify)(
        verifier, input_ids, draft, target, call.row_values, rows.eos_ids_device, round_noise, checks
    )


def keep(call: "Call", kept: torch.Tensor) -> None:
    """Continue with only these rows (long, ascending) of the batch."""
    for part in (call.rows, call.target, call.drafter):
        part.keep(kept)
    call.row_values = {name: values[kept] for name, values in call.row_values.items()}


def verify(
    verifier: Verifier,
    input_ids: torch.Tensor,
    draft: DraftOutput | None,
    target: TargetOutput,
    row_values: dict[str, torch.Tensor],
    eos_ids: torch.Tensor | None,
    round_noise: RoundNoise,
    checks: bool,
) -> Round:
    """Run the verifier on a block, accept a prefix of each row's draft tokens and sample the next token.

    Args:
        input_ids: long `[B, L]`, the ids so far. draft: None if no row has draft tokens; the verifier is not called.
        row_values: the verifier's per-row settings.
        eos_ids: long `[E]`, on the device; None without EOS.
        round_noise: all None for greedy decoding. checks: whether to validate the verdict.
    """
    target_probs = target.at if round_noise.noise is None else target.probs
    if draft is None:
        verdict, num_drafted = None, torch.zeros_like(target.scores[:, 0, 0], dtype=torch.long)
        num_accepted, ends_on_draft = num_drafted, torch.zeros_like(num_drafted, dtype=torch.bool)
        next_probs = replacement = target_probs(num_accepted)
    else:
        verdict, num_drafted = call_verifier(verifier, input_ids, draft, target, row_values), draft.num_drafted
        uniforms = round_noise.uniforms
        if uniforms is None:  # greedy: accept where `accept_prob` is 1, or True
            uniforms = torch.full_like(verdict.accept_prob, 0.5, dtype=torch.float32)
        num_accepted = count_accepted(verdict.accept_prob, uniforms, num_drafted)
        all_accepted = num_accepted >= num_drafted
        replacement = verdict.replacement(num_accepted.clamp_max(draft.tokens.shape[1] - 1))
        next_probs = torch.where(all_accepted[:, None], target_probs(num_accepted), replacement)
        ends_on_draft = all_accepted & (is_one_of(draft.tokens, eos_ids) & draft.active).any(dim=-1)
    next_token = draw(next_probs, round_noise.noise)
    faults = find_faults(draft, target, verdict, num_accepted, next_probs, ~ends_on_draft)
    if draft is not None and verdict is not None and checks:
        wrong = find_invalid_probs(verifier, verdict, draft, target, replacement, ~all_accepted)
        faults = torch.where((faults == 0) & wrong, INVALID_PROBS, faults)
    return Round(
        draft,
        target,
        round_noise,
        verdict,
        num_drafted=num_drafted,
        num_accepted=num_accepted,
        next_token=next_token,
        num_emitted=num_accepted + 1 - ends_on_draft.long(),
        ended=ends_on_draft | is_one_of(next_token, eos_ids),
        faults=faults,
    )


def commit(rows: RaggedRows, round: Round, verifier: Verifier) -> RecordedRound:
    """Write the tokens of a round, update the lengths and mark finished rows.

    Raises:
        FloatingPointError: if a value that the emitted tokens depend on is NaN or infinite. Nothing is emitted then.
        ValueError: if a user-defined verifier returns invalid probabilities.
    """
    rows.write(round.num_accepted, round.next_token)
    counts = (round.num_drafted, round.num_accepted, round.num_emitted, round.ended.long(), round.faults)
    drafted, accepted, emitted, ended, faults = torch.stack(counts).tolist()  # the one host transfer
    running = [end is None for end in rows.ends]
    if found := [fault for fault, runs in zip(faults, running) if runs and fault]:
        error = ValueError if min(found) == INVALID_PROBS else FloatingPointError
        raise error(FAULTS[min(found)].format(verifier=type(verifier).__name__))
    new = PerRow([count * runs for count, runs in zip(emitted, running)], round.num_emitted.masked_fill(rows.done, 0))
    recorded = RecordedRound(rows.origins, rows.lengths.host, drafted, accepted, new.host)
    rows.advance(new, PerRow(ended, round.ended))
    return recorded


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
