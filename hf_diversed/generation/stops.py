"""Stopping criteria over rows of different lengths."""

from collections.abc import MutableMapping, Sequence
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedTokenizerBase, StoppingCriteriaList, StopStringCriteria

from hf_diversed import _compat
from hf_diversed.generation.rows import PerRow, RaggedRows


_known: MutableMapping[PreTrainedTokenizerBase, dict[tuple, StopStringCriteria]] = WeakKeyDictionary()
_MOST_KNOWN = 8  # per tokenizer, as a criterion stores arrays over the vocabulary


def stop_criterion(tokenizer: PreTrainedTokenizerBase, stop_strings: str | Sequence[str]) -> StopStringCriteria:
    """Return upstream's criterion. It is cached, as its construction iterates over the vocabulary."""
    strings = (stop_strings,) if isinstance(stop_strings, str) else tuple(stop_strings)
    key, known = (strings, len(tokenizer)), _known.setdefault(tokenizer, {})
    if key not in known:
        if len(known) == _MOST_KNOWN:
            known.pop(next(iter(known)))
        known[key] = StopStringCriteria(tokenizer, list(strings))
    return known[key]


class StopTracker:
    """Calls the stopping criteria column by column. Length and EOS are handled in verification.

    A criterion may keep state and index rows, so it receives the same calls as in plain `generate`: one per column, in
    order, with the final ids of every row. A column is checked once all running rows have reached it, and longer rows
    are cut at their stop. This adds no rounds, since the slowest row determines the number of rounds.
    """

    def __init__(self, rows: RaggedRows, criteria: StoppingCriteriaList):
        self.rows = rows
        self.criteria = _compat.prefix_criteria(criteria)
        self._pads = _compat.pads_stopped_rows(criteria)
        self._checked = rows.prompt_length
        self._stopped: set[int] = set()

    def update(self, scores=None) -> None:
        """Cut the rows that a criterion stops. Rows that ended by EOS or length are already finished.

        Args:
            scores: maps a column to the tuple of processed scores before it; None if scores are not collected.
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
            return  # Without an EOS, plain `generate` continues stopped rows until all have stopped.
        for row in self._stopped:
            end = rows.ends[row]
            rows.ends[row] = column if end is None else min(end, column)
        if self._stopped:
            rows.send_ends()  # before the next column is checked
        if self._pads:
            self._stopped.clear()
