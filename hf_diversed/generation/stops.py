"""Stopping criteria over rows of different lengths."""

from collections.abc import MutableMapping, Sequence
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedTokenizerBase, StoppingCriteriaList, StopStringCriteria

from hf_diversed import _compat
from hf_diversed.generation.rows import PerRow, RaggedRows


_known: MutableMapping[PreTrainedTokenizerBase, dict[tuple, StopStringCriteria]] = WeakKeyDictionary()
_MOST_KNOWN = 8  # per tokenizer, as a criterion holds numbers for every token


def stop_criterion(tokenizer: PreTrainedTokenizerBase, stop_strings: str | Sequence[str]) -> StopStringCriteria:
    """Upstream's criterion, the same one when asked again: making it goes through the whole vocabulary."""
    strings = (stop_strings,) if isinstance(stop_strings, str) else tuple(stop_strings)
    key, known = (strings, len(tokenizer)), _known.setdefault(tokenizer, {})
    if key not in known:
        if len(known) == _MOST_KNOWN:
            known.pop(next(iter(known)))
        known[key] = StopStringCriteria(tokenizer, list(strings))
    return known[key]


class StopTracker:
    """Calls the criteria other than length and EOS, which are read off the block, column by column.

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

    def update(self, scores=None) -> None:
        """Cut the rows that a criterion stops; those that met an EOS or the length have their end already.

        Args:
            scores: maps a column to the tuple of processed scores before it, where the caller collects them.
        """
        if not self.criteria:
            return
        while self._checked < self._reached():
            self._checked += 1
            self._check(self._checked, scores)

    def _reached(self) -> int:
        running, lengths = self.rows.running, self.rows.lengths.host
        return min(lengths[row] for row in running) if running else max(e for e in self.rows.ends if e is not None)

    def _check(self, column: int, scores) -> None:
        rows = self.rows
        seen = [length if end is None else end for length, end in zip(rows.lengths.host, rows.ends)]
        shown = rows.view(column, PerRow(seen, torch.tensor(seen, device=rows.ids.device)))
        verdict = self.criteria(shown, scores(column) if scores is not None else None).tolist()
        self._stopped |= {row for row, stop in enumerate(verdict) if stop and column <= seen[row]}
        if not self._pads and len(self._stopped) < len(seen):
            return  # Without an EOS to pad with, plain `generate` lets stopped rows run on until all have stopped.
        for row in self._stopped:
            end = rows.ends[row]
            rows.ends[row] = column if end is None else min(end, column)
        if self._stopped:
            rows.send_ends()  # before the next column is shown
        if self._pads:
            self._stopped.clear()
