"""vLLM's model runner V1 (CPU, and GPUs without Triton): our logits for its `rejection_sample`.

vLLM's `v1/worker/gpu_model_runner.py` knows the requests of a batch, and `v1/sample/rejection_sampler.py` receives
their distributions. A context variable passes the requests from the first to the second, for one engine at a time.
"""

import functools
import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import torch

from hf_diversed.serving.vllm.deployment import Deployment
from hf_diversed.serving.vllm.logits import COLUMNS, LOSSLESS, RequestSettings, served_logits


_MODULE = "vllm.v1.sample.rejection_sampler"
_MARK = "_hf_diversed"


class Batch:
    """The settings of the requests being verified, in the order of the batch; reused for the same requests."""

    def __init__(self, deployment: Deployment, settings: Sequence[RequestSettings]):
        self.deployment, self.settings = deployment, settings
        self.present = frozenset(settings)
        self.is_relaxed = any(one.verifier != LOSSLESS for one in settings)
        self._counts: list[int] = []
        self._table: torch.Tensor | None = None

    def table(self, counts: list[int], device: torch.device) -> torch.Tensor:
        """Return float32 `[N, COLUMNS]`: one `RequestSettings.row` per draft token; `counts` are per request."""
        if self._table is None or counts != self._counts:
            rows = [row for one, count in zip(self.settings, counts) for row in [one.row()] * count]
            table = torch.tensor(rows, dtype=torch.float32, pin_memory=device.type == "cuda").view(-1, COLUMNS)
            self._counts, self._table = list(counts), table.to(device, non_blocking=True)
        return self._table


_BATCH: ContextVar[Batch | None] = ContextVar("batch", default=None)


def serve(runner: Any, deployment: Deployment) -> None:
    """Patch a `GPUModelRunner` to verify with the deployment's verifiers."""
    deployment.to(runner.device)
    module = importlib.import_module(_MODULE)
    wrap_verification(module)
    original = runner._sample
    requests: list[Any] = []
    batch = Batch(deployment, [])

    @functools.wraps(original)
    def _sample(logits: Any, spec_decode_metadata: Any) -> Any:
        nonlocal requests, batch
        if spec_decode_metadata is None:
            return original(logits, spec_decode_metadata)
        if runner.device.type == "cpu":
            fix_expand_batch_to_tokens(module)
        present = [runner.requests[name].sampling_params for name in runner.input_batch.req_ids]
        if len(present) != len(requests) or any(a is not b for a, b in zip(present, requests)):
            known = {id(params): settings for params, settings in zip(requests, batch.settings)}
            read = (known.get(id(params)) or deployment.request_or_lossless(params) for params in present)
            requests, batch = present, Batch(deployment, list(read))
        with verifying(batch):
            return original(logits, spec_decode_metadata)

    runner._sample = _sample


@contextmanager
def verifying(batch: Batch) -> Iterator[None]:
    """Apply the settings of `batch` in `rejection_sample` inside the `with` block."""
    token = _BATCH.set(batch)
    try:
        yield
    finally:
        _BATCH.reset(token)


def wrap_verification(module: ModuleType) -> None:
    """Let the module's `rejection_sample` use the batch's verifiers inside `verifying`; a second call does nothing."""
    original = module.rejection_sample
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def rejection_sample(
        draft_token_ids: torch.Tensor,
        num_draft_tokens: list[int],
        max_spec_len: int,
        cu_num_draft_tokens: torch.Tensor,
        draft_probs: torch.Tensor | None,
        target_logits: torch.Tensor,
        *rest: Any,
        **named: Any,
    ) -> torch.Tensor:
        batch = _BATCH.get()
        if batch is not None:
            target_logits = _relaxed(batch, draft_token_ids, num_draft_tokens, draft_probs, target_logits)
        return original(
            draft_token_ids,
            num_draft_tokens,
            max_spec_len,
            cu_num_draft_tokens,
            draft_probs,
            target_logits,
            *rest,
            **named,
        )

    setattr(rejection_sample, _MARK, True)
    module.rejection_sample = rejection_sample  # type: ignore[attr-defined]


def _relaxed(
    batch: Batch,
    draft_token_ids: torch.Tensor,
    num_draft_tokens: list[int],
    draft_probs: torch.Tensor | None,
    target_logits: torch.Tensor,
) -> torch.Tensor:
    deployment = batch.deployment
    # vLLM can lose the draft distributions for a round (it logs that); such a round is verified losslessly.
    if not batch.is_relaxed or (draft_probs is None) != deployment.one_hot:
        return target_logits
    table = batch.table(num_draft_tokens, target_logits.device)
    return served_logits(deployment.verifiers, batch.present, table, target_logits, draft_probs, draft_token_ids)


def fix_expand_batch_to_tokens(module: ModuleType) -> None:
    """Replace `expand_batch_to_tokens` if it returns uninitialised memory, as in vLLM 0.32 on CPUs.

    vLLM's substitute for the kernel fills an integer copy of a float output and drops the copy, so temperatures and
    top-p per token are arbitrary (https://github.com/vllm-project/vllm/issues/55005). Detected by calling it.
    """
    original = module.expand_batch_to_tokens
    if hasattr(original, _MARK):
        return
    values, counts = torch.tensor([0.75, 1.25], dtype=torch.float32), torch.tensor([1, 3], dtype=torch.int32)
    found = original(values, counts, 3).tolist()
    fixed = original if found == [0.75, 1.25, 1.25] else expand_batch_to_tokens
    setattr(fixed, _MARK, True)
    module.expand_batch_to_tokens = fixed  # type: ignore[attr-defined]


def expand_batch_to_tokens(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """Return each request's value at each of its tokens, `[num_tokens]` from `[B]`, with one value replaced."""
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    replaced = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return replaced.repeat_interleave(counts.long(), output_size=num_tokens)
