"""Draft tokens from transformers' candidate generators: MTP layers, DFlash, Gemma assistants, and a caller's own.

Transformers builds the generator for a call, which drafts for a single row. A caller's own generators can be one per
row of a batch. Rounds run in eager mode.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.generation.candidate_generator import CandidateGenerator

from hf_diversed import support
from hf_diversed.blocks import DraftOutput
from hf_diversed.generation.drafting import Drafter, first_columns, point_mass_block, to_vocabulary
from hf_diversed.generation.options import CONSTANT, DEFAULT_NUM_ASSISTANT_TOKENS
from hf_diversed.generation.processing import BlockProcessor
from hf_diversed.generation.request import STOPPING_SETTINGS, Request
from hf_diversed.generation.rows import PerRow, RaggedRows, is_one_of


# Names of the sources, by the argument that selects them.
MTP, DFLASH, OWN = "use_mtp=True", 'speculation_type="dflash"', "candidate_generator"
SHARED_STATES = "an assistant model that reads the target's keys and values"
_READS_STATES = ("Gemma4Assistant", "Gemma4UnifiedAssistant")
_MAX_OWN_TOKENS = 16  # per round of a caller's generator, if no number is set
# The first releases that have been tested. Before 5.23, MTP and DFlash return other logits than they sample from.
_FIRST_TESTED = {MTP: (5, 23), DFLASH: (5, 23), SHARED_STATES: (5, 24)}


def find_source(request: Request) -> str | None:
    """Return which candidate generator a call uses; None for the draft models and copies of this library."""
    config, assistant = request.config, request.assistant_model
    if request.candidate_generator is not None:
        return OWN
    if config.use_mtp:
        return MTP
    if config.speculation_type is not None:
        return DFLASH
    if assistant is not None and type(assistant).__name__.startswith(_READS_STATES):
        return SHARED_STATES
    return None


def check_source(source: str, request: Request) -> None:
    """Raise ValueError or TypeError for settings that a candidate generator does not support."""
    config, own, assistant = request.config, request.own_generators, request.assistant_model
    for each in own:
        if not isinstance(each, CandidateGenerator):
            raise TypeError(
                f"candidate_generator must be a CandidateGenerator of transformers, got {type(each).__name__}; "
                "subclass it and implement get_candidates."
            )
    if source == DFLASH and config.speculation_type != "dflash":
        raise ValueError(f'speculation_type must be "dflash", got {config.speculation_type!r}.')
    if source == DFLASH and not hasattr(getattr(assistant, "config", None), "block_size"):
        raise ValueError(
            f"{source} needs a DFlash draft model as assistant_model=, got {type(assistant).__name__}; remove "
            "speculation_type for a causal language model."
        )
    _check_single_source(source, request)
    if source == MTP:
        _check_prediction_layers(request)
    needed = _FIRST_TESTED.get(source, (0,))
    if needed > support.RELEASE:
        raise ValueError(
            f"{source} needs transformers {'.'.join(map(str, needed))} or newer: update transformers, or use another "
            "source of draft tokens."
        )
    count, reads_target = len(request.input_ids), any(each.requires_model_outputs for each in own)
    if source == OWN and not reads_target:
        if len(own) != count:
            raise ValueError(f"{source} must have one generator per row: pass a list of {count}, got {len(own)}.")
    else:
        if count > 1:
            raise ValueError(
                f"{source} drafts for a single row: batch size must be 1, got {count}; decode the prompts one by one."
            )
        mask = request.model_kwargs.get("attention_mask")
        if mask is not None and not mask.all():
            raise ValueError(f"{source} does not support padding: remove the padding of the prompt.")
    for name in STOPPING_SETTINGS:
        value = getattr(request, name)
        value = support.explicit_entry(config, name) if value is None else value
        if value and value != CONSTANT:
            raise ValueError(f"{name}={value!r} is not supported with {source}, whose draft blocks do not end early.")
    if request.random_source is not None:
        raise ValueError(f"random_source is not supported with {source}, which draws from torch's generator.")
    verifier = request.verifier
    reads_raw = verifier is not None and verifier.needs_raw_logits and not is_point_mass(source)
    if reads_raw and request.processors:
        names = ", ".join(type(each).__name__ for each in request.processors)
        raise ValueError(
            f"{verifier!r} needs the draft model's logits before any processor, which {source} does not return; drop "
            f"{names}, or use another verifier."
        )
    if source != OWN or reads_target:
        if support.recurrent_states(request.model):
            raise ValueError(f"{source} is not supported for targets with recurrent states; pass assistant_model=.")
        if config.prefill_chunk_size is not None:
            raise ValueError(f"prefill_chunk_size is not supported with {source}, which reads the prompt's states.")


def _check_single_source(source: str, request: Request) -> None:
    config = request.config
    given = {
        "assistant_model": request.assistant_model is not None,
        MTP: bool(config.use_mtp),
        f"speculation_type={config.speculation_type!r}": config.speculation_type is not None,
    }
    for name, is_given in given.items():
        if source in (OWN, MTP) and is_given and name != source:
            raise ValueError(f"{name} and {source} are two sources of draft tokens; pass only one.")


def _check_prediction_layers(request: Request) -> None:
    layers = getattr(request.model.config.get_text_config(), "num_mtp_layers", None)
    if not layers:
        raise ValueError(
            f"{MTP} needs a model with multi-token prediction layers, which {type(request.model).__name__} lacks "
            "(num_mtp_layers in its config); pass assistant_model= instead."
        )
    if (length := request.input_ids.shape[1]) < layers:  # upstream's generator fails for shorter ones
        raise ValueError(
            f"{MTP} needs prompts of at least {layers} tokens, one per prediction layer, got {length}; pass a longer "
            "prompt."
        )


def default_gamma(source: str, request: Request) -> int:
    """Return the number of draft tokens per round if none is set."""
    if source == MTP:
        return request.model.config.get_text_config().num_mtp_layers
    if source == DFLASH and request.assistant_model is not None:
        return request.assistant_model.config.block_size - 1  # the block starts with the last token
    return _MAX_OWN_TOKENS if source == OWN else DEFAULT_NUM_ASSISTANT_TOKENS


def is_point_mass(source: str | None) -> bool:
    """Return whether a source is known to return tokens that are a function of the text, so that q is a point mass."""
    return source == SHARED_STATES


def build_generators(source: str, request: Request, gamma: int, max_length: int) -> list[CandidateGenerator]:
    """Return the caller's generators, or the one that transformers uses for a call, with `gamma` draft tokens.

    Args:
        max_length: maximum length of a row, in ids.
    """
    if source == OWN:
        return request.own_generators
    config = copy.copy(request.config)
    config.max_length = max_length
    generator = support.base_model(request.model)._get_candidate_generator(
        generation_config=config,
        input_ids=request.input_ids,
        inputs_tensor=request.input_ids,
        logits_processor=request.processors,
        model_kwargs={},
        assistant_model=request.assistant_model,
    )
    if hasattr(generator, "num_assistant_tokens"):
        generator.num_assistant_tokens = gamma
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
        """Return the target as a function that keeps its outputs for the generator."""
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
            # A block must not end before a sampled token because of that token.
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
