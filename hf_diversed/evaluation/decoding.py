"""Decode one batch of prompts with one method and take its measurements, a list per quantity."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, StoppingCriteriaList, StopStringCriteria

from hf_diversed.evaluation.memory import peak_memory
from hf_diversed.evaluation.methods import Method
from hf_diversed.evaluation.settings import EvaluationSettings
from hf_diversed.generation.decoding import diversed_decoding
from hf_diversed.outputs import GenerateDiversedOutput, SpeculativeStats, TokenRecords


class Pair(Protocol):
    """Two models and the tokenizer they share, as `load_demo_pair()` gives them."""

    @property
    def target(self) -> PreTrainedModel: ...
    @property
    def draft(self) -> PreTrainedModel: ...
    @property
    def tokenizer(self) -> PreTrainedTokenizerBase: ...


class Task(Protocol):
    """What an evaluation needs of a task. Scores lie in [0, 1]; `metric` says what they measure."""

    @property
    def name(self) -> str: ...
    @property
    def metric(self) -> str: ...
    @property
    def stop_strings(self) -> Sequence[str]: ...
    @property
    def max_new_tokens(self) -> int: ...
    def prompt(self, record: Mapping[str, Any]) -> str: ...
    def score_batch(self, completions: Sequence[str], records: Sequence[Mapping[str, Any]]) -> list[float]: ...


# Counters that are summed over rows and prompts, by their names in `SpeculativeStats`.
COUNTERS = (
    "num_rounds",
    "num_drafted",
    "num_accepted",
    "num_rejected",
    "weight_sum",
    "weight_count",
    "tv_sum",
    "tv_count",
    "bias_sum",
    "bias_count",
    "expected_accepted_sum",
)


@dataclass(frozen=True)
class Decoded:
    """One call: `rows` has lists of length B, `cost` what `generate` took.

    `cost` holds `seconds` of wall time, `peak_memory_bytes` and `peak_memory_kind` (see `memory`).
    """

    rows: dict[str, list]
    cost: dict[str, Any]


class Decoder:
    """Binds pair, task and settings; every call is seeded and depends on nothing that ran before it."""

    def __init__(self, pair: Pair, task: Task, settings: EvaluationSettings):
        self.pair, self.settings = pair, settings
        self.stop_strings = list(task.stop_strings)
        self.max_new_tokens = settings.max_new_tokens or task.max_new_tokens
        self.eos_ids = _as_list(pair.target.generation_config.eos_token_id)
        pads = [pair.tokenizer.pad_token_id, pair.tokenizer.eos_token_id, *self.eos_ids, 0]
        self.pad_id = next(int(pad) for pad in pads if pad is not None)
        # Made once: it goes through the whole vocabulary, which `stop_strings=` would repeat at every call.
        self.criteria = StoppingCriteriaList()
        if self.stop_strings:
            self.criteria.append(StopStringCriteria(pair.tokenizer, self.stop_strings))

    def encode(self, prompts: list[str]) -> list[list[int]]:
        encoded = self.pair.tokenizer(prompts, add_special_tokens=self.settings.add_special_tokens)["input_ids"]
        return [list(ids) for ids in encoded]

    def __call__(
        self, method: Method, prompts: list[list[int]], seed: int, max_new_tokens: int | None = None
    ) -> Decoded:
        """Complete a batch of encoded prompts."""
        inputs = self._padded(prompts)
        kwargs = self.settings.generation_kwargs() | {
            "max_new_tokens": max_new_tokens or self.max_new_tokens,
            "pad_token_id": self.pad_id,
            "stopping_criteria": self.criteria,
            "return_dict_in_generate": True,
        }
        if method.verifier is not None:
            kwargs["custom_generate"] = partial(
                diversed_decoding,
                assistant_model=self.pair.draft,
                verifier=method.verifier,
                num_assistant_tokens=self.settings.num_assistant_tokens,
                output_token_records=self.settings.records,
            )
        torch.manual_seed(seed)
        with peak_memory(self.pair.target.device) as peak:
            began = time.perf_counter()
            output = self.pair.target.generate(**inputs, **kwargs)
            new = output.sequences[:, inputs["input_ids"].shape[1] :].tolist()  # waits for the device, too
            seconds = time.perf_counter() - began
        cost = {"seconds": seconds, "peak_memory_bytes": peak.num_bytes, "peak_memory_kind": peak.kind}
        if method.verifier is None:
            if isinstance(output, GenerateDiversedOutput):
                raise ValueError('a draft is attached to the target, so "ar" is not plain decoding; detach it first.')
            return Decoded(self._rows(new, [self._plain_length(row) for row in new]), cost)
        lengths = [stats.num_emitted for stats in output.stats.per_row]
        rows = self._rows(new, lengths) | _counter_columns(output.stats.per_row)
        if output.token_records is not None:
            rows |= _record_columns(output.token_records)
        return Decoded(rows, cost)

    def _padded(self, prompts: list[list[int]]) -> dict[str, torch.Tensor]:
        """Left-padded here: some tokenizers have no pad token, or pad on the right."""
        width = max(map(len, prompts))
        ids = [[self.pad_id] * (width - len(prompt)) + prompt for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        device = self.pair.target.device
        return {
            "input_ids": torch.tensor(ids, device=device),
            "attention_mask": torch.tensor(mask, device=device),
        }

    def _rows(self, new: list[list[int]], lengths: list[int]) -> dict[str, list]:
        texts = [
            self.pair.tokenizer.decode(row[:length], skip_special_tokens=True) for row, length in zip(new, lengths)
        ]
        return {"text": texts, "tokens": lengths}

    def _plain_length(self, row: list[int]) -> int:
        """Generated tokens of plain decoding, its EOS included, which only the padding behind them tells."""
        ends = [column for column, token in enumerate(row) if token in self.eos_ids]
        if not ends:
            length = len(row)
            while length > 0 and row[length - 1] == self.pad_id:
                length -= 1
            return length
        text = self.pair.tokenizer.decode(row[: ends[0]], skip_special_tokens=True)
        padded = row[ends[0]] == self.pad_id and any(stop in text for stop in self.stop_strings)
        return ends[0] + (0 if padded else 1)


def _counter_columns(per_row: list[SpeculativeStats]) -> dict[str, list]:
    columns: dict[str, list[Any]] = {name: [getattr(stats, name) for stats in per_row] for name in COUNTERS}
    columns["accepted_per_position"] = [list(stats.accepted_per_position) for stats in per_row]
    return columns


def _record_columns(records: TokenRecords) -> dict[str, list]:
    """Relaxed tokens per row, and the largest bias TV(v, p) = (1 - w) TV(p, q); None for rules that do not mix."""
    bias = ((1.0 - records.weight) * records.tv).nan_to_num(-1.0)
    largest = bias.max(dim=1).values.tolist()
    return {
        "relaxed": records.relaxed.sum(dim=1).tolist(),
        "max_bias": [None if value < 0 else value for value in largest],
    }


def _as_list(ids: int | list[int] | None) -> list[int]:
    if ids is None:
        return []
    return [ids] if isinstance(ids, int) else list(ids)
