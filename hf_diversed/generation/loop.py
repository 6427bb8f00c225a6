"""The decoding loop and one round of it: draft a block, score it, verify it, and commit the accepted tokens.

`verify` is a function of tensors and can be compiled. In a round with a draft model, only `commit` copies data to
the host; prompt lookup, streamers and stopping criteria add transfers, and a rule that ends draft blocks early adds
one per draft token.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from hf_diversed.blocks import DraftOutput, Round, TargetOutput
from hf_diversed.generation.drafting import Drafter
from hf_diversed.generation.faults import FAULTS, INVALID_PROBS, find_faults, find_invalid_probs
from hf_diversed.generation.processing import BlockProcessor, StopTracker
from hf_diversed.generation.ragged_model import RaggedModel
from hf_diversed.generation.recording import RecordedRound, Recorder
from hf_diversed.generation.rows import PerRow, RaggedRows, is_one_of
from hf_diversed.outputs import GenerateDiversedOutput
from hf_diversed.sampling import RandomSource, RoundNoise, count_accepted, draw
from hf_diversed.verifiers.base import Verifier, call_verifier


if TYPE_CHECKING:
    from hf_diversed.generation.call import Call


def run(call: "Call") -> GenerateDiversedOutput | torch.Tensor:
    """Decode a call and return its value."""
    engine, config = call.engine, call.generation_config
    engine.prefill(config.prefill_chunk_size)
    run_rounds(engine, call.gamma, call.stops, call.recorder, call.may_compact)
    return call.recorder.result(call.rows, engine.forwards, engine.report(), config.return_dict_in_generate)


def run_rounds(
    engine: "EagerEngine",
    gamma: int,
    stops: StopTracker,
    recorder: Recorder,
    may_compact: bool = False,
) -> None:
    """Decode until every row has ended.

    Args:
        gamma: draft tokens per round; their maximum if the drafter ends blocks early.
        may_compact: whether finished rows may be removed, as no code outside the engine indexes rows.
    """
    rows, verifier = engine.rows, engine.verifier
    while rows.running:
        # The shortest row: a criterion may still cut a longer one back to the target's learned positions.
        rows.check_positions(min(rows.lengths.host[row] for row in rows.running) + 1)
        round = engine.round(gamma)  # draft a block, score it in one target forward, verify it
        recorded = commit(rows, round, verifier)  # accepted tokens, then the residual or bonus token
        recorder.add(recorded, round)
        stops.update(recorded.starts, recorder.scores_before)
        recorder.stream(rows, recorded, engine.forwards)
        engine.rewind(round, recorded.accepted)
        running = rows.running
        if may_compact and running and engine.should_compact(len(running)):
            kept = torch.tensor(running, device=rows.ids.device)
            for part in (rows, engine):
                part.keep(kept)


@dataclass(eq=False)
class EagerEngine:
    """Runs draft and target model, each over its own cache, with any processor and verifier.

    Attributes:
        rows: the batch; draft tokens are written behind each row's length.
        verifier: verifies the draft tokens. random_source: None for greedy decoding.
        keep_raw: also keep the target model's raw logits.
        verify: `verify`, or a function that calls it compiled.
        report: returns how the rounds were run, as fields of `SpeculativeStats`.
    """

    rows: RaggedRows
    target: RaggedModel
    drafter: Drafter
    processor: BlockProcessor
    verifier: Verifier
    random_source: RandomSource | None
    keep_raw: bool
    verify: Callable[..., Round]
    report: Callable[[], dict[str, Any]]

    def __post_init__(self) -> None:
        self._num_unread = 1  # tokens of each row that the target has not processed
        self.row_values = self.verifier.row_values(len(self.rows.ids), self.rows.ids.device)
        self._checks = self.verifier.needs_check  # validates the first verdict

    @property
    def forwards(self) -> tuple[int, int]:
        """Number of forward passes so far, of the target model and of the draft model."""
        return self.target.num_forwards, self.drafter.num_forwards

    def prefill(self, chunk_size: int | None) -> None:
        """Fill both caches with all tokens of the prompts but the last, which are inputs of the first round."""
        if self.drafter.requires_model_outputs:  # the first round processes the prompt
            self._num_unread = self.rows.prompt_length
        else:
            self.target.prefill(self.rows.ids[:, : self.rows.prompt_length - 1], chunk_size)
        self.drafter.prefill(chunk_size)

    def round(self, gamma: int) -> Round:
        """Draft up to `gamma` tokens per row, score them in one target forward, and verify them."""
        rows = self.rows
        draft, drafted = self.drafter.propose(rows.draft_limit(gamma))
        unread, self._num_unread = self._num_unread, 1
        block = rows.last(unread) if draft is None else torch.cat([rows.last(unread), draft.tokens], dim=1)
        scored = block.shape[1] - unread + 1
        logits, hidden = self.target(block, rows.lengths + (-unread), keep=scored)
        logits = logits.to(rows.ids.device)
        scores = self.processor(rows, logits, offset=0, counts=rows.scored(drafted, scored))
        target = TargetOutput(scores, hidden, logits if self.keep_raw else None)
        round_noise = RoundNoise() if self.random_source is None else self.random_source.round_noise(scores)
        needs_ids = self.verifier.needs_input_ids
        text = rows.view(max(rows.lengths.host), rows.lengths) if needs_ids else rows.ids[:, : rows.prompt_length]
        checks, self._checks = self._checks, self._checks and draft is None
        return self.verify(
            self.verifier, text, draft, target, self.row_values, rows.eos_ids_device, round_noise, checks
        )

    def rewind(self, round: Round, accepted: list[int]) -> None:
        """Discard rejected draft tokens from the caches. `accepted`: number of accepted draft tokens per row."""
        if round.draft is not None:
            self.drafter.rewind(round.draft.tokens.shape[1], accepted, round.target.scores)
        self.target.rewind()

    def should_compact(self, running: int) -> bool:
        """Whether to continue with only the `running` rows, which copies their caches."""
        return self.target.is_worth_compacting(running, len(self.rows.ends))

    def keep(self, kept: torch.Tensor) -> None:
        """Continue with only these rows (long, ascending) of the batch."""
        self.target.keep(kept)
        self.drafter.keep(kept)
        self.row_values = {name: values[kept] for name, values in self.row_values.items()}


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
