"""A causal language model over rows of different lengths. `run_model` runs all forward passes over their tokens."""

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from hf_diversed import support
from hf_diversed.cache import Masks, RaggedCache
from hf_diversed.generation.rows import PerRow, RaggedRows


COMPACT_AT = 0.75  # share of running rows; compacting copies the caches


class RaggedModel:
    """A model with its cache, masks and positions; `RecurrentModel` is for models with recurrent states.

    Args:
        model: a causal LM, or a PEFT wrapper around one.
        rows: ids of the batch. Columns after the last one that can be emitted reuse its position, so that learned
            position embeddings are not indexed out of range.
        prompt_mask: long `[B, S]`, 0 at padding; None without padding.
        position_ids: long `[B, S]`, positions of the prompt.
        keep_hidden: also return the last hidden states.
        max_id: highest id that the model can embed. Higher ids are replaced by it: they only exist where the target's
            embedding has more padding than the draft model's.
        keep_rows: every forward contains all rows in their order, because code in the model may index rows.
    """

    spare_columns = 0  # columns of the cache after those of the rows
    has_fixed_shapes = False

    def __init__(
        self,
        model: PreTrainedModel,
        rows: RaggedRows,
        prompt_mask: torch.Tensor | None,
        position_ids: torch.Tensor,
        keep_hidden: bool,
        max_id: int | None = None,
        keep_rows: bool = False,
    ):
        self._rows = rows
        self._keep_rows = keep_rows
        self.model = support.recording_view(model) if keep_hidden else model
        self.device = support.device(model) or position_ids.device
        self._dtype = model.dtype  # device and dtype are properties that iterate over all parameters
        self.keep_hidden = keep_hidden
        self.num_forwards = 0
        self._max_id = max_id
        self._prompt_mask = None if prompt_mask is None else prompt_mask.to(self.device, torch.long)
        states = support.recurrent_states(model)
        limit = rows.limit + self.spare_columns  # columns, rejected and padding tokens included
        self._positions, self._prompt_length = position_ids.to(self.device), position_ids.shape[1]
        real = None if self._prompt_mask is None else self._prompt_mask.bool()
        self._cache = RaggedCache(support.num_layers(model), limit, real, support.mask_windows(model), states)
        self._logits_to_keep = support.logits_to_keep(model)
        self._skip_router_logits = bool(getattr(support.text_config(model), "output_router_logits", False))

    def positions(self, count: int) -> torch.Tensor:
        """Return the positions of at least the first `count` columns, long `[B, N]`."""
        width = self._positions.shape[1]
        if count > width:
            columns = torch.arange(width, max(count, 2 * width), device=self.device)
            generated = (columns - self._prompt_length).clamp_max(self._rows.readable - 1 - self._prompt_length)
            last = self._positions[:, self._prompt_length - 1 : self._prompt_length]
            self._positions = torch.cat([self._positions, last + 1 + generated], dim=1)
        return self._positions

    def prefill(self, input_ids: torch.Tensor, chunk_size: int | None = None) -> None:
        """Fill the cache with prompt ids (long `[B, N]`, N may be 0). Equal prompts share a row unless `keep_rows`."""
        length = input_ids.shape[1]
        input_ids, positions, prompt_mask = input_ids.to(self.device), self.positions(length), self._prompt_mask
        # The first row of each group of equal prompts is processed; at the end the cache repeats it for its group.
        firsts = group_of_row = list(range(len(positions)))
        if len(positions) > 1 and not self._keep_rows:
            compared = [input_ids, positions[:, :length], *([] if prompt_mask is None else [prompt_mask])]
            firsts, group_of_row = group_equal_rows(torch.cat(compared, dim=1).tolist())
        if len(firsts) < len(group_of_row):
            index = torch.tensor(firsts, device=self.device)
            input_ids, positions = input_ids[index], positions[index]
            prompt_mask = None if prompt_mask is None else prompt_mask[index]
            self._cache.keep(index)
        width = chunk_size or max(length, 1)
        for start in range(0, length, width):
            stop = min(start + width, length)
            self.prefill_columns(input_ids[:, start:stop], positions[:, start:stop], prompt_mask, start)
        if len(firsts) < len(group_of_row):
            self._cache.keep(torch.tensor(group_of_row, device=self.device))

    def prefill_columns(
        self, tokens: torch.Tensor, positions: torch.Tensor, prompt_mask: torch.Tensor | None, start: int
    ) -> None:
        """Run the model over prompt ids (long `[B, Q]`) at columns `start ..` of every row.

        The model expands the 2D mask itself, except where `_needs_4d_mask`.

        Args:
            prompt_mask: long `[B, S]`, 0 at padding; None without padding.
        """
        width = tokens.shape[1]
        stop = start + width
        columns = self._cache.open(torch.full_like(positions[:, 0], start), start, start, width)
        mask: Masks | None = None
        if prompt_mask is not None:
            real = F.pad(prompt_mask, (0, max(stop - prompt_mask.shape[1], 0)), value=1)[:, :stop]
            mask = self._cache.mask(columns, self._dtype) if self._needs_4d_mask(start, width) else real
        self.forward(tokens, mask, positions, keep=1, hidden=False)

    def _needs_4d_mask(self, start: int, width: int) -> bool:
        """Whether a forward of the prefill needs a 4D mask, because models expand its 2D mask wrongly."""
        return start > 0  # GIT, once the cache holds tokens

    def rewind(self) -> None:
        """Discard rejected tokens, after a round.

        Keys and values need no change, as the next block overwrites them.
        """

    def is_worth_compacting(self, running: int, num_rows: int) -> bool:
        """Whether to continue with only the `running` rows of `num_rows`, which copies the cache."""
        return running <= COMPACT_AT * num_rows

    def keep(self, rows: torch.Tensor) -> None:
        """Keep only these rows (long, ascending) of the batch."""
        rows = rows.to(self.device)
        self._positions = self._positions[rows]
        self._cache.keep(rows)

    def __call__(self, tokens: torch.Tensor, starts: PerRow, keep: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run `tokens` (long `[B, Q]`), row i at columns `starts[i] ..`, after the cached columns before them.

        Returns:
            logits float32 `[B, keep, V]` of the last `keep` positions, and their hidden states `[B, keep, D]`, or None
            without `keep_hidden`.
        """
        return self._block(tokens, starts, keep, self.keep_hidden)

    def _block(self, tokens: torch.Tensor, starts: PerRow, keep: int, hidden: bool):
        first, last = min(starts.host), max(starts.host)
        columns = self._cache.open(starts.device.to(self.device), first, last, tokens.shape[1])
        mask = self._cache.mask(columns, self._dtype)
        positions = self.positions(last + tokens.shape[1]).gather(1, columns)
        return self.forward(tokens, mask, positions, keep, hidden)

    def forward(self, tokens, mask, positions, keep: int, hidden: bool):
        self.num_forwards += 1
        tokens = tokens.to(self.device)
        if self._max_id is not None:
            tokens = tokens.clamp_max(self._max_id)
        settings = self._logits_to_keep, self._skip_router_logits, hidden
        return run_model(self.model, tokens, mask, positions, self._cache, keep, *settings)


def group_equal_rows(rows: list[list[int]]) -> tuple[list[int], list[int]]:
    """Return the first row of each group of equal rows, ascending, and the group of each row."""
    groups: dict[tuple[int, ...], int] = {}
    group_of_row = [groups.setdefault(tuple(row), len(groups)) for row in rows]
    return [group_of_row.index(group) for group in range(len(groups))], group_of_row


def run_model(
    model: PreTrainedModel,
    tokens: torch.Tensor,
    mask: torch.Tensor | dict[str, torch.Tensor] | None,
    positions: torch.Tensor,
    cache: Cache,
    keep: int,
    logits_to_keep: support.LogitsToKeep,
    skip_router_logits: bool,
    hidden: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Run one forward over tokens, long `[B, Q]`. Returns logits float32 `[B, keep, V]` and, if `hidden`, states.

    `skip_router_logits` is for configs that request them: their auxiliary loss cannot read the masks of ragged rows.
    """
    extra: dict[str, int | bool | torch.Tensor] = {} if logits_to_keep == "all" else {"logits_to_keep": keep}
    is_slice = len(tokens) > 1 and keep < tokens.shape[1]
    if logits_to_keep == "index" and is_slice and tokens.device.type == "cpu":
        # An index copies the kept states. With weights that do not require gradients, PyTorch multiplies each row of a
        # slice on its own, over 100 times slower in bfloat16.
        extra["logits_to_keep"] = torch.arange(-keep, 0, device=tokens.device)
    if hidden:
        extra["output_hidden_states"] = True
    if skip_router_logits:
        extra["output_router_logits"] = False
    outputs = model(
        input_ids=tokens,
        attention_mask=mask,
        position_ids=positions,
        use_cache=True,
        return_dict=True,
        **{support.CACHE_ARGUMENT: cache},
        **extra,
    )
    logits = outputs.logits[:, -keep:].float()
    return logits, outputs.hidden_states[-1][:, -keep:] if hidden else None
