"""Draft tokens from transformers' candidate generators: MTP layers, DFlash, Gemma assistants, and a caller's own.

Transformers builds the generator for a call, which drafts for a single row. A caller's own generators can be one per
row of a batch. Rounds run in eager mode.
"""

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel
from transformers.generation.candidate_generator import CandidateGenerator

from hf_diversed import support
from hf_diversed.blocks import DraftOutput
from hf_diversed.generation.confidence import DEFAULT_NUM_ASSISTANT_TOKENS
from hf_diversed.generation.drafting import Drafter, first_columns, point_mass_block, to_vocabulary
from hf_diversed.generation.processing import BlockProcessor
from hf_diversed.generation.rows import PerRow, RaggedRows, is_one_of


if TYPE_CHECKING:
    from hf_diversed.generation.call import Call


# Names of the sources, by the argument that selects them.
MTP, DFLASH, OWN = "use_mtp=True", 'speculation_type="dflash"', "candidate_generator"
SHARED_STATES = "an assistant model that reads the target's keys and values"
READS_STATES = ("Gemma4Assistant", "Gemma4UnifiedAssistant")  # beginnings of the names of such classes
_MAX_OWN_TOKENS = 16  # per round of a caller's generator, if no number is set


def default_gamma(source: str, call: "Call") -> int:
    """Return the number of draft tokens per round if none is set."""
    if source == MTP:
        return call.model.config.get_text_config().num_mtp_layers
    if source == DFLASH and call.assistant_model is not None:
        return call.assistant_model.config.block_size - 1  # the block starts with the last token
    return _MAX_OWN_TOKENS if source == OWN else DEFAULT_NUM_ASSISTANT_TOKENS


def build_generators(call: "Call") -> list[CandidateGenerator]:
    """Return the caller's generators, or the one that transformers uses for a call."""
    if call.source == OWN:
        return call.own_generators
    config = copy.copy(call.generation_config)
    config.max_length = call.max_length
    generator = support.base_model(call.model)._get_candidate_generator(
        generation_config=config,
        input_ids=call.input_ids,
        inputs_tensor=call.input_ids,
        logits_processor=call.logits_processor,
        model_kwargs={},
        assistant_model=call.assistant_model,
    )
    if hasattr(generator, "num_assistant_tokens"):
        generator.num_assistant_tokens = call.gamma
    return [generator]


