"""The plugin in vLLM's processes, with modules that imitate vLLM's."""

import logging
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from hf_diversed import _after_import
from hf_diversed.serving.vllm import plugin, runner_v1
from tests.serving.fakes import engine, request, speculative


class Refused(Exception):
    """In place of `vllm.exceptions.VLLMValidationError`."""


class InputProcessor:
    def __init__(self, vllm_config, renderer=None):
        self.vllm_config = vllm_config
        self.seen = []
        self.validate_logits_processors_params = self.seen.append


class GPUModelRunner:
    """The sampling part of the runner."""

    device = torch.device("cpu")

    def __init__(self, vllm_config, device=None):
        self.vllm_config = vllm_config
        self.requests, self.input_batch, self.draft_probs = {}, SimpleNamespace(req_ids=[]), None

    def add(self, name, params):
        self.requests[name] = SimpleNamespace(sampling_params=params)
        self.input_batch.req_ids.append(name)

    def _sample(self, logits, spec_decode_metadata):
        if spec_decode_metadata is None:
            return logits
        tokens, counts = spec_decode_metadata
        ends = torch.tensor(counts).cumsum(0)
        verify = sys.modules["vllm.v1.sample.rejection_sampler"].rejection_sample
        return verify(tokens, counts, max(counts), ends, self.draft_probs, logits, None, None)


def wrong_expansion(x, cu_num_tokens, num_tokens, replace_from=0, replace_to=0):
    return torch.full((num_tokens,), 7.0)


@pytest.fixture
def vllm(monkeypatch):
    """Install modules of vLLM 0.32 with the classes above."""
    monkeypatch.setattr(plugin, "version", lambda name: "0.32.0+cpu")
    modules = {
        "vllm.exceptions": {"VLLMValidationError": Refused},
        "vllm.v1.engine.input_processor": {"InputProcessor": type("InputProcessor", (InputProcessor,), {})},
        "vllm.v1.worker.gpu_model_runner": {"GPUModelRunner": type("GPUModelRunner", (GPUModelRunner,), {})},
        "vllm.v1.sample.rejection_sampler": {
            "rejection_sample": lambda *args: args[5],  # the target's logits
            "expand_batch_to_tokens": wrong_expansion,
        },
    }
    for name, attributes in modules.items():
        module = ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    plugin.register()
    yield SimpleNamespace(
        processor=sys.modules["vllm.v1.engine.input_processor"].InputProcessor,
        runner=sys.modules["vllm.v1.worker.gpu_model_runner"].GPUModelRunner,
        verification=sys.modules["vllm.v1.sample.rejection_sampler"],
    )
    for name in ("vllm.v1.engine.input_processor", "vllm.v1.worker.gpu_model_runner"):
        _after_import.unwatch(name)
    _after_import.unwatch("vllm.v1.worker.gpu.sample.sampler")


STATIC = {"verifier": "static:0.5", "choices": ["lenience:0.2"]}


def test_nothing_happens_without_a_verifier(vllm):
    """Catches a patch of every vLLM in the same environment, and a verifier without service that is ignored."""
    stock = vllm.verification.rejection_sample
    processor, runner = vllm.processor(engine()), vllm.runner(engine())
    assert processor.validate_logits_processors_params == processor.seen.append
    assert "_sample" not in vars(runner)
    assert vllm.verification.rejection_sample is stock
    for process in (vllm.processor, vllm.runner):
        with pytest.raises(ValueError, match="is not served by vLLM"):
            process(engine({"verifier": "block"}))


def test_bad_values_are_refused_at_admission(vllm, caplog):
    """Catches missing checks of vLLM's own, and errors that its server would answer with HTTP 500."""
    with caplog.at_level(logging.INFO, "vllm.hf_diversed"):
        processor = vllm.processor(engine(STATIC))
    assert "hf_diversed serves static:0.5, lenience:0.2, lossless." in caplog.text
    good, bad = request(max_bias=0.5), request(max_bias=7)
    processor.validate_logits_processors_params(good)
    with pytest.raises(Refused, match=r"`diversed_max_bias` must lie in \[0, 1\], got 7"):
        processor.validate_logits_processors_params(bad)
    assert processor.seen == [good, bad]


def sampled(runner, counts):
    """Return random logits before and after the runner's verification."""
    torch.manual_seed(0)
    logits = torch.randn(sum(counts), 8)
    runner.draft_probs = torch.rand(sum(counts), 8).softmax(-1)
    tokens = runner.draft_probs.argmax(-1).int()
    return logits, runner._sample(logits, (tokens, counts))


