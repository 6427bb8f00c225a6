"""Builds the engine of a call from its verifier, rows and models."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.generation.candidate_generator import CandidateGenerator

from hf_diversed import support
from hf_diversed.engines.buffers import size_for
from hf_diversed.engines.compiling import Compiler, how_to_compile, warn_once, why_untraceable
from hf_diversed.engines.static import StaticEngine
from hf_diversed.engines.static_model import StaticModel
from hf_diversed.generation.candidates import CandidateDrafter
from hf_diversed.generation.checks import check_learned_positions, check_rotary_limit
from hf_diversed.generation.confidence import StoppingRule
from hf_diversed.generation.decoding import EagerEngine
from hf_diversed.generation.drafting import Drafter, ModelDrafter
from hf_diversed.generation.processing import BlockProcessor
from hf_diversed.generation.prompt_lookup import CopyingDrafter, PromptLookupDrafter
from hf_diversed.generation.ragged_model import RaggedModel
from hf_diversed.generation.recording import RoundStreamer
from hf_diversed.generation.recurrent_model import open_model
from hf_diversed.generation.request import Request
from hf_diversed.generation.rows import RaggedRows
from hf_diversed.sampling import RandomSource
from hf_diversed.verifiers.base import Verifier, read_integer


_UPSTREAM_NGRAM_SIZE = 2  # upstream's default for prompt lookup
_COPIED_NGRAM_SIZE = 3  # before a draft model, which is better than a copy after a shorter match


@dataclass(frozen=True, eq=False)
class Parts:
    """Parts of a call that its engine is built from.

    Attributes:
        draft: the model that drafts; None for prompt lookup and candidate generators. verifier: adapted to this call.
        generators: of transformers or the caller, one per row, draft instead; empty without them.
        is_point_mass: see `CandidateDrafter`.
        max_drafted: maximum number of draft tokens per round. max_copied: of those copied from the text before the
            draft model is used; 0 without copies.
        random_source: None for greedy decoding.
        rule: ends draft blocks early in eager rounds; None to draft as many tokens as requested.
    """

    request: Request
    draft: PreTrainedModel | None
    generators: list[CandidateGenerator]
    is_point_mass: bool
    verifier: Verifier
    rows: RaggedRows
    max_drafted: int
    max_copied: int
    processor: BlockProcessor
    random_source: RandomSource | None
    rule: StoppingRule | None

    @cached_property
    def keep_rows(self) -> bool:
        """Whether models process all rows in their order, because code of the user in them may index rows."""
        return any(support.has_user_code(each) for each in (self.request.model, self.draft) if each is not None)

    @cached_property
    def only_library_code(self) -> bool:
        """Whether no user code runs between the rounds of a call."""
        request = self.request
        used = [*self.verifier.components(), *request.processors, *request.criteria]
        used += [each for each in (self.random_source, request.streamer) if each is not None]
        return not self.keep_rows and all(map(support.is_library_code, used))

    def engine(self) -> EagerEngine:
        """Return the static engine if it is requested and supports the call, else the eager one."""
        request, model = self.request, self.request.model
        mask, positions = request.model_kwargs.get("attention_mask"), prompt_positions(request)
        streams_records = isinstance(request.streamer, RoundStreamer)
        if self.draft is not None:
            check_learned_positions(model, self.draft, positions, self.rows.max_length)
        check_rotary_limit(model, positions, self.rows.max_length)
        reason = compiler = None
        if request.config.cache_implementation == "static":
            reason = StaticEngine.cannot_serve(model, self.draft, self.rows)
            if self.generators:
                reason = "candidate generators run in eager mode"
            if self.max_copied:
                reason = "rounds with copied and with drafted tokens have different shapes"
            if self.keep_rows and size_for(len(self.rows.ids)) != len(self.rows.ids):
                rows = len(self.rows.ids)
                reason = f"a model contains user code, which may index rows, and {rows} rows would be padded"
            if reason is None:
                compile_config = how_to_compile(request.config, model.device)
                reason = None if compile_config is None else why_untraceable(model, self.draft)
            if reason is None:
                check_every_run = not self.only_library_code or streams_records
                compiler = Compiler(compile_config, support.base_model(model), check_every_run)
            else:
                warn_once(model, f'cache_implementation="static" has no effect: {reason}.')
        runner: Callable[..., Any] = partial(
            open_model if compiler is None else partial(StaticModel, compiler=compiler),
            rows=self.rows,
            prompt_mask=mask,
            position_ids=positions,
            keep_rows=self.keep_rows,
        )
        hidden, requested = self.verifier.needs_hidden_states, requested_results(request)
        target = runner(model, keep_hidden=hidden)
        rule = self.rule if compiler is None else None
        drafter = self._drafter(partial(runner, keep_hidden=hidden), rule)
        if isinstance(drafter, CandidateDrafter) and drafter.requires_model_outputs:
            target.model = drafter.record_outputs(target.model)
        engine: Callable[..., EagerEngine] = EagerEngine
        if compiler is not None:
            engine = partial(StaticEngine, compiler=compiler, keep_scores=bool(requested) or streams_records)
        return engine(
            rows=self.rows,
            target=target,
            drafter=drafter,
            processor=self.processor,
            verifier=self.verifier,
            random_source=self.random_source,
            keep_raw=bool({"logits", "records"} & requested) or streams_records or self.verifier.needs_raw_logits,
            reason=reason or "",
        )

    def _drafter(self, runner: Callable[..., RaggedModel], rule: StoppingRule | None) -> Drafter:
        vocab_size = support.vocab_size(self.request.model)
        ngram_size = read_integer(self.request.config.max_matching_ngram_size)
        if self.generators:
            return CandidateDrafter(
                self.generators,
                self.rows,
                self.request.model_kwargs.get("attention_mask"),
                self.processor,
                vocab_size,
                sampled=self.random_source is not None,
                is_point_mass=self.is_point_mass,
                needs_q=repr(self.verifier) if self.verifier.needs_draft_confidence else None,
            )
        if self.draft is None:
            return self._lookup(vocab_size, ngram_size or _UPSTREAM_NGRAM_SIZE)
        drafter = ModelDrafter(
            self.draft,
            self.rows,
            self.processor,
            vocab_size,
            self.random_source,
            keep_raw_logits=self.verifier.needs_raw_logits,
            runner=runner,
            rule=rule,
        )
        if not self.max_copied:
            return drafter
        lookup = self._lookup(vocab_size, ngram_size or _COPIED_NGRAM_SIZE, whole_ngram=True)
        return CopyingDrafter(lookup, drafter, self.max_drafted)

    def _lookup(self, vocab_size: int, ngram_size: int, whole_ngram: bool = False) -> PromptLookupDrafter:
        return PromptLookupDrafter(
            self.rows,
            self.processor,
            self.request.model_kwargs.get("attention_mask"),
            vocab_size,
            num_tokens=self.max_copied or self.max_drafted,
            max_ngram_size=ngram_size,
            sampled=self.random_source is not None,
            whole_ngram=whole_ngram,
        )


def prompt_positions(request: Request) -> torch.Tensor:
    """Return the positions of the prompts, long `[B, S]`."""
    input_ids, positions = request.input_ids, request.model_kwargs.get("position_ids")
    if positions is None:
        mask = request.model_kwargs.get("attention_mask")
        known = torch.ones_like(input_ids) if mask is None else mask.long()
        positions = (known.cumsum(-1) - 1).clamp_min(0)
    elif positions.ndim == 3:  # all planes are equal
        positions = positions[0]
    return positions.expand(len(input_ids), -1)


def requested_results(request: Request) -> set[str]:
    """Return which results are requested besides the sequences; see `Recorder`."""
    config = request.config
    requested = {
        "scores": config.output_scores,
        "logits": config.output_logits,
        "records": request.output_token_records,
    }
    return {name for name, value in requested.items() if value and config.return_dict_in_generate}
