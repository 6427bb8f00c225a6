"""Runner V2's verification, with a sampler and a module that look like vLLM's and are not."""

import sys
from types import ModuleType

import numpy as np
import pytest
import torch

from hf_diversed.serving.vllm import runner_v2
from hf_diversed.serving.vllm.deployment import Deployment
from hf_diversed.serving.vllm.law import Asked, served_logits
from tests.serving.fakes import engine, request, speculative


VOCAB, STEPS, SLOTS = 8, 3, 6


class Sampler:
    def __init__(self):
        self.needs_logits_processing = np.zeros(SLOTS, dtype=bool)
        self.added = []

    def add_request(self, req_idx, sampling_params):
        self.added.append(req_idx)


def rejection_sample(target_logits, draft_logits, draft_sampled, cu_num_logits, pos, *mapping, use_fp64=False):
    return target_logits


class RejectionSampler:
    """`_verify` hands its batch to the module's `rejection_sample`, as vLLM's does."""

    def __init__(self, sampler):
        self.sampler = sampler

    def _verify(self, logits, draft_logits, draft_sampled, pos, cu_num_logits, idx_mapping, idx_mapping_np, *rest):
        slots, steps, temperatures = rest
        verify = sys.modules[runner_v2._MODULE].rejection_sample
        mapping = (idx_mapping, slots, steps, temperatures, None, STEPS)
        return verify(logits, draft_logits, draft_sampled, cu_num_logits, pos, *mapping, use_fp64=True)


@pytest.fixture
def module(monkeypatch):
    module = ModuleType(runner_v2._MODULE)
    module.rejection_sample = lambda *args, **named: rejection_sample(*args, **named)
    module.RejectionSampler = type("RejectionSampler", (RejectionSampler,), {})
    monkeypatch.setitem(sys.modules, runner_v2._MODULE, module)
    return module


def verify(module, sampler, drafted: dict[int, int], draft_logits=True, width: int = VOCAB):
    """Verify a batch of requests, slot -> number of drafts: logits before and after, and what q and the drafts were.

    Args:
        width: of the target, which may be padded to more ids than the draft.
    """
    generator = torch.Generator().manual_seed(0)
    slots = torch.tensor([slot for slot, count in drafted.items() for _ in range(count + 1)], dtype=torch.int32)
    steps = torch.cat([torch.arange(count + 1) for count in drafted.values()]).int()
    logits = torch.randn(len(slots), width, generator=generator)
    tokens = torch.randint(0, VOCAB, (len(slots),), generator=generator).int()
    tokens[steps == 0] = width - 1  # the target's own, which the draft may not know
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


def test_every_row_is_judged_by_its_slot_and_step(module):
    """Catches a draft taken from the row it was fed to, laws of another step or temperature, and bonus rows that are
    relaxed: they have no draft."""
    sampler = served_sampler(module, {"rule": "static:0.5"})
    asked = {4: {}, 1: {"max_bias": 0.1}, 3: {}, 2: {"rule": "lossless"}}
    for slot, wishes in asked.items():
        sampler.add_request(slot, request(0.0 if slot == 3 else 1.0, **wishes))
    assert sampler.added == [4, 1, 3, 2]
    logits, served, tokens, q = verify(module, sampler, {4: 2, 1: 3, 3: 1, 2: 2})
    relaxed = {0: (4, 0), 1: (4, 1), 3: (1, 0), 4: (1, 1), 5: (1, 2)}
    rule = Deployment.of(engine({"rule": "static:0.5"})).rules
    for row in range(len(logits)):
        if row not in relaxed:
            assert torch.equal(served[row], logits[row]), row
            continue
        slot, step = relaxed[row]
        wish = Asked(1, max_bias=0.1) if slot == 1 else Asked(1)
        table, mine = torch.tensor([wish.row()]), slice(row, row + 1)
        expected = served_logits(rule, {wish}, table, logits[mine], q[slot, step][None], tokens[row + 1][None])
        torch.testing.assert_close(served[mine], expected, rtol=1e-5, atol=1e-6)
        assert not torch.equal(served[row], logits[row])


def test_a_slot_is_what_its_last_request_wants(module):
    """Catches a table on the device that is not sent again once a slot has another request."""
    sampler = served_sampler(module, {"rule": "static:0.5"})
    sampler.add_request(0, request())
    first, relaxed, _, _ = verify(module, sampler, {0: 3})
    assert not torch.equal(first, relaxed)
    sampler.add_request(0, request(rule="lossless"))
    first, same, _, _ = verify(module, sampler, {0: 3})
    assert torch.equal(first, same)
    sampler.add_request(0, request(max_bias=0.01))
    sampler.add_request(5, request())
    first, bounded, _, _ = verify(module, sampler, {0: 3})
    assert not torch.equal(first, bounded)
    assert not torch.equal(bounded, relaxed)


def test_a_target_padded_to_more_ids(module):
    """Catches a draft law and target logits of different widths: the kernels look at the narrower."""
    sampler = served_sampler(module, {"rule": "static:0.5"})
    sampler.add_request(0, request())
    sampler.add_request(1, request())
    _, served, _, _ = verify(module, sampler, {0: 2, 1: 1}, width=VOCAB + 4)
    assert served.shape[1] == VOCAB


def test_other_engines_are_left_alone(module):
    """Catches a rule of one engine that verifies another's drafts."""
    sampler = served_sampler(module, {"rule": "static:0.5"})
    sampler.add_request(0, request())
    logits, served, _, _ = verify(module, Sampler(), {0: 2})
    assert torch.equal(logits, served)


def test_drafts_without_laws(module):
    """Catches looked-up drafts that are left lossless, and lost laws that are taken for looked-up drafts."""
    looked_up = served_sampler(module, {"rule": "static:0.5"}, method="ngram", draft_sample_method="greedy")
    looked_up.add_request(0, request())
    logits, served, _, _ = verify(module, looked_up, {0: 2}, draft_logits=False)
    assert [torch.equal(*rows) for rows in zip(logits, served)] == [False, False, True]
    sampled = served_sampler(module, {"rule": "static:0.5"})
    sampled.add_request(0, request())
    logits, served, _, _ = verify(module, sampled, {0: 2}, draft_logits=False)
    assert torch.equal(logits, served)
