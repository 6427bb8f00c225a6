"""vLLM's model runner V1 (CPU, and GPUs without Triton): our logits for its `rejection_sample`.

vLLM: `v1/worker/gpu_model_runner.py` knows the requests of a batch, `v1/sample/rejection_sampler.py` their laws. What
the first says is handed to the second by a context variable; other engines of the process see nothing of it.
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
from hf_diversed.serving.vllm.law import Asked, served_logits
from hf_diversed.serving.vllm.requests import any_relaxed, place_rules, read_safely


_MODULE = "vllm.v1.sample.rejection_sampler"
_MARK = "_hf_diversed"


class Batch:
    """The requests whose drafts are being verified, in the order of the batch.

    What hangs on them alone is computed once: the same requests come round after round.
    """

    def __init__(self, deployment: Deployment, asked: Sequence[Asked]):
        self.deployment, self.asked = deployment, asked
        self.present = frozenset(asked)
        self.is_relaxed = any_relaxed(self.present)
        self._counts: list[int] = []
        self._table: torch.Tensor | None = None

    def table(self, counts: list[int], device: torch.device) -> torch.Tensor:
        """float32 `[N, COLUMNS]`, `Asked.row` of every draft's request, of which each has so many."""
        if self._table is None or counts != self._counts:
            rows = [row for asked, count in zip(self.asked, counts) for row in [asked.row()] * count]
            table = torch.tensor(rows, dtype=torch.float32, pin_memory=device.type == "cuda")
            self._counts, self._table = list(counts), table.to(device, non_blocking=True)
        return self._table


_BATCH: ContextVar[Batch | None] = ContextVar("batch", default=None)


def serve(runner: Any, deployment: Deployment) -> None:
    """Let a `GPUModelRunner` verify by the rules of a deployment."""
    place_rules(deployment, runner.device)
    module = importlib.import_module(_MODULE)
    wrap_verification(module)
    stock = runner._sample
    requests: list[Any] = []
    batch = Batch(deployment, [])

    @functools.wraps(stock)
    def _sample(logits: Any, spec_decode_metadata: Any) -> Any:
        nonlocal requests, batch
        if spec_decode_metadata is None:
            return stock(logits, spec_decode_metadata)
        if runner.device.type == "cpu":
            mend_expansion(module)
        present = [runner.requests[name].sampling_params for name in runner.input_batch.req_ids]
        if len(present) != len(requests) or any(a is not b for a, b in zip(present, requests)):
            known = {id(params): asked for params, asked in zip(requests, batch.asked)}
            read = (known.get(id(params)) or read_safely(deployment, params) for params in present)
            requests, batch = present, Batch(deployment, list(read))
        with verifying(batch):
            return stock(logits, spec_decode_metadata)

    runner._sample = _sample


@contextmanager
def verifying(batch: Batch) -> Iterator[None]:
    """What is verified inside is drafts of the requests of a batch."""
    token = _BATCH.set(batch)
    try:
        yield
    finally:
        _BATCH.reset(token)


def wrap_verification(module: ModuleType) -> None:
    """Have the module's `rejection_sample` follow the rules inside `verifying`; once."""
    stock = module.rejection_sample
    if hasattr(stock, _MARK):
        return

    @functools.wraps(stock)
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
        return stock(
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
    # Without the laws of drafts that have some (vLLM says so in its log) only the target's is sure to be followed.
    if not batch.is_relaxed or (draft_probs is None) != deployment.looked_up:
        return target_logits
    table = batch.table(num_draft_tokens, target_logits.device)
    return served_logits(deployment.rules, batch.present, table, target_logits, draft_probs, draft_token_ids)


def mend_expansion(module: ModuleType) -> None:
    """Replace `expand_batch_to_tokens` where it returns what happened to be in memory, as in vLLM 0.32 on CPUs.

    Its stand-in for the kernel converts a float output to integers, fills that copy and drops it, so temperatures and
    top-p per token are arbitrary (https://github.com/vllm-project/vllm/issues/55005). It is asked, not its version.
    """
    stock = module.expand_batch_to_tokens
    if hasattr(stock, _MARK):
        return
    found = stock(torch.tensor([0.75, 1.25]), torch.tensor([1, 3], dtype=torch.int32), 3).tolist()
    mended = stock if found == [0.75, 1.25, 1.25] else expand_batch_to_tokens
    setattr(mended, _MARK, True)
    module.expand_batch_to_tokens = mended  # type: ignore[attr-defined]


def expand_batch_to_tokens(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """Every request's value at each of its tokens: `[num_tokens]` from `[B]`, with one value replaced by another."""
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    replaced = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return replaced.repeat_interleave(counts.long(), output_size=num_tokens)
