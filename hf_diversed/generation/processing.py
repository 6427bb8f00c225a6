"""Logits processors and stopping criteria over rows of different lengths.

Both were written for rows of equal length: `processor(input_ids[:, :l], scores)`, one column after the other. Here
every call still looks like that; the result is used for the rows that stand at column l.
"""

from collections.abc import Container, Iterable

import torch
import torch.nn.functional as F
from transformers import LogitsProcessor, StoppingCriteriaList

from hf_diversed import _compat


class RaggedRows:
    """The ids of a batch: prompts left-padded as given, generated tokens from column S, each row at its own length.

    Attributes:
        ids: long `[B, capacity]`; behind a row's length stand drafts or leftovers.
        origins: which row of the batch each of these is; rows that have finished may be dropped (`keep`).
        prompt_length: S. `lengths`: columns in use per row, on the host; `lengths_tensor`: the same, long `[B]`.
        ends: per row, the length at which it finished; None while it runs.
        eos_ids: long `[E]`, on the host; None where there is no EOS.
    """

    def __init__(self, input_ids: torch.Tensor, capacity: int, eos_ids: list[int], pad_id: int):
        batch_size, self.prompt_length = input_ids.shape
        self.ids = torch.full((batch_size, capacity), pad_id, dtype=torch.long, device=input_ids.device)
        self.ids[:, : self.prompt_length] = input_ids
        self.lengths = [self.prompt_length] * batch_size
        self.lengths_tensor = torch.full((batch_size,), self.prompt_length, device=input_ids.device)
        self.ends: list[int | None] = [None] * batch_size
        self.row_index = torch.arange(batch_size, device=input_ids.device)
        self.origins = list(range(batch_size))
        self._all_ids, self._all_ends = self.ids, self.ends
        self.pad_id = pad_id
        self._eos_id = eos_ids[0] if eos_ids else pad_id
        self.eos_ids = torch.tensor(eos_ids) if eos_ids else None
        self._eos_ids = torch.tensor(eos_ids, device=input_ids.device) if eos_ids else None

    @property
    def running(self) -> list[int]:
        return [row for row, end in enumerate(self.ends) if end is None]

    def write(self, offsets: torch.Tensor | int, tokens: torch.Tensor) -> None:
        """Put one token per row (long `[B]`) `offsets` columns behind the row's length."""
        self.ids.scatter_(1, (self.lengths_tensor + offsets)[:, None], tokens[:, None])

    def last(self, count: int) -> torch.Tensor:
        """The last `count` ids of every row, long `[B, count]`."""
        back = torch.arange(-count, 0, device=self.ids.device)
        return self.ids.gather(1, self.lengths_tensor[:, None] + back)

    def advance(self, emitted: list[int]) -> None:
        """Lengthen every row by its number of new tokens, already written."""
        self.lengths = [length + count for length, count in zip(self.lengths, emitted)]
        self.lengths_tensor = torch.tensor(self.lengths, device=self.ids.device)

    def keep(self, rows: torch.Tensor) -> None:
        """Go on with these rows (long, ascending) only; the others, finished, keep what they have."""
        self._file()
        kept = rows.tolist()
        self.ids, self.lengths_tensor = self.ids[rows], self.lengths_tensor[rows]
        self.origins, self.lengths, self.ends = (
            [x[row] for row in kept] for x in (self.origins, self.lengths, self.ends)
        )
        self.row_index = self.row_index[: len(kept)]

    def _file(self) -> None:
        """Put what the present rows hold where the whole batch is kept."""
        if self.ids is not self._all_ids:
            self._all_ids[torch.tensor(self.origins, device=self.ids.device)] = self.ids
            for origin, end in zip(self.origins, self.ends):
                self._all_ends[origin] = end

    def view(self, column: int, valid: list[int]) -> torch.Tensor:
        """`ids[:, :column]` as plain `generate` would show it.

        Rows with fewer than `column` valid ids look finished: their ids, EOS, pads (only pads if they did finish).
        """
        shown = self.ids[:, :column]
        if min(valid) >= column:
            return shown
        behind = torch.arange(column, device=shown.device) - torch.tensor(valid, device=shown.device)[:, None]
        open_rows = torch.tensor([end is None for end in self.ends], device=shown.device)[:, None]
        filled = torch.where(behind >= 0, self.pad_id, shown)
        return torch.where((behind == 0) & open_rows, self._eos_id, filled)

    def drafted_view(self, column: int, valid: list[int]) -> torch.Tensor:
        """`view`, with pads behind a drafted EOS as well: what was drafted there is never emitted."""
        shown = self.view(column, valid)
        if self._eos_ids is None:
            return shown
        eos = self.is_eos(shown[:, self.prompt_length :]).long()
        behind = F.pad(eos.cumsum(dim=-1) - eos > 0, (self.prompt_length, 0))
        return shown.masked_fill(behind, self.pad_id)

    def is_eos(self, tokens: torch.Tensor) -> torch.Tensor:
        """bool, same shape as `tokens`."""
        if self._eos_ids is None:
            return torch.zeros_like(tokens, dtype=torch.bool)
        return (tokens[..., None] == self._eos_ids).any(dim=-1)

    def final_ends(self) -> list[int]:
        """The end of every row of the batch, once all have one."""
        self._file()
        return [end for end in self._all_ends if end is not None]

    def finished(self) -> torch.Tensor:
        """All sequences, long `[B, S + T]`: each row up to its end, then pads."""
        ends = torch.tensor(self.final_ends(), device=self.ids.device)
        width = max(self.final_ends())
        columns = torch.arange(width, device=self.ids.device)
        return torch.where(columns < ends[:, None], self._all_ids[:, :width], self.pad_id)


