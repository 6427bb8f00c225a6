"""The round loop: draft a block, verify it in one target forward, keep what the verifier keeps."""

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

from hf_diversed.generation import checks
from hf_diversed.generation.planning import Call, Plan, make_plan
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
    **model_kwargs,
) -> GenerateDiversedOutput | torch.Tensor:
    """Speculative decoding under any verifier, for batches whose rows advance at their own pace.

    Has the signature of upstream's decoding methods: the hook hands it to `generate` as `custom_generate=`, and so can
    you. Bind draft, verifier, streamer and stop-string criteria to it first: `generate` passes none of them on.

    Args:
        model: the target. `input_ids`: long `[B, S]`, left-padded.
        assistant_model: the draft; None where the generation config names another source of drafts:
            `prompt_lookup_num_tokens` (the text itself) or `assistant_early_exit` (the target's first layers).
        verifier: the rule that accepts or replaces drafted tokens.
        num_assistant_tokens: gamma, drafts per round; None for the verifier's own preference, the draft's, or 5. Under
            `num_assistant_tokens_schedule="adaptive"` (of the generation config) gamma at first: see `AdaptiveLength`.
        output_token_records: also return `TokenRecords` (needs `return_dict_in_generate=True`).
        streamer: gets every round's tokens once, in order; a `RoundStreamer` also their records. Batch size 1 only.
        temperatures: one per row, 0 for greedy, in a call that samples and names no temperature; a batch may mix them.
        random_source: where random numbers come from; None for torch's generator.
        tokenizer, assistant_tokenizer: of target and draft model, to check that they agree. None for those that lie
            where the models were loaded from.

    Returns:
        long `[B, S + T]`, or `GenerateDiversedOutput` with `return_dict_in_generate=True`.

    Raises:
        ValueError: before any forward pass, for everything `generation/checks.py` lists.
        FloatingPointError: where scores of a model, or a rule's acceptance, are not finite.

    Example:
        ```python
        loop = functools.partial(diversed_decoding, assistant_model=draft, verifier=StaticEnsembleVerifier(0.7))
        model.generate(**inputs, custom_generate=loop)
        ```
    """
    tokenizers = tokenizer, assistant_tokenizer
    checks.check_call(model, assistant_model, input_ids, generation_config, model_kwargs, logits_processor, tokenizers)
    checks.check_watching(streamer, output_token_records, generation_config, batch_size=input_ids.shape[0])
    checks.warn_of_no_effect(generation_config, assistant_model)
    call = Call(
        model=model,
        draft=assistant_model,
        verifier=_require(verifier),
        input_ids=input_ids,
        processors=logits_processor,
        criteria=stopping_criteria,
        config=generation_config,
        num_assistant_tokens=num_assistant_tokens,
        records=output_token_records,
        streams=isinstance(streamer, RoundStreamer),
        temperatures=temperatures,
        random_source=random_source,
        model_kwargs=model_kwargs,
    )
    plan = make_plan(call)
    recorder = Recorder(plan.rows.prompt_length, streamer, plan.wants, plan.strictnesses)
    # Saves autograd's bookkeeping; its tensors cannot be trained on, so nobody else may come to hold one.
    hidden = plan.only_library_code and plan.engine.may_use_inference_mode
    with torch.inference_mode() if hidden else nullcontext():
        try:
            plan.engine.prefill(generation_config.prefill_chunk_size)
            run_rounds(plan, recorder)
        finally:
            plan.engine.close()
    return recorder.result(plan.rows, plan.engine, generation_config.return_dict_in_generate)


def run_rounds(plan: Plan, recorder: Recorder) -> None:
    """Decode until every row has ended."""
    rows, engine, verifier = plan.rows, plan.engine, plan.verifier
    memory = Memory(verifier.dials(len(rows.ids), rows.ids.device))
    while rows.running:
        round = engine.round(plan.schedule.next(memory), memory)  # draft a block, score it in one forward, verify it
        tally = commit(rows, round.outcome, verifier)
        recorder.add(rows, round, tally)
        plan.stops.update(recorder.scores_before)
        recorder.stream(rows, tally, engine.forwards)
        engine.rewind(round.draft, tally.accepted)
        memory.learn(round.verdict, round.outcome.num_accepted)
        plan.schedule.learn(round, tally)
        drop_finished(plan, memory)


def drop_finished(plan: Plan, memory: Memory) -> None:
    """Let finished rows leave the batch, once they are many, where nobody looks for them."""
    running = plan.rows.running
    if plan.may_shrink and running and plan.engine.should_compact(len(running)):
        kept = torch.tensor(running, device=plan.rows.ids.device)
        for holder in (plan.rows, plan.engine, memory):
            holder.keep(kept)


def _require(verifier: Verifier | None) -> Verifier:
    if not isinstance(verifier, Verifier):
        raise TypeError(f"verifier must be a Verifier, got {type(verifier).__name__}; see hf_diversed.VERIFIERS.")
    return verifier
