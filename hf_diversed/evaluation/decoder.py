"""Decoding of prompts with a pair: sampling settings, methods, and seeded and timed calls of `generate`."""

import copy
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from tqdm import tqdm
from transformers import (
    CompileConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
)

from hf_diversed.generation.confidence import DEFAULT_NUM_ASSISTANT_TOKENS
from hf_diversed.generation.hook import install_hook
from hf_diversed.generation.processing import CompletionStopStrings, stop_criterion
from hf_diversed.head import DiversedHead
from hf_diversed.outputs import GenerateDiversedOutput, SpeculativeStats, TokenRecords
from hf_diversed.provenance import module_digest
from hf_diversed.sampling import seeded
from hf_diversed.tasks.prompted import Prompt, render
from hf_diversed.verifiers import Verifier
from hf_diversed.verifiers.names import DIVERSED, PLAIN, base_name, build_diversed, build_verifier
from hf_diversed.zoo.loader import Pair


@dataclass(frozen=True)
class Sampling:
    """Sampling settings of completions.

    Args:
        temperature: 0 decodes greedily.
        top_k: 0 disables it.
        top_p: 1 disables it.
        num_assistant_tokens: draft tokens per round; None for the defaults of `generate`.
        max_new_tokens: largest number of new tokens.
        batch_size: prompts per call; affects which random numbers each prompt gets.
        stop_strings: strings that end a completion, in addition to EOS.

    Raises:
        ValueError: if a value is out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    num_assistant_tokens: int | None = 5
    max_new_tokens: int = 128
    batch_size: int = 16
    stop_strings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.check_at_least(temperature=0, top_k=0, num_assistant_tokens=1, max_new_tokens=1, batch_size=1)
        if not 0 < self.top_p <= 1:
            raise ValueError(f"`top_p` must lie in (0, 1], got {self.top_p!r}; 1 turns it off.")

    def check_at_least(self, **lowest: float) -> None:
        """Raise if a field is below its lowest value; None is allowed."""
        for name, low in lowest.items():
            value = getattr(self, name)
            if value is not None and not value >= low:  # also rejects NaN
                raise ValueError(f"`{name}` must be >= {low}, got {value!r}.")

    def generate_kwargs(self) -> dict[str, Any]:
        """Return the arguments of `generate`; other settings of the target's generation config still apply."""
        kwargs: dict[str, Any] = {"do_sample": self.temperature > 0, "max_new_tokens": self.max_new_tokens}
        if self.temperature > 0:
            kwargs |= {"temperature": float(self.temperature), "top_k": self.top_k, "top_p": float(self.top_p)}
        return kwargs | {"repetition_penalty": 1.0}  # some generation configs set one, which changes p and q


@dataclass(frozen=True)
class Method:
    """A decoding method: the target alone, our loop with a verifier, or transformers' assisted decoding.

    Attributes:
        label: name in results.
        verifier: verifier of our loop; None for other methods.
        upstream: whether transformers' assisted decoding runs, for batches of one row.
        ensemble_weight: `assistant_ensemble_weight` of transformers' assisted decoding.
        compile_config: compile configuration, with static shapes; None decodes eagerly.
    """

    label: str
    verifier: Verifier | None = None
    upstream: bool = False
    ensemble_weight: float | None = None
    compile_config: CompileConfig | None = field(default=None, compare=False)  # same distribution

    @cached_property
    def definition(self) -> str:
        """A reproducible description of the verifier, with a digest of its head; equal for equal decoding."""
        if self.upstream:
            return f"upstream({self.ensemble_weight})"
        return "plain" if self.verifier is None else describe(self.verifier)

    @property
    def default_gamma(self) -> int:
        """The verifier's default number of draft tokens per round, else 5."""
        verifier_default = None if self.verifier is None else self.verifier.num_assistant_tokens
        return verifier_default or DEFAULT_NUM_ASSISTANT_TOKENS

    def generate_kwargs(self, draft: PreTrainedModel | None, num_assistant_tokens: int | None) -> dict[str, Any]:
        """Return the arguments of the target's `generate`; without a draft model, those of prompt lookup."""
        gamma = num_assistant_tokens or self.default_gamma
        if self.upstream:
            weight = {} if self.ensemble_weight is None else {"assistant_ensemble_weight": self.ensemble_weight}
            if draft is None:
                return {"prompt_lookup_num_tokens": gamma} | weight
            return {"assistant_model": constant_draft(draft, gamma)} | weight
        options: dict[str, Any] = {}
        if self.compile_config is not None:
            options = {"cache_implementation": "static", "compile_config": self.compile_config}
        if self.verifier is None:
            return options
        options["verifier"] = self.verifier
        if draft is None:
            return {"prompt_lookup_num_tokens": gamma} | options
        return {"assistant_model": draft, "num_assistant_tokens": num_assistant_tokens} | options


