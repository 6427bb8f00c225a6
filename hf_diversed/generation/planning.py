"""What is settled before the first round: the rule is checked, lengths are chosen, the models get their caches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList

from hf_diversed import _compat
from hf_diversed.blocks import DecodingContext
from hf_diversed.engines.buffers import length_for, size_for
from hf_diversed.engines.compiling import Compiler, how_to_compile, warn_once, why_untraceable
from hf_diversed.engines.eager import EagerEngine
from hf_diversed.engines.protocol import Engine
from hf_diversed.engines.static import StaticEngine
from hf_diversed.engines.static_model import StaticModel
from hf_diversed.generation.drafting import DiversedCandidateGenerator, Drafter
from hf_diversed.generation.experience import RoundTimes, Survival, experience_with
from hf_diversed.generation.processing import BlockProcessor
from hf_diversed.generation.prompt_lookup import PromptLookupDrafter
from hf_diversed.generation.ragged_model import RaggedModel, RotaryLimit, find_rotary_limit
from hf_diversed.generation.rows import RaggedRows
from hf_diversed.generation.schedules import (
    ADAPTIVE,
    LONGEST,
    AdaptiveLength,
    ConstantLength,
    Schedule,
    clock_for,
)
from hf_diversed.generation.stops import StopTracker
from hf_diversed.sampling import RandomSource
from hf_diversed.verifiers.base import Verifier


logger = _compat.get_logger(__name__)
DEFAULT_NUM_ASSISTANT_TOKENS = 5
_UPSTREAM_NGRAM_SIZE = 2  # of prompt lookup, where the config says nothing


@dataclass(frozen=True)
class Plan:
    """A call, ready to be decoded.

    Attributes:
        verifier: the rule, for this call's settings. wants, strictnesses: see `Recorder`.
        schedule: drafts per round, where there is room.
        may_shrink: whether finished rows may leave the batch. Whoever reads other rows finds them where they were.
        only_library_code: whether nothing of the caller's gets to see a tensor of the loop's.
    """

    verifier: Verifier
    rows: RaggedRows
    engine: Engine
    stops: StopTracker
    schedule: Schedule
    wants: set[str]
    strictnesses: list[float]
    may_shrink: bool
    only_library_code: bool


@dataclass(frozen=True, eq=False)
class Call:
    """A prepared call of `generate`; see `diversed_decoding`. `draft` is None where the text is looked up.

    Attributes:
        records, streams: whether token records are returned, and whether a streamer is told of rounds.
    """

    model: PreTrainedModel
    draft: PreTrainedModel | None
    verifier: Verifier
    input_ids: torch.Tensor
    processors: LogitsProcessorList
    criteria: StoppingCriteriaList
    config: GenerationConfig
    num_assistant_tokens: int | None
    records: bool
    streams: bool
    temperatures: list[float] | torch.Tensor | None
    random_source: RandomSource | None
    model_kwargs: dict


def make_plan(call: Call) -> Plan:
    """Everything that a call comes to."""
    model, draft, config, input_ids = call.model, call.draft, call.config, call.input_ids
    gamma = draft_length(config, call.num_assistant_tokens, call.verifier, draft)
    if config.assistant_early_exit is not None:
        draft = _compat.first_layers(model, config.assistant_early_exit)
    own = row_temperatures(call.temperatures, config, input_ids)
    verifier = rule_for_call(replace(call, draft=draft), gamma, one_temperature=own is None)
    call = replace(call, verifier=verifier)
    end = max_length(call)
    longest = longest_round(call, gamma, room=max(end - input_ids.shape[1] - 1, 1))
    rows = RaggedRows(input_ids, end, longest, _compat.eos_ids(call.criteria), _compat.pad_token_id(config), own)
    told = {"scores": config.output_scores, "logits": config.output_logits, "records": call.records}
    wants = {name for name, wanted in told.items() if wanted and config.return_dict_in_generate}
    processor, stops = BlockProcessor(call.processors), StopTracker(rows, call.criteria)
    random_source = (
        (RandomSource() if call.random_source is None else call.random_source) if config.do_sample else None
    )
    involved = [_compat.base_model(each) for each in (model, draft) if each is not None]
    involved += [
        *verifier.made_of(),
        *call.processors,
        *call.criteria,
        *([] if random_source is None else [random_source]),
    ]
    library_only = all(map(_compat.is_library_code, involved))
    keep_scores = bool(wants) or call.streams
    making = _Making(
        call, draft, rows, processor, longest, random_source, keep_scores, "logits" in wants, library_only
    )
    engine = making.engine()
    return Plan(
        verifier=verifier,
        rows=rows,
        engine=engine,
        stops=stops,
        schedule=make_schedule(call, rows, engine, min(gamma, longest), longest),
        wants=wants,
        strictnesses=_per_row(verifier.strictness_per_row(), len(input_ids)),
        may_shrink=not (processor.reads_prefix or stops.criteria or wants - {"records"}),
        only_library_code=library_only,
    )


def _per_row(values: Sequence[float], rows: int) -> list[float]:
    """One value per row, repeated as `generate` repeats prompts; none of none."""
    return [value for value in values for _ in range(rows // len(values))]


def row_temperatures(
    given: list[float] | torch.Tensor | None, config: GenerationConfig, input_ids: torch.Tensor
) -> torch.Tensor | None:
    """Temperatures of the rows, float32 `[B]`; None where none were given. Raises ValueError."""
    if given is None:
        return None
    values = torch.as_tensor(given, dtype=torch.float32).flatten()
    prompts = len(input_ids) // (config.num_return_sequences or 1)
    if len(values) != prompts or not (values.isfinite() & (values >= 0.0)).all():
        raise ValueError(
            f"diversed_temperature must be {prompts} finite numbers >= 0, one per prompt (0 is greedy), got {given!r}."
        )
    if not config.do_sample or config.temperature not in (None, 1.0):
        raise ValueError(
            "diversed_temperature needs do_sample=True and no temperature= beside it: it names one per prompt, and 0 "
            "is greedy."
        )
    return values.repeat_interleave(len(input_ids) // prompts).to(input_ids.device)


def rule_for_call(call: Call, gamma: int, one_temperature: bool) -> Verifier:
    """The rule that decodes the call. Raises ValueError on what it cannot serve."""
    draft, config = call.draft, call.config
    verifier, name = call.verifier, type(call.verifier).__name__
    if verifier.greedy_only and config.do_sample:
        raise ValueError(f"{name} is defined for greedy decoding only; pass do_sample=False.")
    if draft is None and verifier.needs_hidden_states:
        raise ValueError(
            f"{name} reads the draft's hidden states, and looked-up tokens (prompt_lookup_num_tokens) have none; use "
            'a head with features="distribution", or an assistant_model.'
        )
    if draft is None and verifier.needs_draft_confidence:
        raise ValueError(
            f"{verifier!r} reads how sure the draft is, and looked-up tokens (prompt_lookup_num_tokens) do not say; "
            "use a rule that reads p and the drafted token, or an assistant_model."
        )
    context = _context(call, gamma, one_temperature)
    verifier = verifier.for_call(context)
    verifier.check(context)
    for remark in verifier.remarks(context):
        logger.warning_once(remark)
    return verifier


def max_length(call: Call) -> int:
    """The length of a row, prompt included, at which it ends; at least one token is generated.

    A `MaxLengthCriteria` of the caller's replaces the configuration's.
    """
    length = min(_compat.max_lengths(call.criteria), default=call.config.max_length)
    return max(length, call.input_ids.shape[1] + 1)


def _context(call: Call, gamma: int, one_temperature: bool) -> DecodingContext:
    model, draft, config, batch_size = call.model, call.draft, call.config, len(call.input_ids)
    temperature, top_k, top_p = 0.0, 0, 1.0
    if config.do_sample:
        temperature = 1.0 if config.temperature is None else config.temperature
        top_k, top_p = config.top_k or 0, 1.0 if config.top_p is None else config.top_p
    return DecodingContext(
        batch_size=batch_size,
        num_prompts=batch_size // (config.num_return_sequences or 1),
        vocab_size=_compat.vocab_size(model),
        temperature=temperature if one_temperature else None,
        target_hidden_size=_compat.hidden_width(model),
        draft_hidden_size=None if draft is None else _compat.hidden_width(draft),
        target_name=_compat.model_name(model),
        draft_name="" if draft is None else _compat.model_name(draft),
        num_assistant_tokens=None if is_adaptive(call) else gamma,
        top_k=top_k,
        top_p=top_p,
        max_new_tokens=max_length(call) - call.input_ids.shape[1],
        processors=tuple(call.processors),
        target=model,
        draft=draft,
    )


def draft_length(
    config: GenerationConfig, num_assistant_tokens: int | None, verifier: Verifier, draft: PreTrainedModel | None
) -> int:
    """gamma: from the call, then from the rule, then from where upstream reads it, the draft's own configuration."""
    looked_up = config.prompt_lookup_num_tokens
    if looked_up is not None and num_assistant_tokens not in (None, looked_up):
        raise ValueError(
            f"prompt_lookup_num_tokens={looked_up} is the draft length, num_assistant_tokens={num_assistant_tokens} "
            "another; pass only the first."
        )
    of_draft = None if draft is None else _compat.config_entry(draft.generation_config, "num_assistant_tokens")
    of_call = (looked_up, num_assistant_tokens, _compat.explicit_draft_length(config))
    chosen = (*of_call, verifier.num_assistant_tokens, of_draft)
    gamma = next((count for count in chosen if count is not None), DEFAULT_NUM_ASSISTANT_TOKENS)
    if not isinstance(gamma, int) or gamma < 1:
        raise ValueError(f"num_assistant_tokens must be an integer >= 1, got {gamma!r}; 3 to 8 suit most pairs.")
    return gamma


