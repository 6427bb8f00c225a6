"""The round loop: draft a block, verify it in one target forward, keep what the verifier keeps."""

from dataclasses import dataclass, replace

import torch
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from hf_diversed import _compat
from hf_diversed.generation import checks
from hf_diversed.generation.drafting import DiversedCandidateGenerator, Drafter
from hf_diversed.generation.judging import find_faults, refuse_faults
from hf_diversed.generation.processing import BlockProcessor, RaggedRows, StopTracker
from hf_diversed.generation.prompt_lookup import PromptLookupDrafter
from hf_diversed.generation.ragged_model import RaggedModel
from hf_diversed.generation.recording import RoundLog, RoundStreamer, ScoreCollector, describe_round
from hf_diversed.outputs import (
    DecodingContext,
    DraftOutput,
    GenerateDiversedOutput,
    TargetOutput,
    Verdict,
    VerifyOutput,
)
from hf_diversed.sampling import count_accepted, draw, draw_noise, first_true, total_variation
from hf_diversed.verifiers.base import Verifier


DEFAULT_NUM_ASSISTANT_TOKENS = 5
_UPSTREAM_NGRAM_SIZE = 2  # of prompt lookup, where the config says nothing
_SHRINK_BELOW = 0.75  # share of running rows; each time the caches are copied, which costs less than a round


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
        num_assistant_tokens: gamma, drafts per round; None for the verifier's own preference, or 5.
        output_token_records: also return `TokenRecords` (needs `return_dict_in_generate=True`).
        streamer: gets every round's tokens once, in order; a `RoundStreamer` also their records. Batch size 1 only.

    Returns:
        long `[B, S + T]`, or `GenerateDiversedOutput` with `return_dict_in_generate=True`.

    Raises:
        ValueError: before any forward pass, for everything `generation/checks.py` lists.

    Example:
        ```python
        loop = functools.partial(diversed_decoding, assistant_model=draft, verifier=StaticEnsembleVerifier(0.7))
        model.generate(**inputs, custom_generate=loop)
        ```
    """
    checks.check_call(model, assistant_model, input_ids, generation_config, model_kwargs, logits_processor)
    checks.warn_of_no_effect(generation_config, assistant_model)
    verifier = _require(verifier)
    checks.check_streamer(streamer, batch_size=input_ids.shape[0])
    if output_token_records and not generation_config.return_dict_in_generate:
        raise ValueError("output_token_records=True needs return_dict_in_generate=True to return them.")
    draft = assistant_model
    if generation_config.assistant_early_exit is not None:
        draft = _compat.first_layers(model, generation_config.assistant_early_exit)
    _check_rule(verifier, model, draft, generation_config, batch_size=input_ids.shape[0])
    gamma = _draft_length(generation_config, num_assistant_tokens, verifier, assistant_model)
    plan = _plan(input_ids, stopping_criteria, generation_config, gamma, verifier)
    rows, stops, processor = plan.rows, plan.stops, BlockProcessor(logits_processor)
    target, drafter = _models(model, draft, verifier, processor, plan, model_kwargs)
    scores, raw_logits = (ScoreCollector(rows.prompt_length) for _ in range(2))
    log, state = RoundLog(), None
    keep_records = output_token_records or isinstance(streamer, RoundStreamer)
    # Whoever reads other rows, or has something to say about each, finds them where they were.
    may_shrink = not (verifier.per_row or processor.reads_prefix or stops.criteria or plan.collects_columns)

    target.prefill(input_ids[:, :-1], generation_config.prefill_chunk_size)
    drafter.prefill(generation_config.prefill_chunk_size)

    while rows.running:
        starts = rows.lengths
        q, gammas = drafter.propose(plan.draft_lengths())
        q = _activate(q, gammas, rows)
        p = _score_block(target, processor, rows, q, gammas, plan.keep_raw_logits)
        verdict = None if q is None else verifier(rows.view(max(starts), starts), q, p, state)
        outcome = _settle(verdict, q, p, rows, plan.do_sample)
        rows.write(outcome.num_accepted, outcome.next_token)

        # The one host sync of a round.
        drafted, accepted, emitted, ended, faults = outcome.to_host()
        refuse_faults([fault for fault, end in zip(faults, rows.ends) if end is None], verifier)
        emitted = [count if end is None else 0 for count, end in zip(emitted, rows.ends)]
        if plan.output_scores:
            scores.add(p.scores, starts, emitted)
        if plan.output_logits and p.raw_logits is not None:
            raw_logits.add(p.raw_logits, starts, emitted)
        if keep_records and verdict is not None and q is not None and verdict.tv is None:
            verdict = replace(verdict, tv=total_variation(p.probs()[:, :-1], q.probs()))
        records = describe_round(q, p, verdict, outcome) if keep_records else None
        log.append(rows.origins, starts, drafted, accepted, verdict, records)

        rows.advance(emitted)
        stops.update(ended, plan.max_length, scores.before if plan.output_scores else None)
        if streamer is not None:
            end = rows.ends[0] or rows.lengths[0]
            streamer.put(rows.ids[0, starts[0] : end].cpu())
            log.stream(streamer, end, target.num_forwards, drafter.num_forwards)
        if verdict is not None:
            drafter.rewind(all_accepted=any(accepted[row] == verdict.accept_prob.shape[1] for row in rows.running))
            state = None if verdict.state is None else verdict.state[rows.row_index, outcome.num_accepted]
        if may_shrink and 0 < len(kept := rows.running) <= _SHRINK_BELOW * len(rows.ends):
            state = _shrink(torch.tensor(kept, device=rows.ids.device), rows, target, drafter, state)

    if streamer is not None:
        streamer.end()
    ends = rows.final_ends()
    stats = log.stats(ends, target.num_forwards, drafter.num_forwards)
    if not generation_config.return_dict_in_generate:
        return rows.finished()
    return GenerateDiversedOutput(
        sequences=rows.finished(),
        scores=scores.before(max(ends)) if plan.output_scores else None,
        logits=raw_logits.before(max(ends)) if plan.output_logits else None,
        stats=stats,
        token_records=log.token_records(ends, rows.prompt_length) if output_token_records else None,
    )


def _shrink(kept: torch.Tensor, rows: RaggedRows, target: RaggedModel, drafter: Drafter, state: torch.Tensor | None):
    """Drop finished rows, which would be decoded on for nothing; returns what is left of the rule's state."""
    rows.keep(kept)
    target.keep(kept)
    drafter.keep(kept)
    return None if state is None else state[kept]


