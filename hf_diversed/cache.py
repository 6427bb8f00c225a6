"""A preallocated key/value cache whose rows have different lengths, with its masks.

Column c of the cache holds the token in column c of the id buffer, for every row. Rolling a row back needs no
operation: the next block overwrites the rejected columns, and no query attends to a column to the right of its own.
Recurrent states are the exception; see `Replay` in `generation/recurrent.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers.cache_utils import Cache, CacheLayerMixin, LinearAttentionLayer


_ALIGNMENT = 256
Windows = dict[str, int | None] | int | None
Masks = torch.Tensor | dict[str, torch.Tensor] | dict[str, torch.Tensor | None]


@dataclass
class WriteWindow:
    """Columns that the next forward writes and attends to; shared by all layers of one cache.

    Attributes:
        start: first column of the block (of its leftmost row).
        visible: number of columns that attention reads, from column 0.
        columns: long `[B, Q]`, the columns per row; None where every row writes `start:visible`.
        rows: long `[B, 1]`, the row of each.
    """

    start: int = 0
    visible: int = 0
    columns: torch.Tensor | None = None
    rows: torch.Tensor | None = None


class RaggedLayer(CacheLayerMixin):
    """Keys and values of one attention layer, `[B, heads, capacity, head_dim]`; the mask applies windows."""

    is_sliding = False

    def __init__(self, window: WriteWindow, limit: int):
        super().__init__()
        self.window = window
        self.limit = limit

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        """Write `[B, heads, Q, head_dim]` to the window's columns; return the visible keys and values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, visible, columns = self.window.start, self.window.visible, self.window.columns
        if visible > self.keys.shape[2]:
            # Doubling keeps copies rare without allocating `max_length` at once.
            aligned = -(-visible // _ALIGNMENT) * _ALIGNMENT
            capacity = min(self.limit, max(2 * self.keys.shape[2], aligned))
            self.keys, self.values = enlarged(self.keys, capacity), enlarged(self.values, capacity)
        if columns is None:
            self.keys[:, :, start:visible] = key_states
            self.values[:, :, start:visible] = value_states
        else:
            assert self.window.rows is not None
            columns, rows = columns.to(key_states.device), self.window.rows.to(key_states.device)
            self.keys.transpose(1, 2)[rows, columns] = key_states.transpose(1, 2)
            self.values.transpose(1, 2)[rows, columns] = value_states.transpose(1, 2)
        return self.keys[:, :, :visible], self.values[:, :, :visible]

    def keep(self, rows: torch.Tensor) -> None:
        """Select rows."""
        if self.is_initialized:
            rows = rows.to(self.keys.device)
            self.keys, self.values = self.keys[rows], self.values[rows]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.window.visible, 0

    def get_seq_length(self) -> int:
        return self.window.start if self.is_initialized else 0  # cross-attention layers of Mllama stay empty

    def get_max_length(self) -> int:
        return self.limit


class RecurrentLayer(RaggedLayer, LinearAttentionLayer):
    """A `RaggedLayer` with recurrent and convolution states, which cannot be cropped.

    Layers without attention leave its keys and values empty.
    """

    def __init__(self, window: WriteWindow, limit: int, number_of_states: int):
        RaggedLayer.__init__(self, window, limit)
        LinearAttentionLayer.__init__(self, number_of_states)

    def lazy_initialization(self, *keys_and_values, **states) -> None:
        """Upstream passes keys and values by position, and states by name."""
        (LinearAttentionLayer if states else RaggedLayer).lazy_initialization(self, *keys_and_values, **states)

    def get_seq_length(self) -> int:
        return self.window.start  # also without keys and values, as upstream asks the first layer


class RaggedCache(Cache):
    """One `RaggedLayer` or `RecurrentLayer` per layer, and the masks that make a ragged block causal.

    Args:
        num_layers: layers of the model.
        limit: columns of the longest possible row.
        prompt_mask: bool `[B, S]`, False at padding; None where nothing is padded.
        windows: the sliding window of every mask the model expects (None: full attention). A dict, by layer type, for
            models that mix several; a single value for models that take one mask.
        recurrent_states: number of recurrent states per layer; empty for models without such states.
    """

    def __init__(
        self,
        num_layers: int,
        limit: int,
        prompt_mask: torch.Tensor | None,
        windows: Windows,
        recurrent_states: Sequence[int] = (),
    ):
        self.window = WriteWindow()
        layers = [RaggedLayer(self.window, limit) for _ in range(num_layers)]
        for layer, count in enumerate(recurrent_states):
            if count:
                layers[layer] = RecurrentLayer(self.window, limit, count)
        super().__init__(layers=layers)
        self.windows = windows
        self._has_recurrent_states = any(recurrent_states)
        self._limit = limit
        self._columns = torch.empty(0, dtype=torch.long)
        self._real: torch.Tensor | None = None
        self._prompt_length = 0
        if prompt_mask is not None:
            self._real, self._prompt_length = prompt_mask[:, None, :], prompt_mask.shape[1]

    def open(self, starts: torch.Tensor, first: int, last: int, length: int) -> torch.Tensor:
        """Place the next block: row i writes columns `starts[i] .. starts[i] + length - 1`.

        Args:
            starts: long `[B]`. `first` and `last` are its minimum and maximum, on the host.
            length: Q, tokens per row.

        Returns:
            long `[B, Q]`, the columns.
        """
        if last + length > len(self._columns):
            capacity = min(self._limit, max(last + length, 2 * len(self._columns), self._prompt_length, _ALIGNMENT))
            self._columns = torch.arange(capacity, device=starts.device)
            if self._real is not None:
                self._real = F.pad(self._real, (0, capacity - self._real.shape[-1]), value=True)
        columns = starts[:, None] + self._columns[:length]
        self.window.start, self.window.visible = first, last + length
        self.window.columns = None if first == last else columns
        if self.window.rows is None or len(self.window.rows) != len(starts):
            self.window.rows = torch.arange(len(starts), device=starts.device)[:, None]
        return columns

    def keep(self, rows: torch.Tensor) -> None:
        """Select rows (long; any order, repeated rows allowed)."""
        for layer in self.layers:
            layer.keep(rows)
        for states, index in self._recurrent_states():
            state = states[index]
            states[index] = None if state is None else state[rows.to(state.device)]
        if self._real is not None:
            self._real = self._real[rows]

    def _recurrent_states(self) -> list[tuple[dict[int, torch.Tensor | None], int]]:
        """Return each recurrent and convolution state as a dict and the key of the state, `[B, ...]`, in it."""
        layers = [layer for layer in self.layers if isinstance(layer, RecurrentLayer)]
        dicts = [states for layer in layers for states in (layer.conv_states, layer.recurrent_states)]
        return [(states, index) for states in dicts for index in states]

    def copy_recurrent_states(self) -> list[torch.Tensor | None]:
        """Return a copy of all recurrent states, which models update in place; None for states without tokens."""
        found = [states[index] for states, index in self._recurrent_states()]
        return [None if state is None else state.clone() for state in found]

    def restore_recurrent_states(self, copies: list[list[torch.Tensor | None]], chosen: list[int]) -> None:
        """Set each row's states to those in `copies[chosen[row]]`. `len(copies)` is for rows that do not change."""
        for (states, index), *earlier in zip(self._recurrent_states(), *copies):
            current = states[index]
            if current is not None:
                options = [torch.zeros_like(current) if state is None else state for state in earlier] + [current]
                states[index] = torch.stack([options[copy][row] for row, copy in enumerate(chosen)])

    def mask(self, columns: torch.Tensor, dtype: torch.dtype) -> Masks:
        """Return `block_masks` of the open block over the visible columns, and the mask of recurrent layers.

        The latter is bool `[B, Q]`, False at padding, and None for blocks after the prompt.

        Args:
            columns: long `[B, Q]`; see `open`.
        """
        real = None if self._real is None else self._real[:, :, : self.window.visible]
        masks = block_masks(columns, self._columns[: self.window.visible], real, self.windows, dtype)
        if self._has_recurrent_states and isinstance(masks, dict):
            token_mask = None
            if self._real is not None and self.window.start < self._prompt_length:
                token_mask = self._real[:, 0].gather(1, columns)
            return {**masks, "linear_attention": token_mask, "conv": token_mask}
        return masks


def block_masks(
    columns: torch.Tensor,
    keys: torch.Tensor,
    real: torch.Tensor | None,
    windows: Windows,
    dtype: torch.dtype,
) -> torch.Tensor | dict[str, torch.Tensor]:
    """Return additive masks, `[B, 1, Q, C]` each: 0 where a query may attend, the dtype's minimum elsewhere.

    Not bool, because eager attention adds the mask to the scores.

    Args:
        columns: long `[B, Q]`, of the queries. keys: long `[C]`, of the keys.
        real: bool `[B, 1, C]`, False at padding; None where nothing is padded. windows: see `RaggedCache`.
    """
    columns = columns[:, :, None]
    allowed = keys <= columns
    if real is not None:
        allowed = allowed & real
    seen = torch.zeros((), dtype=dtype, device=columns.device)
    hidden = torch.full_like(seen, torch.finfo(dtype).min)

    def additive(window: int | None) -> torch.Tensor:
        inside = allowed if window is None else allowed & (keys > columns - window)
        return torch.where(inside, seen, hidden)[:, None]

    if isinstance(windows, dict):
        return {layer_type: additive(window) for layer_type, window in windows.items()}
    return additive(windows)


def enlarged(states: torch.Tensor, capacity: int) -> torch.Tensor:
    """Return keys or values `[B, heads, C, head_dim]` enlarged to `capacity` columns."""
    # Zeros, not empty memory: a masked weight of 0 times NaN is NaN.
    larger = states.new_zeros(*states.shape[:2], capacity, states.shape[3])
    larger[:, :, : states.shape[2]] = states
    return larger
