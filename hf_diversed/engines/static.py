"""The engine with tensors of fixed shapes, so that a whole round can be compiled once and replayed."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from hf_diversed import support
from hf_diversed.blocks import Round
from hf_diversed.engines import static_round
from hf_diversed.engines.buffers import SMALLEST_GAMMA, gamma_for, pad_rows, size_for
from hf_diversed.engines.compiling import (
    UNTRACEABLE_ROUND,
    Compiler,
    Shape,
    cannot_be_traced,
    is_untraceable,
    record_untraceable,
    warn_once,
)
from hf_diversed.engines.static_model import StaticModel
from hf_diversed.engines.static_round import CallSettings, RoundInputs
from hf_diversed.generation.drafting import ModelDrafter
from hf_diversed.generation.loop import EagerEngine
from hf_diversed.sampling import RoundNoise


# Most layers in one compiled function; the draft model's layers count once per draft token. Compiling takes 2 to 3 s
# per layer on one CPU core. For deeper pairs, splitting a round costs little compared with its forward passes.
MAX_LAYERS = 40


@dataclass(eq=False)
class StaticEngine(EagerEngine):
    """Runs both models with buffers of fixed size. A round is one compiled function if all of it can be traced.

    Other rounds run as in the eager engine, over the same models.

    Attributes:
        draft: the draft model; None for prompt lookup.
        compiler: see `Compiler`. keep_scores: whether rounds return the models' scores.
        forwards_only: why only the models' forward passes are compiled; None if whole rounds are.
    """

    target: StaticModel
    compiler: Compiler
    keep_scores: bool
    draft: StaticModel | None = field(init=False)
    forwards_only: str | None = field(init=False)

    @staticmethod
    def cannot_serve(target: PreTrainedModel, draft: PreTrainedModel | None, prompt_length: int) -> str | None:
        """Return why a call cannot be decoded with static shapes; None if it can."""
        if prompt_length < 2:
            return "the prompt has one token, and filling the caches needs at least two"
        for role, model in (("target", target), ("draft", draft)):
            if model is not None and (reason := support.cannot_compile(model)) is not None:
                return f"the {role} {reason}"
            if model is not None and support.recurrent_states(model):
                return f"the {role} has recurrent states"
            if model is not None and (reason := support.needs_equal_rows(model)) is not None:
                return f"the {role} {reason}"
        return None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.draft = self.drafter.model if isinstance(self.drafter, ModelDrafter) else None  # type: ignore[assignment]
        self.forwards_only = self._why_forwards_only()
        self._settings = None if self.forwards_only else self._collect_settings()
        self._label = "" if self._settings is None else _label(self._settings)
        if is_untraceable(self.target.model, self._label):
            self._settings, self.forwards_only = None, UNTRACEABLE_ROUND
        self._latest: tuple[Callable, Shape] | None = None  # the last function run, and its shape

    def _why_forwards_only(self) -> str | None:
        """Return why a round cannot be one function and only the forwards are compiled; None if it can."""
        if self.draft is None:
            return "draft tokens are looked up on the host"
        if {self.target.device, self.draft.device} != {self.rows.ids.device}:
            return "the models and the ids are on different devices"
        if self.processor.reads_prefix:
            return "a logits processor reads the text so far"
        return f"{type(self.verifier).__name__} reads the text so far" if self.verifier.needs_input_ids else None

    def _collect_settings(self) -> CallSettings:
        assert self.draft is not None
        return CallSettings(
            target=self.target.model,
            draft=self.draft.model,
            target_traits=self.target.traits,
            draft_traits=self.draft.traits,
            verifier=self.verifier,
            processors=self.processor.processors,
            vocab_size=support.vocab_size(self.target.model),
            eos_ids=self.rows.eos_ids_device,
            keep_raw=self.keep_raw,
            keep_scores=self.keep_scores,
        )

    def round(self, gamma: int) -> Round:
        if self._settings is None or gamma == 0:
            return self._round_by_forwards(gamma)
        drafter, draft = self.drafter, self.draft
        assert isinstance(drafter, ModelDrafter)
        assert draft is not None
        drafter.catch_up()
        rows, gamma = self.rows, self._fit_to_limits(gamma)
        self.target.make_room(max(rows.lengths.host) + gamma)
        draft.make_room(self.target.capacity)  # `_shape` contains the capacity of the target only
        inputs = self._prepare_inputs(self._settings, gamma)
        try:
            round = self.run_round(self._settings, draft, inputs, self._shape(gamma))
        except Exception as error:
            if not cannot_be_traced(error):
                raise
            return self._continue_by_forwards(error, gamma)
        self.target.num_forwards += 1
        draft.num_forwards += gamma
        if self.compiler.replays or len(inputs.lengths) > len(rows.ids):
            size = len(rows.ids)  # cloned, because the next replay of a CUDA graph overwrites its outputs
            round = map_tensors(lambda x: x[:size].clone() if self.compiler.replays else x[:size], round)
        assert round.draft is not None
        rows.write_block(round.draft.tokens)
        return round

    def _fit_to_limits(self, gamma: int) -> int:
        """Return a smaller gamma that fits the rows if it is already compiled; else `gamma`."""
        if gamma <= SMALLEST_GAMMA:
            return gamma
        shorter = min(gamma, gamma_for(max(self.rows.draft_limit_on_host(gamma))))
        return shorter if self.ready(shorter) else gamma

    def _round_by_forwards(self, gamma: int) -> Round:
        self.target.widths.add(gamma + 1)
        return super().round(gamma)

    def run_round(self, settings: CallSettings, draft_model: StaticModel, inputs: RoundInputs, shape: Shape) -> Round:
        """Run the round as one compiled function, or as several."""
        target, draft = self.target.buffers, draft_model.buffers
        if self.compiler.replays:
            torch.compiler.cudagraph_mark_step_begin()
        if _is_one_function(settings, inputs.gamma):
            self._latest = static_round.run_round, shape
            parts = settings.draft_parts + settings.target_parts
            return self.compiler.run(
                static_round.run_round, parts, shape, self._label, settings, target, draft, inputs
            )

        def step(settings: CallSettings, buffers, feed: torch.Tensor, *others) -> static_round.Step:
            width, parts = self._step_shape(shape, feed.shape[1]), settings.draft_parts
            return self.compiler.run(
                static_round.draft_step, parts, width, self._label, settings, buffers, feed, *others
            )

        steps = static_round.draft_block(step, settings, draft, inputs)
        self._latest = static_round.verify_block, shape
        parts = settings.target_parts
        return self.compiler.run(static_round.verify_block, parts, shape, self._label, settings, target, inputs, steps)

    def _shape(self, gamma: int) -> Shape:
        """Return the shape that a round with this gamma is compiled for."""
        rows = self.rows
        rest = (gamma, *sorted(self.row_values), self._sampled)
        return Shape(size_for(len(rows.ids)), self.target.capacity_after(max(rows.lengths.host) + gamma), rest)

    def _step_shape(self, shape: Shape, width: int) -> Shape:
        return shape._replace(rest=(width, self._sampled))

    @property
    def _sampled(self) -> bool:
        return self.random_source is not None

    def ready(self, gamma: int) -> bool:
        if self._settings is None:
            return self._forwards_ready(gamma)
        shape, has = self._shape(gamma), self.compiler.has
        if _is_one_function(self._settings, gamma):
            return has(static_round.run_round, shape, self._label)
        steps = [self._step_shape(shape, width) for width in ((1, 2) if gamma > 1 else (2,))]
        steps_ready = all(has(static_round.draft_step, step, self._label) for step in steps)
        return steps_ready and has(static_round.verify_block, shape, self._label)

    def _forwards_ready(self, gamma: int) -> bool:
        end = max(self.rows.lengths.host)
        if self.draft is not None:
            steps = (end - 2, 2), (end + gamma - 2, 1)
            if not all(self.draft.ready(start, width, keep=1) for start, width in steps):
                return False
        return self.target.ready(end - 1, gamma + 1, keep=gamma + 1)

    def _continue_by_forwards(self, error: Exception, gamma: int) -> Round:
        """Run this round and all later ones by compiled forwards. Tracing failed before anything was written."""
        self.forwards_only = UNTRACEABLE_ROUND
        self._settings = None
        round = self._round_by_forwards(gamma)
        if self.compiler.config is not None:  # otherwise one of the models cannot be traced
            record_untraceable(self.target.model, self._label)
            name = type(self.verifier).__name__
            warn_once(self.target.model, f"{name} or a processor cannot be compiled and runs uncompiled: {error}")
        return round

    def _prepare_inputs(self, settings: CallSettings, gamma: int) -> RoundInputs:
        rows, size = self.rows, size_for(len(self.rows.ids))
        draft_noise, round_noise = self._draw_noise(gamma, settings.vocab_size)
        return map_tensors(
            lambda values: pad_rows(values, size),
            RoundInputs(
                tail=rows.last(2),
                lengths=rows.lengths.device,
                gamma=gamma,
                draft_limit=rows.draft_limit(gamma).device,
                draft_noise=draft_noise,
                round_noise=round_noise,
                row_values=self.row_values,
            ),
        )

    def _draw_noise(self, gamma: int, vocab_size: int) -> tuple[list[torch.Tensor], RoundNoise]:
        """Draw the random numbers of the eager engine, padded to `gamma` draft tokens."""
        # On a CPU, the eager engine draws fewer once all rows have drafted an EOS.
        rows = self.rows
        if self.random_source is None:
            return [], RoundNoise()
        scores = torch.empty(len(rows.ids), vocab_size, dtype=torch.float32, device=rows.ids.device)
        # The eager engine draws no random numbers beyond the limits of all rows.
        drafted = max(rows.draft_limit_on_host(gamma))
        draft_noise = [self.random_source.draft_noise(scores) for _ in range(drafted)]
        drawn = self.random_source.round_noise(scores[:, None].expand(-1, drafted + 1, -1))
        assert drawn.noise is not None
        uniforms = scores.new_full((len(rows.ids), gamma), 0.5)
        if drawn.uniforms is not None:
            uniforms[:, :drafted] = drawn.uniforms
        filler = [torch.full_like(drawn.noise, 0.5) for _ in range(gamma - drafted)]
        return draft_noise + filler, RoundNoise(uniforms, drawn.noise)

    def should_compact(self, running: int) -> bool:
        """Return whether rounds of `running` rows are compiled; compiling them would cost more than it saves."""
        if self._latest is None:
            return False
        function, shape = self._latest
        smaller = shape._replace(rows=size_for(running))
        return smaller.rows < shape.rows and self.compiler.has(function, smaller, self._label)

    def close(self) -> None:
        self.target.close()
        if self.draft is not None:
            self.draft.close()

    def report(self) -> dict[str, Any]:
        engine = "static" if self.compiler.config is None else "compiled"
        return {
            "engine": f"{engine} (forwards)" if self.forwards_only else engine,
            "engine_reason": self.compiler.stopped_by or self.forwards_only or "",
            "compile": self.compiler.stats(),
        }


def _is_one_function(settings: CallSettings, gamma: int) -> bool:
    return gamma * support.num_layers(settings.draft) + support.num_layers(settings.target) <= MAX_LAYERS


def _label(settings: CallSettings) -> str:
    """Return a label for `Compiler.has`: draft model, verifier without its per-row settings, and processors."""
    verifier = settings.verifier
    fixed = {name: value for name, value in verifier.settings().items() if name not in verifier.row_settings}
    draft = id(support.weak_key(settings.draft)), support.num_layers(settings.draft)
    return repr((draft, type(verifier), fixed, [type(each) for each in settings.processors]))


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Return `value` with `function` applied to every tensor in it, through dataclasses, lists and dicts."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, list):
        return [map_tensors(function, item) for item in value]
    if isinstance(value, dict):
        return {name: map_tensors(function, item) for name, item in value.items()}
    if not is_dataclass(value) or isinstance(value, type):
        return value
    items = {item.name: getattr(value, item.name) for item in fields(value) if item.init}
    return type(value)(**map_tensors(function, items))
