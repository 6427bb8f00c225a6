"""What requests may ask for: settings are read, or refused with the range and what to do, before anything runs."""

import pytest

from hf_diversed.head import DiversedHead
from hf_diversed.serving.vllm.deployment import Deployment
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
        ({"strictness": 0.7}, RequestSettings(1, strictness=0.7, max_bias=0.9)),
        ({"strictness": 0}, RequestSettings(1, strictness=0.0, max_bias=0.9)),
        ({"strictness": 1}, RequestSettings()),
        ({"max_bias": 0.2, "max_ratio": 2.0}, RequestSettings(1, strictness=0.4, max_bias=0.2, max_ratio=2.0)),
        ({"verifier": "static:0.5"}, RequestSettings(2, max_bias=0.9)),
        ({"verifier": "static:0.5", "max_ratio": 10.0}, RequestSettings(2, max_bias=0.9, max_ratio=10.0)),
        ({"verifier": "lenience:0.3"}, RequestSettings(3)),
        ({"verifier": "lossless"}, RequestSettings()),
        ({"temperature": 0.0, "strictness": 0.2}, RequestSettings()),
    ],
)
def test_reads_fields(deployment, fields, expected):
    """Catches a default that overrides a value or does not apply to the verifier, and relaxed greedy decoding."""
    assert deployment.request(request(**fields)) == expected


def test_every_deployment_serves_lossless():
    """Catches lossless requests that are refused because the deployment does not list it among its choices."""
    deployment = Deployment.of(engine({"verifier": "static:0.3"}))
    assert deployment.request(request(verifier="lossless")) == RequestSettings()
    assert deployment.request(request()) == RequestSettings(1)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"strictness": 7}, r"`diversed_strictness` must lie in \[0, 1\], got 7.0. 0 accepts every draft token"),
        ({"strictness": float("nan")}, r"`diversed_strictness` must lie in \[0, 1\], got nan"),
        ({"strictness": "high"}, r"`diversed_strictness` must be a number in \[0, 1\], got 'high'. 0 accepts"),
        ({"max_ratio": 0.5}, r"`diversed_max_ratio` must lie in \[1, inf\], got 0.5. 1 is lossless"),
        ({"verifier": "static:0.9"}, "must be one of diversed, static:0.5, lenience:0.3, lossless, got 'static:0.9'"),
        ({"verifier": "static:0.5", "strictness": 0.5}, "'static:0.5' has no diversed_strictness; its settings"),
        ({"verifier": "lenience:0.3", "max_bias": 0.1}, "'lenience:0.3' has no diversed_max_bias; its settings: none"),
    ],
)
def test_refuses_by_name(deployment, fields, words):
    """Catches a value that raises in the sampler, which would end the engine."""
    with pytest.raises(ValueError, match=words):
        deployment.request(request(**fields))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("strictness", "`strictness` is not a field of `vllm_xargs`. Allowed"),
        ("diversed_strictnes", "Allowed: diversed_verifier, diversed_strictness, diversed_max_bias"),
        ("Diversed-Strictness", "`Diversed-Strictness` is not a field"),
    ],
)
def test_unknown_and_unprefixed_fields_are_refused(deployment, name, words):
    """Catches a request for lossless decoding that gets relaxed text because its field was ignored."""
    params = request()
    params.extra_args = {name: 1, "of_another_plugin": 3}
    with pytest.raises(ValueError, match=words):
        deployment.request(params)


def test_fields_of_other_plugins_are_ignored(deployment):
    params = request(strictness=0.7)
    params.extra_args |= {"session_id": "a", "kv_transfer_params": {"strict": True}}
    assert deployment.request(params) == RequestSettings(1, strictness=0.7, max_bias=0.9)


def test_the_default_strictness_is_that_of_the_head(tmp_path):
    """Catches requests that decode at 0.5 although the head was calibrated."""
    head = DiversedHead.from_pretrained(HEAD)
    head.config.strictness = 0.3
    head.save_pretrained(tmp_path)
    calibrated = Deployment.of(engine({"head": str(tmp_path), "choices": ["static:0.5"]}))
    assert calibrated.request(request()) == RequestSettings(1, strictness=0.3)
    assert calibrated.request(request(strictness=0.8)) == RequestSettings(1, strictness=0.8)
    assert calibrated.request(request(verifier="static:0.5")) == RequestSettings(2)
    stricter = Deployment.of(engine({"head": str(tmp_path), "strictness": 0.9}))
    assert stricter.request(request()) == RequestSettings(1, strictness=0.9)