class BlockProcessor:
    """A `LogitsProcessorList` for blocks of positions.

    Warpers that look at one position alone run over the whole block. All others are taken to read the row's prefix,
    and are called once per column with every row, in the list's order.
    """

    def __init__(self, processors: Iterable[LogitsProcessor]):
        self.processors = list(processors)

    def without(self, types: Container[type]) -> "BlockProcessor":
        """The same without processors of these types."""
        return BlockProcessor(x for x in self.processors if type(x) not in types)

    @property
    def reads_prefix(self) -> bool:
        """Whether some processor is called column by column with every row of the batch."""
        return any(type(processor) not in _compat.POINTWISE_PROCESSORS for processor in self.processors)

    def __call__(self, rows: RaggedRows, scores: torch.Tensor, offset: int, counts: list[int]) -> torch.Tensor:
        """Process scores float32 `[B, N, V]`, position k of row i following its first `lengths[i] + offset + k` ids.

        Args:
            counts: per row, how many of the N positions matter; the others may stay unprocessed.
        """
        for processor in self.processors:
            if type(processor) in _compat.POINTWISE_PROCESSORS:
                # One id per position: these never look at them, but an empty prefix would trip type checks.
                ids = rows.ids[:, :1].repeat_interleave(scores.shape[1], dim=0)
                scores = processor(ids, scores.flatten(0, 1)).view_as(scores)
            else:
                scores = self._by_column(processor, rows, scores, offset, counts)
        return scores

    @staticmethod
    def _by_column(processor, rows: RaggedRows, scores: torch.Tensor, offset: int, counts: list[int]) -> torch.Tensor:
        starts = [length + offset for length in rows.lengths]
        valid = [start + max(count - 1, 0) for start, count in zip(starts, counts)]
        valid = [length if end is None else min(length, end) for length, end in zip(valid, rows.ends)]
        columns = sorted({start + k for start, count in zip(starts, counts) for k in range(count)})
        result = scores.clone()
        for column in columns:
            steps = [min(max(column - start, 0), scores.shape[1] - 1) for start in starts]
            here = [row for row, start in enumerate(starts) if 0 <= column - start < counts[row]]
            index = torch.tensor(steps, device=scores.device)
            # A copy: a processor may write into the scores it is given.
            processed = processor(rows.drafted_view(column, valid), scores[rows.row_index, index])
            standing = torch.tensor(here, device=scores.device)
            result[standing, index[standing]] = processed[standing]
        return result


class StopTracker:
    """Finds each row's end. Length and EOS are read off the block; every other criterion is called column by column.

    A criterion may keep state and index rows, so it sees what plain `generate` would show it: one call per column, in
    order, every row with its true ids. A column is therefore checked once all running rows have reached it; a row that
    ran ahead past its stop is cut back. That costs no round: the batch lasts as long as its slowest row either way.
    """

    def __init__(self, rows: RaggedRows, criteria: StoppingCriteriaList):
        self.rows = rows
        self.criteria = _compat.prefix_criteria(criteria)
        self._pads = _compat.pads_stopped_rows(criteria)
        self._checked = rows.prompt_length
        self._stopped: set[int] = set()

    def update(self, ended: list[int], max_length: int, scores=None) -> None:
        """Mark the rows that ended in this round: by EOS (`ended`), by length, or by a criterion.

        Args:
            scores: maps a column to the tuple of processed scores before it, where the caller collects them.
        """
        for row in self.rows.running:
            if ended[row] or self.rows.lengths[row] >= max_length:
                self.rows.ends[row] = self.rows.lengths[row]
        while self.criteria and self._checked < self._reached():
            self._checked += 1
            self._check(self._checked, scores)

    def _reached(self) -> int:
        running = self.rows.running
        lengths = self.rows.lengths
        return min(lengths[row] for row in running) if running else max(e for e in self.rows.ends if e is not None)

    def _check(self, column: int, scores) -> None:
        rows = self.rows
        seen = [length if end is None else end for length, end in zip(rows.lengths, rows.ends)]
        verdict = self.criteria(rows.view(column, seen), scores(column) if scores is not None else None).tolist()
        self._stopped |= {row for row, stop in enumerate(verdict) if stop and column <= seen[row]}
        if not self._pads and len(self._stopped) < len(rows.lengths):
            return  # Without an EOS to pad with, plain `generate` lets stopped rows run on until all have stopped.
        for row in self._stopped:
            end = rows.ends[row]
            rows.ends[row] = column if end is None else min(end, column)
        if self._pads:
            self._stopped.clear()
