"""Runs vLLM's runner V2 verification, kernels included, in Triton's interpreter on a CPU; prints JSON.

A process of its own, as importing vLLM decides whether there is Triton: python -m tests.vllm.v2_in_interpreter DRAWS.
"""

# ruff: noqa: E402

import os
import sys
from types import SimpleNamespace


os.environ |= {"TRITON_INTERPRET": "1", "HF_DIVERSED_NO_HOOK": "1"}

import json

import torch
import triton.language as tl
from triton.backends import backends


# vLLM leaves Triton alone on CPUs unless there is a backend of that name, and the interpreter knows no libdevice.
backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: False), compiler=None)

from vllm.v1.worker.gpu.spec_decode import rejection_sampler, rejection_sampler_utils

from hf_diversed.serving.vllm import runner_v2
from hf_diversed.serving.vllm.deployment import Deployment
from tests.serving.fakes import engine, request, speculative


rejection_sampler_utils.tldevice = SimpleNamespace(log1p=lambda x: tl.log(1.0 + x))
VOCAB, TEMPERATURE = 8, 0.7


class Sampler:
    """As much of vLLM's as verification asks for: logits are processed already."""

    use_fp64_gumbel = False

    def __init__(self, count: int):
        self.needs_logits_processing = torch.zeros(count, dtype=torch.bool).numpy()
        self.sampling_states = SimpleNamespace(
            temperature=SimpleNamespace(gpu=torch.full((count,), TEMPERATURE)),
            seeds=SimpleNamespace(gpu=torch.arange(count)),
        )

    def add_request(self, req_idx, sampling_params):
        pass

    def apply_sampling_params(self, logits, *rest):
        return logits


def laws() -> tuple[torch.Tensor, torch.Tensor]:
    """Processed target logits, and the draft's before temperature: float32 `[V]`."""
    generator = torch.Generator().manual_seed(5)
    target, draft = 1.5 * torch.randn(2, VOCAB, generator=generator)
    return target, TEMPERATURE * draft


def verify(settings: dict, wishes: list[dict], draws: int, looked_up: bool = False) -> dict:
    """One drafted token and a bonus row for each of `draws` requests, which want `wishes` in turn."""
    drafting = {"method": "ngram", "draft_sample_method": "greedy"} if looked_up else {}
    sampler = Sampler(draws)
    runner_v2.serve(sampler, Deployment.of(engine(settings, speculative(**drafting), VOCAB)))
    for slot in range(draws):
        sampler.add_request(slot, request(TEMPERATURE, **wishes[slot % len(wishes)]))
    target, draft = laws()
    torch.manual_seed(1)
    drafted = torch.multinomial((draft / TEMPERATURE).softmax(-1), draws, replacement=True)
    if looked_up:
        drafted = drafted * 0 + 3
    stock = rejection_sampler.RejectionSampler.__new__(rejection_sampler.RejectionSampler)
    vars(stock).update(
        sampler=sampler,
        num_speculative_steps=1,
        synthetic_conditional_rates=None,
        use_block_verification=False,
        watermark_key=None,
    )
    slots = torch.arange(draws, dtype=torch.int32)
    rows, steps = slots.repeat_interleave(2), torch.tensor([0, 1], dtype=torch.int32).repeat(draws)
    tokens = torch.stack([torch.zeros_like(drafted), drafted], dim=1).flatten()
    _, sampled, count = stock._verify(
        target.repeat(2 * draws, 1),
        None if looked_up else draft.repeat(draws, 1, 1),
        tokens,
        torch.arange(2 * draws),
        torch.arange(0, 2 * draws + 1, 2, dtype=torch.int32),
        slots,
        slots.numpy(),
        rows,
        steps,
        None,
        tokens,
    )
    return {"tokens": sampled[:, 0].tolist(), "count": count.tolist(), "drafted": drafted.tolist()}


if __name__ == "__main__":
    draws = int(sys.argv[1])
    print(
        json.dumps(
            {
                "static": verify({"rule": "static:0.5"}, [{}], draws),
                "mixed": verify({"rule": "static:0.3"}, [{}, {"rule": "lossless"}, {"max_bias": 0.1}], draws),
                "looked up": verify({"rule": "static:0.6"}, [{}], draws, looked_up=True),
            }
        )
    )
