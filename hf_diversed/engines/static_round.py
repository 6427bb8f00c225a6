"""One round as a function of tensors: what is drafted, verified and judged over buffers of fixed size.

Everything here is traceable, knows nothing of the host, and can be compiled as a whole or in parts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from transformers import LogitsProcessor, PreTrainedModel

from hf_diversed.blocks import DraftOutput, TargetOutput, Verdict
from hf_diversed.engines.buffers import Buffers
from hf_diversed.engines.static_model import Traits, extend
from hf_diversed.generation.drafting import active_drafts, draw_drafts, to_vocabulary
from hf_diversed.generation.processing import run_in_order, run_pointwise
from hf_diversed.generation.verification import Round, verify
from hf_diversed.sampling import RoundNoise
from hf_diversed.verifiers.base import Memory, Verifier


@dataclass(frozen=True, eq=False)
class Setting:
    """What is the same in all rounds of a call.

    Attributes:
        processors: each looks at one position alone. vocab_size: V of the target.
        eos_ids: long `[E]`, or None. keep_raw, keep_scores: what of the models' say is returned.
    """

    target: PreTrainedModel
    draft: PreTrainedModel
    target_traits: Traits
    draft_traits: Traits
    rule: Verifier
    processors: list[LogitsProcessor]
    vocab_size: int
    eos_ids: torch.Tensor | None
    keep_raw: bool
    keep_scores: bool

    def process(self, logits: torch.Tensor, temperatures: torch.Tensor | None) -> torch.Tensor:
        return run_in_order(self.processors, run_pointwise, logits, temperatures)


@dataclass(frozen=True, eq=False)
class Deal:
    """What a round starts from, for R rows.

    Attributes:
        gamma: drafts per row.
        tail: long `[R, 2]`, the last ids of each row. lengths: long `[R]`, its ids so far. room: long `[R]`, how many
            drafts may count. temperatures: see `RaggedRows`.
        draft_noise: gamma tensors, see `draw`; none where drafts are taken greedily. dials, state: see `Memory`.
    """

    gamma: int
    tail: torch.Tensor
    lengths: torch.Tensor
    room: torch.Tensor
    temperatures: torch.Tensor | None
    draft_noise: list[torch.Tensor]
    round_noise: RoundNoise
    dials: dict[str, torch.Tensor]
    state: torch.Tensor | None


def play(setting: Setting, target: Buffers, draft: Buffers, deal: Deal) -> Round:
    """One round: gamma draft steps, one target forward, the rule's verdict. Tensors in, tensors out.

    Returns:
        the round without what nobody reads, and without the verdict's functions, which no compiled code can return.
    """
    steps = draft_block(draft_step, setting, draft, deal)
    return settle(setting, target, deal, steps)


Step = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]  # token, scores, raw logits, hidden


def draft_block(step: Callable[..., Step], setting: Setting, buffers: Buffers, deal: Deal) -> list[Step]:
    """Draft gamma tokens for every row. The first step feeds two, as the last draft of a round is never fed."""
    feed, columns = deal.tail, deal.lengths[:, None] + torch.arange(-2, 0, device=deal.lengths.device)
    steps: list[Step] = []
    for index in range(deal.gamma):
        noise = deal.draft_noise[index] if deal.draft_noise else None
        steps.append(step(setting, buffers, feed, columns, noise, deal.temperatures))
        feed, columns = steps[-1][0][:, None], deal.lengths[:, None] + index
    return steps


def draft_step(
    setting: Setting,
    buffers: Buffers,
    feed: torch.Tensor,
    columns: torch.Tensor,
    noise: torch.Tensor | None,
    temperatures: torch.Tensor | None,
) -> Step:
    """Draft one token per row behind `feed`, at `columns`, both long `[R, 1 or 2]`."""
    logits, hidden = extend(setting.draft, setting.draft_traits, buffers, feed, columns, 1)
    raw = to_vocabulary(logits, setting.vocab_size)
    scores = setting.process(raw, temperatures)
    greedy = None if temperatures is None else temperatures == 0.0
    return draw_drafts(scores[:, 0], noise, greedy), scores, raw, hidden


def settle(setting: Setting, buffers: Buffers, deal: Deal, steps: list[Step]) -> Round:
    """Run the target over every row's last token and its draft tokens, and verify them; returns as `play`."""
    tokens, scores, raw, hidden = zip(*steps)
    drafted = torch.stack(tokens, dim=1)
    draft = DraftOutput(
        scores=torch.cat(scores, dim=1),
        hidden=torch.cat(hidden, dim=1) if setting.draft_traits.keep_hidden else None,
        raw_logits=torch.cat(raw, dim=1) if setting.keep_raw else None,
        tokens=drafted,
        sampled=deal.round_noise.noise is not None,
        active=active_drafts(drafted, deal.room, setting.eos_ids),
        lengths=deal.lengths,
    )
    block = torch.cat([deal.tail[:, 1:], drafted], dim=1)
    columns = deal.lengths[:, None] + torch.arange(-1, deal.gamma, device=block.device)
    logits, seen = extend(setting.target, setting.target_traits, buffers, block, columns, deal.gamma + 1)
    target = TargetOutput(setting.process(logits, deal.temperatures), seen, logits if setting.keep_raw else None)
    greedy = None if deal.temperatures is None else deal.temperatures == 0.0
    memory = Memory(deal.dials, deal.state)
    round = verify(setting.rule, deal.tail, draft, target, memory, setting.eos_ids, deal.round_noise, greedy)
    return _told(round, setting)


def _told(round: Round, setting: Setting) -> Round:
    """What is looked at of a round once it is over."""
    draft, target, verdict = round.draft, round.target, round.verdict
    assert draft is not None
    assert verdict is not None
    unread = target.scores[:, :0]
    return Round(
        draft=DraftOutput(
            draft.scores if setting.keep_scores else unread,
            tokens=draft.tokens,
            sampled=draft.sampled,
            active=draft.active,
            num_drafted=draft.num_drafted,
        ),
        target=TargetOutput(
            target.scores if setting.keep_scores else unread,
            raw_logits=target.raw_logits if setting.keep_scores else None,
        ),
        round_noise=round.round_noise,
        verdict=Verdict(
            verdict.accept_prob,
            _no_replacement,
            verdict.state,
            replace(verdict.trace, emitted_probs=None),
        ),
        outcome=round.outcome,
        greedy=round.greedy,
    )


def _no_replacement(positions: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("the replacement law was used up inside of a compiled round")
