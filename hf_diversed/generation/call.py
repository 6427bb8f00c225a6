"""One call of the decoding loop: its arguments, and everything that its rounds use."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.generation.candidate_generator import CandidateGenerator
from transformers.generation.streamers import BaseStreamer

from hf_diversed import support
from hf_diversed.blocks import DecodingContext
from hf_diversed.generation.candidates import (
    DFLASH,
    MTP,
    OWN,
    READS_STATES,
    SHARED_STATES,
    CandidateDrafter,
    build_generators,
    default_gamma,
)
from hf_diversed.generation.checks import CALLS, HEAD_SETTINGS, MODELS, VERIFIERS, refuse
from hf_diversed.generation.compiling import Compiler, how_to_compile, warn_once
from hf_diversed.generation.confidence import (
    CONFIDENCE,
    CONSTANT,
    DEFAULT_NUM_ASSISTANT_TOKENS,
    MAX_CONFIDENT_TOKENS,
    ConfidenceRule,
    StoppingRule,
    ThresholdRule,
)
from hf_diversed.generation.drafting import Drafter, ModelDrafter
from hf_diversed.generation.processing import BlockProcessor, StopTracker, check_processors
from hf_diversed.generation.prompt_lookup import CopyingDrafter, PromptLookupDrafter
from hf_diversed.generation.recording import Recorder, RoundStreamer
from hf_diversed.generation.recurrent import RecurrentModel
from hf_diversed.generation.rows import RaggedRows
from hf_diversed.generation.runner import RaggedModel
from hf_diversed.generation.static import (
    StaticDrafter,
    StaticModel,
    StaticVerification,
    gamma_for,
    size_for,
    why_not_static,
)
from hf_diversed.head import DiversedHead, load_head
from hf_diversed.sampling import RandomSource
from hf_diversed.verifiers import DiversedVerifier, Verifier, build_verifier
from hf_diversed.verifiers.base import read_integer


logger = support.get_logger(__name__)
_MOST_COLUMNS = 2**31  # ids per row, in place of limits that no tensor can hold: `model_max_length` may be 1e30
_LOOKUP_NGRAM = 2  # upstream's default for prompt lookup
_COPIED_NGRAM = 3  # before a draft model, which is better than a copy after a shorter match
_SCHEDULE, _THRESHOLD = "num_assistant_tokens_schedule", "assistant_confidence_threshold"


@dataclass(eq=False)
class Call:
    """A call of `generate` that transformers has prepared: processors, criteria and configuration are final.

    The fields of the constructor are the parameters of `diversed_decoding`. All others are set once, in this order:
    verifier, refusals, kind of runner, lengths, rows, source of draft tokens. `target` is opened at its first use.

    Attributes:
        verifier: the verifier of the call; the argument may be its name, or None with a head.
        source: the candidate generator that drafts, a constant of `candidates.py`; None for `draft` and lookup.
        draft: the draft model of this library's drafters; None without one.
        length_settings: settings of draft lengths of the call, without those of the draft model.
        requested_gamma, schedule, threshold: settings of the call, its verifier or its draft model; None if unset.
        max_length: maximum length of a row.
        gamma: draft tokens per round; their maximum if a rule may end blocks early or tokens are copied.
        max_drafted, max_copied: maximum of tokens from the draft model, and of copies before it.
        rule: ends draft blocks early; None to draft as many tokens as requested.
        compiler: runs forwards with fixed shapes; None for eager runners. not_static: why a call with
            `cache_implementation="static"` has eager ones; empty otherwise.
        keep_rows: whether models process all rows in their order, because user code in them may index rows.
        keep_raw: whether raw logits are kept.
        may_compact: whether finished rows may be removed: no model, processor, criterion or result indexes rows.
        drafter: the source of draft tokens.
        static: runs `verify` compiled; None to run it eagerly.
        row_values: the verifier's per-row settings.
        num_unread: number of tokens of each row that the target has not processed.
        needs_check: whether the next verdict is validated.
    """

    model: PreTrainedModel
    input_ids: torch.Tensor
    logits_processor: LogitsProcessorList
    stopping_criteria: StoppingCriteriaList
    generation_config: GenerationConfig
    model_kwargs: dict[str, Any]
    assistant_model: PreTrainedModel | None = None
    diversed_head: DiversedHead | str | os.PathLike | None = None
    verifier: Any = None
    diversed_strictness: float | list[float] | torch.Tensor | None = None
    diversed_max_bias: float | list[float] | torch.Tensor | None = None
    diversed_max_ratio: float | list[float] | torch.Tensor | None = None
    num_assistant_tokens: int | None = None
    num_assistant_tokens_schedule: str | None = None
    assistant_confidence_threshold: float | None = None
    candidate_generator: CandidateGenerator | list[CandidateGenerator] | None = None
    output_token_records: bool | None = None
    streamer: BaseStreamer | None = None
    random_source: RandomSource | None = None

    def __post_init__(self) -> None:
        self.source = self._find_source()
        self.draft = self.assistant_model if self.source is None else None
        refuse(self, MODELS)
        self.verifier = resolve_verifier(self, support.device(self.model))
        self._read_lengths()
        refuse(self, CALLS)
        self.verifier.check(self.context)
        for remark in self.verifier.remarks(self.context):
            logger.warning_once(remark)
        self._resolve_runner()
        self._resolve_lengths()
        self._prepare_rows()
        self.drafter = self._open_source()

    def _find_source(self) -> str | None:
        """Return which candidate generator drafts; None for the draft models and copies of this library."""
        if self.candidate_generator is not None:
            return OWN
        if self.generation_config.use_mtp:
            return MTP
        if self.generation_config.speculation_type is not None:
            return DFLASH
        return SHARED_STATES if type(self.assistant_model).__name__.startswith(READS_STATES) else None

    # Facts about the prepared call, on which refusals depend.

    @property
    def models(self) -> list[tuple[str, PreTrainedModel]]:
        return [("target", self.model), *([] if self.draft is None else [("draft", self.draft)])]

    @property
    def batch_size(self) -> int:
        return len(self.input_ids)

    @property
    def own_generators(self) -> list[CandidateGenerator]:
        """The caller's candidate generators, one per row; empty without them."""
        own = self.candidate_generator
        if own is None:
            return []
        return list(own) if isinstance(own, (list, tuple)) else [own]

    @property
    def has_user_cache(self) -> bool:
        return support.is_user_cache(self.model_kwargs.get(support.CACHE_ARGUMENT))

    @property
    def results(self) -> set[str]:
        """Which results are requested besides the sequences; see `Recorder`."""
        config = self.generation_config
        requested = {
            "scores": config.output_scores,
            "logits": config.output_logits,
            "records": self.output_token_records,
        }
        return {name for name, value in requested.items() if value and config.return_dict_in_generate}

    @cached_property
    def criteria(self) -> support.Criteria:
        return support.split_criteria(self.stopping_criteria)

    @cached_property
    def positions(self) -> torch.Tensor:
        """Positions of the prompts, long `[B, S]`."""
        positions = self.model_kwargs.get("position_ids")
        if positions is None:
            mask = self.model_kwargs.get("attention_mask")
            known = torch.ones_like(self.input_ids) if mask is None else mask.long()
            positions = (known.cumsum(-1) - 1).clamp_min(0)
        elif positions.ndim == 3:  # all planes are equal
            positions = positions[0]
        return positions.expand(self.batch_size, -1)

    @cached_property
    def context(self) -> DecodingContext:
        config, assistant = self.generation_config, self.assistant_model
        draft_hidden_size = None
        if self.source is not None:
            draft_hidden_size = None if self.source == SHARED_STATES else 0
        elif self.draft is not None and config.prompt_lookup_num_tokens is None:
            draft_hidden_size = support.hidden_width(self.draft)
        return DecodingContext(
            batch_size=self.batch_size,
            num_prompts=self.batch_size // (config.num_return_sequences or 1),
            vocab_size=support.vocab_size(self.model),
            temperature=(1.0 if config.temperature is None else config.temperature) if config.do_sample else 0.0,
            target_hidden_size=support.hidden_width(self.model),
            draft_hidden_size=draft_hidden_size,
            target_name=support.model_name(self.model),
            draft_name=(self.source or "") if assistant is None else support.model_name(assistant),
            target=support.base_model(self.model),
            draft=None if assistant is None else support.base_model(assistant),
        )

    def _read_lengths(self) -> None:
        """Read the settings of draft lengths, and the maximum length.

        Precedence: argument, generation config of the call, verifier, draft model.
        """
        config, names = self.generation_config, ("num_assistant_tokens", _SCHEDULE, _THRESHOLD)
        explicit = {name: support.explicit_entry(config, name) for name in names}
        given = {name: explicit[name] if (own := getattr(self, name)) is None else own for name in names}
        self.length_settings = {name: value for name, value in given.items() if value is not None}
        self.requested_gamma = requested_gamma(self.length_settings, self.verifier, self.assistant_model)
        if self.draft is None and config.prompt_lookup_num_tokens is not None:
            self.requested_gamma = config.prompt_lookup_num_tokens
        sources = self.length_settings, support.entries(getattr(self.draft, "generation_config", None))
        self.schedule, self.threshold = (support.first_set(name, sources) for name in (_SCHEDULE, _THRESHOLD))
        # A `MaxLengthCriteria` of the caller takes precedence; at least one token is generated.
        longest = max(min(self.criteria.max_lengths, default=config.max_length), self.input_ids.shape[1] + 1)
        self.max_length = min(longest, _MOST_COLUMNS)

    # Decisions, in the order of `__post_init__`.

    def _resolve_runner(self) -> None:
        """Decide whether every forward must contain all rows, and whether models run with fixed shapes."""
        self.keep_rows = any(support.has_user_code(model) for _, model in self.models)
        self.compiler: Compiler | None = None
        self.not_static = ""
        if self.generation_config.cache_implementation != "static":
            return
        rows = self.batch_size
        reason = why_not_static(self.model, self.draft, self.input_ids.shape[1])
        if self.source is not None:
            reason = "candidate generators run in eager mode"
        if self.draft is not None and self.generation_config.prompt_lookup_num_tokens is not None:
            reason = "rounds with copied and with drafted tokens have different shapes"
        if self.keep_rows and size_for(rows) != rows:
            reason = f"a model contains user code, which may index rows, and {rows} rows would be padded"
        if reason is None:
            self.compiler = Compiler(how_to_compile(self.generation_config, self.model.device), self.model)
        else:
            self.not_static = reason
            warn_once(self.model, f'cache_implementation="static" has no effect: {reason}.')

    def _resolve_lengths(self) -> None:
        """Decide how many tokens a round drafts, and whether a rule ends its blocks early."""
        requested = read_integer(self.requested_gamma)
        if self.schedule not in (None, CONSTANT, CONFIDENCE):
            logger.warning_once(
                f"{_SCHEDULE}={self.schedule!r} has no effect with a verifier; supported are "
                f'"{CONSTANT}" and "{CONFIDENCE}".'
            )
        nothing_set = requested is None and self.schedule is None and not self.threshold
        by_confidence = self.schedule == CONFIDENCE or (nothing_set and self.batch_size == 1 and self.compiler is None)
        self.rule = self._stopping_rule(by_confidence)
        drafted = DEFAULT_NUM_ASSISTANT_TOKENS if self.source is None else default_gamma(self.source, self)
        if requested is not None:
            drafted = requested
        elif self.rule is not None and by_confidence:
            drafted = MAX_CONFIDENT_TOKENS
        copied = 0 if self.draft is None else read_integer(self.generation_config.prompt_lookup_num_tokens) or 0
        remaining = max(self.max_length - self.input_ids.shape[1] - 1, 1)  # tokens of a row after the next one
        if self.compiler is not None:
            remaining = gamma_for(remaining)  # rounded, so that static rounds of few different lengths are compiled
        self.gamma = min(max(drafted, copied), remaining)
        self.max_drafted, self.max_copied = min(drafted, self.gamma), min(copied, self.gamma)

    def _stopping_rule(self, by_confidence: bool) -> StoppingRule | None:
        """Return the rule that ends draft blocks early; None to draft as many tokens as requested."""
        obstacle = "compiled rounds do not end early" if self.compiler is not None else ""
        if self.draft is None:
            obstacle = "only the blocks of a draft model end early"
        if not self.verifier.allows_early_stop:
            obstacle = f"{self.verifier!r} does not allow blocks to end early"
        if obstacle or self.draft is None:
            setting = f"{_THRESHOLD}={self.threshold!r}" if self.threshold else f"{_SCHEDULE}={self.schedule!r}"
            if self.threshold or self.schedule == CONFIDENCE:
                logger.warning_once(f"{setting} has no effect: {obstacle}.")
            return None
        if self.threshold:
            return ThresholdRule(self.threshold)
        return ConfidenceRule.for_models(self.draft, self.model) if by_confidence else None

    def _prepare_rows(self) -> None:
        """Prepare the rows of the batch, and what is called on them in each round."""
        config = self.generation_config
        if not config.do_sample:
            self.random_source = None
        elif self.random_source is None:
            self.random_source = RandomSource()
        self.rows = RaggedRows(
            self.input_ids,
            self.max_length,
            self.gamma,
            self.criteria.eos_ids,
            support.pad_token_id(config),
            readable=support.readable_columns(self.model, self.positions),
        )
        check_processors(self.logits_processor, self.rows, support.vocab_size(self.model))
        self.processor = BlockProcessor(self.logits_processor)
        self.stops = StopTracker(self.rows, self.criteria)
        self.recorder = Recorder(self.rows.prompt_length, self.verifier, self.streamer, self.results)
        reads_raw = self.verifier.needs_raw_logits or isinstance(self.streamer, RoundStreamer)
        self.keep_raw = bool(reads_raw or {"logits", "records"} & self.results)
        self.row_values = self.verifier.row_values(self.batch_size, self.input_ids.device)
        self.num_unread, self.needs_check = self.rows.prompt_length, self.verifier.needs_check
        self.static = None
        if self.compiler is not None:
            keeps_scores = bool(self.results) or isinstance(self.streamer, RoundStreamer)
            self.static = StaticVerification(self.compiler, self.model, self.verifier, self.max_drafted, keeps_scores)
        needs_all_rows = self.keep_rows or self.processor.reads_prefix or self.stops.needs_all_rows
        self.may_compact = not (needs_all_rows or self.results - {"records"})

    def _open_source(self) -> Drafter:
        """Return the source of draft tokens."""
        vocab_size, sampled = support.vocab_size(self.model), self.random_source is not None
        ngram_size = read_integer(self.generation_config.max_matching_ngram_size)
        lookup = partial(
            PromptLookupDrafter,
            self.rows,
            self.processor,
            self.model_kwargs.get("attention_mask"),
            vocab_size,
            sampled=sampled,
        )
        if self.source is not None:
            return CandidateDrafter(
                build_generators(self),
                self.rows,
                self.model_kwargs.get("attention_mask"),
                self.processor,
                vocab_size,
                sampled=sampled,
                is_point_mass=self.source == SHARED_STATES,
                needs_q=repr(self.verifier) if self.verifier.needs_draft_confidence else None,
            )
        if self.draft is None:
            return lookup(num_tokens=self.gamma, max_ngram_size=ngram_size or _LOOKUP_NGRAM)
        is_together = support.device(self.draft) == self.rows.ids.device
        has_static_steps = self.compiler is not None and is_together and not self.processor.reads_prefix
        drafter = (StaticDrafter if has_static_steps else ModelDrafter)(
            self.draft,
            self.rows,
            self.processor,
            vocab_size,
            self.random_source,
            keep_raw_logits=self.verifier.needs_raw_logits,
            runner=self._run,
            rule=self.rule,
        )
        if not self.max_copied:
            return drafter
        copies = lookup(num_tokens=self.max_copied, max_ngram_size=ngram_size or _COPIED_NGRAM, whole_ngram=True)
        return CopyingDrafter(copies, drafter, self.max_drafted)

    def _run(self, model: PreTrainedModel, widths: tuple[int, ...] = (1, 2), **kwargs: Any) -> RaggedModel:
        """Return a model with its cache. `widths` are those of blocks with fixed shapes, by default of draft steps."""
        runner: Callable[..., RaggedModel] = open_model
        if self.compiler is not None:
            runner = partial(StaticModel, compiler=self.compiler, widths=widths)
        return runner(
            model,
            rows=self.rows,
            prompt_mask=self.model_kwargs.get("attention_mask"),
            position_ids=self.positions,
            keep_rows=self.keep_rows,
            keep_hidden=self.verifier.needs_hidden_states,
            **kwargs,
        )

    @cached_property
    def target(self) -> RaggedModel:
        """The target model with its cache."""
        target = self._run(self.model, widths=(self.max_drafted + 1,))
        target.model = self.drafter.record_outputs(target.model)
        return target

    @property
    def forwards(self) -> tuple[int, int]:
        """Number of forward passes so far, of the target model and of the draft model."""
        return self.target.num_forwards, self.drafter.num_forwards

    def report(self) -> dict[str, Any]:
        """Return how the rounds were run, as fields of `SpeculativeStats`."""
        return self.static.report() if self.static else {"engine": "eager", "engine_reason": self.not_static}


