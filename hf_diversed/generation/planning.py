"""One `generate` call: its checks, and its verifier, draft lengths, rows, models with caches and engine."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
)
from transformers.generation.streamers import BaseStreamer

from hf_diversed import _compat
from hf_diversed.blocks import DecodingContext
from hf_diversed.engines.buffers import gamma_for, size_for
from hf_diversed.engines.compiling import Compiler, how_to_compile, warn_once, why_untraceable
from hf_diversed.engines.static import StaticEngine
from hf_diversed.engines.static_model import StaticModel
from hf_diversed.generation import checks
from hf_diversed.generation.decoding import EagerEngine, run_rounds
from hf_diversed.generation.drafting import DiversedCandidateGenerator
from hf_diversed.generation.experience import RoundTimes, Survival, recall
from hf_diversed.generation.processing import BlockProcessor, StopTracker
from hf_diversed.generation.prompt_lookup import PromptLookupDrafter
from hf_diversed.generation.ragged_model import RaggedModel, find_rotary_limit
from hf_diversed.generation.recording import Recorder, RoundStreamer
from hf_diversed.generation.rows import RaggedRows
from hf_diversed.generation.schedules import ADAPTIVE, MAX_GAMMA, AdaptiveSchedule, clock_for
from hf_diversed.outputs import GenerateDiversedOutput
from hf_diversed.sampling import RandomSource
from hf_diversed.verifiers.base import Verifier


logger = _compat.get_logger(__name__)
DEFAULT_NUM_ASSISTANT_TOKENS = 5
_UPSTREAM_NGRAM_SIZE = 2  # upstream's default for prompt lookup


@torch.no_grad()
def diversed_decoding(
    model: PreTrainedModel,
    input_ids: torch.LongTensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    *,
    assistant_model: PreTrainedModel | None = None,
    verifier: Verifier | None = None,
    num_assistant_tokens: int | None = None,
    output_token_records: bool = False,
    streamer: BaseStreamer | None = None,
    temperatures: list[float] | torch.Tensor | None = None,
    random_source: RandomSource | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    assistant_tokenizer: PreTrainedTokenizerBase | None = None,
    is_checked: bool = False,
    **model_kwargs,
) -> GenerateDiversedOutput | torch.Tensor:
    """Speculative decoding with any verifier, for batches whose rows accept different numbers of tokens.

    It has the signature of upstream's decoding methods. The hook passes it to `generate` as `custom_generate=`, and
    callers can do the same. Bind draft model, verifier and streamer first, as `generate` does not pass them on; it
    passes the prompt to a streamer that it also receives. For stop strings, pass `stopping_criteria=` to `generate`.

    Args:
        model: the target model. input_ids: long `[B, S]`, left-padded.
        assistant_model: the draft model; None if the generation config names another source of draft tokens:
            `prompt_lookup_num_tokens` (the text) or `assistant_early_exit` (the target's first layers).
        verifier: accepts or replaces draft tokens.
        num_assistant_tokens: gamma, draft tokens per round; None for the default of the verifier or the draft model,
            else 5. With `num_assistant_tokens_schedule="adaptive"` in the generation config, only gamma of the first
            rounds: see `AdaptiveSchedule`.
        output_token_records: also return `TokenRecords` (needs `return_dict_in_generate=True`).
        streamer: receives every round's tokens once, in order; a `RoundStreamer` also receives records. Batch size
            1 only.
        temperatures: one per prompt, 0 for greedy; needs `do_sample=True` and no `temperature`.
        random_source: source of random numbers; None for torch's generator.
        tokenizer, assistant_tokenizer: of target and draft model, to check that they are equal. None for those in the
            folders or repositories of the models.
        is_checked: whether the hook has checked models and inputs already.

    Returns:
        long `[B, S + T]`, or `GenerateDiversedOutput` with `return_dict_in_generate=True`.

    Raises:
        ValueError: before any forward pass, for the reasons in `generation/checks.py`.
        FloatingPointError: if scores of a model, or acceptance probabilities, are NaN or infinite.

    Example:
        ```python
        loop = functools.partial(diversed_decoding, assistant_model=draft, verifier=StaticEnsembleVerifier(0.7))
        model.generate(**inputs, custom_generate=loop)
        ```
    """
    if not is_checked:
        checks.check_models(model, assistant_model, tokenizer, assistant_tokenizer)
        is_user_cache = _compat.is_user_cache(model_kwargs.get(_compat.CACHE_ARGUMENT))
        checks.check_inputs(model, input_ids, model_kwargs, is_user_cache)
    settings = generation_config, logits_processor, streamer, output_token_records
    checks.check_call(model, assistant_model, len(input_ids), *settings)
    if not isinstance(verifier, Verifier):
        raise TypeError(f"verifier must be a Verifier, got {type(verifier).__name__}; see hf_diversed.VERIFIERS.")
    as_dict = generation_config.return_dict_in_generate
    returned = {
        "scores": generation_config.output_scores,
        "logits": generation_config.output_logits,
        "records": output_token_records,
    }
    wants = {name for name, wanted in returned.items() if wanted and as_dict}
    prepared = model, assistant_model, verifier, input_ids, logits_processor, stopping_criteria, generation_config
    options = num_assistant_tokens, wants, streamer, temperatures
    call = Call(*prepared, *options, random_source, model_kwargs)
    call.prepare()
    recorder = Recorder(call.rows.prompt_length, streamer, wants, call.verifier.strictness_per_row())
    # Inference tensors cannot be used in autograd, so this mode is entered only where no user code receives them.
    uses_inference_mode = call.only_library_code and call.engine.may_use_inference_mode
    with torch.inference_mode() if uses_inference_mode else nullcontext():
        try:
            call.engine.prefill(generation_config.prefill_chunk_size)
            run_rounds(call.engine, call.gamma, call.schedule, call.stops, recorder, call.may_compact)
        finally:
            call.engine.close()
    return recorder.result(call.rows, call.engine.forwards, call.engine.report(), as_dict)


@dataclass(eq=False)
class Call:
    """Arguments of one `generate` call, and the objects that its rounds use.

    Attributes:
        assistant_model: the draft model; None for prompt lookup and early exit.
        wants: see `Recorder`. The other arguments are those of `diversed_decoding`.
        draft: the model that drafts; None for prompt lookup. verifier: adapted to this call.
        max_length: the length of a row, prompt included, at which it ends.
        gamma: draft tokens per round, at first if `schedule` chooses their number. max_gamma: its maximum.
        may_compact: whether finished rows may be dropped: no processor, criterion or result indexes rows.
        only_library_code: whether no user code receives tensors of the loop.
    """

    model: PreTrainedModel
    assistant_model: PreTrainedModel | None
    verifier: Verifier
    input_ids: torch.Tensor
    processors: LogitsProcessorList
    criteria: StoppingCriteriaList
    config: GenerationConfig
    num_assistant_tokens: int | None
    wants: set[str]
    streamer: BaseStreamer | None
    temperatures: list[float] | torch.Tensor | None
    random_source: RandomSource | None
    model_kwargs: dict

    def prepare(self) -> None:
        """Choose verifier and lengths, and build rows, engine and schedule. Raises ValueError."""
        config, self.draft = self.config, self.assistant_model
        configs = [config] if self.draft is None else [config, self.draft.generation_config]  # as in upstream
        schedules = [_compat.config_entry(each, "num_assistant_tokens_schedule") for each in configs]
        self.is_adaptive = ADAPTIVE in schedules
        criteria = _compat.sort_criteria(self.criteria)
        # A `MaxLengthCriteria` of the caller takes precedence; at least one token is generated.
        length = min(criteria.max_lengths, default=config.max_length)
        self.max_length = max(length, self.input_ids.shape[1] + 1)
        gamma = draft_length(config, self.num_assistant_tokens, self.verifier, self.draft)
        if config.assistant_early_exit is not None:
            self.draft = _compat.first_layers(self.model, config.assistant_early_exit)
        self.row_temperatures = row_temperatures(self.temperatures, config, self.input_ids)
        self.verifier = self._verifier_for_call(gamma)
        remaining = max(self.max_length - self.input_ids.shape[1] - 1, 1)
        self.max_gamma = max(gamma, MAX_GAMMA) if self.is_adaptive else gamma
        # Rounded, so that static rounds of few different lengths are compiled.
        self.max_gamma = min(
            self.max_gamma, gamma_for(remaining) if config.cache_implementation == "static" else remaining
        )
        self.gamma = min(gamma, self.max_gamma)
        pad_id = _compat.pad_token_id(config)
        self.rows = RaggedRows(
            self.input_ids, self.max_length, self.max_gamma, criteria.eos_ids, pad_id, self.row_temperatures
        )
        self.processor, self.stops = BlockProcessor(self.processors), StopTracker(self.rows, criteria)
        if not config.do_sample:
            self.random_source = None
        elif self.random_source is None:
            self.random_source = RandomSource()
        self.may_compact = not (self.processor.reads_prefix or self.stops.criteria or self.wants - {"records"})
        models = [_compat.base_model(each) for each in (self.model, self.draft) if each is not None]
        used = [*models, *self.verifier.components(), *self.processors, *self.criteria]
        used += [each for each in (self.random_source, self.streamer) if each is not None]
        self.only_library_code = all(map(_compat.is_library_code, used))
        self.engine = self._engine()
        self.schedule = self._schedule()

    def _verifier_for_call(self, gamma: int) -> Verifier:
        """Return the verifier adapted to this call. Raises ValueError if it does not support the call."""
        verifier, name = self.verifier, type(self.verifier).__name__
        if verifier.greedy_only and self.config.do_sample:
            raise ValueError(f"{name} is defined for greedy decoding only; pass do_sample=False.")
        if verifier.needs_hidden_states not in (False, True, "target"):
            raise ValueError(
                f'{name}.needs_hidden_states must be False, True or "target", got {verifier.needs_hidden_states!r}.'
            )
        if self.draft is None and verifier.needs_hidden_states is True:
            raise ValueError(
                f"{name} needs hidden states of a draft model, which prompt lookup (prompt_lookup_num_tokens) "
                'lacks; use a head with features="distribution", or an assistant_model.'
            )
        if self.draft is None and verifier.needs_draft_confidence:
            raise ValueError(
                f"{verifier!r} needs probabilities of a draft model, which prompt lookup (prompt_lookup_num_tokens) "
                "lacks; use a verifier that needs only p and the draft token, or an assistant_model."
            )
        context = self._context(gamma)
        verifier = verifier.for_call(context)
        verifier.check(context)
        for remark in verifier.remarks(context):
            logger.warning_once(remark)
        return verifier

    def _context(self, gamma: int) -> DecodingContext:
        model, draft, config, batch_size = self.model, self.draft, self.config, len(self.input_ids)
        temperature, top_k, top_p = 0.0, 0, 1.0
        if config.do_sample:
            temperature = 1.0 if config.temperature is None else config.temperature
            top_k, top_p = config.top_k or 0, 1.0 if config.top_p is None else config.top_p
        return DecodingContext(
            batch_size=batch_size,
            num_prompts=batch_size // (config.num_return_sequences or 1),
            vocab_size=_compat.vocab_size(model),
            temperature=temperature if self.row_temperatures is None else None,
            target_hidden_size=_compat.hidden_width(model),
            draft_hidden_size=None if draft is None else _compat.hidden_width(draft),
            target_name=_compat.model_name(model),
            draft_name="" if draft is None else _compat.model_name(draft),
            num_assistant_tokens=None if self.is_adaptive else gamma,
            top_k=top_k,
            top_p=top_p,
            max_new_tokens=self.max_length - self.input_ids.shape[1],
            processors=tuple(self.processors),
            target=model,
            draft=draft,
        )

    def _engine(self) -> EagerEngine:
        """Return the static engine if it is requested and supports the call, else the eager one."""
        config, model, rows = self.config, self.model, self.rows
        mask, positions = self.model_kwargs.get("attention_mask"), self.model_kwargs.get("position_ids")
        if positions is None or positions.ndim != 2:
            known = torch.ones_like(self.input_ids) if mask is None else mask.long()
            positions = (known.cumsum(-1) - 1).clamp_min(0)
        positions = positions.expand(len(self.input_ids), -1)
        streams_records = isinstance(self.streamer, RoundStreamer)
        limit, reason, compiler = find_rotary_limit(model, positions, self.max_length), None, None
        if config.cache_implementation == "static":
            reason = StaticEngine.cannot_serve(model, self.draft, rows)
            if limit is not None:
                reason = "the target's rotary frequencies change at a length that the call can reach"
            if reason is None:
                compile_config = how_to_compile(config, model.device)
                reason = None if compile_config is None else why_untraceable(model, self.draft)
            if reason is None:
                check_every_run = not self.only_library_code or streams_records
                compiler = Compiler(compile_config, _compat.base_model(model), check_every_run)
            else:
                warn_once(model, f'cache_implementation="static" has no effect: {reason}.')
        runner = partial(
            RaggedModel if compiler is None else partial(StaticModel, compiler=compiler),
            rows=rows,
            prompt_mask=mask,
            position_ids=positions,
        )
        hidden = self.verifier.needs_hidden_states
        parts: dict[str, Any] = {
            "rows": rows,
            "target": runner(model, keep_hidden=bool(hidden)),
            "drafter": self._drafter(partial(runner, keep_hidden=hidden not in (False, "target"))),
            "processor": self.processor,
            "verifier": self.verifier,
            "random_source": self.random_source,
            "keep_raw": "logits" in self.wants or self.verifier.needs_raw_logits,
            "rotary_limit": limit,
            "reason": reason or "",
        }
        if compiler is None:
            return EagerEngine(**parts)
        return StaticEngine(
            **parts,
            compiler=compiler,
            keep_scores=bool(self.wants) or streams_records,
            forwards_only=StaticEngine.why_forwards_only(self.verifier, self.processor, (model, self.draft)),
        )

    def _drafter(self, runner: Callable[..., RaggedModel]) -> DiversedCandidateGenerator | PromptLookupDrafter:
        vocab_size, samples = _compat.vocab_size(self.model), self.random_source is not None
        if self.draft is None:
            mask = self.model_kwargs.get("attention_mask")
            ngram_size = self.config.max_matching_ngram_size or _UPSTREAM_NGRAM_SIZE
            return PromptLookupDrafter(
                self.rows, self.processor, mask, vocab_size, self.max_gamma, ngram_size, samples
            )
        keep_raw = self.verifier.needs_raw_logits
        return DiversedCandidateGenerator(
            self.draft, self.rows, self.processor, vocab_size, self.random_source, keep_raw, runner
        )

    def _schedule(self) -> AdaptiveSchedule | None:
        """Return the adaptive schedule, if requested; it reuses measurements of earlier calls with the same models."""
        if not self.is_adaptive:
            return None
        target, config, assistant = _compat.base_model(self.model), self.config, self.assistant_model
        # Without a draft model, the target may be a shallow copy for this call, which shares the model's modules.
        pair = [target.get_input_embeddings()] * 2 if assistant is None else [target, _compat.base_model(assistant)]
        sources = config.prompt_lookup_num_tokens, config.assistant_early_exit
        running = str(self.rows.ids.device), torch.get_num_threads(), self.engine.report()["engine"], *sources
        drawing = repr(self.verifier), config.temperature if config.do_sample else 0.0, *sources
        return AdaptiveSchedule(
            self.gamma,
            self.max_gamma,
            self.rows,
            self.engine.ready,
            times_for=lambda count: recall(*pair, RoundTimes, *running, size_for(count)),
            survival=recall(*pair, Survival, *drawing),
            clock=clock_for(self.rows.ids.device),
        )


def row_temperatures(
    given: list[float] | torch.Tensor | None, config: GenerationConfig, input_ids: torch.Tensor
) -> torch.Tensor | None:
    """Expand one temperature per prompt to rows, float32 `[B]`; None if `given` is None. Raises ValueError."""
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
            "diversed_temperature needs do_sample=True and no temperature=: it sets one temperature per prompt (0 "
            "is greedy)."
        )
    return values.repeat_interleave(len(input_ids) // prompts).to(input_ids.device)


def draft_length(
    config: GenerationConfig, num_assistant_tokens: int | None, verifier: Verifier, draft: PreTrainedModel | None
) -> int:
    """Return gamma from the call, the verifier or the draft model's generation config, in this order."""
    looked_up = config.prompt_lookup_num_tokens
    if looked_up is not None and num_assistant_tokens not in (None, looked_up):
        raise ValueError(
            f"prompt_lookup_num_tokens={looked_up} sets the draft length, and "
            f"num_assistant_tokens={num_assistant_tokens} differs from it; pass only the first."
        )
    of_draft = None if draft is None else _compat.config_entry(draft.generation_config, "num_assistant_tokens")
    of_call = (looked_up, num_assistant_tokens, _compat.explicit_draft_length(config))
    chosen = (*of_call, verifier.num_assistant_tokens, of_draft)
    gamma = next((count for count in chosen if count is not None), DEFAULT_NUM_ASSISTANT_TOKENS)
    if not isinstance(gamma, int) or gamma < 1:
        raise ValueError(f"num_assistant_tokens must be an integer >= 1, got {gamma!r}; 3 to 8 suit most pairs.")
    return gamma