def longest_round(call: Call, gamma: int, room: int) -> int:
    """How many tokens a round may draft, where its first tokens leave `room` for so many."""
    longest = max(gamma, LONGEST) if is_adaptive(call) else gamma
    # Static rounds keep their length; few different limits mean few compilations.
    return min(longest, length_for(room) if call.config.cache_implementation == "static" else room)


def is_adaptive(call: Call) -> bool:
    """Whether the call asks for it, or the draft's own configuration, which is where upstream reads the schedule."""
    named = [call.config] if call.draft is None else [call.config, call.draft.generation_config]
    return any(_compat.config_entry(each, "num_assistant_tokens_schedule") == ADAPTIVE for each in named)


def make_schedule(call: Call, rows: RaggedRows, engine: Engine, start: int, longest: int) -> Schedule:
    """The call's schedule; an adaptive one goes on from what earlier calls have shown of the pair."""
    if not is_adaptive(call):
        return ConstantLength(start)
    target, config = _compat.base_model(call.model), call.config
    experience = experience_with(target, target if call.draft is None else _compat.base_model(call.draft))
    sources = config.prompt_lookup_num_tokens, config.assistant_early_exit
    running = str(rows.ids.device), torch.get_num_threads(), engine.report()["engine"], *sources
    drawing = repr(call.verifier), config.temperature if config.do_sample else 0.0, *sources
    return AdaptiveLength(
        start,
        longest,
        rows,
        engine.ready,
        times_for=lambda count: experience.recall(RoundTimes, *running, size_for(count)),
        survival=experience.recall(Survival, *drawing),
        clock=clock_for(rows.ids.device),
    )