@dataclass(frozen=True)
class _Plan:
    """What is settled before the first round."""

    rows: RaggedRows
    stops: StopTracker
    gamma: int
    max_length: int
    do_sample: bool
    output_scores: bool
    output_logits: bool
    keep_raw_logits: bool
    max_ngram_size: int

    @property
    def collects_columns(self) -> bool:
        return self.output_scores or self.output_logits

    def draft_lengths(self) -> list[int]:
        """gamma_i: no row drafts past its last token but one, so that rounds end where they do in single runs."""
        return [
            min(self.gamma, self.max_length - length - 1) if end is None else 0
            for length, end in zip(self.rows.lengths, self.rows.ends)
        ]


def _require(verifier: Verifier | None) -> Verifier:
    if not isinstance(verifier, Verifier):
        raise TypeError(f"verifier must be a Verifier, got {type(verifier).__name__}; see hf_diversed.VERIFIERS.")
    return verifier


def _check_rule(
    verifier: Verifier,
    model: PreTrainedModel,
    draft: PreTrainedModel | None,
    config: GenerationConfig,
    batch_size: int,
) -> None:
    name = type(verifier).__name__
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
    verifier.check(
        DecodingContext(
            batch_size=batch_size,
            num_prompts=batch_size // (config.num_return_sequences or 1),
            vocab_size=_compat.vocab_size(model),
            temperature=(1.0 if config.temperature is None else config.temperature) if config.do_sample else 0.0,
            target_hidden_size=_compat.hidden_width(model),
            draft_hidden_size=None if draft is None else _compat.hidden_width(draft),
            target_name=_compat.model_name(model),
            draft_name="" if draft is None else _compat.model_name(draft),
        )
    )


