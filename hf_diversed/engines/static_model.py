"""A model with buffers of fixed size, so that its forward pass is a function of tensors and can be compiled.

Column c of a buffer is column c of the id buffer, as in `cache.py`. Masks hide everything to the right of a row's own
column, so buffers are neither cleared nor cropped, only overwritten.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from hf_diversed import support
from hf_diversed.cache import Windows, block_masks, enlarged
from hf_diversed.engines.buffers import Buffers, States, capacity_for, pad_rows, pool, size_for
from hf_diversed.engines.compiling import Compiler, Shape, cannot_be_traced
from hf_diversed.generation.ragged_model import RaggedModel, run_model
from hf_diversed.generation.rows import PerRow


@dataclass(frozen=True)
class Traits:
    """Options of a model's forward passes that do not change during a call; see `RaggedModel`."""

    windows: Windows
    dtype: torch.dtype
    logits_to_keep: support.LogitsToKeep
    keep_hidden: bool
    skip_router_logits: bool
    max_id: int | None


class BufferLayer(CacheLayerMixin):
    """The cache of one attention layer for one forward pass, stored in its part of `Buffers`."""

    is_sliding = False
    is_compileable = True

    def __init__(self, keys: torch.Tensor | None, values: torch.Tensor | None, columns: torch.Tensor):
        self.keys, self.values, self.columns = keys, values, columns
        self.is_initialized = keys is not None  # cross-attention and stateless layers have none

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        raise AssertionError("buffers are allocated before the first block")

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        """Write `[R, heads, Q, head_dim]` to the columns, long `[R, Q]`; return the whole buffers."""
        assert self.keys is not None
        assert self.values is not None
        rows = torch.arange(self.columns.shape[0], device=self.columns.device)[:, None]
        for buffer, states in ((self.keys, key_states), (self.values, value_states)):
            buffer.transpose(1, 2).index_put_((rows, self.columns), states.transpose(1, 2))
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return 0 if self.keys is None else self.keys.shape[2], 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]


