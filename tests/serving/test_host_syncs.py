"""No round waits for the host because of the plugin: tensors on the device "meta" have no values to read."""

import copy
from types import SimpleNamespace

import pytest
import torch

from hf_diversed.serving.vllm import runner_v1, runner_v2
from hf_diversed.serving.vllm.deployment import SETTINGS, Deployment
from hf_diversed.verifiers import VERIFIERS
from hf_diversed.zoo.loader import HEADS, MIXTURE, WEIGHTS
from tests.serving.fakes import VOCAB, engine, request, speculative
from tests.serving.test_deployment import REFUSED, SPELLED


NAMES = [name for name in VERIFIERS if name not in {*REFUSED, "diversed", "lossless"}]
NUM_DRAFTS, NUM_REQUESTS = 3, 4
META = torch.device("meta")


def deployment(name: str, **drafting) -> Deployment:
    """Return a deployment of one verifier that the test may move; "diversed" is given by the folder of its head."""
    settings = {"verifier": SPELLED.get(name, name)} if name in VERIFIERS else {"head": str(WEIGHTS / name / "math")}
    found = Deployment.of(engine(settings, speculative(num_speculative_tokens=NUM_DRAFTS, **drafting)))
    return copy.deepcopy(found)


def requests_for(served: Deployment) -> list:
    """Return a request with defaults, one with every setting, a lossless one and a greedy one."""
    fields = {name: 0.3 for name in served.settings_of(0) & SETTINGS.keys()}
    return [request(), request(**fields), request(verifier="lossless"), request(temperature=0.0)]


@pytest.mark.parametrize(
    ("name", "sample"), [*((name, "probabilistic") for name in (*NAMES, MIXTURE)), (HEADS, "greedy")]
)
def test_runner_v1_reads_nothing(name, sample):
    """Catches a verifier or setting that makes the host wait for the device in every round."""
    served = deployment(name, draft_sample_method=sample)
    served.to(META)
    module = SimpleNamespace(rejection_sample=lambda *args, **named: args[5])
    runner_v1.wrap_verification(module)
    rows = NUM_REQUESTS * NUM_DRAFTS
    logits = torch.empty(rows, VOCAB, device=META)
    settings = [served.request_or_lossless(params) for params in requests_for(served)]
    assert any(one.verifier for one in settings)
    with runner_v1.verifying(runner_v1.Batch(served, settings)):
        tokens = torch.empty(rows, dtype=torch.int32, device=META)
        q = None if sample == "greedy" else torch.empty(rows, VOCAB, device=META)
        found = module.rejection_sample(tokens, [NUM_DRAFTS] * NUM_REQUESTS, NUM_DRAFTS, None, q, logits)
    assert found is not logits
    assert found.shape == logits.shape


@pytest.mark.parametrize(("name", "method"), [("static", "draft_model"), (HEADS, "draft_model"), (HEADS, "ngram")])
def test_runner_v2_reads_nothing(name, method):
    served = deployment(name, method=method)
    slots = runner_v2.Slots(served, NUM_REQUESTS)
    for slot, params in enumerate(requests_for(served)):
        slots.fill(slot, params)
    width = NUM_DRAFTS + 1
    rows = runner_v2.Rows(
        torch.empty(NUM_REQUESTS * width, dtype=torch.int32, device=META),
        torch.empty(NUM_REQUESTS * width, dtype=torch.long, device=META),
        torch.empty(NUM_REQUESTS * width, dtype=torch.long, device=META),
        torch.empty(NUM_REQUESTS, device=META),
    )
    logits = torch.empty(NUM_REQUESTS * width, VOCAB, device=META)
    drafts = None if served.one_hot else torch.empty(NUM_REQUESTS, NUM_DRAFTS, VOCAB, device=META)
    present = slots.present(torch.arange(NUM_REQUESTS).numpy())
    found = runner_v2.relaxed(runner_v2.Batch(slots, present), logits, drafts, rows)
    assert found is not logits
    assert found.shape == logits.shape
