"""Runner V2's verification, with a sampler and a module that imitate vLLM's."""

import sys
from types import ModuleType

import numpy as np
import pytest
import torch

from hf_diversed.serving.vllm import runner_v2
from hf_diversed.serving.vllm.deployment import Deployment
from hf_diversed.serving.vllm.logits import RequestSettings, served_logits
from tests.serving.fakes import engine, request, speculative


VOCAB, STEPS, SLOTS = 8, 3, 6


class Sampler:
    def __init__(self):
        self.needs_logits_processing = np.zeros(SLOTS, dtype=bool)
        self.added = []

    def add_request(self, req_idx, sampling_params):
        self.added.append(req_idx)


class RejectionSampler:
    """`_verify` passes its batch to the module's `rejection_sample`, as in vLLM."""

    def __init__(self, sampler):
        self.sampler = sampler

    def _verify(self, logits, draft_logits, draft_sampled, pos, cu_num_logits, idx_mapping, idx_mapping_np, *rest):
        slots, steps, temperatures = rest
        verify = sys.modules[runner_v2.MODULE].rejection_sample
        mapping = (idx_mapping, slots, steps, temperatures, None, STEPS)
        return verify(logits, draft_logits, draft_sampled, cu_num_logits, pos, *mapping, use_fp64=True)


@pytest.fixture
def module(monkeypatch):
    module = ModuleType(runner_v2.MODULE)
    module.rejection_sample = lambda target_logits, *rest, **named: target_logits
    module.RejectionSampler = type("RejectionSampler", (RejectionSampler,), {})
    monkeypatch.setitem(sys.modules, runner_v2.MODULE, module)
    return module


def verify(module, sampler, drafted: dict[int, int], draft_logits=True, width: int = VOCAB):
    """Verify a batch of requests, slot -> number of draft tokens; return logits before and after, tokens and q.

    Args:
        width: number of the target's ids, which may be padded to more than the draft's.
    """
    generator = torch.Generator().manual_seed(0)
    slots = torch.tensor([slot for slot, count in drafted.items() for _ in range(count + 1)], dtype=torch.int32)
    steps = torch.cat([torch.arange(count + 1) for count in drafted.values()]).int()
    logits = torch.randn(len(slots), width, generator=generator)
    tokens = torch.randint(0, VOCAB, (len(slots),), generator=generator).int()
    tokens[steps == 0] = width - 1  # an id of the target that the draft may not have
    kept = torch.randn(SLOTS, STEPS, VOCAB, generator=generator) if draft_logits else None
    temperatures = torch.tensor([1.0, 0.5, 2.0, 0.0, 1.0, 1.0])
    order = np.array(list(drafted))
    served = module.RejectionSampler(sampler)._verify(
        logits, kept, tokens, None, None, torch.tensor(order), order, slots, steps, temperatures
    )
    q = None if kept is None else (kept / temperatures.clamp_min(0.1)[:, None, None]).softmax(-1)
    return logits, served, tokens, q


def served_sampler(module, settings, **drafting):
    sampler = Sampler()
    runner_v2.serve(sampler, Deployment.of(engine(settings, speculative(**drafting))))
    return sampler


def test_every_row_is_verified_by_its_slot_and_step(module):
    """Catches the draft token of another row, distributions of another step or temperature, and relaxed bonus rows."""
    sampler = served_sampler(module, {"verifier": "static:0.5"})
    requests = {4: {}, 1: {"max_bias": 0.1}, 3: {}, 2: {"verifier": "lossless"}}
    for slot, fields in requests.items():
        sampler.add_request(slot, request(0.0 if slot == 3 else 1.0, **fields))
    assert sampler.added == [4, 1, 3, 2]
    logits, served, tokens, q = verify(module, sampler, {4: 2, 1: 3, 3: 1, 2: 2})
    relaxed = {0: (4, 0), 1: (4, 1), 3: (1, 0), 4: (1, 1), 5: (1, 2)}
    verifiers = Deployment.of(engine({"verifier": "static:0.5"})).verifiers
    for row in range(len(logits)):
        if row not in relaxed:
            assert torch.equal(served[row], logits[row]), row
            continue
        slot, step = relaxed[row]
        settings = RequestSettings(1, max_bias=0.1) if slot == 1 else RequestSettings(1)
        table, mine = torch.tensor([settings.row()]), slice(row, row + 1)
        expected = served_logits(
            verifiers, {settings}, table, logits[mine], q[slot, step][None], tokens[row + 1][None]
        )
        torch.testing.assert_close(served[mine], expected, rtol=1e-5, atol=1e-6)
        assert not torch.equal(served[row], logits[row])


def test_slots_and_samplers_are_apart(module):
    """Catches a table on the device that is not updated when a slot gets another request, and a verifier of one engine
    that verifies another engine's draft tokens."""
    sampler = served_sampler(module, {"verifier": "static:0.5"})
    sampler.add_request(0, request())
    first, relaxed, _, _ = verify(module, sampler, {0: 3})
    assert not torch.equal(first, relaxed)
    first, same, _, _ = verify(module, Sampler(), {0: 3})
    assert torch.equal(first, same)
    sampler.add_request(0, request(verifier="lossless"))
    first, same, _, _ = verify(module, sampler, {0: 3})
    assert torch.equal(first, same)
    sampler.add_request(0, request(max_bias=0.01))
    first, bounded, _, _ = verify(module, sampler, {0: 3}, width=VOCAB + 4)  # a target that is padded to more ids
    assert not torch.equal(first[:, :VOCAB], bounded)
    assert bounded.shape[1] == VOCAB


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_padding_is_verified_losslessly(module, method):
    """Catches repetitions of the last token, with which an n-gram lookup fills rounds, accepted as draft tokens."""
    sampler = served_sampler(module, {"verifier": "static:0.0"}, method=method)
    drafted = {slot: STEPS for slot in range(SLOTS)}
    for slot in drafted:
        sampler.add_request(slot, request())
    logits, served, tokens, _ = verify(module, sampler, drafted, draft_logits=False)
    bonus = torch.arange(len(tokens)) % (STEPS + 1) == STEPS
    padding = (tokens.roll(-1) == VOCAB - 1) & ~bonus  # the last token of each request is VOCAB - 1
    assert padding.any()
    stays = bonus | padding if method == "ngram" else bonus
    assert torch.equal((served == logits).all(-1), stays)


def test_draft_tokens_without_distributions(module):
    """Catches greedy draft tokens verified losslessly, and missing distributions that are treated as one-hot."""
    greedy = served_sampler(module, {"verifier": "static:0.5"}, draft_sample_method="greedy")
    greedy.add_request(0, request())
    logits, served, _, _ = verify(module, greedy, {0: 2}, draft_logits=False)
    assert [torch.equal(*rows) for rows in zip(logits, served)] == [False, False, True]
    sampled = served_sampler(module, {"verifier": "static:0.5"})
    sampled.add_request(0, request())
    logits, served, _, _ = verify(module, sampled, {0: 2}, draft_logits=False)
    assert torch.equal(logits, served)