def open_model(model: PreTrainedModel, *args, **kwargs) -> RaggedModel:
    """Return a `RecurrentModel` if the model has recurrent states, else a `RaggedModel`, with the same arguments."""
    return (RecurrentModel if support.recurrent_states(model) else RaggedModel)(model, *args, **kwargs)


def resolve_verifier(call: Any, device: torch.device | None) -> Verifier:
    """Build the verifier of a call from its head, the head's settings, or its verifier.

    Args:
        call: an object with the arguments `diversed_head`, `verifier` and those in `HEAD_SETTINGS`.
        device: of a head that is loaded by name.

    Raises:
        TypeError, ValueError: for arguments that are no head or verifier, or cannot be combined.
    """
    refuse(call, VERIFIERS)
    if call.diversed_head is None:
        return build_verifier(call.verifier) if isinstance(call.verifier, str) else call.verifier
    head = call.diversed_head
    if isinstance(head, (str, os.PathLike)):
        head = load_head(os.fspath(head), device)
    given = {setting: getattr(call, name) for name, setting in HEAD_SETTINGS.items()}
    return DiversedVerifier(head, **{setting: value for setting, value in given.items() if value is not None})


def requested_gamma(settings: dict[str, Any], verifier: Verifier, draft: PreTrainedModel | None) -> Any:
    """Return gamma from the settings of a call, the verifier or the draft model's config, in this order.

    It is not validated, and None if unset.
    """
    default = {} if verifier.num_assistant_tokens is None else {"num_assistant_tokens": verifier.num_assistant_tokens}
    sources = settings, default, support.entries(getattr(draft, "generation_config", None))
    return support.first_set("num_assistant_tokens", sources)


