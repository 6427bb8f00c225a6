"""One `generate` call: `plan` prepares its verifier, lengths, rows and engine, and `diversed_decoding` runs it."""

from dataclasses import dataclass

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
from hf_diversed.engines.buffers import gamma_for
from hf_diversed.generation import checks
from hf_diversed.generation.assembly import Parts, prompt_positions, requested_results
from hf_diversed.generation.candidates import (
    build_generators,
    check_source,
    default_gamma,
    find_source,
    is_point_mass,
)
from hf_diversed.generation.confidence import ConfidenceRule, StoppingRule, ThresholdRule
from hf_diversed.generation.decoding import EagerEngine, run_rounds
from hf_diversed.generation.drafting import Drafter
from hf_diversed.generation.options import (
    CONFIDENCE,
    CONSTANT,
    DEFAULT_NUM_ASSISTANT_TOKENS,
    MAX_CONFIDENT_TOKENS,
)
from hf_diversed.generation.processing import BlockProcessor, StopTracker, check_processors
from hf_diversed.generation.recording import Recorder
from hf_diversed.generation.request import STOPPING_SETTINGS, Request, resolve_verifier
from hf_diversed.generation.rows import RaggedRows
from hf_diversed.outputs import GenerateDiversedOutput
from hf_diversed.sampling import RandomSource
from hf_diversed.verifiers.base import Verifier, read_integer


