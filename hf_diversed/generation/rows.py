"""The ids of a batch whose rows advance at their own pace. Knows nothing of models, rules or processors."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F


_RUNNING = torch.iinfo(torch.long).max  # the end of a row that has none yet


@dataclass
class PerRow:
    """One whole number per row, known on both sides of a round's transfer.

    Attributes:
        host: list of length B. device: long `[B]`, the same numbers.
    """

    host: list[int]
    device: torch.Tensor

    def __add__(self, offset: int) -> "PerRow":
        return PerRow([number + offset for number in self.host], self.device + offset)

    def at_most(self, limit: int) -> "PerRow":
        return PerRow([min(number, limit) for number in self.host], self.device.clamp_max(limit))

    def keep(self, rows: torch.Tensor, kept: list[int]) -> "PerRow":
        return PerRow([self.host[row] for row in kept], self.device[rows])


class RaggedRows:
    """Prompts left-padded as given, generated tokens from column S, each row at its own length.

    Attributes:
        ids: long `[B, capacity]`; behind a row's length stand drafts or leftovers.
        origins: which row of the batch each of these is; rows that have finished may be dropped (`keep`).
        prompt_length: S. max_length: the length at which a row finishes at the latest.
        lengths: columns in use per row. ends: the length at which each row finished; None on the host, and on the
            device a number beyond all columns, while it runs.
        eos_ids: long `[E]`, on the host; None where there is no EOS.
        temperatures: float32 `[B]`, where rows have temperatures of their own; 0 is greedy. None where all are drawn
            alike.
    """

    def __init__(
        self,
        input_ids: torch.Tensor,
        max_length: int,
        spare: int,
        eos_ids: list[int],
        pad_id: int,
        temperatures: torch.Tensor | None = None,
    ):
        batch_size, self.prompt_length = input_ids.shape
        device = input_ids.device
        self.max_length, self.pad_id, self.temperatures = max_length, pad_id, temperatures
        self.ids = torch.full((batch_size, max_length + spare), pad_id, dtype=torch.long, device=device)
        self.ids[:, : self.prompt_length] = input_ids
        self.lengths = PerRow(
            [self.prompt_length] * batch_size, torch.full((batch_size,), self.prompt_length, device=device)
        )
        self.ends: list[int | None] = [None] * batch_size
        self.ends_device = torch.full((batch_size,), _RUNNING, device=device)
        self.row_index = torch.arange(batch_size, device=device)
        self.origins = list(range(batch_size))
        self._all_ids, self._all_ends = self.ids, self.ends
        self._columns = torch.arange(self.ids.shape[1], device=device)
        self._eos_id = eos_ids[0] if eos_ids else pad_id
        self.eos_ids = torch.tensor(eos_ids) if eos_ids else None
        self.eos_ids_device = torch.tensor(eos_ids, device=device) if eos_ids else None

    @property
    def running(self) -> list[int]:
        return [row for row, end in enumerate(self.ends) if end is None]

    @property
    def greedy(self) -> torch.Tensor | None:
        """Which rows take the best token in a batch that draws, bool `[B]`; None where none is told apart."""
        return None if self.temperatures is None else self.temperatures == 0.0

    @property
    def done(self) -> torch.Tensor:
        """Which rows have finished, bool `[B]`."""
        return self.ends_device != _RUNNING

    def room(self, gamma: int) -> PerRow:
        """gamma_i: no row drafts past its last token but one, so that rounds end where they do in single runs."""
        spare = self.max_length - 1 - self.lengths.device
        return PerRow(self.room_on_host(gamma), spare.clamp_max(gamma).masked_fill(self.done, 0))

    def room_on_host(self, gamma: int) -> list[int]:
        """The same, where nothing on the device has to know."""
        spare = self.max_length - 1
        return [min(gamma, spare - n) if end is None else 0 for n, end in zip(self.lengths.host, self.ends)]

    def write(self, offsets: torch.Tensor | int, tokens: torch.Tensor) -> None:
        """Put one token per row (long `[B]`) `offsets` columns behind the row's length."""
        self.ids.scatter_(1, (self.lengths.device + offsets)[:, None], tokens[:, None])

    def last(self, count: int) -> torch.Tensor:
        """The last `count` ids of every row, long `[B, count]`."""
        return self.ids.gather(1, (self.lengths.device - count)[:, None] + self._columns[:count])

    def advance(self, emitted: PerRow) -> None:
        """Lengthen every row by its number of new tokens, already written."""
        host = [length + count for length, count in zip(self.lengths.host, emitted.host)]
        self.lengths = PerRow(host, self.lengths.device + emitted.device)

    def finish(self, ended: PerRow) -> None:
        """Close the running rows that have met an EOS (`ended`, 0 or 1) or the maximal length."""
        closing = (ended.device > 0) | (self.lengths.device >= self.max_length)
        self.ends_device = torch.where(closing & ~self.done, self.lengths.device, self.ends_device)
        for row in self.running:
            if ended.host[row] or self.lengths.host[row] >= self.max_length:
                self.ends[row] = self.lengths.host[row]

    def send_ends(self) -> None:
        """Let the device know the ends that somebody has found on the host."""
        known = [_RUNNING if end is None else end for end in self.ends]
        self.ends_device = torch.tensor(known, device=self.ids.device)

    def keep(self, rows: torch.Tensor) -> None:
        """Go on with these rows (long, ascending) only; the others, finished, keep what they have."""
        self._file()
        kept = rows.tolist()
        self.ids, self.ends_device = self.ids[rows], self.ends_device[rows]
        self.temperatures = None if self.temperatures is None else self.temperatures[rows]
        self.lengths = self.lengths.keep(rows, kept)
        self.origins, self.ends = ([x[row] for row in kept] for x in (self.origins, self.ends))
        self.row_index = self.row_index[: len(kept)]

    def _file(self) -> None:
        """Put what the present rows hold where the whole batch is kept."""
        if self.ids is not self._all_ids:
            self._all_ids[torch.tensor(self.origins, device=self.ids.device)] = self.ids
            for origin, end in zip(self.origins, self.ends):
                self._all_ends[origin] = end

    def text(self) -> torch.Tensor:
        """The ids up to the longest row's length, as plain `generate` would show them: see `view`."""
        return self.view(max(self.lengths.host), self.lengths)

    def view(self, column: int, valid: PerRow) -> torch.Tensor:
        """`ids[:, :column]` as plain `generate` would show it.

        Rows with fewer than `column` valid ids look finished: their ids, EOS, pads (only pads if they did finish).
        """
        shown = self.ids[:, :column]
        if min(valid.host) >= column:
            return shown
        behind = self._columns[:column] - valid.device[:, None]
        filled = torch.where(behind >= 0, self.pad_id, shown)
        return torch.where((behind == 0) & ~self.done[:, None], self._eos_id, filled)

    def drafted_view(self, column: int, valid: PerRow) -> torch.Tensor:
        """`view`, with pads behind a drafted EOS as well: what was drafted there is never emitted."""
        shown = self.view(column, valid)
        if self.eos_ids_device is None:
            return shown
        eos = self.is_eos(shown[:, self.prompt_length :]).long()
        behind = F.pad(eos.cumsum(dim=-1) - eos > 0, (self.prompt_length, 0))
        return shown.masked_fill(behind, self.pad_id)

    def is_eos(self, tokens: torch.Tensor) -> torch.Tensor:
        """bool, same shape as `tokens`."""
        return is_one_of(tokens, self.eos_ids_device)

    def final_ends(self) -> list[int]:
        """The end of every row of the batch, once all have one."""
        self._file()
        return [end for end in self._all_ends if end is not None]

    def finished(self) -> torch.Tensor:
        """All sequences, long `[B, S + T]`: each row up to its end, then pads."""
        ends = torch.tensor(self.final_ends(), device=self.ids.device)
        width = max(self.final_ends())
        return torch.where(self._columns[:width] < ends[:, None], self._all_ids[:, :width], self.pad_id)


def is_one_of(tokens: torch.Tensor, ids: torch.Tensor | None) -> torch.Tensor:
    """Whether each token is among `ids` (long `[E]`, or None for no ids): bool, the shape of `tokens`."""
    if ids is None:
        return torch.zeros_like(tokens, dtype=torch.bool)
    return (tokens[..., None] == ids).any(dim=-1)