def extend(
    model: PreTrainedModel,
    traits: Traits,
    buffers: Buffers,
    tokens: torch.Tensor,
    columns: torch.Tensor,
    keep: int,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Run `tokens` at `columns`, both long `[R, Q]`, with the cached columns before them; traceable.

    Returns:
        The same as `RaggedModel.__call__`.
    """
    layers = [BufferLayer(*layer, columns) for layer in zip(buffers.keys, buffers.values)]
    keys = torch.arange(buffers.real.shape[1], device=columns.device)
    masks = block_masks(columns, keys, buffers.real[:, None], traits.windows, traits.dtype)
    if traits.max_id is not None:
        tokens = tokens.clamp_max(traits.max_id)
    positions = buffers.positions.gather(1, columns)
    cache = Cache(layers=layers)
    settings = traits.logits_to_keep, traits.skip_router_logits, traits.keep_hidden
    return run_model(model, tokens, masks, positions, cache, keep, *settings)


class StaticModel(RaggedModel):
    """A `RaggedModel` that runs every block after the prompt with buffers of fixed size.

    Args:
        compiler: runs the forward passes of blocks, compiled or not.

    Attributes:
        widths: block widths to compile for; narrower blocks are padded with columns whose results are dropped.
        buffers: allocated by `prefill`; the number of rows is a power of two, and rows beyond the batch are padding.
    """

    buffers: Buffers

    def __init__(self, model: PreTrainedModel, *args, compiler: Compiler, **kwargs):
        super().__init__(model, *args, **kwargs)
        self._compiler, self.widths = compiler, {1, 2}  # the widths of draft steps
        self._owner = support.weak_key(model)
        self._label = repr((id(self._owner), support.num_layers(model)))
        self.traits = Traits(
            windows=self._cache.windows,
            dtype=self._dtype,
            logits_to_keep=self._logits_to_keep,
            keep_hidden=self.keep_hidden,
            skip_router_logits=self._skip_router_logits,
            max_id=self._max_id,
        )

    def prefill(self, input_ids: torch.Tensor, chunk_size: int | None = None) -> None:
        super().prefill(input_ids, chunk_size)
        layers, capacity = self._cache.layers, capacity_for(input_ids.shape[1] + 1)
        self._use(self._sized([layer.keys for layer in layers], [layer.values for layer in layers], capacity))
        if self.keep_hidden:
            # In its first forward pass with hidden states, transformers installs a recorder under a lock, which
            # compiled code cannot acquire.
            first = torch.zeros(len(self._positions), 1, dtype=torch.long, device=self.device)
            self.model(input_ids=first, output_hidden_states=True, use_cache=False)
        del self._cache  # the buffers hold its keys and values

    @property
    def capacity(self) -> int:
        return self.buffers.real.shape[1]

    def make_room(self, columns: int) -> None:
        """Enlarge the buffers if they have fewer than `columns` columns."""
        if columns > self.capacity:
            self._use(self._sized(self.buffers.keys, self.buffers.values, self.capacity_after(columns)))

    def capacity_after(self, columns: int) -> int:
        """Return the capacity of the buffers after `make_room(columns)`."""
        return max(self.capacity, capacity_for(columns))

    def keep(self, rows: torch.Tensor) -> None:
        rows = rows.to(self.device)
        self._positions = self._positions[rows]
        self._prompt_mask = None if self._prompt_mask is None else self._prompt_mask[rows]
        keys, values = (
            [None if layer is None else layer[rows] for layer in states]
            for states in (self.buffers.keys, self.buffers.values)
        )
        self._use(self._sized(keys, values, self.capacity))

    def _use(self, buffers: Buffers) -> None:
        if self._compiler.replays:
            buffers = pool.borrow(self._owner, buffers)
            self.close()
        self.buffers = buffers

    def close(self) -> None:
        """Return the buffers to the pool."""
        if self._compiler.replays and "buffers" in vars(self):
            pool.take_back(self._owner, vars(self).pop("buffers"))  # an interrupt must not return them twice

    def _sized(self, keys: States, values: States, capacity: int) -> Buffers:
        """Return buffers of `capacity` columns with these keys and values, and rows padded to a power of two."""
        size, positions = size_for(len(self._positions)), self.positions(capacity)[:, :capacity]
        real = torch.ones_like(positions, dtype=torch.bool)
        if self._prompt_mask is not None:
            real[:, : self._prompt_mask.shape[1]] = self._prompt_mask.bool()

        def fit(states: torch.Tensor | None) -> torch.Tensor | None:
            return None if states is None else enlarged(pad_rows(states[:, :, :capacity], size), capacity)

        # Cloned: the pool may lend these buffers to another call while this one still reads its own positions.
        return Buffers(
            keys=[fit(states) for states in keys],
            values=[fit(states) for states in values],
            positions=pad_rows(positions, size).clone(),
            real=pad_rows(real, size),
        )

    def __call__(self, tokens: torch.Tensor, starts: PerRow, keep: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        self.num_forwards += 1
        rows, num_tokens = tokens.shape
        width = self._width(num_tokens)
        keep_padded = width - num_tokens + keep
        until = max(starts.host) + width
        self.make_room(until)
        shape = self._shape(until, width, keep_padded)
        columns = starts.device.to(self.device)[:, None] + torch.arange(width, device=self.device)
        tokens = F.pad(tokens.to(self.device), (0, width - num_tokens))
        padded = (pad_rows(x, shape.rows) for x in (tokens, columns))
        args = (self.model, self.traits, self.buffers, *padded, keep_padded)
        try:
            if width not in self.widths:  # rounds without draft tokens can leave blocks of any width; rare
                logits, hidden = extend(*args)
            else:
                logits, hidden = self._compiler.run(extend, [self.model], shape, self._label, *args)
                if self._compiler.replays:  # the next replay would overwrite them
                    logits, hidden = logits.clone(), None if hidden is None else hidden.clone()
        except Exception as error:
            if not cannot_be_traced(error):
                raise
            self._compiler.stop(self.model, error)
            logits, hidden = extend(*args)
        return logits[:rows, :keep], None if hidden is None else hidden[:rows, :keep]

    def ready(self, start: int, num_tokens: int, keep: int) -> bool:
        """Return whether a block of `num_tokens` tokens from column `start` probably runs without compilation."""
        width = self._width(num_tokens)
        return self._compiler.has(extend, self._shape(start + width, width, width - num_tokens + keep), self._label)

    def _width(self, num_tokens: int) -> int:
        return min((width for width in self.widths if width >= num_tokens), default=num_tokens)

    def _shape(self, until: int, width: int, keep: int) -> Shape:
        return Shape(size_for(len(self._positions)), self.capacity_after(until), (width, keep))
