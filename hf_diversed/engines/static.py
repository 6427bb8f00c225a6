"""Shapes that do not change from round to round, so that a whole round can be compiled once and replayed."""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar

import torch
from transformers import LogitsProcessor, PreTrainedModel

from hf_diversed import _compat
from hf_diversed.blocks import DraftOutput, TargetOutput, Trace, Verdict
from hf_diversed.engines.compiling import Compiler, Shape, freeze
from hf_diversed.engines.eager import EagerEngine
from hf_diversed.engines.static_model import Buffers, StaticModel, Traits, extend, pad_rows, size_for
from hf_diversed.generation.drafting import DiversedCandidateGenerator, active_drafts, to_vocabulary
from hf_diversed.generation.judging import Round, judge
from hf_diversed.generation.processing import BlockProcessor, run_in_order, run_pointwise
from hf_diversed.generation.rows import RaggedRows
from hf_diversed.sampling import Coins, draw
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
    coins: Coins
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
    tokens = scores[:, 0].argmax(dim=-1)
    if noise is not None:
        drawn = draw(torch.softmax(scores[:, 0], dim=-1), noise)
        tokens = drawn if temperatures is None else torch.where(temperatures == 0.0, tokens, drawn)
    return tokens, scores, raw, hidden


def settle(setting: Setting, buffers: Buffers, deal: Deal, steps: list[Step]) -> Round:
    """Run the target over every row's last token and its drafts, and judge them; returns as `play`."""
    tokens, scores, raw, hidden = zip(*steps)
    drafted = torch.stack(tokens, dim=1)
    draft = DraftOutput(
        scores=torch.cat(scores, dim=1),
        hidden=torch.cat(hidden, dim=1) if setting.draft_traits.keep_hidden else None,
        raw_logits=torch.cat(raw, dim=1) if setting.keep_raw else None,
        tokens=drafted,
        sampled=deal.coins.noise is not None,
        active=active_drafts(drafted, deal.room, setting.eos_ids),
        lengths=deal.lengths,
    )
    block = torch.cat([deal.tail[:, 1:], drafted], dim=1)
    columns = deal.lengths[:, None] + torch.arange(-1, deal.gamma, device=block.device)
    logits, seen = extend(setting.target, setting.target_traits, buffers, block, columns, deal.gamma + 1)
    target = TargetOutput(setting.process(logits, deal.temperatures), seen, logits if setting.keep_raw else None)
    greedy = None if deal.temperatures is None else deal.temperatures == 0.0
    memory = Memory(deal.dials, deal.state)
    round = judge(setting.rule, deal.tail, draft, target, memory, setting.eos_ids, deal.coins, greedy)
    return _told(round, setting)


def _told(round: Round, setting: Setting) -> Round:
    """What is looked at of a round once it is over."""
    draft, target, verdict = round.draft, round.target, round.verdict
    assert draft is not None
    assert verdict is not None
    trace = verdict.trace
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
        coins=round.coins,
        verdict=Verdict(
            verdict.accept_prob,
            _no_replacement,
            verdict.state,
            Trace(weight=trace.weight, tv=trace.tv, inputs=trace.inputs, strict_prob=trace.strict_prob),
        ),
        outcome=round.outcome,
        greedy=round.greedy,
    )


