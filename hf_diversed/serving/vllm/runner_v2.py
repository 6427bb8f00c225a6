"""vLLM's model runner V2 (the default where Triton is): our logits for its `rejection_sample`.

Requests live in slots: `Sampler.add_request` fills one, and `RejectionSampler._verify` says which slots a batch is of.
Draft logits are kept by slot and step, before temperature; a request's last row of target logits is its bonus token's.
This has run on vLLM's own modules with tensors on a CPU, Triton's interpreter included, and not on a GPU.
"""

import functools
import importlib
import inspect
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from hf_diversed.serving.vllm.deployment import Deployment
from hf_diversed.serving.vllm.law import COLUMNS, LOSSLESS, Asked, served_logits
from hf_diversed.serving.vllm.requests import any_relaxed, place_rules, read_safely


_MODULE = "vllm.v1.worker.gpu.spec_decode.rejection_sampler"
_MARK = "_hf_diversed"


class Slots:
    """What the requests in an engine's slots want, on the host, and as a table on the device that samples.

    Args:
        count: how many slots there are.
    """

    def __init__(self, deployment: Deployment, count: int):
        self.deployment = deployment
        self._asked = [Asked()] * count
        self._rows = torch.zeros(count, COLUMNS)
        self._table: torch.Tensor | None = None

    def fill(self, slot: int, params: Any) -> None:
        """Put a request with vLLM's sampling parameters into a slot."""
        asked = read_safely(self.deployment, params)
        if asked != self._asked[slot] or self._table is None:
            self._asked[slot] = asked
            self._rows[slot] = torch.tensor(asked.row())
            self._table = None

    def present(self, slots: Any) -> set[Asked]:
        return {self._asked[slot] for slot in slots.tolist()}

    def table(self, device: torch.device) -> torch.Tensor:
        """float32 `[count, COLUMNS]`; sent to the device when a request came that wants something else."""
        if self._table is None:
            place_rules(self.deployment, device)
            rows = self._rows.pin_memory() if device.type == "cuda" else self._rows.clone()
            self._table = rows.to(device, non_blocking=True)
        return self._table


@dataclass(frozen=True)
class _Batch:
    slots: Slots
    present: set[Asked]


_BATCH: ContextVar[_Batch | None] = ContextVar("batch", default=None)


def serve(sampler: Any, deployment: Deployment) -> None:
    """Let the rejection sampler around a `Sampler` verify by the rules of a deployment."""
    slots = Slots(deployment, len(sampler.needs_logits_processing))
    sampler.diversed_slots = slots
    stock = sampler.add_request

    @functools.wraps(stock)
    def add_request(req_idx: int, sampling_params: Any) -> None:
        stock(req_idx, sampling_params)
        slots.fill(req_idx, sampling_params)

    sampler.add_request = add_request
    _wrap_verification(importlib.import_module(_MODULE))


def _wrap_verification(module: ModuleType) -> None:
    verify, stock = module.RejectionSampler._verify, module.rejection_sample
    if hasattr(stock, _MARK):
        return
    signature = inspect.signature(verify)

    @functools.wraps(verify)
    def _verify(self: Any, *args: Any, **named: Any) -> Any:
        slots = getattr(self.sampler, "diversed_slots", None)
        if slots is None:
            return verify(self, *args, **named)
        said = signature.bind(self, *args, **named).arguments
        token = _BATCH.set(_Batch(slots, slots.present(said["idx_mapping_np"])))
        try:
            return verify(self, *args, **named)
        finally:
            _BATCH.reset(token)

    @functools.wraps(stock)
    def rejection_sample(
        target_logits: torch.Tensor,
        draft_logits: torch.Tensor | None,
        draft_sampled: torch.Tensor,
        cu_num_logits: torch.Tensor,
        pos: torch.Tensor,
        idx_mapping: torch.Tensor,
        expanded_idx_mapping: torch.Tensor,
        expanded_local_pos: torch.Tensor,
        temperature: torch.Tensor,
        *rest: Any,
        **named: Any,
    ) -> Any:
        batch = _BATCH.get()
        if batch is not None:
            rows = _Rows(draft_sampled, expanded_idx_mapping.long(), expanded_local_pos.long(), temperature)
            target_logits = _relaxed(batch, target_logits, draft_logits, rows)
        mapping = (idx_mapping, expanded_idx_mapping, expanded_local_pos)
        return stock(
            target_logits, draft_logits, draft_sampled, cu_num_logits, pos, *mapping, temperature, *rest, **named
        )

    setattr(rejection_sample, _MARK, True)
    module.RejectionSampler._verify = _verify
    module.rejection_sample = rejection_sample  # type: ignore[attr-defined]


@dataclass(frozen=True, eq=False)
class _Rows:
    """Where each row of target logits belongs, `[N]` each, bonus rows included.

    Attributes:
        tokens: int, the token that each row's position was fed; the draft that a row judges is the next row's.
        slots: long. steps: long, from 0 at a request's first row. temperatures: float32 by slot.
    """

    tokens: torch.Tensor
    slots: torch.Tensor
    steps: torch.Tensor
    temperatures: torch.Tensor

    def judging(self) -> tuple[torch.Tensor, torch.Tensor]:
        """bool `[N]`, all but the bonus rows, and int `[N]`, the draft that each of them judges; elsewhere some id."""
        judges = self.steps.roll(-1) > 0
        judges[-1] = False
        return judges, torch.where(judges, self.tokens.roll(-1), 0)


def _relaxed(
    batch: _Batch, target_logits: torch.Tensor, draft_logits: torch.Tensor | None, rows: _Rows
) -> torch.Tensor:
    deployment = batch.slots.deployment
    if not any_relaxed(batch.present) or (draft_logits is None) != deployment.looked_up:
        return target_logits
    judges, drafts = rows.judging()
    table = torch.where(judges[:, None], batch.slots.table(target_logits.device)[rows.slots], LOSSLESS)
    q, width = None, target_logits.shape[1]
    if draft_logits is not None:
        # A target padded to more ids than its draft: the kernels look at the draft's only.
        width = min(width, draft_logits.shape[-1])
        heat = rows.temperatures[rows.slots].float()
        heat = torch.where(heat == 0.0, 1.0, heat)[:, None]
        steps = rows.steps.clamp_max(draft_logits.shape[1] - 1)
        q = (draft_logits[rows.slots, steps, :width].float() / heat).softmax(-1)
    present = batch.present | {Asked()}  # what bonus rows want
    return served_logits(deployment.rules, present, table, target_logits[:, :width], q, drafts)


assert LOSSLESS == 0, "an empty row of the table is lossless"
