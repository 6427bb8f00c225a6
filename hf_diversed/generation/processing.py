"""Logits processors and stopping criteria over rows of different lengths.

Processors expect rows of equal length: `processor(input_ids[:, :l], scores)`, one column at a time. They are called in
that form here as well, and the result is used for the rows that have a position at column l.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from threading import Lock
from weakref import WeakKeyDictionary

import torch
from transformers import LogitsProcessor, PreTrainedTokenizerBase, StoppingCriteria, StopStringCriteria

from hf_diversed import support
from hf_diversed.generation.rows import RUNNING, PerRow, RaggedRows, is_one_of


_stop_criteria: MutableMapping[PreTrainedTokenizerBase, dict[tuple, StopStringCriteria]] = WeakKeyDictionary()
_lock = Lock()
_MAX_CRITERIA = 8  # per tokenizer, as a criterion stores arrays over the vocabulary
_OUTSIDE_VOCABULARY = torch.iinfo(torch.long).max  # matches no stop string


class BlockProcessor:
    """A `LogitsProcessorList` for blocks of positions.

    Pointwise processors run over the whole block. All others may read the prefix and are called once per column, in
    the order of the list: `ROWWISE_PROCESSORS` with the rows that have a position, others with every row.
    """

    def __init__(self, processors: Iterable[LogitsProcessor]):
        self.processors = list(processors)
        # Whether some processor is not pointwise, and so is called once per column.
        self.reads_prefix = any(type(each) not in support.POINTWISE_PROCESSORS for each in self.processors)

    def __call__(self, rows: RaggedRows, scores: torch.Tensor, offset: int, counts: PerRow) -> torch.Tensor:
        """Return the processed scores, float32 `[B, N, V]`.

        Args:
            offset: number of draft tokens between a row's length and position 0. `scores[i, k]` follow the first
                `rows.lengths[i] + offset + k` ids of row i.
            counts: number of used positions per row; later positions may stay unprocessed.
        """
        for processor in self.processors:
            if type(processor) in support.POINTWISE_PROCESSORS:
                scores = run_pointwise(processor, scores)
            else:
                scores = self._by_column(processor, rows, scores, offset, counts)
        return scores

    @staticmethod
    def _by_column(processor, rows: RaggedRows, scores: torch.Tensor, offset: int, counts: PerRow) -> torch.Tensor:
        starts, result = rows.lengths + offset, scores.clone()
        reached = [start + max(count - 1, 0) for start, count in zip(starts.host, counts.host)]
        valid = PerRow(
            [column if end is None else min(column, end) for column, end in zip(reached, rows.ends)],
            torch.minimum(starts.device + (counts.device - 1).clamp_min(0), rows.ends_device),
        )
        takes_any_rows = type(processor) in support.ROWWISE_PROCESSORS
        numbers = counts.host if takes_any_rows else _until_eos(rows, offset, counts.host)
        rows_at = Counter(start + k for start, count in zip(starts.host, numbers) for k in range(count))
        for column, num_rows in sorted(rows_at.items()):
            ids, steps = rows.drafted_view(column, valid), column - starts.device
            has_position = (steps >= 0) & (steps < counts.device)
            # Indexing copies: a processor may modify its input in place.
            if takes_any_rows and num_rows < len(ids):
                index = has_position.int().argsort(descending=True, stable=True)[:num_rows]  # without a transfer
                at = index, steps[index]
                result[at] = _for_rows(processor, index)(ids[index], scores[at]).to(result.dtype)
                continue
            at = rows.row_index, steps.clamp(0, scores.shape[1] - 1)
            processed = processor(ids, scores[at])
            result[at] = torch.where(has_position[:, None], processed.to(result.dtype), result[at])
        return result


def check_processors(processors: Iterable[LogitsProcessor], rows: RaggedRows, vocab_size: int) -> None:
    """Raise ValueError for processors that count their calls: call those that may keep state twice on the prompts.

    The results must be equal, and no number among a processor's attributes may change by the same amount in both
    calls, as a count does. State in lists and other objects is not compared. An error of the first call is not caught:
    plain `generate` raises it, too.
    """
    scores = torch.linspace(0, 1, vocab_size, dtype=torch.float32, device=rows.ids.device).repeat(len(rows.ids), 1)
    for processor in processors:
        if type(processor) in support.POINTWISE_PROCESSORS | support.ROWWISE_PROCESSORS:  # without state and user code
            continue
        attributes = getattr(processor, "__dict__", {})
        before, fault, cause = attributes.copy(), "", None
        first = processor(rows.view(rows.prompt_length, rows.lengths), scores.clone()).clone()
        between = attributes.copy()
        try:
            second = processor(rows.view(rows.prompt_length, rows.lengths), scores.clone())
        except Exception as error:
            fault, cause = f"raises {type(error).__name__}", error
        else:
            counts = [name for name in attributes if _is_count(processor, name, before, between)]
            if counts:
                fault = f"counts its calls in its attribute {counts[0]!r}"
            elif not torch.allclose(first, second, atol=1e-5, equal_nan=True):
                fault = "returns other scores"
        if fault:
            attributes.clear()
            attributes.update(before)
            raise ValueError(
                f"{type(processor).__name__} {fault} when it is called twice on the same ids. With a verifier, logits "
                "processors are called several times per round, also on draft tokens that are rejected later, so a "
                'processor must be a function of input_ids; see "Constrained decoding" in docs/extending.md.'
            ) from cause


def _is_count(processor: LogitsProcessor, name: str, before: dict, between: dict) -> bool:
    """Return whether an attribute is a number that two calls have changed by the same amount."""
    start = before.get(name, getattr(type(processor), name, None))  # a class may define the first value
    values = start, between.get(name), getattr(processor, name)
    numbers = [value for value in values if isinstance(value, (int, float))]
    return len(numbers) == 3 and numbers[2] - numbers[1] == numbers[1] - numbers[0] != 0


def _until_eos(rows: RaggedRows, offset: int, counts: list[int]) -> list[int]:
    """Return how many of `counts` positions per row follow a text without a drafted EOS; later ones are not used."""
    width = offset + max(counts) - 1  # draft tokens before the last position
    if rows.eos_ids_device is None or width < 1:
        return counts
    starts = rows.lengths.device
    tokens = rows.ids.gather(1, starts[:, None] + torch.arange(width, device=starts.device))
    before = (~is_one_of(tokens, rows.eos_ids_device)).long().cumprod(dim=1).sum(dim=1).tolist()
    return [max(min(count, end - offset + 1), 0) for count, end in zip(counts, before)]


def _for_rows(processor: LogitsProcessor, index: torch.Tensor) -> LogitsProcessor:
    """Return a processor of `ROWWISE_PROCESSORS` for the rows of a batch with these indices, long `[R]`."""
    ignored = getattr(processor, "prompt_ignore_length", None)  # padding, which the repetition penalty leaves out
    if isinstance(ignored, torch.Tensor):
        processor = copy.copy(processor)
        processor.prompt_ignore_length = ignored.to(index.device)[index]
    return processor


def run_pointwise(processor: LogitsProcessor, scores: torch.Tensor) -> torch.Tensor:
    """Apply a pointwise processor to scores `[B, N, V]`."""
    # Pointwise processors do not read the ids, but an empty prefix would fail in type checks.
    ids = torch.zeros(scores.shape[0] * scores.shape[1], 1, dtype=torch.long, device=scores.device)
    return processor(ids, scores.flatten(0, 1)).view_as(scores)


def stop_criterion(tokenizer: PreTrainedTokenizerBase, stop_strings: str | Sequence[str]) -> StopStringCriteria:
    """Return a copy of upstream's criterion. The original is cached: its construction iterates over the vocabulary."""
    strings = (stop_strings,) if isinstance(stop_strings, str) else tuple(stop_strings)
    key, known = (strings, len(tokenizer)), _stop_criteria.setdefault(tokenizer, {})
    criterion = known.get(key)
    if criterion is None:
        criterion = StopStringCriteria(tokenizer, list(strings))
        with _lock:
            known[key] = criterion
            while len(known) > _MAX_CRITERIA:
                known.pop(next(iter(known)))
    return copy.copy(criterion)  # upstream moves its tensors between devices in every call