def test_every_request_is_verified_by_its_own_verifier(vllm):
    """Catches rows of another request, and greedy or lossless rows that are relaxed."""
    runner = vllm.runner(engine(STATIC))
    fields = [{}, {"verifier": "lossless"}, {}, {"temperature": 0.0}, {"max_bias": 0.0}, {"verifier": "lenience:0.2"}]
    for number, given in enumerate(fields):
        runner.add(str(number), request(**given))
    logits, served = sampled(runner, [2, 1, 0, 2, 1, 1])
    stays = [torch.equal(before, after) for before, after in zip(logits, served)]
    assert stays == [False, False, True, True, True, False, False]
    # A bias of 0 is lossless in distribution: the acceptance probability is that of the reference.
    p, q, token = logits[5].softmax(-1), runner.draft_probs[5], runner.draft_probs[5].argmax()
    v = served[5].softmax(-1)
    torch.testing.assert_close((v / q)[token].clamp_max(1.0), (p / q)[token].clamp_max(1.0))


def test_other_batches_of_the_process_are_left_alone(vllm):
    """Catches a verifier used after its batch: dummy runs and other engines verify with the same function."""
    runner = vllm.runner(engine(STATIC))
    runner.add("plain", request())
    sampled(runner, [2])
    logits, q = torch.randn(2, 8), torch.full((2, 8), 0.125)
    tokens = torch.zeros(2, dtype=torch.int32)
    assert vllm.verification.rejection_sample(tokens, [2], 2, None, q, logits, None, None) is logits
    assert runner._sample(logits, None) is logits


def test_rounds_without_draft_distributions(vllm):
    """Catches missing distributions that are treated as one-hot, greedy draft tokens verified losslessly, and an error
    of a round without draft tokens, which would end the engine: a lookup may find nothing for any request."""
    for sample, stays in (("probabilistic", True), ("greedy", False)):
        runner = vllm.runner(engine(STATIC, speculative(draft_sample_method=sample)))
        runner.add("plain", request(max_bias=0.9))
        logits = torch.randn(1, 8)
        assert torch.equal(runner._sample(logits, (torch.tensor([1], dtype=torch.int32), [1])), logits) == stays
        assert runner._sample(logits[:0], (torch.zeros(0, dtype=torch.int32), [0])).shape == (0, 8)


def test_unchecked_values_do_not_end_the_engine(vllm, caplog):
    """Catches an exception in the sampler, which would end the engine."""
    runner = vllm.runner(engine(STATIC))
    runner.add("slipped in", request(max_bias="all"))
    with caplog.at_level(logging.ERROR, "vllm.hf_diversed"):
        logits, served = sampled(runner, [1])
    assert torch.equal(logits, served)
    assert "`diversed_max_bias` must be a number in [0, 1], got 'all'" in caplog.text


def test_the_wrong_expansion_is_mended(vllm):
    """Catches uninitialised temperatures, and a correct function that is replaced."""
    runner = vllm.runner(engine(STATIC))
    runner.add("plain", request())
    sampled(runner, [1])
    fixed = vllm.verification.expand_batch_to_tokens
    ends = torch.tensor([2, 2, 3], dtype=torch.int32)
    assert fixed(torch.tensor([0.0, 5.0, 2.0]), ends, 3, 0, 1).tolist() == [1.0, 1.0, 2.0]
    right = SimpleNamespace(expand_batch_to_tokens=lambda *args: runner_v1.expand_batch_to_tokens(*args))
    stock = right.expand_batch_to_tokens
    runner_v1.fix_expand_batch_to_tokens(right)
    assert right.expand_batch_to_tokens is stock


def test_other_releases_are_refused(vllm, monkeypatch):
    """Catches another release whose settings are read, and an engine without a verifier that does not start."""
    asked = []
    monkeypatch.setattr(plugin, "version", lambda name: asked.append(name) or "0.34.1")
    for process in (vllm.processor, vllm.runner):
        with pytest.raises(ValueError, match=r"hf_diversed supports vLLM 0.32 and 0.33, got 0.34.1; install one"):
            process(SimpleNamespace(additional_config=engine(STATIC).additional_config))
    assert asked == ["vllm", "vllm"]
    for process in (vllm.processor, vllm.runner):
        process(engine())
    assert asked == ["vllm", "vllm"]
