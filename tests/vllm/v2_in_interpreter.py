"""Run vLLM's runner V2 verification with its kernels in Triton's interpreter on a CPU; print JSON.

A separate process, because importing vLLM decides on Triton: python -m tests.vllm.v2_in_interpreter DRAWS.
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


# vLLM uses Triton on CPUs only with a backend of that name, and the interpreter has no libdevice.
backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: False), compiler=None)

from vllm.v1.worker.gpu.input_batch import expand_idx_mapping
from vllm.v1.worker.gpu.spec_decode import adaptive_verification, rejection_sampler, rejection_sampler_utils

from hf_diversed.serving.vllm import runner_v2
from hf_diversed.serving.vllm.deployment import Deployment
from tests.serving.fakes import engine, request, speculative
from tests.vllm.statistics import VOCAB, distributions


rejection_sampler_utils.tldevice = SimpleNamespace(log1p=lambda x: tl.log(1.0 + x))
TEMPERATURE = 0.7


class Sampler:
    """The part of vLLM's sampler that verification uses; logits are already processed."""

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


def verify(
    settings: dict, requests: list[dict], draws: int, sample: str = "probabilistic", trimmed: bool = False
) -> dict:
    """Verify one draft token and a bonus row for each of `draws` requests, with the settings in `requests` in turn.

    Args:
        sample: vLLM's `draft_sample_method`; greedy draft tokens have no distribution.
        trimmed: adaptive verification admits the draft tokens of every other request only.
    """
    sampler = Sampler(draws)
    runner_v2.serve(sampler, Deployment.of(engine(settings, speculative(draft_sample_method=sample), VOCAB)))
    for slot in range(draws):
        sampler.add_request(slot, request(TEMPERATURE, **requests[slot % len(requests)]))
    target, q = distributions()
    draft = TEMPERATURE * q.log()  # logits before temperature
    torch.manual_seed(1)
    drafted = torch.multinomial(q, draws, replacement=True)
    if sample == "greedy":
        drafted = torch.full_like(drafted, int(q.argmax()))
    stock = rejection_sampler.RejectionSampler.__new__(rejection_sampler.RejectionSampler)
    vars(stock).update(
        sampler=sampler,
        num_speculative_steps=1,
        synthetic_conditional_rates=None,
        use_block_verification=False,
        watermark_key=None,
    )
    slots = torch.arange(draws, dtype=torch.int32)
    admitted = torch.ones_like(slots)
    if trimmed:
        adaptive_verification._assign_draft_token_budget(torch.rand(draws, 1), slots, admitted, draws // 2, 1)
    ends = torch.cat([torch.zeros_like(slots[:1]), (admitted + 1).cumsum(0)]).int()
    rows, steps = expand_idx_mapping(slots, int(ends[-1]), ends, 2)
    tokens = torch.where(steps == 0, 0, drafted[rows.long()])
    _, sampled, count = stock._verify(
        target.repeat(len(rows), 1),
        None if sample == "greedy" else draft.repeat(draws, 1, 1),
        tokens,
        torch.arange(len(rows)),
        ends,
        slots,
        slots.numpy(),
        rows,
        steps,
        None,
        tokens,
    )
    found = {"tokens": sampled[:, 0], "count": count, "drafted": drafted, "admitted": admitted}
    return {name: values.tolist() for name, values in found.items()}


if __name__ == "__main__":
    draws = int(sys.argv[1])
    print(
        json.dumps(
            {
                "static": verify({"verifier": "static:0.5"}, [{}], draws),
                "mixed": verify({"verifier": "static:0.3"}, [{}, {"verifier": "lossless"}, {"max_bias": 0.1}], draws),
                "greedy": verify({"verifier": "lenience:0.8"}, [{}, {"verifier": "lossless"}], draws, "greedy"),
                "trimmed": verify({"verifier": "static:0.5"}, [{}], draws, trimmed=True),
            }
        )
    )
