"""Seeded and timed decoding of one batch of prompts with one method."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from tqdm import tqdm
from transformers import PreTrainedModel, StoppingCriteriaList

from hf_diversed import model_facts
from hf_diversed.formatting import duration
from hf_diversed.generation.patching import install_hook
from hf_diversed.generation.processing import CompletionStopStrings, stop_criterion
from hf_diversed.harness.methods import Method
from hf_diversed.harness.pair import Pair, eos_ids, pad_id
from hf_diversed.harness.prompts import check_context, completion_text, left_padded
from hf_diversed.harness.sampling import Sampling
from hf_diversed.outputs import GenerateDiversedOutput, SpeculativeStats, TokenRecords


Item = TypeVar("Item")
_LINES = 20  # number of progress lines without a terminal


@dataclass(eq=False)
class Decoded:
    """The result of one call of `generate`.

    Attributes:
        tokens: ids of each completion, including EOS, without padding.
        seconds: duration of the call.
        stats: statistics of our decoding loop; None for other methods.
        records: token records of our decoding loop with `output_token_records`, else None.
    """

    tokens: list[list[int]]
    seconds: float
    stats: SpeculativeStats | None = None
    records: TokenRecords | None = None


class Decoder:
    """Decodes with a pair and sampling settings. Every call is seeded and independent of earlier calls."""

    def __init__(self, pair: Pair, sampling: Sampling):
        install_hook()
        self.pair, self.sampling = pair, sampling
        self.eos_ids, self.pad_id = eos_ids(pair.target), pad_id(pair.tokenizer, pair.target)
        self.stop_strings = list(sampling.stop_strings)

    def check_prompts(self, prompts: Sequence[Sequence[int]]) -> None:
        """Raise ValueError if a prompt has no tokens, or its completion may exceed the learned positions of a model.

        Other models can decode beyond their configured length, with lower quality.
        """
        models = {"target": self.pair.target, "draft": self.pair.draft}
        learned = {
            role: model
            for role, model in models.items()
            if model is not None and model_facts.has_learned_positions(model)
        }
        check_context("the data", list(map(len, prompts)), self.sampling.max_new_tokens, learned, "max_new_tokens")

    def __call__(self, method: Method, prompts: Sequence[Sequence[int]], seed: int, **kwargs) -> Decoded:
        """Complete a batch of encoded prompts; `kwargs` are arguments of `generate` and override the settings."""
        inputs, criteria = left_padded(prompts, self.pad_id, self.pair.target.device), StoppingCriteriaList()
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
        if method.truncation and not options["do_sample"]:
            raise ValueError(
                f"method {method.label!r} needs a temperature above 0: greedy decoding truncates nothing."
            )
        output, rows, seconds = timed_call(self.pair.target, seed, **options)
        if not isinstance(output, GenerateDiversedOutput):
            return Decoded([row[: self._plain_length(row)] for row in rows], seconds)
        if method.verifier is None:
            raise ValueError(
                f"a draft model is attached to the target, so {method.label!r} is not plain decoding; detach it first."
            )
        assert output.stats is not None
        tokens = [row[: stats.num_emitted] for row, stats in zip(rows, output.stats.per_row)]
        return Decoded(tokens, seconds, output.stats, output.token_records)

    def text(self, ids: list[int]) -> str:
        """Return the text of the ids of a completion, without special tokens."""
        return completion_text(self.pair.tokenizer, ids)

    def is_cut_off(self, ids: list[int], text: str) -> bool:
        """Return whether a completion ended at `max_new_tokens`, before EOS or a stop string."""
        if len(ids) < self.sampling.max_new_tokens or ids[-1] in self.eos_ids:
            return False
        return not any(stop in text for stop in self.stop_strings)

    def _plain_length(self, row: list[int]) -> int:
        """Return the number of tokens, including EOS, that transformers generated, inferred from the padding."""
        ends = [column for column, token in enumerate(row) if token in self.eos_ids]
        if not ends:
            length = len(row)
            while length > 0 and row[length - 1] == self.pad_id:
                length -= 1
            return length
        text = self.text(row[: ends[0]])
        padded = row[ends[0]] == self.pad_id and any(stop in text for stop in self.stop_strings)
        return ends[0] + (0 if padded else 1)


def timed_call(target: PreTrainedModel, seed: int, **kwargs) -> tuple[Any, list[list[int]], float]:
    """Call `generate` with a seed; return its output, the new columns as lists with padding, and the seconds."""
    width = kwargs["input_ids"].shape[1]
    with seeded(seed, target.device):
        began = time.perf_counter()
        output = target.generate(**kwargs, return_dict_in_generate=True)
        rows = output.sequences[:, width:].tolist()  # also synchronizes with the device
        return output, rows, time.perf_counter() - began


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Use `seed` in the block; restore the random state of the CPU and the device afterwards."""
    # By default torch saves the state of every GPU, which creates a context on each.
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def with_progress(
    items: Sequence[Item],
    words: str,
    unit: str,
    shown: bool | None,
    stage: Callable[[Item], Any] | None = None,
) -> Iterable[Item]:
    """Yield the items and report progress on standard error.

    Args:
        shown: True for a progress bar, False for no output, None for a bar on a terminal and text lines elsewhere.
        stage: returns the stage of an item. A text line is printed at the end of each run of items with the same
            stage; by default 20 lines in all.
    """
    if shown is None and not sys.stderr.isatty():
        return _with_lines(items, words, unit, stage)
    return tqdm(items, desc=words, unit=unit, disable=shown is False)


def _with_lines(items: Sequence[Item], words: str, unit: str, stage: Callable[[Item], Any] | None) -> Iterator[Item]:
    total, began = len(items), time.perf_counter()
    stages = [number * _LINES // total for number in range(total)] if stage is None else list(map(stage, items))
    for done, item in enumerate(items, start=1):
        yield item
        if done == total or stages[done] != stages[done - 1]:
            spent = time.perf_counter() - began
            remaining = "" if done == total else f", about {duration(spent / done * (total - done))} left"
            notify(f"{words}: {done} of {total} {unit}s in {duration(spent)}{remaining}")


def notify(line: str) -> None:
    """Print a line on standard error and flush it."""
    print(line, file=sys.stderr, flush=True)