@torch.no_grad()
def draft_source(
    model: PreTrainedModel,
    input_ids: torch.LongTensor,
    generation_config: GenerationConfig,
    logits_processor: LogitsProcessorList | None = None,
    assistant_model: PreTrainedModel | None = None,
    attention_mask: torch.Tensor | None = None,
) -> Drafter:
    """Return the source of draft tokens that `generate` uses for a prompt, as a candidate generator of transformers.

    It drafts with the draft model, with prompt lookup, or with both, as the arguments select. It reads the prompt, so
    create one for each call. Draft tokens are sampled if `do_sample` is set, with torch's generator.

    Args:
        model: the target. input_ids: the prompt, long `[1, S]`. attention_mask: of the prompt.
        generation_config: `max_length` must be set. logits_processor: all processors of the call.
        assistant_model: the draft model; None for prompt lookup (`prompt_lookup_num_tokens`).

    Raises:
        ValueError: for calls that `generate` does not support with a verifier.
    """
    criteria = [MaxLengthCriteria(generation_config.max_length)]
    if generation_config.eos_token_id is not None:
        criteria.append(EosTokenCriteria(generation_config.eos_token_id))
    call = Call(
        model,
        input_ids,
        LogitsProcessorList(logits_processor or []),
        StoppingCriteriaList(criteria),
        generation_config,
        {"attention_mask": attention_mask},
        assistant_model,
        verifier="lossless",
    )
    call.drafter.num_assistant_tokens = call.gamma
    call.drafter.prefill(generation_config.prefill_chunk_size)
    return call.drafter
