"""vLLM's model runner V2 (the default where Triton is): our logits for its `rejection_sample`.

Requests occupy slots: `Sampler.add_request` fills one, and `RejectionSampler._verify` receives the slots of a batch.
Draft logits are stored by slot and step, before temperature; a request's last row of target logits is its bonus
token's. This has run on vLLM's own modules with tensors on a CPU, with Triton's interpreter, and not on a GPU.
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
from hf_diversed.serving.vllm.logits import LOSSLESS, RequestSettings, served_logits


MODULE = "vllm.v1.worker.gpu.spec_decode.rejection_sampler"
_MARK = "_hf_diversed"


class Slots:
    """The settings of the requests in an engine's slots, on the host and as a table on the device that samples."""

    def __init__(self, deployment: Deployment, count: int):
        self.deployment = deployment
        self._settings = [RequestSettings()] * count
        self._rows = torch.tensor([settings.row() for settings in self._settings], dtype=torch.float32)
        self._table: torch.Tensor | None = None

    def fill(self, slot: int, params: Any) -> None:
        """Store the settings of a request, given by its vLLM sampling parameters, in a slot."""
        settings = self.deployment.request_or_lossless(params)
        if settings != self._settings[slot] or self._table is None:
            self._settings[slot] = settings
            self._rows[slot] = torch.tensor(settings.row(), dtype=torch.float32)
            self._table = None

    def present(self, slots: Any) -> set[RequestSettings]:
        return {self._settings[slot] for slot in slots.tolist()}

    def table(self, device: torch.device) -> torch.Tensor:
        """Return float32 `[count, COLUMNS]`, copied to the device only after a slot has changed."""
        if self._table is None:
            self.deployment.to(device)
            rows = self._rows.pin_memory() if device.type == "cuda" else self._rows.clone()
            self._table = rows.to(device, non_blocking=True)
        return self._table


@dataclass(frozen=True)
class Batch:
    slots: Slots
    present: set[RequestSettings]


_BATCH: ContextVar[Batch | None] = ContextVar("batch", default=None)


def serve(sampler: Any, deployment: Deployment) -> None:
    """Let the rejection sampler of a `Sampler` verify with a deployment's verifiers."""
    slots = Slots(deployment, len(sampler.needs_logits_processing))
    sampler.diversed_slots = slots
    original = sampler.add_request

    @functools.wraps(original)
    def add_request(req_idx: int, sampling_params: Any) -> None:
        original(req_idx, sampling_params)
        slots.fill(req_idx, sampling_params)

    sampler.add_request = add_request
    _wrap_verification(importlib.import_module(MODULE))


def _wrap_verification(module: ModuleType) -> None:
    verify, original = module.RejectionSampler._verify, module.rejection_sample
    if hasattr(original, _MARK):
        return
    signature = inspect.signature(verify)

    @functools.wraps(verify)
    def _verify(self: Any, *args: Any, **named: Any) -> Any:
        slots = getattr(self.sampler, "diversed_slots", None)
        if slots is None:
            return verify(self, *args, **named)
        arguments = signature.bind(self, *args, **named).arguments
        token = _BATCH.set(Batch(slots, slots.present(arguments["idx_mapping_np"])))
        try:
            return verify(self, *args, **named)
        finally:
            _BATCH.reset(token)

    @functools.wraps(original)
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
            rows = Rows(draft_sampled, expanded_idx_mapping.long(), expanded_local_pos.long(), temperature)
            target_logits = relaxed(batch, target_logits, draft_logits, rows)
        mapping = (idx_mapping, expanded_idx_mapping, expanded_local_pos)
        return original(
            target_logits, draft_logits, draft_sampled, cu_num_logits, pos, *mapping, temperature, *rest, **named
        )

    setattr(rejection_sample, _MARK, True)
    module.RejectionSampler._verify = _verify
    module.rejection_sample = rejection_sample  # type: ignore[attr-defined]


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of target logits, bonus rows included, `[N]` each.

    Attributes:
        tokens: int, the input token of each row; the draft token that a row verifies is the next row's input.
        slots: long. steps: long, 0 at a request's first row. temperatures: float32 by slot.
    """

    tokens: torch.Tensor
    slots: torch.Tensor
    steps: torch.Tensor
    temperatures: torch.Tensor

    def drafted(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return bool `[N]`, False at bonus rows, and int `[N]`, the draft token that each other row verifies."""
        verifies = self.steps.roll(-1) > 0
        verifies[-1] = False
        return verifies, torch.where(verifies, self.tokens.roll(-1), 0)

    def last(self) -> torch.Tensor:
        """Return int `[N]`, the last token before the draft tokens of each row's request."""
        return self.tokens[torch.arange(len(self.tokens), device=self.tokens.device) - self.steps]


def relaxed(batch: Batch, target_logits: torch.Tensor, draft_logits: torch.Tensor | None, rows: Rows) -> torch.Tensor:
    deployment = batch.slots.deployment
    relaxed = any(settings.verifier != LOSSLESS for settings in batch.present)
    if not relaxed or (draft_logits is None) != deployment.one_hot:
        return target_logits
    verifies, draft_tokens = rows.drafted()
    if deployment.pads:  # padding would be accepted as if it had been found, so it is verified losslessly
        draft_tokens = torch.where(draft_tokens == rows.last(), -1, draft_tokens)
    table = torch.where(verifies[:, None], batch.slots.table(target_logits.device)[rows.slots], LOSSLESS)
    q, width = None, target_logits.shape[1]
    if draft_logits is not None:
        # If the target is padded to more ids than the draft, the kernels read the draft's width only.
        width = min(width, draft_logits.shape[-1])
        temperature = rows.temperatures[rows.slots].float()
        temperature = torch.where(temperature == 0.0, 1.0, temperature)[:, None]
        steps = rows.steps.clamp_max(draft_logits.shape[1] - 1)
        q = draft_logits[rows.slots, steps, :width].float().div_(temperature).softmax(-1)
    return served_logits(deployment.verifiers, batch.present, table, target_logits[:, :width], q, draft_tokens)


assert LOSSLESS == 0, "an empty row of the table is lossless"
