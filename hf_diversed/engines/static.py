"""Shapes that do not change from round to round, so that a whole round can be compiled once and replayed."""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar

import torch
from transformers import PreTrainedModel

from hf_diversed import _compat
from hf_diversed.engines.buffers import SMALLEST_LENGTH, length_for, pad_rows, size_for
from hf_diversed.engines.compiling import Compiler, Shape, cannot_be_traced, warn_once
from hf_diversed.engines.eager import EagerEngine
from hf_diversed.engines.static_model import StaticModel
from hf_diversed.engines.static_round import Deal, Setting, Step, draft_block, draft_step, play, settle
from hf_diversed.generation.drafting import DiversedCandidateGenerator
from hf_diversed.generation.processing import BlockProcessor
from hf_diversed.generation.rows import RaggedRows
from hf_diversed.generation.verification import Round
from hf_diversed.sampling import RoundNoise
from hf_diversed.verifiers.base import Memory, Verifier


logger = _compat.get_logger(__name__)
# Layers in one function, the draft's counted once per draft. Compiling takes 2 to 3 s for each on a CPU core, and for
# larger models what is saved between the parts is nothing beside their forwards.
MAX_LAYERS = 40


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
    def _kind_of_call(setting: Setting) -> str:
        """A label for `Compiler.has`: the draft model, the verifier without what reaches it as a dial, processors."""
        rule = setting.rule
        settings = {name: value for name, value in rule.settings().items() if name not in rule.row_settings}
        draft = id(setting.draft.get_input_embeddings())
        return repr((draft, type(rule), settings, [type(each) for each in setting.processors]))

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
        self._label = "" if self._setting is None else self._kind_of_call(self._setting)
        self._latest: tuple[Callable, Shape] | None = None  # what the last round ran, and for what shape

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
            return self._round_by_forwards(gamma, memory)
        rows, gamma = self.rows, self._shortened(gamma, memory)
        for model in (self.target, self._draft):
            model.make_room(max(rows.lengths.host) + gamma)
        deal = self._deal(self._setting, gamma, memory)
        try:
            round = self._play(self._setting, deal, self._shape(gamma, memory))
        except Exception as error:
            if not cannot_be_traced(error):
                raise
            return self._leave_outside(error, gamma, memory)
        self.target.num_forwards += 1
        self._draft.num_forwards += gamma
        if self.compiler.replays or len(deal.lengths) > len(rows.ids):
            round = map_tensors(lambda values: self._own(values[: len(rows.ids)]), round)
        assert round.draft is not None
        columns = rows.lengths.device[:, None] + torch.arange(gamma, device=rows.ids.device)
        rows.ids.scatter_(1, columns, round.draft.tokens)
        return round

    def _shortened(self, gamma: int, memory: Memory) -> int:
        """A shorter draft length that still fills the room left, if it needs no compilation; else `gamma`."""
        if gamma <= SMALLEST_LENGTH:
            return gamma
        shorter = min(gamma, length_for(max(self.rows.room_on_host(gamma))))
        return shorter if self.ready(shorter, memory) else gamma

    def _round_by_forwards(self, gamma: int, memory: Memory) -> Round:
        self.target.widths.add(gamma + 1)
        return super().round(gamma, memory)

    def _own(self, values: torch.Tensor) -> torch.Tensor:
        """What a replay returns lies where the next one will write."""
        return values.clone() if self.compiler.replays else values

    def _play(self, setting: Setting, deal: Deal, shape: Shape) -> Round:
        """The round, as one compiled function or as several."""
        target, draft = self.target.buffers, self._draft.buffers
        if self.compiler.replays:
            torch.compiler.cudagraph_mark_step_begin()
        if _is_one_function(setting, deal.gamma):
            self._latest = play, shape
            return self.compiler.run(play, shape, self._label, setting, target, draft, deal)

        def step(setting: Setting, buffers, feed: torch.Tensor, *others) -> Step:
            width = self._step_shape(shape, feed.shape[1])
            return self.compiler.run(draft_step, width, self._label, setting, buffers, feed, *others)

        steps = draft_block(step, setting, draft, deal)
        self._latest = settle, shape
        return self.compiler.run(settle, shape, self._label, setting, target, deal, steps)

    def _shape(self, gamma: int, memory: Memory) -> Shape:
        """What a round of this length is compiled for."""
        rows = self.rows
        told = (gamma, *sorted(memory.dials), memory.state is None, *self._drawing)
        return Shape(size_for(len(rows.ids)), self.target.capacity_for(max(rows.lengths.host) + gamma), told)

    def _step_shape(self, shape: Shape, width: int) -> Shape:
        return shape._replace(rest=(width, *self._drawing))

    @property
    def _drawing(self) -> tuple[bool, bool]:
        return self.random_source is not None, self.rows.temperatures is None

    def ready(self, gamma: int, memory: Memory) -> bool:
        if self._setting is None:
            return self._forwards_ready(gamma)
        shape = self._shape(gamma, memory)
        if _is_one_function(self._setting, gamma):
            return self.compiler.has(play, shape, self._label)
        steps = [self._step_shape(shape, width) for width in ((1, 2) if gamma > 1 else (2,))]
        steps_ready = all(self.compiler.has(draft_step, step, self._label) for step in steps)
        return steps_ready and self.compiler.has(settle, shape, self._label)

    def _forwards_ready(self, gamma: int) -> bool:
        end = max(self.rows.lengths.host)
        if isinstance(self.drafter, DiversedCandidateGenerator):  # else drafts are looked up
            steps = (end - 2, 2), (end + gamma - 2, 1)
            if not all(self._draft.ready(start, width, keep=1) for start, width in steps):
                return False
        return self.target.ready(end - 1, gamma + 1, keep=gamma + 1)

    def _leave_outside(self, error: Exception, gamma: int, memory: Memory) -> Round:
        """The round by compiled forwards, as all later ones: tracing it as a whole failed before it wrote anything."""
        self.outside, self._setting = "the verifier or a logits processor cannot be traced by torch.compile", None
        round = self._round_by_forwards(gamma, memory)
        if self.compiler.config is not None:  # else one of the models is the reason
            name = type(self.rule).__name__
            warn_once(self.target.model, f"{name} or a processor cannot be compiled and runs uncompiled: {error}")
        return round

    def _deal(self, setting: Setting, gamma: int, memory: Memory) -> Deal:
        rows, size = self.rows, size_for(len(self.rows.ids))
        draft_noise, round_noise = self._draw_noise(gamma, setting.vocab_size)
        return map_tensors(
            lambda values: pad_rows(values, size),
            Deal(
                tail=rows.last(2),
                lengths=rows.lengths.device,
                gamma=gamma,
                room=rows.room(gamma).device,
                temperatures=rows.temperatures,
                draft_noise=draft_noise,
                round_noise=round_noise,
                dials=memory.dials,
                state=memory.state,
            ),
        )

    def _draw_noise(self, gamma: int, vocab_size: int) -> tuple[list[torch.Tensor], RoundNoise]:
        """Random numbers for the draft tokens that rows have room for, as the eager engine draws them, then filler."""
        rows = self.rows
        if self.random_source is None:
            return [], RoundNoise()
        scores = torch.empty(len(rows.ids), vocab_size, device=rows.ids.device)
        drafted = max(rows.room_on_host(gamma))
        draft_noise = [self.random_source.draft_noise(scores) for _ in range(drafted)]
        drawn = self.random_source.round_noise(scores[:, None].expand(-1, drafted + 1, -1))
        assert drawn.noise is not None
        uniforms = drawn.noise.new_full((len(rows.ids), gamma), 0.5)
        if drawn.uniforms is not None:
            uniforms[:, :drafted] = drawn.uniforms
        filler = [torch.full_like(drawn.noise, 0.5) for _ in range(gamma - drafted)]
        return draft_noise + filler, RoundNoise(uniforms, drawn.noise)

    def pays_to_keep(self, running: int) -> bool:
        """Whether a smaller size is compiled already; compiling for one would cost more than it saves."""
        if self._latest is None:
            return False
        function, shape = self._latest
        smaller = shape._replace(rows=size_for(running))
        return smaller.rows < shape.rows and self.compiler.has(function, smaller, self._label)

    def close(self) -> None:
        drafts = isinstance(self.drafter, DiversedCandidateGenerator)
        for model in (self.target, *([self._draft] if drafts else [])):
            model.close()

    def report(self) -> dict[str, Any]:
        engine = "static" if self.compiler.config is None else "compiled"
        return {
            "engine": f"{engine} (forwards)" if self.outside else engine,
            "engine_reason": self.compiler.stopped_by or self.outside or "",
            "compile": self.compiler.stats(),
        }


def _is_one_function(setting: Setting, gamma: int) -> bool:
    return gamma * _compat.num_layers(setting.draft) + _compat.num_layers(setting.target) <= MAX_LAYERS


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
