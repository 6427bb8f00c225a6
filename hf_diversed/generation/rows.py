"""Ids of a batch whose rows have different lengths. Independent of models, verifiers and processors."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F


RUNNING = torch.iinfo(torch.long).max  # end of a row that has not finished
SMALLEST_WIDTH = 256  # columns of ids allocated first, unless fewer can be used


@dataclass
class PerRow:
    """One integer per row, stored on the host and on the device.

    Attributes:
        host: list of length B. device: long `[B]`, the same values.
    """

    host: list[int]
    device: torch.Tensor

    def __add__(self, offset: int) -> "PerRow":
        return PerRow([number + offset for number in self.host], self.device + offset)

    def at_most(self, limit: int) -> "PerRow":
        return PerRow([min(number, limit) for number in self.host], self.device.clamp_max(limit))

    def at_least(self, limit: int) -> "PerRow":
        return PerRow([max(number, limit) for number in self.host], self.device.clamp_min(limit))

    def keep(self, rows: torch.Tensor, kept: list[int]) -> "PerRow":
        return PerRow([self.host[row] for row in kept], self.device[rows])


class RaggedRows:
    """Left-padded prompts, followed from column S by generated tokens. Rows have different lengths.

    Attributes:
        ids: long `[B, N]`, enlarged with the text; columns after a row's length contain draft tokens or stale values.
        origins: index of each row in the original batch; finished rows may have been dropped (`keep`).
        prompt_length: S. max_length: maximum length of a row. limit: maximum of N.
        lengths: number of columns in use per row. ends: final length of each finished row; for running rows, None on
            the host and the maximum of int64 on the device.
        eos_ids: long `[E]`, on the host; None without EOS.
        filler_id: `pad_id`, or 0 if it is negative (`eos_token_id=-1`), because models and processors read it.

    Args:
        spare: number of columns after `max_length` for draft tokens; at least gamma.
        readable: number of columns that the target's learned positions reach in every row; None without a limit.
    """

    def __init__(
        self,
        input_ids: torch.Tensor,
        max_length: int,
        spare: int,
        eos_ids: list[int],
        pad_id: int,
        readable: int | None = None,
    ):
        batch_size, self.prompt_length = input_ids.shape
        device = input_ids.device
        self.readable = max_length - 1 if readable is None else min(readable, max_length - 1)
        self.max_length, self.pad_id = max_length, pad_id
        self.filler_id = max(pad_id, 0)
        self.limit, self._spare = max_length + spare, spare
        width = min(max(self.prompt_length + spare + 1, SMALLEST_WIDTH), self.limit)
        self.ids = torch.full((batch_size, width), self.filler_id, dtype=torch.long, device=device)
        self.ids[:, : self.prompt_length] = input_ids
        lengths = torch.full((batch_size,), self.prompt_length, dtype=torch.long, device=device)
        self.lengths = PerRow([self.prompt_length] * batch_size, lengths)
        self.ends: list[int | None] = [None] * batch_size
        self.ends_device = torch.full((batch_size,), RUNNING, dtype=torch.long, device=device)
        self.row_index = torch.arange(batch_size, device=device)
        self.origins = list(range(batch_size))
        self._all_ids, self._all_ends = self.ids, self.ends
        self._columns = torch.arange(width, device=device)
        self._eos_id = max(eos_ids[0], 0) if eos_ids else self.filler_id
        self.eos_ids = torch.tensor(eos_ids, device="cpu") if eos_ids else None
        self.eos_ids_device = torch.tensor(eos_ids, device=device) if eos_ids else None

    @property
    def running(self) -> list[int]:
        return [row for row, end in enumerate(self.ends) if end is None]

    @property
    def done(self) -> torch.Tensor:
        """Finished rows, bool `[B]`."""
        return self.ends_device != RUNNING

    def draft_limit(self, gamma: int) -> PerRow:
        """Return how many tokens each row may draft: `gamma`, fewer close to column `readable`, 0 in finished rows."""
        room = [max(self.readable - length, 0) for length in self.lengths.host]
        host = [min(gamma, most) if end is None else 0 for most, end in zip(room, self.ends)]
        device = (self.readable - self.lengths.device).clamp(0, gamma)
        return PerRow(host, device.masked_fill(self.done, 0))

    def write(self, offsets: torch.Tensor | int, tokens: torch.Tensor) -> None:
        """Write one token per row (long `[B]`), `offsets` columns after the row's length."""
        self.ids.scatter_(1, (self.lengths.device + offsets)[:, None], tokens[:, None])

    def write_block(self, tokens: torch.Tensor) -> None:
        """Write several tokens per row (long `[B, N]`) after the row's length."""
        self.ids.scatter_(1, self.lengths.device[:, None] + self._columns[: tokens.shape[1]], tokens)

    def last(self, count: int) -> torch.Tensor:
        """Return the last `count` ids of every row, long `[B, count]`; ended rows may be shorter."""
        return self.ids.gather(1, (self.lengths.device - count).clamp_min(0)[:, None] + self._columns[:count])

    def scored(self, drafted: PerRow, width: int) -> PerRow:
        """Return how many positions of a target block `width` wide are used: 0 in finished rows."""
        ahead = (drafted + 1).at_most(width)
        host = [count if end is None else 0 for count, end in zip(ahead.host, self.ends)]
        return PerRow(host, ahead.device.masked_fill(self.done, 0))

    def advance(self, emitted: PerRow, ended: PerRow) -> None:
        """Add the new tokens, which are already written, to the lengths, and mark finished rows.

        Args:
            emitted: number of new tokens per row. ended: whether the last of them is EOS. Rows also finish at the
                maximum length.
        """
        host = [length + count for length, count in zip(self.lengths.host, emitted.host)]
        self.lengths = PerRow(host, self.lengths.device + emitted.device)
        closing = ended.device | (self.lengths.device >= self.max_length)
        self.ends_device = torch.where(closing & ~self.done, self.lengths.device, self.ends_device)
        for row in self.running:
            if ended.host[row] or self.lengths.host[row] >= self.max_length:
                self.ends[row] = self.lengths.host[row]
        self._enlarge(min(max(host) + self._spare + 1, self.limit))

    def _enlarge(self, columns: int) -> None:
        """Enlarge the ids to at least `columns` columns."""
        width, is_whole = self.ids.shape[1], self.ids is self._all_ids
        if columns <= width:
            return
        width = min(max(columns, 2 * width), self.limit)
        self.ids = _widened(self.ids, width, self.filler_id)
        self._columns = torch.arange(width, device=self.ids.device)
        if is_whole:
            self._all_ids = self.ids

    def send_ends(self) -> None:
        """Copy the ends from the host to the device."""
        known = [RUNNING if end is None else end for end in self.ends]
        self.ends_device = torch.tensor(known, device=self.ids.device)

    def keep(self, rows: torch.Tensor) -> None:
        """Keep only these rows (long, ascending); the others must have finished and stay in the result."""
        self._write_back()
        kept = rows.tolist()
        self.ids, self.ends_device = self.ids[rows], self.ends_device[rows]
        self.lengths = self.lengths.keep(rows, kept)
        self.origins, self.ends = ([x[row] for row in kept] for x in (self.origins, self.ends))
        self.row_index = self.row_index[: len(kept)]

    def check_positions(self, end: int) -> None:
        """Raise IndexError if a row of `end` tokens needs positions beyond the target's learned ones."""
        if end > self.readable + 1:
            raise IndexError(
                f"the target's learned positions reach {self.readable} columns of this batch, padding included, got a "
                f"row that needs {end - 1}; lower max_new_tokens or max_length."
            )

    def _write_back(self) -> None:
        """Copy the remaining rows back into the buffers of the original batch."""
        if self.ids is not self._all_ids:
            self._all_ids = _widened(self._all_ids, self.ids.shape[1], self.filler_id)
            self._all_ids[torch.tensor(self.origins, device=self.ids.device)] = self.ids
            for origin, end in zip(self.origins, self.ends):
                self._all_ends[origin] = end

    def view(self, column: int, valid: PerRow) -> torch.Tensor:
        """Return a copy of `ids[:, :column]`, as plain `generate` would pass them to processors and criteria.

        Rows with fewer than `column` valid ids are shown as finished: their ids, an EOS if they are still running,
        then pads.
        """
        shown = self.ids[:, :column]
        if min(valid.host) >= column:
            return shown.clone()
        behind = self._columns[:column] - valid.device[:, None]
        filled = torch.where(behind >= 0, self.filler_id, shown)
        return torch.where((behind == 0) & ~self.done[:, None], self._eos_id, filled)

    def drafted_view(self, column: int, valid: PerRow) -> torch.Tensor:
        """Return `view` with pads after a drafted EOS, as later draft tokens are never emitted."""
        shown = self.view(column, valid)
        if self.eos_ids_device is None:
            return shown
        eos = is_one_of(shown[:, self.prompt_length :], self.eos_ids_device).long()
        behind = F.pad(eos.cumsum(dim=-1) - eos > 0, (self.prompt_length, 0))
        return shown.masked_fill(behind, self.filler_id)

    def finished(self) -> tuple[torch.Tensor, list[int]]:
        """Return sequences and final lengths of the original batch, once all rows have finished.

        The sequences are long `[B, S + T]`, padded after each row's end.
        """
        self._write_back()
        ends = [end for end in self._all_ends if end is not None]
        self.check_positions(max(ends))
        width, ends_device = max(ends), torch.tensor(ends, device=self.ids.device)
        filled = torch.where(self._columns[:width] < ends_device[:, None], self._all_ids[:, :width], self.pad_id)
        return filled, ends


def _widened(ids: torch.Tensor, width: int, filler_id: int) -> torch.Tensor:
    return F.pad(ids, (0, width - ids.shape[1]), value=filler_id)


def is_one_of(tokens: torch.Tensor, ids: torch.Tensor | None) -> torch.Tensor:
    """Return whether each token is in `ids` (long `[E]`; None is empty): bool, same shape as `tokens`."""
    if ids is None:
        return torch.zeros_like(tokens, dtype=torch.bool)
    return (tokens[..., None] == ids).any(dim=-1)