logger = support.get_logger(__name__)
MOST_COLUMNS = 2**31  # ids per row, in place of limits that no tensor can hold: `model_max_length` may be 1e30


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
    num_assistant_tokens_schedule: str | None = None,
    assistant_confidence_threshold: float | None = None,
    output_token_records: bool = False,
    streamer: BaseStreamer | None = None,
    random_source: RandomSource | None = None,
    candidate_generator: CandidateGenerator | list[CandidateGenerator] | None = None,
    **model_kwargs,
) -> GenerateDiversedOutput | torch.Tensor:
    """Speculative decoding with any verifier, for batches whose rows accept different numbers of tokens.

    It has the signature of upstream's decoding methods. The hook passes it to `generate` as `custom_generate=`, and
    callers can do the same. Bind draft model, verifier and streamer first, as `generate` does not pass them on; it
    passes the prompt to a streamer that it also receives. For stop strings, pass `stopping_criteria=` to `generate`.

    Args:
        model: the target model. input_ids: long `[B, S]`, left-padded.
        assistant_model: the draft model; None with another source of draft tokens, such as `prompt_lookup_num_tokens`
            (the text). With a draft model, at most `prompt_lookup_num_tokens` are copied where the last
            `max_matching_ngram_size` tokens, 3 if not set, occurred before.
        verifier: accepts or replaces draft tokens.
        num_assistant_tokens: gamma, draft tokens per round; None for the default of the verifier or the draft model,
            else at most 16 for a single prompt, or 5.
        num_assistant_tokens_schedule: "constant"; "confidence" to end a block where another draft token is not
            expected to be faster (`ConfidenceRule`), after at most `num_assistant_tokens` if they are set, else 16.
            Compiled rounds have no rule: "confidence" has no effect there. None for the value of a generation
            config, the call's before the draft model's; else "confidence" for a single row whose gamma is set
            nowhere, without `cache_implementation="static"`, and "constant" for all others.
        assistant_confidence_threshold: in [0, 1]. As in transformers, a block ends after a draft token with a lower
            probability under q. It replaces the rule of the schedule; 0 sets no threshold. None for the value that
            the call's or the draft model's generation config sets.
        output_token_records: also return `TokenRecords` (needs `return_dict_in_generate=True`).
        streamer: receives every round's tokens once, in order; a `RoundStreamer` also receives records. Batch size
            1 only.
        random_source: source of random numbers; None for torch's generator.
        candidate_generator: drafts instead of `assistant_model`, at most 16 tokens per round unless
            `num_assistant_tokens` is set. Its logits must be the processed ones that the candidates were drawn from;
            without logits, q is a point mass, which is right if the candidates depend on the text only. Create one
            for each call if it keeps state. `update_candidate_strategy` is called after rounds with candidates. For
            a batch, a list of one generator per row; each receives the ids of its row without padding.

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
    request = Request(
        model=model,
        assistant_model=assistant_model,
        verifier=verifier,
        input_ids=input_ids,
        processors=logits_processor,
        criteria=stopping_criteria,
        config=generation_config,
        model_kwargs=model_kwargs,
        num_assistant_tokens=num_assistant_tokens,
        num_assistant_tokens_schedule=num_assistant_tokens_schedule,
        assistant_confidence_threshold=assistant_confidence_threshold,
        output_token_records=output_token_records,
        streamer=streamer,
        random_source=random_source,
        candidate_generator=candidate_generator,
    )
    call = plan(request)
    try:
        call.engine.prefill(generation_config.prefill_chunk_size)
        run_rounds(call.engine, call.gamma, call.stops, call.recorder, call.may_compact)
    finally:
        call.engine.close()
    engine, as_dict = call.engine, generation_config.return_dict_in_generate
    return call.recorder.result(engine.rows, engine.forwards, engine.report(), as_dict)


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
    call = plan(
        Request(
            model=model,
            assistant_model=assistant_model,
            verifier=resolve_verifier(None, "lossless"),
            input_ids=input_ids,
            processors=LogitsProcessorList(logits_processor or []),
            criteria=StoppingCriteriaList(criteria),
            config=generation_config,
            model_kwargs={"attention_mask": attention_mask},
        )
    )
    source = call.engine.drafter
    source.num_assistant_tokens = call.gamma
    source.prefill(generation_config.prefill_chunk_size)
    return source


@dataclass(frozen=True, eq=False)
class Plan:
    """What the rounds of a call use.

    Attributes:
        engine: with rows, verifier, both models and their caches.
        gamma: draft tokens per round; their maximum if the engine has a rule or copies.
        may_compact: whether finished rows may be dropped: no model, processor, criterion or result indexes rows.
    """

    engine: EagerEngine
    gamma: int
    stops: StopTracker
    recorder: Recorder
    may_compact: bool


def plan(request: Request) -> Plan:
    """Check a call and prepare its rounds. Raises ValueError or TypeError before any forward pass."""
    source = find_source(request)
    checks.check_request(request, source)
    config, draft, verifier = request.config, request.assistant_model, request.verifier
    assert verifier is not None
    if source is not None:
        check_source(source, request)
        draft = None
    criteria = support.sort_criteria(request.criteria)
    # A `MaxLengthCriteria` of the caller takes precedence; at least one token is generated.
    max_length = max(min(criteria.max_lengths, default=config.max_length), request.input_ids.shape[1] + 1)
    max_length = min(max_length, MOST_COLUMNS)
    lengths = _plan_draft_lengths(request, source, draft is not None, max_length)
    checks.check_verifier(verifier, _context(request, source, draft))
    rows = RaggedRows(
        request.input_ids,
        max_length,
        lengths.maximum,
        criteria.eos_ids,
        support.pad_token_id(config),
        readable=support.readable_columns(request.model, prompt_positions(request)),
    )
    check_processors(request.processors, rows, support.vocab_size(request.model))
    parts = Parts(
        request=request,
        draft=draft,
        generators=[] if source is None else build_generators(source, request, lengths.maximum, max_length),
        is_point_mass=is_point_mass(source),
        verifier=verifier,
        rows=rows,
        max_drafted=lengths.max_drafted,
        max_copied=lengths.max_copied,
        processor=BlockProcessor(request.processors),
        random_source=_random_source(request),
        rule=lengths.rule,
    )
    engine, stops, requested = parts.engine(), StopTracker(rows, criteria), requested_results(request)
    if engine.drafter.rule is None and lengths.stopping_setting is not None:
        logger.warning_once(
            f"{lengths.stopping_setting} has no effect: "
            + (
                "compiled rounds do not end early."
                if lengths.rule
                else f"{verifier!r} does not allow blocks to end early."
            )
        )
    needs_all_rows = parts.keep_rows or parts.processor.reads_prefix or stops.needs_all_rows
    return Plan(
        engine=engine,
        gamma=lengths.first if engine.drafter.rule is None and not lengths.max_copied else lengths.maximum,
        stops=stops,
        recorder=Recorder(rows.prompt_length, verifier, bool(config.do_sample), request.streamer, requested),
        may_compact=not (needs_all_rows or requested - {"records"}),
    )


@dataclass(frozen=True)
class DraftLengths:
    """How many tokens the rounds of a call draft.

    Attributes:
        first: gamma of rounds without a rule and copies. maximum: of all rounds, at least 1.
        max_drafted, max_copied: maximum of tokens from the draft model, and of copies before it.
        rule: ends blocks early; None to draft as many tokens as requested.
        stopping_setting: setting of the call that asks for early ends, as text; None without one.
    """

    first: int
    maximum: int
    max_drafted: int
    max_copied: int
    rule: StoppingRule | None
    stopping_setting: str | None


def _plan_draft_lengths(request: Request, source: str | None, has_draft_model: bool, max_length: int) -> DraftLengths:
    """Resolve gamma and early stopping. Raises ValueError for settings that are invalid or not supported."""
    config, assistant, verifier = request.config, request.assistant_model, request.verifier
    assert verifier is not None
    schedule = threshold = None
    if source is None:
        schedule, threshold = (_stopping_setting(request, name) for name in STOPPING_SETTINGS)
    copied = 0 if assistant is None else read_integer(config.prompt_lookup_num_tokens) or 0
    checks.check_stopping(schedule, threshold, has_draft_model)
    stopping_setting = f"{STOPPING_SETTINGS[0]}={schedule!r}" if schedule == CONFIDENCE else None
    if threshold:
        stopping_setting = f"{STOPPING_SETTINGS[1]}={threshold!r}"
    requested = requested_gamma(config, request.num_assistant_tokens, verifier, assistant)
    default = DEFAULT_NUM_ASSISTANT_TOKENS if source is None else default_gamma(source, request)
    gamma = default if requested is None else requested
    if schedule is None:
        is_free = requested is None and not threshold and has_draft_model and verifier.allows_early_stop
        is_single = len(request.input_ids) == 1 and config.cache_implementation != "static"
        schedule = CONFIDENCE if is_free and is_single else CONSTANT
    rule = _rule(request, schedule, threshold) if has_draft_model and verifier.allows_early_stop else None
    max_drafted = gamma
    if schedule == CONFIDENCE and rule is not None and requested is None:
        max_drafted = MAX_CONFIDENT_TOKENS
    remaining = max(max_length - request.input_ids.shape[1] - 1, 1)  # tokens that a row can still emit, minus 1
    if config.cache_implementation == "static":
        remaining = gamma_for(remaining)  # rounded, so that static rounds of few different lengths are compiled
    maximum = min(max(max_drafted, copied), remaining)
    return DraftLengths(
        first=min(gamma, maximum),
        maximum=maximum,
        max_drafted=min(max_drafted, maximum),
        max_copied=min(copied, maximum),
        rule=rule,
        stopping_setting=stopping_setting,
    )


def _random_source(request: Request) -> RandomSource | None:
    """Return the source of random numbers; None for greedy decoding."""
    if not request.config.do_sample:
        return None
    return RandomSource() if request.random_source is None else request.random_source


def _stopping_setting(request: Request, name: str):
    """Return a setting of the call, else of the draft model's generation config; None if neither sets it."""
    assistant = request.assistant_model
    draft_setting = None if assistant is None else support.config_entry(assistant.generation_config, name)
    sources = getattr(request, name), support.explicit_entry(request.config, name), draft_setting
    return next((value for value in sources if value is not None), None)