@dataclass(frozen=True, eq=False)
class _Making:
    """Makes what runs the two models of a call, over their own caches, in rounds of up to `longest` drafts."""

    call: Call
    draft: PreTrainedModel | None
    rows: RaggedRows
    processor: BlockProcessor
    longest: int
    random_source: RandomSource | None
    keep_scores: bool
    keep_logits: bool
    only_library_code: bool

    def engine(self) -> Engine:
        """The static engine where it is asked for and can serve the call, else the eager one."""
        config, model, reason = self.call.config, self.call.model, None
        if config.cache_implementation == "static":
            reason = StaticEngine.cannot_serve(model, self.draft, self.rows)
            if self.rotary_limit is not None:
                reason = "the target's rotary frequencies change at a length that the call can reach"
            if reason is None:
                compile_config = how_to_compile(config, model.device)
                reason = None if compile_config is None else why_untraceable(model, self.draft)
            if reason is None:
                check_every_run = not self.only_library_code or self.call.streams
                return self._static(Compiler(compile_config, _compat.base_model(model), check_every_run))
            warn_once(model, f'cache_implementation="static" has no effect: {reason}.')
        return EagerEngine(**self._parts(RaggedModel), reason=reason or "")

    @cached_property
    def rotary_limit(self) -> RotaryLimit | None:
        return find_rotary_limit(self.call.model, self._options()["position_ids"], self.rows.max_length)

    def _static(self, compiler: Compiler) -> StaticEngine:
        rule, models = self.call.verifier, (self.call.model, self.draft)
        return StaticEngine(
            **self._parts(partial(StaticModel, compiler=compiler)),
            compiler=compiler,
            keep_scores=self.keep_scores,
            reason="",
            forwards_only=StaticEngine.why_forwards_only(rule, self.processor, models),
        )

    def _parts(self, runner: Callable[..., RaggedModel]) -> dict[str, Any]:
        call = self.call
        return {
            "rows": self.rows,
            "target": runner(call.model, **self._options()),
            "drafter": self._drafter(runner),
            "processor": self.processor,
            "verifier": call.verifier,
            "random_source": self.random_source,
            "keep_raw": self.keep_logits or call.verifier.needs_raw_logits,
            "rotary_limit": self.rotary_limit,
        }

    def _drafter(self, runner: Callable[..., RaggedModel]) -> Drafter:
        call, config = self.call, self.call.config
        vocab_size = _compat.vocab_size(call.model)
        if self.draft is None:
            return PromptLookupDrafter(
                self.rows,
                self.processor,
                call.model_kwargs.get("attention_mask"),
                vocab_size,
                self.longest,
                config.max_matching_ngram_size or _UPSTREAM_NGRAM_SIZE,
                self.random_source is not None,
            )
        return DiversedCandidateGenerator(
            self.draft,
            self.rows,
            self.processor,
            vocab_size=vocab_size,
            num_assistant_tokens=self.longest,
            random_source=self.random_source,
            keep_raw_logits=call.verifier.needs_raw_logits,
            runner=runner,
            **self._options(),
        )

    def _options(self) -> dict:
        rows, given = self.rows, self.call.model_kwargs
        mask, positions = given.get("attention_mask"), given.get("position_ids")
        if positions is None or positions.ndim != 2:
            known = torch.ones_like(rows.ids[:, : rows.prompt_length]) if mask is None else mask.long()
            positions = (known.cumsum(-1) - 1).clamp_min(0)
        return {
            "prompt_mask": mask,
            "position_ids": positions.expand(len(rows.ids), -1),
            "limit": rows.ids.shape[1],
            "last_position": rows.max_length - 1,
            "keep_hidden": self.call.verifier.needs_hidden_states,
        }
