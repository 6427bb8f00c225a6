"""Logits processors over rows of different lengths.

They were written for rows of equal length: `processor(input_ids[:, :l], scores)`, one column after the other. Here
every call still looks like that; the result is used for the rows that stand at column l.
"""

from collections.abc import Container, Iterable

import torch
from transformers import LogitsProcessor

from hf_diversed import _compat
from hf_diversed.generation.rows import PerRow, RaggedRows


class BlockProcessor:
    """A `LogitsProcessorList` for blocks of positions.

    Warpers that look at one position alone run over the whole block. All others are taken to read the row's prefix,
    and are called once per column with every row, in the list's order.
    """

    def __init__(self, processors: Iterable[LogitsProcessor], tempers: bool = True):
        self.processors, self._tempers = list(processors), tempers

    def without(self, types: Container[type]) -> "BlockProcessor":
        """The same without processors of these types, and without the rows' own temperatures."""
        return BlockProcessor((x for x in self.processors if type(x) not in types), tempers=False)

    @property
    def reads_prefix(self) -> bool:
        """Whether some processor is called column by column with every row of the batch."""
        return any(type(processor) not in _compat.POINTWISE_PROCESSORS for processor in self.processors)

    def __call__(self, rows: RaggedRows, scores: torch.Tensor, offset: int, counts: PerRow) -> torch.Tensor:
        """Process scores float32 `[B, N, V]`, position k of row i following its first `lengths[i] + offset + k` ids.

        Args:
            counts: per row, how many of the N positions matter; the others may stay unprocessed.
        """
        if rows.greedy is None or not self._tempers:
            return self._run(self.processors, rows, scores, offset, counts)
        warpers = [processor for processor in self.processors if type(processor) in _compat.WARPERS]
        others = [processor for processor in self.processors if type(processor) not in _compat.WARPERS]
        # Upstream has temperature first among the warpers, and greedy decoding none of them.
        plain = self._run(others, rows, scores, offset, counts)
        drawn = self._run(warpers, rows, plain / rows.divisors[:, None, None], offset, counts)
        return torch.where(rows.greedy[:, None, None], plain, drawn)

    def _run(self, processors, rows: RaggedRows, scores: torch.Tensor, offset: int, counts: PerRow) -> torch.Tensor:
        for processor in processors:
            if type(processor) in _compat.POINTWISE_PROCESSORS:
                # One id per position: these never look at them, but an empty prefix would trip type checks.
                ids = rows.ids[:, :1].repeat_interleave(scores.shape[1], dim=0)
                scores = processor(ids, scores.flatten(0, 1)).view_as(scores)
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
        columns = sorted({start + k for start, count in zip(starts.host, counts.host) for k in range(count)})
        for column in columns:
            steps = column - starts.device
            standing = ((steps >= 0) & (steps < counts.device))[:, None]
            at = rows.row_index, steps.clamp(0, scores.shape[1] - 1)
            # A copy: a processor may write into the scores it is given.
            processed = processor(rows.drafted_view(column, valid), scores[at])
            result[at] = torch.where(standing, processed, result[at])
        return result