MethodLike = str | Method
HeadLike = DiversedHead | str | os.PathLike


def build_methods(
    specs: Sequence[MethodLike], head: HeadLike | None = None, device: torch.device | str | None = None
) -> list[Method]:
    """Build methods from names.

    Args:
        specs: "target" (the target alone), names for `build_verifier` ("static:0.7", "diversed@0.7"), or `Method`s.
        head: the head of "diversed": an instance, a folder or a Hub id.
        device: the device of loaded heads.

    Raises:
        ValueError: if a name is unknown, parameters are invalid, "diversed" has no head, or a label is repeated.
    """
    methods = [spec if isinstance(spec, Method) else _build(spec, head, device) for spec in specs]
    labels = [method.label for method in methods]
    if not labels or len(set(labels)) < len(labels):
        raise ValueError(
            f"`methods` must name different methods, at least one, got {', '.join(labels) or 'none'}; for example "
            "target, lossless, static:0.7."
        )
    return methods


def _build(spec: str, head: HeadLike | None, device: torch.device | str | None) -> Method:
    if spec == PLAIN:
        return Method(spec)
    is_head = base_name(spec) == DIVERSED
    return Method(spec, build_diversed(spec, head, device) if is_head else build_verifier(spec))


def constant_draft(draft: PreTrainedModel, gamma: int) -> PreTrainedModel:
    """Return a shallow copy of the draft model whose generation config sets a constant gamma.

    transformers reads it only there.
    """
    shallow = copy.copy(draft)
    shallow.generation_config = copy.deepcopy(draft.generation_config)
    shallow.generation_config.num_assistant_tokens = gamma
    shallow.generation_config.num_assistant_tokens_schedule = "constant"
    shallow.generation_config.assistant_confidence_threshold = 0.0
    return shallow


def describe(verifier: Verifier) -> str:
    """Return a description of a verifier with its parameters and a digest of each module."""
    settings = []
    for name, value in verifier.settings().items():
        if isinstance(value, Verifier):
            text = describe(value)
        else:
            text = module_digest(value) if isinstance(value, torch.nn.Module) else repr(value)
        settings.append(f"{name}={re.sub(' at 0x[0-9a-f]+', '', text)}")  # addresses differ between runs
    return f"{type(verifier).__name__}({', '.join(settings)})"


@dataclass(eq=False)
class Decoded:
    """The result of one call of `generate`.

    Attributes:
        tokens: ids of each completion, including EOS, without padding.
        seconds: duration of the call.
        num_rounds: rounds of the call, each with one forward pass of the target after the prefill.
        stats: statistics of our decoding loop; None for other methods.
        records: token records of our decoding loop with `output_token_records`, else None.
    """

    tokens: list[list[int]]
    seconds: float
    num_rounds: int
    stats: SpeculativeStats | None = None
    records: TokenRecords | None = None


class _RoundCounter(StoppingCriteria):
    """Counts the rounds of transformers' decoding, which calls a criterion once per round; ends no row."""

    num_rounds = 0

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.num_rounds += 1
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