def _no_replacement(positions: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("the replacement law was used up inside of a compiled round")


@dataclass(eq=False)
class StaticEngine(EagerEngine):
    """Both models over buffers of fixed size; a round is one compiled function where everything in it allows that.

    Attributes:
        compiler: see `Compiler`. keep_scores: whether somebody reads the scores.
        outside: why processors and rule run outside of what is compiled; None where they do not.
    """

    compiler: Compiler
    keep_scores: bool
    outside: str | None

    target: StaticModel
    may_use_inference_mode: ClassVar[bool] = False  # what is written in a compiled function must be an ordinary tensor

    @staticmethod
    def cannot_serve(target: PreTrainedModel, draft: PreTrainedModel | None, rows: RaggedRows) -> str | None:
        """Why a call cannot be decoded over static shapes; None if it can."""
        if rows.prompt_length < 2:
            return "a prompt of one token leaves nothing to fill the caches with"
        for role, model in (("target", target), ("draft", draft)):
            if model is not None and (reason := _compat.cannot_compile(model)) is not None:
                return f"the {role} {reason}"
        return None

    @staticmethod
    def what_stays_outside(rule: Verifier, processor: BlockProcessor, models: tuple) -> str | None:
        """Why a round cannot be one function, so that only the models' forwards are compiled; None if it can."""
        if None in models:
            return "drafts are looked up on the host"
        if len({_compat.device(model) for model in models}) > 1:
            return "the models are on different devices"
        if processor.reads_prefix:
            return "a logits processor reads the text so far"
        return f"{type(rule).__name__} reads the text so far" if rule.needs_input_ids else None

    def __post_init__(self) -> None:
        self._setting = None if self.outside else self._collect()
        self._fixed = freeze(self._setting)
        self._shape: Shape | None = None  # of the last round

    @property
    def _draft(self) -> StaticModel:
        assert isinstance(self.drafter, DiversedCandidateGenerator)
        assert isinstance(self.drafter.model, StaticModel)
        return self.drafter.model

    def _collect(self) -> Setting:
        draft = self._draft
        return Setting(
            target=self.target.model,
            draft=draft.model,
            target_traits=self.target.traits,
            draft_traits=draft.traits,
            rule=self.rule,
            processors=self.processor.processors,
            vocab_size=_compat.vocab_size(self.target.model),
            eos_ids=self.rows.eos_ids_device,
            keep_raw=self.keep_raw,
            keep_scores=self.keep_scores,
        )

    def round(self, gamma: int, memory: Memory) -> Round:
        if self._setting is None:
            return super().round(gamma, memory)
        rows, target, draft = self.rows, self.target, self._draft
        for model in (target, draft):
            model.make_room(max(rows.lengths.host) + gamma)
        deal = self._deal(self._setting, gamma, memory)
        round = self._run_for(gamma, deal)(self._setting, target.buffers, draft.buffers, deal)
        target.num_forwards += 1
        draft.num_forwards += gamma
        if len(deal.lengths) > len(rows.ids):
            round = first_rows(round, len(rows.ids))
        assert round.draft is not None
        columns = rows.lengths.device[:, None] + torch.arange(gamma, device=rows.ids.device)
        rows.ids.scatter_(1, columns, round.draft.tokens)
        return round

    def _run_for(self, gamma: int, deal: Deal) -> Callable[..., Round]:
        told = (gamma, *sorted(deal.dials), deal.state is None, deal.coins.noise is None, deal.temperatures is None)
        self._shape = Shape(len(deal.lengths), self.target.capacity, told)
        return self.compiler(play, self._shape, self._fixed)

    def _deal(self, setting: Setting, gamma: int, memory: Memory) -> Deal:
        rows, size = self.rows, size_for(len(self.rows.ids))
        draft_noise, coins = [], Coins()
        if self.dice is not None:
            law = torch.empty(len(rows.ids), setting.vocab_size, device=rows.ids.device)
            draft_noise = [self.dice.draft_noise(law) for _ in range(gamma)]
            coins = self.dice.flip(law[:, None].expand(-1, gamma + 1, -1))
        return map_tensors(
            lambda values: pad_rows(values, size).contiguous(),
            Deal(
                tail=rows.last(2),
                lengths=rows.lengths.device,
                gamma=gamma,
                room=rows.room(gamma).device,
                temperatures=rows.temperatures,
                draft_noise=draft_noise,
                coins=coins,
                dials=memory.dials,
                state=memory.state,
            ),
        )

    def pays_to_keep(self, running: int) -> bool:
        """Towards a size that is compiled already; compiling for it would cost more than it saves."""
        size = size_for(running)
        if self._shape is None or size >= self._shape.rows:
            return False
        return self.compiler.knows(play, self._shape._replace(rows=size), self._fixed)

    def report(self) -> dict[str, Any]:
        engine = "static" if self.compiler.config is None else "compiled"
        return {"engine": f"{engine} (forwards)" if self.outside else engine, "compile": self.compiler.stats()}


def first_rows(round: Round, count: int) -> Round:
    """The round of the first rows only: the others were idle."""
    return map_tensors(lambda values: values[:count], round)


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], thing: Any) -> Any:
    """`thing` with every tensor in it, through dataclasses, lists and dicts, replaced by `function` of it."""
    if isinstance(thing, torch.Tensor):
        return function(thing)
    if isinstance(thing, list):
        return [map_tensors(function, item) for item in thing]
    if isinstance(thing, dict):
        return {name: map_tensors(function, item) for name, item in thing.items()}
    if not is_dataclass(thing) or isinstance(thing, type):
        return thing
    given = {item.name: getattr(thing, item.name) for item in fields(thing) if item.init}
    return type(thing)(**map_tensors(function, given))
