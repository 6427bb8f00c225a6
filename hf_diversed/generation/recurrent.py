"""A causal language model with recurrent states over rows of different lengths."""

import torch
from transformers import PreTrainedModel

from hf_diversed.cache import RaggedCache
from hf_diversed.generation.rows import PerRow, RaggedRows
from hf_diversed.generation.runner import RaggedModel


LONGEST_REPLAY = 16  # tokens that a block reads again at most; more are read in a forward before it


class RecurrentModel(RaggedModel):
    """A `RaggedModel` that restores recurrent states after rejected tokens, see `Replay`.

    The ids of a block are read from the batch's rows, to which the caller must have written them.
    """

    spare_columns = LONGEST_REPLAY

    def __init__(self, model: PreTrainedModel, rows: RaggedRows, *args, **kwargs):
        super().__init__(model, rows, *args, **kwargs)
        self._replay = Replay(self._cache, rows)

    def prefill(self, input_ids: torch.Tensor, chunk_size: int | None = None) -> None:
        super().prefill(input_ids, chunk_size)
        self._replay.lengths = [input_ids.shape[1]] * len(self._positions)

    def _needs_4d_mask(self, start: int, width: int) -> bool:
        return width == 1  # models with recurrent states ignore 2D masks in forwards of a single token

    def rewind(self) -> None:
        """Restore the states before rejected tokens, after a round."""
        rows = zip(self._rows.lengths.host, self._rows.ends)
        self._replay.return_to([length - 1 if end is None else 0 for length, end in rows])

    def keep(self, rows: torch.Tensor) -> None:
        super().keep(rows)
        self._replay.lengths = [self._replay.lengths[row] for row in rows.tolist()]

    def __call__(self, tokens: torch.Tensor, starts: PerRow, keep: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        replay, stops = self._replay, [start + tokens.shape[1] for start in starts.host]
        counts = replay.missing(stops, keep)
        # Draft steps follow each other without a rewind, so no row may be padded. Other blocks may replay some tokens.
        least, slack = (min(counts), 0) if keep == 1 else (tokens.shape[1], LONGEST_REPLAY)
        while max(counts) > least + slack:
            width = min(count - least for count in counts if count - least > slack // 2)
            limits = [length + width * (count - least >= width) for length, count in zip(replay.lengths, counts)]
            self._block(*replay.next(width), keep=1, hidden=False)
            replay.return_to(limits)
            counts = replay.missing(stops, keep)
        padding = max(counts) - min(counts)
        logits, hidden = self._block(*replay.next(max(counts)), keep + padding, self.keep_hidden)
        firsts = [count - min(counts) for count in counts]

        def last(values: torch.Tensor) -> torch.Tensor:
            return torch.stack([values[row, first : first + keep] for row, first in enumerate(firsts)])

        return (logits, hidden) if not padding else (last(logits), None if hidden is None else last(hidden))


class Replay:
    """Removes rejected tokens from recurrent states, which cannot be cropped.

    The states are copied before each forward. After a round, each row returns to its latest states without rejected
    tokens, and its next block begins with the accepted tokens that they lack. Shorter blocks of other rows are padded
    on the right; their states are restored later.

    Args:
        cache: with the states. rows: ids of the batch.

    Attributes:
        lengths: number of tokens that the states of each row contain.
    """

    def __init__(self, cache: RaggedCache, rows: RaggedRows):
        self._cache, self._rows = cache, rows
        self.lengths = [0] * len(rows.ids)
        self._copies: list[tuple[list[int], list[torch.Tensor | None]]] = []

    def missing(self, stops: list[int], keep: int) -> list[int]:
        """Return how many tokens before column `stops[row]` the states of each row lack, but at least `keep`.

        States may contain accepted tokens after that column. Finished rows get the minimum of the others.
        """
        rows = self._rows.running
        counts = {row: max(stops[row] - self.lengths[row], keep) for row in rows}
        return [counts.get(row, min(counts.values())) for row in range(len(stops))]

    def next(self, width: int) -> tuple[torch.Tensor, PerRow]:
        """Return the next `width` tokens of each row, long `[B, width]`, and their first columns. Copies the states.

        Finished rows get their first tokens.
        """
        self._copies.append((self.lengths, self._cache.copy_recurrent_states()))
        ids = self._rows.ids
        lengths = [length if end is None else 0 for length, end in zip(self.lengths, self._rows.ends)]
        starts = torch.tensor(lengths, device=ids.device)
        columns = starts[:, None] + torch.arange(width, device=ids.device)
        self.lengths = [length + width for length in lengths]
        return ids.gather(1, columns.clamp_max(ids.shape[1] - 1)), PerRow(lengths, starts)

    def return_to(self, limits: list[int]) -> None:
        """Return each row to its latest states with at most `limits[row]` tokens, or else to its earliest ones."""
        known = [*(lengths for lengths, _ in self._copies), self.lengths]
        chosen = [sum(each[row] <= limit for each in known[1:]) for row, limit in enumerate(limits)]
        if min(chosen) < len(self._copies):
            self._cache.restore_recurrent_states([states for _, states in self._copies], chosen)
        self.lengths = [known[index][row] for row, index in enumerate(chosen)]
        self._copies = []