class Decoder:
    """Decodes with a pair and sampling settings. Every call is seeded and independent of earlier calls."""

    def __init__(self, pair: Pair, sampling: Sampling):
        install_hook()
        self.pair, self.sampling = pair, sampling
        eos = pair.target.generation_config.eos_token_id
        self.eos_ids = [eos] if isinstance(eos, int) else list(eos or ())
        # Any token but EOS, so that the padding behind a completion is recognized.
        special = [pair.tokenizer.pad_token_id, *pair.tokenizer.all_special_ids, *range(len(self.eos_ids) + 1)]
        self.pad_id = next(pad for pad in special if pad is not None and pad not in self.eos_ids)
        self.stop_strings = list(sampling.stop_strings)

    def __call__(self, method: Method, prompts: Sequence[Sequence[int]], seed: int, **kwargs) -> Decoded:
        """Complete a batch of encoded prompts; `kwargs` are arguments of `generate` and override the settings."""
        inputs, criteria = left_padded(prompts, self.pad_id, self.pair.target.device), StoppingCriteriaList()
        counter = _RoundCounter()
        if method.verifier is None:
            criteria.append(counter)
        if self.stop_strings:
            strings = stop_criterion(self.pair.tokenizer, self.stop_strings)
            criteria.append(CompletionStopStrings(strings, inputs["input_ids"].shape[1]))
        options = {
            **inputs,
            **self.sampling.generate_kwargs(),
            "pad_token_id": self.pad_id,
            "stopping_criteria": criteria,
            **method.generate_kwargs(self.pair.draft, self.sampling.num_assistant_tokens),
            **kwargs,
        }
        with seeded(seed, self.pair.target.device):
            began = time.perf_counter()
            output: Any = self.pair.target.generate(**options, return_dict_in_generate=True)
            # Also synchronizes with the device.
            rows = output.sequences[:, inputs["input_ids"].shape[1] :].tolist()
            seconds = time.perf_counter() - began
        if not isinstance(output, GenerateDiversedOutput):
            return Decoded([row[: self._plain_length(row)] for row in rows], seconds, counter.num_rounds)
        assert output.stats is not None
        per_row = output.stats.per_row
        tokens = [row[: stats.num_emitted] for row, stats in zip(rows, per_row)]
        return Decoded(tokens, seconds, max(s.num_rounds for s in per_row), output.stats, output.token_records)

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of the ids of a completion, without special tokens.

        Some tokenizers (SentencePiece) remove the first space of a text. At the start of a word it has no meaning, but
        it may be indentation of code. Therefore two or more spaces are kept, as decoded behind another token.
        """
        tokenizer = self.pair.tokenizer
        before = tokenizer.encode("x", add_special_tokens=False)
        start = str(tokenizer.decode(before, skip_special_tokens=True))
        text = str(tokenizer.decode([*before, *ids], skip_special_tokens=True)).removeprefix(start)
        return text if text.startswith("  ") else str(tokenizer.decode(ids, skip_special_tokens=True))

    def is_cut_off(self, ids: list[int], text: str) -> bool:
        """Return whether a completion ended at `max_new_tokens`, before EOS or a stop string."""
        if len(ids) < self.sampling.max_new_tokens or ids[-1] in self.eos_ids:
            return False
        return not any(stop in text for stop in self.stop_strings)

    def _plain_length(self, row: list[int]) -> int:
        """Return the number of tokens, including EOS, that transformers generated: those before the padding."""
        end = next((column for column, token in enumerate(row, 1) if token in self.eos_ids), len(row))
        while end > 0 and row[end - 1] == self.pad_id:
            end -= 1
        return end


class Call(NamedTuple):
    """A method on a batch of encoded prompts; `key` is for the caller."""

    decoder: Decoder
    method: Method
    prompts: Sequence[Sequence[int]]
    seed: int
    key: Any = None


def warm_up(calls: Sequence[Call], **kwargs) -> None:
    """Decode the first of these calls of each decoder and method, which is slow, and fails for an invalid method.

    `kwargs` are arguments of `generate`.
    """
    first = {(id(call.decoder), call.method.label): call for call in reversed(calls)}
    for call in reversed(first.values()):
        call.decoder(call.method, call.prompts, call.seed, **kwargs)


def decode_calls(calls: Sequence[Call], description: str, progress: bool = True) -> Iterator[tuple[Call, Decoded]]:
    """Decode the calls in their order, with a progress bar on standard error that contains the remaining time."""
    interval = 0.1 if sys.stderr.isatty() else 30.0
    for call in tqdm(calls, description, unit="call", disable=not progress, mininterval=interval):
        yield call, call.decoder(call.method, call.prompts, call.seed)


def encode(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt], add_special_tokens: bool = True
) -> list[list[int]]:
    """Return the token ids of prompts, either all text or all chat messages.

    Args:
        add_special_tokens: False for texts that contain special tokens, such as those of a chat template. Ignored for
            chat messages, whose template adds them.
    """
    if not prompts:
        return []
    texts = [prompt if isinstance(prompt, str) else render(tokenizer, prompt) for prompt in prompts]
    special = add_special_tokens and isinstance(prompts[0], str)
    return [list(ids) for ids in tokenizer(texts, add_special_tokens=special)["input_ids"]]


def plan_batches(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Return the prompt indices of each batch, sorted by length to reduce padding; deterministic."""
    order = sorted(range(len(lengths)), key=lambda index: (lengths[index], index))
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def left_padded(rows: Sequence[Sequence[int]], pad: int, device: torch.device | str) -> dict[str, torch.Tensor]:
    """Return left-padded `input_ids` and `attention_mask`, long `[B, S]`, for tokenizers with any padding side."""
    width = max(map(len, rows))
    ids = [[pad] * (width - len(row)) + list(row) for row in rows]
    mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
    return {
        "input_ids": torch.tensor(ids, device=device),
        "attention_mask": torch.tensor(mask, device=device),
    }
