"""Calls with `cache_implementation="static"`: models with buffers of fixed size, and the functions to compile.

`StaticModel.extend` is the forward of a block, `StaticDrafter.step` the forward of a draft model that also draws the
token, and `decide` runs `verify`. They can be traced by `torch.compile`. The loop is the same as in eager calls.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from hf_diversed import support
from hf_diversed.blocks import BlockOutput, DraftOutput, Round, TargetOutput, Trace, Verdict
from hf_diversed.cache import block_masks, enlarged
from hf_diversed.generation.compiling import Compiler, Functions, fingerprint, inputs_key, settings_of
from hf_diversed.generation.drafting import ModelDrafter, Step, draft_scores, draw_draft_tokens
from hf_diversed.generation.loop import verify
from hf_diversed.generation.processing import run_pointwise
from hf_diversed.generation.rows import PerRow
from hf_diversed.generation.runner import RaggedModel, run_model
from hf_diversed.sampling import RoundNoise
from hf_diversed.verifiers.base import Verifier


SMALLEST_CAPACITY = 256
SMALLEST_GAMMA = 8
OUTCOME = ("num_drafted", "num_accepted", "next_token", "num_emitted", "ended", "faults")
States = list[torch.Tensor | None]


def capacity_for(columns: int) -> int:
    """Return the capacity of buffers that hold `columns` columns: 256, 512, 1024, ..."""
    return max(SMALLEST_CAPACITY, size_for(columns))


def size_for(count: int) -> int:
    """Return the size that `count` rows, columns or tokens are padded to: 1, 2, 4, 8, ..."""
    return 1 << (count - 1).bit_length()


def gamma_for(limit: int) -> int:
    """Return the maximum number of draft tokens of a round if rows have at most `limit`: 8, 16, 32, ..."""
    return max(SMALLEST_GAMMA, size_for(limit))


def pad_rows(values: torch.Tensor, size: int) -> torch.Tensor:
    """Return `values` `[B, ...]` as a contiguous `[size, ...]`; the last row is repeated."""
    missing = size - len(values)
    return torch.cat([values, values[-1:].expand(missing, *values.shape[1:])]) if missing else values.contiguous()


def why_not_static(target: PreTrainedModel, draft: PreTrainedModel | None, prompt_length: int) -> str | None:
    """Return why a call cannot be decoded with static shapes; None if it can."""
    if prompt_length < 2:
        return "the prompt has one token, and filling the caches needs at least two"
    for role, model in (("target", target), ("draft", draft)):
        if model is not None and (reason := support.cannot_compile(model)) is not None:
            return f"the {role} {reason}"
        if model is not None and support.recurrent_states(model):
            return f"the {role} has recurrent states"
        if model is not None and (reason := support.needs_equal_rows(model)) is not None:
            return f"the {role} {reason}"
    return None


class Buffers(nn.Module):
    """Keys, values and positions of a batch of R rows, in tensors that keep their shape.

    Column c is column c of the id buffer, as in `cache.py`. Masks hide everything to the right of a row's own column,
    so buffers are neither cleared nor cropped, only overwritten. They belong to a module because CUDA graphs read the
    tensors of modules in place, and copy those of other arguments before every run.

    Attributes:
        keys_0, values_0, ...: `[R, heads, capacity, head_dim]` per layer; None for a layer that uses those of another.
        positions: long `[R, capacity]`. real: bool `[R, capacity]`, False at padding.
    """

    positions: torch.Tensor
    real: torch.Tensor

    def __init__(self, keys: States, values: States, positions: torch.Tensor, real: torch.Tensor):
        super().__init__()
        self.num_layers = len(keys)
        for layer, states in enumerate(zip(keys, values)):
            self.register_buffer(f"keys_{layer}", states[0])
            self.register_buffer(f"values_{layer}", states[1])
        self.register_buffer("positions", positions)
        self.register_buffer("real", real)

    def states(self, name: str) -> States:
        return [getattr(self, f"{name}_{layer}") for layer in range(self.num_layers)]


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


class StaticModel(RaggedModel):
    """A `RaggedModel` that runs every block after the prompt with buffers of fixed size.

    Args:
        compiler: runs the forwards of blocks.
        widths: block widths to compile for; narrower blocks are padded with columns whose results are dropped.

    Attributes:
        buffers: allocated by `prefill`; the number of rows is a power of two, and rows beyond the batch are padding.
    """

    has_fixed_shapes = True
    buffers: Buffers

    def __init__(self, model: PreTrainedModel, *args, compiler: Compiler, widths: Sequence[int], **kwargs):
        super().__init__(model, *args, **kwargs)
        self._compiler, self._widths, self._windows = compiler, widths, self._cache.windows
        self._kept = compiler.kept_with(model, lambda: (fingerprint(self.model), self.keep_hidden, self._max_id))

    def prefill(self, input_ids: torch.Tensor, chunk_size: int | None = None) -> None:
        super().prefill(input_ids, chunk_size)
        layers, capacity = self._cache.layers, capacity_for(input_ids.shape[1] + 1)
        self._allocate([layer.keys for layer in layers], [layer.values for layer in layers], capacity)
        if self.keep_hidden:
            # In its first forward pass with hidden states, transformers installs a recorder under a lock, which
            # compiled code cannot acquire.
            first = torch.zeros(len(self._positions), 1, dtype=torch.long, device=self.device)
            self.model(input_ids=first, output_hidden_states=True, use_cache=False)
        del self._cache  # the buffers hold its keys and values

    def keep(self, rows: torch.Tensor) -> None:
        rows = rows.to(self.device)
        self._positions = self._positions[rows]
        self._prompt_mask = None if self._prompt_mask is None else self._prompt_mask[rows]
        keys, values = (
            [None if states is None else states[rows] for states in self.buffers.states(name)]
            for name in ("keys", "values")
        )
        self._allocate(keys, values, self.buffers.real.shape[1])

    def make_room(self, columns: int) -> None:
        """Enlarge the buffers if they have fewer than `columns` columns."""
        if columns > self.buffers.real.shape[1]:
            self._allocate(self.buffers.states("keys"), self.buffers.states("values"), capacity_for(columns))

    def _allocate(self, keys: States, values: States, capacity: int) -> None:
        """Allocate buffers with these keys and values, and rows padded to a power of two."""
        size, positions = size_for(len(self._positions)), self.positions(capacity)[:, :capacity]
        real = torch.ones_like(positions, dtype=torch.bool)
        if self._prompt_mask is not None:
            real[:, : self._prompt_mask.shape[1]] = self._prompt_mask.bool()

        def fit(states: torch.Tensor | None) -> torch.Tensor | None:
            return None if states is None else enlarged(pad_rows(states[:, :, :capacity], size), capacity)

        fitted = [fit(states) for states in keys], [fit(states) for states in values]
        self.buffers = Buffers(*fitted, pad_rows(positions, size), pad_rows(real, size))

    def is_worth_compacting(self, running: int, num_rows: int) -> bool:
        """Whether smaller buffers hold the `running` rows.

        Compiled calls keep their size, because the functions for another one would be compiled in mid-call.
        """
        return self._compiler.config is None and size_for(running) < size_for(num_rows)

    def __call__(self, tokens: torch.Tensor, starts: PerRow, keep: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        num_rows, num_tokens = tokens.shape
        width = min((width for width in self._widths if width >= num_tokens), default=num_tokens)
        self.make_room(max(starts.host) + width)
        columns = starts.device.to(self.device)[:, None] + torch.arange(width, device=self.device)
        tokens = tokens.to(self.device)
        if width > num_tokens:
            tokens = F.pad(tokens, (0, width - num_tokens))
        keep_padded = width - num_tokens + keep
        if width in self._widths:
            logits, hidden = self.run(StaticModel.extend, (width, keep_padded), self, tokens, columns, keep_padded)
        else:  # a draft model reads the tokens of several rounds without draft tokens; rare
            logits, hidden = self.extend(*self.padded(tokens, columns, keep_padded))
        self.num_forwards += 1
        return logits[:num_rows, :keep], None if hidden is None else hidden[:num_rows, :keep]

    def run(self, function: Callable, settings: tuple, owner: object, *args: Any) -> Any:
        """Return `function(owner, *args)`, with the tensors' rows padded; its other arguments are in `settings`."""
        padded = self.padded(*args)
        shape = (*self.buffers.real.shape, inputs_key(padded), *settings)
        return self._compiler.run(self._kept, function, shape, owner, *padded)

    def padded(self, *args: Any) -> list[Any]:
        size = len(self.buffers.real)
        return [pad_rows(arg, size) if isinstance(arg, torch.Tensor) else arg for arg in args]

    def extend(
        self, tokens: torch.Tensor, columns: torch.Tensor, keep: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run `tokens` at `columns`, both long `[R, Q]`, with the cached columns before them.

        Returns:
            The same as `RaggedModel.__call__`.
        """
        buffers = self.buffers
        layers = [BufferLayer(*states, columns) for states in zip(buffers.states("keys"), buffers.states("values"))]
        keys = torch.arange(buffers.real.shape[1], device=columns.device)
        masks = block_masks(columns, keys, buffers.real[:, None], self._windows, self._dtype)
        if self._max_id is not None:
            tokens = tokens.clamp_max(self._max_id)
        positions, cache = buffers.positions.gather(1, columns), Cache(layers=layers)
        settings = self._logits_to_keep, self._skip_router_logits, self.keep_hidden
        return run_model(self.model, tokens, masks, positions, cache, keep, *settings)


class StaticDrafter(ModelDrafter):
    """A `ModelDrafter` that runs each step as one compiled function, for processors that do not read the text."""

    model: StaticModel

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        processors = settings_of(*self.processor.processors)
        self._settings = processors, self.vocab_size, self.random_source is None, self.keep_raw_logits

    def _steps(self, counts: PerRow) -> list[Step]:
        """Draft the highest of the counts for all rows; without a rule that ends blocks."""
        rows, model, count = self.rows, self.model, max(counts.host)
        num_rows = len(rows.ids)
        model.make_room(max(rows.lengths.host) + count)
        # The first step reads one or two tokens per row, the others one.
        columns = rows.lengths.device[:, None] + torch.arange(-2, count, device=model.device)
        scores_like = torch.empty(num_rows, self.vocab_size, dtype=torch.float32, device=rows.ids.device)
        feed, steps = rows.last(self._behind), list[Step]()
        for index in range(count):
            width = feed.shape[1]
            read = columns[:, index + 2 - width : index + 2]
            noise = None if self.random_source is None else self.random_source.draft_noise(scores_like)
            outputs = model.run(StaticDrafter.step, (width, *self._settings), self, feed, read, noise)
            if len(outputs[0]) > num_rows:
                outputs = (None if values is None else values[:num_rows] for values in outputs)
            steps.append(Step._make(outputs))
            feed = steps[-1].tokens
        model.num_forwards += count
        rows.write_block(torch.cat([step.tokens for step in steps], dim=1))
        return steps

    def step(self, tokens: torch.Tensor, columns: torch.Tensor, noise: torch.Tensor | None) -> tuple:
        """Draft one token per row after `tokens` at `columns`, both long `[R, 1 or 2]`.

        Returns:
            the values of a `Step`.
        """
        logits, hidden = self.model.extend(tokens, columns, 1)
        raw, scores = draft_scores(logits, self.vocab_size, self._process)
        token = draw_draft_tokens(scores[:, 0], noise)[:, None]
        return token, scores, raw if self.keep_raw_logits else None, hidden

    def _process(self, scores: torch.Tensor) -> torch.Tensor:
        for processor in self.processor.processors:
            scores = run_pointwise(processor, scores)
        return scores


class StaticVerification:
    """`verify` for the rounds of one call: compiled for blocks of full length, in batches of 1, 2, 4, 8, ... rows.

    Args:
        compiler: runs `decide`. target: the target model. gamma: draft tokens of a full block.
        keeps_scores: whether the call returns scores or records, which compiled verification does not return.
    """

    def __init__(
        self, compiler: Compiler, target: PreTrainedModel, verifier: Verifier, gamma: int, keeps_scores: bool
    ):
        self._compiler, self._gamma = compiler, gamma
        self._why_not = "the call returns scores or records" if keeps_scores else None
        if verifier.needs_input_ids:
            self._why_not = f"{type(verifier).__name__} reads the text so far"
        elif not all(map(support.is_library_code, verifier.components())):
            self._why_not = f"{type(verifier).__name__} may depend on more than its attributes"
        self._kept: Functions = {}
        if self._why_not is None:
            self._kept = compiler.kept_with(target, lambda: settings_of(*verifier.components()))

    def __call__(
        self,
        verifier: Verifier,
        input_ids: torch.Tensor,
        draft: DraftOutput | None,
        target: TargetOutput,
        row_values: dict[str, torch.Tensor],
        eos_ids: torch.Tensor | None,
        round_noise: RoundNoise,
        checks: bool,
    ) -> Round:
        """See `verify`. A round of compiled verification has no residual and no emitted distribution."""
        is_full = draft is not None and draft.tokens.shape == (size_for(len(input_ids)), self._gamma)
        if not is_full or self._why_not is not None or self._compiler.config is None:
            return verify(verifier, input_ids, draft, target, row_values, eos_ids, round_noise, checks)
        assert draft is not None
        sampled, noise = draft.sampled, (round_noise.uniforms, round_noise.noise)
        inputs = _tensors(draft), _tensors(target), row_values, eos_ids, noise
        tensors = [*inputs[0].values(), *inputs[1].values(), *row_values.values(), eos_ids, *noise]
        shape = (inputs_key(tensors), *row_values, sampled)
        found = self._compiler.run(self._kept, decide, shape, verifier, *inputs, sampled)
        trace = Trace(weight=found[1], tv=found[2], bias=found[3])
        verdict = Verdict(found[0], _no_replacement, trace)
        return Round(draft, target, round_noise, verdict, **dict(zip(OUTCOME, found[4:])))

    def report(self) -> dict[str, Any]:
        """Return how the rounds were run, as fields of `SpeculativeStats`."""
        compiler = self._compiler
        if compiler.config is None:
            return {"engine": "static"}
        compiler.report()
        not_verified = f"verification is not compiled: {self._why_not}" if self._why_not else ""
        return {
            "engine": "compiled" if compiler.stats.num_used else "static",
            "engine_reason": compiler.not_compiled or not_verified,
            "compile": compiler.stats,
        }


def decide(
    verifier: Verifier,
    draft: dict[str, torch.Tensor],
    target: dict[str, torch.Tensor],
    row_values: dict[str, torch.Tensor],
    eos_ids: torch.Tensor | None,
    noise: tuple[torch.Tensor | None, torch.Tensor | None],
    sampled: bool,
) -> list[torch.Tensor | None]:
    """Run `verify` for a verifier of this package that does not read the text.

    Args:
        draft, target: tensors of `DraftOutput` and `TargetOutput`. noise: fields of `RoundNoise`.

    Returns:
        acceptance probabilities, weight, tv and bias of the trace, and the fields of a round in `OUTCOME`.
    """
    blocks = DraftOutput(**draft, sampled=sampled), TargetOutput(**target)
    round = verify(verifier, draft["tokens"], *blocks, row_values, eos_ids, RoundNoise(*noise), checks=False)
    assert round.verdict is not None
    trace = round.verdict.trace
    diagnostics = [trace.weight, trace.tv, trace.bias]
    return [round.verdict.accept_prob, *diagnostics, *(getattr(round, name) for name in OUTCOME)]


def _tensors(block: BlockOutput) -> dict[str, torch.Tensor]:
    return {item.name: getattr(block, item.name) for item in fields(block) if item.init and item.name != "sampled"}


def _no_replacement(positions: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("compiled verification returns no residual distribution")
