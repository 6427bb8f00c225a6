"""vLLM's model runner V1 (CPU, and GPUs without Triton): our logits for its `rejection_sample`.

vLLM: `v1/worker/gpu_model_runner.py` knows the requests of a batch, `v1/sample/rejection_sampler.py` their laws. What
the first says is handed to the second by a context variable; other engines of the process see nothing of it.
"""

import functools
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from hf_diversed.serving.vllm.deployment import Deployment
from hf_diversed.serving.vllm.law import Asked, served_logits
from hf_diversed.serving.vllm.requests import any_relaxed, place_rules, read_safely


_MODULE = "vllm.v1.sample.rejection_sampler"
_MARK = "_hf_diversed"


@dataclass(frozen=True)
class _Batch:
    """The requests whose drafts are being verified, in the order of the batch."""

    deployment: Deployment
    asked: list[Asked]


_BATCH: ContextVar[_Batch | None] = ContextVar("batch", default=None)


def serve(runner: Any, deployment: Deployment) -> None:
    """Let a `GPUModelRunner` verify by the rules of a deployment."""
    place_rules(deployment, runner.device)
    module = importlib.import_module(_MODULE)
    wrap_verification(module)
    stock = runner._sample
    known: dict[str, tuple[Any, Asked]] = {}

    @functools.wraps(stock)
    def _sample(logits: Any, spec_decode_metadata: Any) -> Any:
        nonlocal known
        if spec_decode_metadata is None:
            return stock(logits, spec_decode_metadata)
        if runner.device.type == "cpu":
            mend_expansion(module)
        known = {name: _read(deployment, runner, name, known) for name in runner.input_batch.req_ids}
        with verifying(deployment, [asked for _, asked in known.values()]):
            return stock(logits, spec_decode_metadata)

    runner._sample = _sample


@contextmanager
def verifying(deployment: Deployment, asked: list[Asked]) -> Iterator[None]:
    """What is verified inside is drafts of requests that want `asked`, in the order of the batch."""
    token = _BATCH.set(_Batch(deployment, asked))
    try:
        yield
    finally:
        _BATCH.reset(token)


def _read(deployment: Deployment, runner: Any, name: str, known: dict[str, tuple[Any, Asked]]) -> tuple[Any, Asked]:
    """A request's parameters and what they ask for, read anew only if they are others than in the last round."""
    params = runner.requests[name].sampling_params
    before = known.get(name)
    return before if before is not None and before[0] is params else (params, read_safely(deployment, params))


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
    batch: _Batch,
    draft_token_ids: torch.Tensor,
    num_draft_tokens: list[int],
    draft_probs: torch.Tensor | None,
    target_logits: torch.Tensor,
) -> torch.Tensor:
    present = set(batch.asked)
    # Without the laws of drafts that have some (vLLM says so in its log) only the target's is sure to be followed.
    if not any_relaxed(present) or (draft_probs is None) != batch.deployment.looked_up:
        return target_logits
    rows = [asked.row() for asked, count in zip(batch.asked, num_draft_tokens) for _ in range(count)]
    table = torch.tensor(rows, dtype=torch.float32, pin_memory=target_logits.is_cuda)
    table = table.to(target_logits.device, non_blocking=True)
    return served_logits(batch.deployment.rules, present, table, target_logits, draft_probs, draft_token_ids)


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
