"""Decoding loop: draft a block, score it in one target forward, verify it."""

from contextlib import nullcontext

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
from hf_diversed.generation import checks
from hf_diversed.generation.planning import Call
from hf_diversed.generation.recording import Recorder, RoundStreamer
from hf_diversed.generation.verification import commit
from hf_diversed.outputs import GenerateDiversedOutput
from hf_diversed.sampling import RandomSource
from hf_diversed.verifiers.base import Memory, Verifier


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
    callers can do the same. Bind draft model, verifier, streamer and stop-string criteria first, as `generate` does
    not pass them on.

    Args:
        model: the target model. input_ids: long `[B, S]`, left-padded.
        assistant_model: the draft model; None if the generation config names another source of draft tokens:
            `prompt_lookup_num_tokens` (the text) or `assistant_early_exit` (the target's first layers).
        verifier: accepts or replaces draft tokens.
        num_assistant_tokens: gamma, draft tokens per round; None for the verifier's preference, the draft model's, or
            5. With `num_assistant_tokens_schedule="adaptive"` in the generation config, only gamma of the first
            rounds: see `AdaptiveLength`.
        output_token_records: also return `TokenRecords` (needs `return_dict_in_generate=True`).
        streamer: receives every round's tokens once, in order; a `RoundStreamer` also records. Batch size 1 only.
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
        is_user_cache = _compat.is_user_cache(model_kwargs.get("past_key_values"))
        checks.check_inputs(model, input_ids, model_kwargs, is_user_cache)
    checks.check_call(model, assistant_model, len(input_ids), generation_config, logits_processor)
    checks.check_recording(streamer, output_token_records, generation_config, len(input_ids))
    if not isinstance(verifier, Verifier):
        raise TypeError(f"verifier must be a Verifier, got {type(verifier).__name__}; see hf_diversed.VERIFIERS.")
    prepared = model, assistant_model, verifier, input_ids, logits_processor, stopping_criteria, generation_config
    options = num_assistant_tokens, output_token_records, isinstance(streamer, RoundStreamer), temperatures
    call = Call(*prepared, *options, random_source, model_kwargs)
    call.prepare()
    recorder = Recorder(call.rows.prompt_length, streamer, call.wants, call.strictnesses)
    # Inference tensors cannot be used in autograd, so this mode is entered only where no user code receives them.
    uses_inference_mode = call.only_library_code and call.engine.may_use_inference_mode
    with torch.inference_mode() if uses_inference_mode else nullcontext():
        try:
            call.engine.prefill(generation_config.prefill_chunk_size)
            run_rounds(call, recorder)
        finally:
            call.engine.close()
    return recorder.result(call.rows, call.engine, generation_config.return_dict_in_generate)


def run_rounds(call: Call, recorder: Recorder) -> None:
    """Decode until every row has ended."""
    rows, engine, verifier = call.rows, call.engine, call.verifier
    memory = Memory(verifier.dials(len(rows.ids), rows.ids.device))
    while rows.running:
        gamma = call.schedule.next(memory)
        round = engine.round(gamma, memory)  # draft a block, score it in one target forward, verify it
        tally = commit(rows, round.outcome, verifier)  # accepted tokens, then the residual or bonus token
        recorder.add(rows, round, tally)
        call.stops.update(recorder.scores_before)
        recorder.stream(rows, tally, engine.forwards)
        engine.rewind(round.draft, tally.accepted)
        memory.learn(round.verdict, round.outcome.num_accepted)
        call.schedule.learn(round, tally)
        compact(call, memory)


def compact(call: Call, memory: Memory) -> None:
    """Remove finished rows once enough have accumulated and no code indexes rows."""
    running = call.rows.running
    if call.may_compact and running and call.engine.should_compact(len(running)):
        kept = torch.tensor(running, device=call.rows.ids.device)
        for holder in (call.rows, call.engine, memory):
            holder.keep(kept)
