"""One round of drafting and verification as a function of tensors, with buffers of fixed size.

Everything here can be traced by `torch.compile`, as a whole or in parts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from transformers import LogitsProcessor, PreTrainedModel

from hf_diversed.blocks import DraftOutput, Round, TargetOutput, Verdict
from hf_diversed.engines.buffers import Buffers
from hf_diversed.engines.static_model import Traits, extend
from hf_diversed.generation.drafting import Step, draft_scores, draw_draft_tokens, join_steps
from hf_diversed.generation.loop import verify
from hf_diversed.generation.processing import run_pointwise
from hf_diversed.sampling import RoundNoise
from hf_diversed.verifiers.base import Verifier


@dataclass(frozen=True, eq=False)
class CallSettings:
    """Settings that all rounds of a call share.

    Attributes:
        processors: logits processors that treat each position independently. vocab_size: V of the target model.
        eos_ids: long `[E]`, or None. keep_raw: whether the verifier reads raw logits. keep_scores: whether scores and
            raw logits are returned.
    """

    target: PreTrainedModel
    draft: PreTrainedModel
    target_traits: Traits
    draft_traits: Traits
    verifier: Verifier
    processors: list[LogitsProcessor]
    vocab_size: int
    eos_ids: torch.Tensor | None
    keep_raw: bool
    keep_scores: bool

    @property
    def draft_parts(self) -> list[object]:
        """All objects whose code a draft step runs."""
        return [self.draft, *self.processors]

    @property
    def target_parts(self) -> list[object]:
        """All objects whose code the verification of a block runs."""
        return [self.target, *self.processors, *self.verifier.components()]

    def process(self, scores: torch.Tensor) -> torch.Tensor:
        for processor in self.processors:
            scores = run_pointwise(processor, scores)
        return scores


@dataclass(frozen=True, eq=False)
class RoundInputs:
    """The inputs of a round of R rows.

    Attributes:
        gamma: draft tokens per row.
        tail: long `[R, 2]`, the last two ids of each row. lengths: long `[R]`, the number of ids of each row.
        draft_limit: long `[R]`, the maximum number of draft tokens per row.
        draft_noise: gamma tensors, see `draw`; empty for greedy drafting. round_noise: see `RoundNoise`.
        row_values: see `Verifier.row_values`.
    """

    gamma: int
    tail: torch.Tensor
    lengths: torch.Tensor
    draft_limit: torch.Tensor
    draft_noise: list[torch.Tensor]
    round_noise: RoundNoise
    row_values: dict[str, torch.Tensor]


def run_round(settings: CallSettings, target: Buffers, draft: Buffers, inputs: RoundInputs) -> Round:
    """Run one round: gamma draft steps, one forward pass of the target, and verification.

    Returns:
        The round with only the fields that later code reads, and without functions, which compiled code cannot return.
    """
    steps = draft_block(draft_step, settings, draft, inputs)
    return verify_block(settings, target, inputs, steps)


def draft_block(
    step: Callable[..., Step], settings: CallSettings, buffers: Buffers, inputs: RoundInputs
) -> list[Step]:
    """Draft gamma tokens per row. The first step feeds two: the last draft token of the previous round was not fed."""
    feed, columns = inputs.tail, inputs.lengths[:, None] + torch.arange(-2, 0, device=inputs.lengths.device)
    steps: list[Step] = []
    for index in range(inputs.gamma):
        noise = inputs.draft_noise[index] if inputs.draft_noise else None
        steps.append(step(settings, buffers, feed, columns, noise))
        feed, columns = steps[-1].tokens, inputs.lengths[:, None] + index
    return steps


def draft_step(
    settings: CallSettings,
    buffers: Buffers,
    feed: torch.Tensor,
    columns: torch.Tensor,
    noise: torch.Tensor | None,
) -> Step:
    """Draft one token per row after the tokens `feed` at `columns`, both long `[R, 1 or 2]`."""
    logits, hidden = extend(settings.draft, settings.draft_traits, buffers, feed, columns, 1)
    raw, scores = draft_scores(logits, settings.vocab_size, settings.process)
    return Step(draw_draft_tokens(scores[:, 0], noise)[:, None], scores, raw, hidden)


def verify_block(settings: CallSettings, buffers: Buffers, inputs: RoundInputs, steps: list[Step]) -> Round:
    """Run the target model on each row's last token and draft tokens, and verify the draft tokens.

    Returns:
        The same as `run_round`.
    """
    draft = join_steps(
        steps,
        inputs.draft_limit,
        inputs.lengths,
        settings.eos_ids,
        sampled=inputs.round_noise.noise is not None,
        keep_raw_logits=settings.keep_raw,
    )
    block = torch.cat([inputs.tail[:, 1:], draft.tokens], dim=1)
    columns = inputs.lengths[:, None] + torch.arange(-1, inputs.gamma, device=block.device)
    logits, hidden_states = extend(settings.target, settings.target_traits, buffers, block, columns, inputs.gamma + 1)
    target = TargetOutput(settings.process(logits), hidden_states, logits if settings.keep_raw else None)
    round = verify(
        settings.verifier,
        inputs.tail,
        draft,
        target,
        inputs.row_values,
        settings.eos_ids,
        inputs.round_noise,
        checks=settings.verifier.needs_check,
    )
    return _trim(round, settings)


@dataclass(frozen=True, eq=False)
class _Computed:
    """`Trace.emitted_probs` of a compiled round, which can return tensors but no functions."""

    probs: torch.Tensor

    def __call__(self) -> torch.Tensor:
        return self.probs


def _trim(round: Round, settings: CallSettings) -> Round:
    """Return the round with only the fields that later code reads."""
    draft, target, verdict = round.draft, round.target, round.verdict
    assert draft is not None
    assert verdict is not None
    no_scores = target.scores[:, :0]
    emitted_probs = verdict.trace.emitted_probs if settings.keep_scores else None
    return replace(
        round,
        draft=DraftOutput(
            draft.scores if settings.keep_scores else no_scores,
            tokens=draft.tokens,
            sampled=draft.sampled,
            active=draft.active,
            num_drafted=draft.num_drafted,
        ),
        target=TargetOutput(
            target.scores if settings.keep_scores else no_scores,
            raw_logits=target.raw_logits if settings.keep_scores else None,
        ),
        verdict=Verdict(
            verdict.accept_prob,
            _no_replacement,
            replace(verdict.trace, emitted_probs=emitted_probs and _Computed(emitted_probs())),
        ),
    )


def _no_replacement(positions: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("a compiled round returns no residual distribution")