def _rule(request: Request, schedule: str, threshold: float | None) -> StoppingRule | None:
    """Return the rule that ends draft blocks early: the threshold's if there is one, else the schedule's."""
    if threshold:
        return ThresholdRule(threshold)
    if schedule != CONFIDENCE or request.assistant_model is None:
        return None
    return ConfidenceRule.for_models(request.assistant_model, request.model)


def _context(request: Request, source: str | None, draft: PreTrainedModel | None) -> DecodingContext:
    config, batch_size, assistant = request.config, len(request.input_ids), request.assistant_model
    temperature, draft_hidden_size, draft_model = 0.0, None, assistant if draft is None else draft
    if source is not None:
        draft_hidden_size = None if is_point_mass(source) else 0
    elif draft is not None and config.prompt_lookup_num_tokens is None:
        draft_hidden_size = support.hidden_width(draft)
    if config.do_sample:
        temperature = 1.0 if config.temperature is None else config.temperature
    return DecodingContext(
        batch_size=batch_size,
        num_prompts=batch_size // (config.num_return_sequences or 1),
        vocab_size=support.vocab_size(request.model),
        temperature=temperature,
        target_hidden_size=support.hidden_width(request.model),
        draft_hidden_size=draft_hidden_size,
        target_name=support.model_name(request.model),
        draft_name=(source or "") if draft_model is None else support.model_name(draft_model),
        target=support.base_model(request.model),
        draft=None if assistant is None else support.base_model(assistant),
    )


def requested_gamma(
    config: GenerationConfig,
    num_assistant_tokens: int | None,
    verifier: Verifier,
    draft: PreTrainedModel | None,
) -> int | None:
    """Return gamma from the call, the verifier or the draft model's config, in this order; None if unset."""
    looked_up = config.prompt_lookup_num_tokens if draft is None else None
    if looked_up is not None and num_assistant_tokens not in (None, looked_up):
        raise ValueError(
            f"prompt_lookup_num_tokens={looked_up} sets the number of draft tokens, and "
            f"num_assistant_tokens={num_assistant_tokens} differs from it; pass only the first."
        )
    draft_setting = support.config_entry(getattr(draft, "generation_config", None), "num_assistant_tokens")
    call_settings = (looked_up, num_assistant_tokens, support.explicit_entry(config, "num_assistant_tokens"))
    chosen = (*call_settings, verifier.num_assistant_tokens, draft_setting)
    given = next((count for count in chosen if count is not None), None)
    gamma = read_integer(given)
    if given is not None and (gamma is None or gamma < 1):
        raise ValueError(f"num_assistant_tokens must be an integer >= 1, got {given!r}; 3 to 8 suit most pairs.")
    return gamma
