"""What requests may ask for: settings are read, or refused with the range and what to do, before anything runs."""

import re
from pathlib import Path

import pytest

from hf_diversed.head import DiversedHead
from hf_diversed.serving.vllm.deployment import PREFIX, SETTINGS, Deployment
from hf_diversed.serving.vllm.logits import RequestSettings
from tests.serving.fakes import HEAD, engine, request


@pytest.fixture(scope="module")
def deployment() -> Deployment:
    choices = ["static:0.5", "lenience:0.3", "lossless"]
    return Deployment.of(engine({"head": HEAD, "strictness": 0.4, "max_bias": 0.9, "choices": choices}))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, RequestSettings(1, strictness=0.4, max_bias=0.9)),
        ({"strictness": 0}, RequestSettings(1, strictness=0.0, max_bias=0.9)),
        ({"strictness": 1}, RequestSettings()),
        ({"max_bias": 0.2, "max_ratio": 2.0}, RequestSettings(1, strictness=0.4, max_bias=0.2, max_ratio=2.0)),
        ({"verifier": "static:0.5", "max_ratio": 10.0}, RequestSettings(2, max_bias=0.9, max_ratio=10.0)),
        ({"verifier": "lenience:0.3"}, RequestSettings(3)),
        ({"verifier": "lossless"}, RequestSettings()),
        ({"temperature": 0.0, "strictness": 0.2}, RequestSettings()),
    ],
)
def test_reads_fields(deployment, fields, expected):
    """Catches a default that overrides a value or does not apply to the verifier, relaxed greedy decoding, and an
    error for the fields of another plugin."""
    params = request(**fields)
    params.extra_args = (params.extra_args or {}) | {"session_id": "a", "kv_transfer_params": {"strict": True}}
    assert deployment.request(params) == expected


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"diversed_strictness": 7}, r"`diversed_strictness` must lie in \[0, 1\], got 7.0. 0 accepts every"),
        ({"diversed_strictness": float("nan")}, r"`diversed_strictness` must lie in \[0, 1\], got nan"),
        ({"diversed_strictness": "high"}, r"`diversed_strictness` must be a number in \[0, 1\], got 'high'"),
        ({"diversed_verifier": "static:0.9"}, "must be one of diversed, static:0.5, lenience:0.3, lossless, got"),
        ({"diversed_verifier": "static:0.5", "diversed_strictness": 0.5}, "'static:0.5' has no diversed_strictness"),
        ({"strictness": 1, "of_another_plugin": 3}, "`strictness` is not a field of `vllm_xargs`. Allowed"),
        ({"diversed_strictnes": 1}, "Allowed: diversed_verifier, diversed_strictness, diversed_max_bias"),
    ],
)
def test_refuses_by_name(deployment, fields, words):
    """Catches a value that raises in the sampler, which would end the engine, and a request for lossless decoding that
    gets relaxed text because its field was ignored."""
    params = request()
    params.extra_args = fields
    with pytest.raises(ValueError, match=words):
        deployment.request(params)


def test_the_default_strictness_is_that_of_the_head(tmp_path):
    """Catches requests that decode at 0.5 although the head was calibrated, and lossless ones that are refused because
    the deployment does not list it among its choices."""
    head = DiversedHead.from_pretrained(HEAD)
    head.config.strictness = 0.3
    head.save_pretrained(tmp_path)
    calibrated = Deployment.of(engine({"head": str(tmp_path)}))
    assert calibrated.request(request()) == RequestSettings(1, strictness=0.3)
    assert calibrated.request(request(verifier="lossless")) == RequestSettings()
    stricter = Deployment.of(engine({"head": str(tmp_path), "strictness": 0.9}))
    assert stricter.request(request()) == RequestSettings(1, strictness=0.9)


def test_the_client_of_the_docs_sends_known_fields():
    """Catches a field that the server refuses."""
    source = (Path(__file__).parents[2] / "examples" / "serving" / "client.py").read_text()
    sent = set(re.findall(rf'"{PREFIX}(\w+)"', source))
    assert set() < sent <= {"verifier", *SETTINGS}