def _draft_length(
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


def _plan(input_ids, criteria, config, gamma: int, verifier) -> _Plan:
    # A MaxLengthCriteria of the caller's stands in the list instead of the config's.
    max_length = min(_compat.max_lengths(criteria), default=config.max_length)
    gamma = min(gamma, max(max_length - input_ids.shape[1] - 1, 1))  # no round has room for more
    rows = RaggedRows(input_ids, max_length + gamma, _compat.eos_ids(criteria), _compat.pad_token_id(config))
    output_logits = bool(config.return_dict_in_generate and config.output_logits)
    return _Plan(
        rows=rows,
        stops=StopTracker(rows, criteria),
        gamma=gamma,
        max_length=max_length,
        do_sample=config.do_sample,
        output_scores=bool(config.return_dict_in_generate and config.output_scores),
        output_logits=output_logits,
        keep_raw_logits=output_logits or verifier.needs_raw_logits,
        max_ngram_size=config.max_matching_ngram_size or _UPSTREAM_NGRAM_SIZE,
    )


def _models(model, draft, verifier, processor, plan, model_kwargs) -> tuple[RaggedModel, Drafter]:
    """The target and the drafter over their own caches."""
    rows = plan.rows
    prompt_mask = model_kwargs.get("attention_mask")
    if prompt_mask is None:
        positions = torch.arange(rows.prompt_length, device=rows.ids.device).expand(len(rows.ends), -1)
    else:
        positions = (prompt_mask.long().cumsum(-1) - 1).clamp_min(0)
    given = model_kwargs.get("position_ids")
    if given is not None and given.ndim == 2:
        positions = given.expand_as(positions)
    options = {
        "prompt_mask": prompt_mask,
        "position_ids": positions,
        "limit": plan.max_length + plan.gamma,
        "last_position": plan.max_length - 1,
        "keep_hidden": verifier.needs_hidden_states,
    }
    target = RaggedModel(model, **options)
    if draft is None:
        return target, PromptLookupDrafter(
            rows, processor, prompt_mask, _compat.vocab_size(model), plan.gamma, plan.max_ngram_size, plan.do_sample
        )
    drafter = DiversedCandidateGenerator(
        draft,
        rows,
        processor,
        vocab_size=_compat.vocab_size(model),
        num_assistant_tokens=plan.gamma,
        do_sample=plan.do_sample,
        keep_raw_logits=verifier.needs_raw_logits,
        is_eos=rows.is_eos if len(rows.ends) == 1 else None,
        **options,
    )
    return target, drafter


def _score_block(target, processor, rows, q: DraftOutput | None, gammas: list[int], keep_raw: bool) -> TargetOutput:
    """One target forward over every row's last token and its drafts."""
    block = rows.last(1) if q is None else torch.cat([rows.last(1), q.tokens], dim=1)
    width = block.shape[1]
    logits, hidden = target(block, rows.lengths_tensor - 1, [length - 1 for length in rows.lengths], keep=width)
    logits = logits.to(rows.ids.device)
    counts = [min(gamma + 1, width) if end is None else 0 for gamma, end in zip(gammas, rows.ends)]
    scores = processor(rows, logits, offset=0, counts=counts)
    return TargetOutput(scores, hidden, logits if keep_raw else None)


def _activate(q: DraftOutput | None, gammas: list[int], rows: RaggedRows) -> DraftOutput | None:
    """Say where drafts begin and which count: up to each row's gamma or its first drafted EOS."""
    if q is None:
        return None
    counts = torch.minimum(torch.tensor(gammas, device=q.tokens.device), first_true(rows.is_eos(q.tokens)) + 1)
    active = torch.arange(q.tokens.shape[1], device=q.tokens.device) < counts[:, None]
    return replace(q, active=active, lengths=rows.lengths_tensor)


def _settle(
    verdict: Verdict | None, q: DraftOutput | None, p: TargetOutput, rows: RaggedRows, do_sample: bool
) -> VerifyOutput:
    """Flip the coins and draw the next token, in upstream's order: one block of uniforms, then one multinomial."""
    own_law = p.probs if do_sample else p.at
    if verdict is None or q is None:
        num_drafted = torch.zeros(len(p.scores), dtype=torch.long, device=p.scores.device)
        uniforms, num_accepted = None, num_drafted
        law, on_draft = own_law(num_accepted), torch.zeros_like(num_drafted, dtype=torch.bool)
    else:
        num_drafted = q.active.sum(dim=-1)
        uniforms = torch.rand_like(verdict.accept_prob) if do_sample else torch.full_like(verdict.accept_prob, 0.5)
        num_accepted = count_accepted(verdict.accept_prob, uniforms, num_drafted)
        all_kept = num_accepted >= num_drafted
        last = num_accepted.clamp_max(q.tokens.shape[1] - 1)
        law = torch.where(all_kept[:, None], own_law(num_accepted), verdict.replacement(last))
        on_draft = all_kept & (rows.is_eos(q.tokens) & q.active).any(dim=-1)
    next_token = draw(law, draw_noise(law) if do_sample else None)
    ended = on_draft | rows.is_eos(next_token)
    faults = find_faults(q, p, verdict, num_accepted)
    num_emitted = num_accepted + 1 - on_draft.long()
    return VerifyOutput(num_drafted, num_accepted, next_token, num_emitted, ended, faults, uniforms)
