"""Buffers of fixed size that replace a model's cache, and a pool of them for CUDA graphs."""

import weakref
from dataclasses import dataclass
from threading import Lock

import torch
from torch import nn


SMALLEST_CAPACITY = 256
SMALLEST_GAMMA = 8
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


@dataclass(eq=False)
class Buffers:
    """Keys, values and positions of a batch of R rows, in tensors that keep their shape.

    Attributes:
        keys, values: `[R, heads, capacity, head_dim]` per layer; None for a layer that uses those of another layer.
        positions: long `[R, capacity]`. real: bool `[R, capacity]`, False at padding.
    """

    keys: States
    values: States
    positions: torch.Tensor
    real: torch.Tensor

    def tensors(self) -> list[torch.Tensor]:
        states = [states for states in (*self.keys, *self.values) if states is not None]
        return [*states, self.positions, self.real]

    def shapes(self) -> list[tuple]:
        """Return a key; buffers with equal keys are interchangeable."""
        return [(tensor.shape, tensor.dtype, tensor.device, tensor.is_inference()) for tensor in self.tensors()]


def pad_rows(values: torch.Tensor, size: int) -> torch.Tensor:
    """Return `values` `[B, ...]` as `[size, ...]`, with the strides of a new tensor; the last row is repeated.

    A contiguous tensor may have any stride along an axis of length 1, and guards compare strides. The result is not a
    view, because dynamo never frees its records of views.
    """
    missing = size - len(values)
    padded = torch.cat([values, values[-1:].expand(missing, *values.shape[1:])]) if missing else values
    return padded.contiguous().flatten().view(padded.shape).detach()


class BufferPool:
    """Buffers of each model, kept across calls because CUDA graphs use memory at fixed addresses.

    A call borrows buffers that no other call uses, so threads never share buffers.
    """

    def __init__(self) -> None:
        self._free: weakref.WeakKeyDictionary[nn.Module, list[Buffers]] = weakref.WeakKeyDictionary()
        self._lock = Lock()

    def borrow(self, model: nn.Module, new: Buffers) -> Buffers:
        """Return pooled buffers with the contents of `new`, or `new` itself if none of its shapes are free."""
        with self._lock:
            free = self._free.setdefault(model, [])
            fitting = next((buffers for buffers in free if buffers.shapes() == new.shapes()), None)
            if fitting is not None:
                free.remove(fitting)
        if fitting is None:
            for tensor in new.tensors():
                torch._dynamo.mark_static_address(tensor, guard=False)
            return new
        for pooled, contents in zip(fitting.tensors(), new.tensors()):
            pooled.copy_(contents)
        return fitting

    def take_back(self, model: nn.Module, buffers: Buffers) -> None:
        with self._lock:
            self._free.setdefault(model, []).append(buffers)

    def clear(self) -> None:
        with self._lock:
            self._free.clear()


pool = BufferPool()