@dataclass(eq=False)
class CompletionStopStrings(StoppingCriteria):
    """Stop strings in the completion. `StopStringCriteria` also matches a string that begins in the prompt.

    Attributes:
        prompt_length: columns of the prompt, with its padding.
    """

    criterion: StopStringCriteria
    prompt_length: int

    def __call__(self, input_ids: torch.Tensor, scores, **kwargs) -> torch.Tensor:
        return self.criterion(input_ids[:, self.prompt_length :], scores, **kwargs)


class StopTracker:
    """Calls the stopping criteria. Length and EOS are handled in verification.

    A criterion may keep state and index rows, so it receives the same calls as in plain `generate`: one per column, in
    order, with the final ids of every row. A column is checked once all running rows have reached it, and longer rows
    are cut at their stop. This adds no rounds, since the slowest row determines the number of rounds.

    Stop strings depend on a row's last ids only. If there are no other criteria and `generate` pads stopped rows (with
    an EOS), all new positions are checked after each round, and a row ends in the round with its stop string.

    Attributes:
        needs_all_rows: whether finished rows must stay in the batch: a criterion may index rows, or stopped rows
            continue until all have stopped (without EOS).
    """

    def __init__(self, rows: RaggedRows, criteria: support.Criteria):
        self.rows, self.criteria, self._pads = rows, criteria.others, criteria.pads_stopped_rows
        only_strings = all(type(each) in (StopStringCriteria, CompletionStopStrings) for each in self.criteria)
        self.needs_all_rows = bool(self.criteria) and not (only_strings and self._pads)
        self._checked = rows.prompt_length
        self._stopped: set[int] = set()

    def update(self, starts: list[int], scores_before: Callable[[int], tuple[torch.Tensor, ...] | None]) -> None:
        """Cut the rows that a criterion stops. Rows that ended by EOS or length are already finished.

        Args:
            starts: length of each row before the round.
            scores_before: maps a column to the processed scores before it; to None if scores are not collected.
        """
        if self.criteria and not self.needs_all_rows:
            self._cut_at_stop_strings(starts)
        while self.needs_all_rows:
            running, lengths = self.rows.running, self.rows.lengths.host
            reached = [lengths[row] for row in running] or [max(end for end in self.rows.ends if end is not None)]
            if self._checked >= min(reached):
                return
            self._checked += 1
            self._check(self._checked, scores_before(self._checked))

    def _cut_at_stop_strings(self, starts: list[int]) -> None:
        """End each row at the first of its new positions where a stop string matches."""
        rows, device = self.rows, self.rows.ids.device
        strings = [
            each if isinstance(each, CompletionStopStrings) else CompletionStopStrings(each, prompt_length=0)
            for each in self.criteria
        ]
        window = max(each.criterion.maximum_token_len for each in strings)
        num_new = max(length - start for length, start in zip(rows.lengths.host, starts))
        # Every length that a row has had since the last check, [B, N].
        ends = torch.tensor(starts, device=device)[:, None] + torch.arange(1, num_new + 1, device=device)
        columns = ends[..., None] + torch.arange(-window, 0, device=device)  # [B, N, W]
        ids = rows.ids.gather(1, columns.clamp(0, rows.ids.shape[1] - 1).flatten(1)).view_as(columns)
        stops = torch.zeros_like(ends, dtype=torch.bool)
        for stop_string in strings:
            # Hide the prompt, and columns left of the text, which are negative.
            windows = ids.masked_fill(columns < stop_string.prompt_length, _OUTSIDE_VOCABULARY).flatten(0, 1)
            stops |= stop_string.criterion(windows, None).view_as(ends)
        stops &= ends <= rows.lengths.device[:, None]  # rows may have fewer new tokens than num_new
        first_stops = ends.masked_fill(~stops, RUNNING).amin(dim=1).tolist()  # RUNNING: no stop string
        for row, end in enumerate(first_stops):
            if end != RUNNING:
                rows.ends[row] = end
        if min(first_stops) != RUNNING:
            rows.send_ends()

    def _check(self, column: int, scores: tuple[torch.Tensor, ...] | None) -> None:
        rows = self.rows
        seen = [length if end is None else end for length, end in zip(rows.lengths.host, rows.ends)]
        shown = rows.view(column, PerRow(seen, torch.tensor(seen, device=rows.ids.device)))
        verdict = self.criteria(shown, scores).tolist()
        self._stopped |= {row for row, stop in enumerate(verdict) if stop and column <= seen[row]}
        if not self._pads and len(self._stopped) < len(seen):
            return  # Without an EOS, plain `generate` continues stopped rows until all have stopped.
        for row in self._stopped:
            end = rows.ends[row]
            rows.ends[row] = column if end is None else min(end, column)
        if self._stopped:
            rows.send_ends()  # before the next column is checked
        if self._pads:
            self._stopped.clear()