class CandidateDrafter(Drafter):
    """Generates draft tokens with candidate generators of transformers, one per row.

    A generator receives the ids of its row without padding. q is the softmax of the returned logits, which must be
    those that the tokens were drawn from. Where a generator returns no logits, q is a point mass at the draft token,
    and the block ends before the first token that a processor forbids. `num_forwards` counts the calls that returned
    candidates.

    Args:
        generators: see `build_generators`. rows: ids of the batch; draft tokens are written after each row's length.
        prompt_mask: long `[B, S]`, 0 at left padding; None without padding.
        processor: of the call; see `before_bans`.
        vocab_size: V of the target.
        sampled: value of `DraftOutput.sampled`.
        is_point_mass: whether q is a point mass although the generator returns logits.
        needs_q: description of the verifier if it needs q; None if a point mass suffices.
    """

    num_forwards = 0

    def __init__(
        self,
        generators: list[CandidateGenerator],
        rows: RaggedRows,
        prompt_mask: torch.Tensor | None,
        processor: BlockProcessor,
        vocab_size: int,
        sampled: bool,
        is_point_mass: bool,
        needs_q: str | None,
    ):
        self.generators = generators
        self.requires_model_outputs = generators[0].requires_model_outputs
        self.rows = rows
        self.vocab_size = vocab_size
        self.processor = processor
        self.sampled = sampled
        self._first = first_columns(prompt_mask, len(rows.ids))
        self._drafted: list[int] = []
        self.is_point_mass = is_point_mass
        self._needs_q = needs_q
        self._outputs: Any = None
        self._num_matches = 0

    def record_outputs(self, model: PreTrainedModel) -> Callable[..., Any]:
        """Return the target as a function that keeps its outputs, if the generator reads them."""
        if not self.requires_model_outputs:
            return model
        view = support.recording_view(model)

        def run(**kwargs: Any) -> Any:
            overrides = dict(self.generators[0].model_kwargs_overrides)
            if kwargs.get("output_hidden_states"):  # of all layers, which contain those that the generator reads
                overrides.pop("output_hidden_states", None)
            self._outputs = view(**kwargs | overrides)
            return self._outputs

        return run

    def keep(self, rows: torch.Tensor) -> None:
        kept = rows.tolist()
        self.generators = [self.generators[row] for row in kept]
        self._first = [self._first[row] for row in kept]

    def propose(self, counts: PerRow) -> tuple[DraftOutput | None, PerRow]:
        """See `ModelDrafter.propose`.

        Raises:
            ValueError: if the generator returns candidates or logits of another shape, ids outside the vocabulary, or
                tokens that its logits or a processor forbid.
        """
        rows = self.rows
        found = [self._candidates(row, limit) for row, limit in enumerate(counts.host)]
        self._drafted = [len(tokens) for tokens, _ in found]
        self.num_forwards += sum(map(bool, self._drafted))
        draft, allowed = point_mass_block(
            rows, [tokens for tokens, _ in found], self.processor, self.vocab_size, self.sampled
        )
        if draft is None:
            return None, allowed
        for row, (own, logits) in enumerate(found):
            if logits is None:
                continue
            scores = draft.scores[row, : len(own)]
            scores.copy_(to_vocabulary(logits.to(rows.ids.device).float(), self.vocab_size))
            # Dropping a sampled token because of its value would change q, so this is an error.
            is_drawn = scores.gather(-1, own[:, None]) > -torch.inf
            if allowed.host[row] != len(own) or not bool(is_drawn.all()):
                raise ValueError(
                    f"{type(self.generators[row]).__name__}.get_candidates returned a token that its logits or a "
                    "logits processor of the call forbid; return the processed logits that the candidates were drawn "
                    "from."
                )
        return draft, allowed

    def _candidates(self, row: int, limit: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return at most `limit` draft tokens of a row, long `[N]`, up to the first EOS, and their logits, `[N, V]`.

        The logits are None where q is a point mass.
        """
        text, generator = self._text(row), self.generators[row]
        length, none = text.shape[1], text[0, :0]
        if limit < 1 or (self.requires_model_outputs and self._outputs is None):
            return none, None
        candidates, logits = generator.get_candidates(text, **self._target_outputs())
        self._num_matches = 0
        if candidates.ndim != 2 or len(candidates) != 1 or candidates.shape[1] < length:
            raise ValueError(
                f"{type(generator).__name__}.get_candidates must return [1, {length} + G], input_ids and the "
                f"candidates, got {list(candidates.shape)}."
            )
        tokens = candidates[0, length : length + limit].to(text)
        ends = is_one_of(tokens, self.rows.eos_ids_device).nonzero()
        tokens = tokens[: int(ends[0]) + 1] if len(ends) else tokens  # later tokens would never be emitted
        if not len(tokens):
            return none, None
        self._check(type(generator).__name__, tokens, logits)
        return tokens, None if logits is None or self.is_point_mass else logits[0, : len(tokens)]

    def _text(self, row: int) -> torch.Tensor:
        """Return a copy of the ids of a row without padding, long `[1, N]`."""
        return self.rows.ids[row : row + 1, self._first[row] : self.rows.lengths.host[row]].clone()

    def _target_outputs(self) -> dict[str, Any]:
        """Return the arguments of generators that read the target's outputs."""
        if not self.requires_model_outputs:
            return {}
        length, device = self.rows.lengths.host[0], self.rows.ids.device
        kwargs = {"attention_mask": None, "position_ids": torch.arange(length, device=device)[None]}
        return {
            "model_kwargs": kwargs,
            "model_outputs": self._outputs,
            "is_first_iteration": False,
            "n_last_matches": self._num_matches,
        }

    def _check(self, name: str, tokens: torch.Tensor, logits: torch.Tensor | None) -> None:
        """Check the draft tokens of a row, long `[N]`, from a generator of this class name."""
        if bool(((tokens < 0) | (tokens >= self.vocab_size)).any()):
            raise ValueError(
                f"{name}.get_candidates must return ids of the target, 0 to {self.vocab_size - 1}, got "
                f"{tokens.tolist()}."
            )
        if logits is None and self._needs_q is not None:
            raise ValueError(
                f"{self._needs_q} needs probabilities of the draft tokens, but {name} returned no logits; use a "
                "verifier that needs only p and the draft token."
            )
        if logits is not None and (logits.ndim != 3 or len(logits) != 1 or logits.shape[1] < len(tokens)):
            raise ValueError(
                f"{name}.get_candidates must return logits [1, G, V] for G candidates, got {list(logits.shape)} for "
                f"{len(tokens)}."
            )

    def rewind(self, width: int, accepted: list[int], scores: torch.Tensor) -> None:
        """Report the number of accepted draft tokens to each generator that drafted."""
        self._num_matches = accepted[0]
        for row, count in enumerate(self._drafted):
            if count:
                own = scores[row : row + 1, : count + 1]
                self.generators[row].update_candidate_strategy(self._text(row), own, accepted[row])
