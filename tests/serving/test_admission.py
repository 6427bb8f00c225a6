"""What requests may ask for: read as meant, or refused by name, range and advice, before anything runs."""

import pytest

from hf_diversed.head import DiversedHead
from hf_diversed.provenance import module_digest
from hf_diversed.serving.vllm.admission import read_request
from hf_diversed.serving.vllm.deployment import Deployment
from hf_diversed.serving.vllm.law import Asked
from tests.serving.fakes import HEAD, MAX_TOKENS, engine, request


@pytest.fixture(scope="module")
def deployment() -> Deployment:
    settings = {
        "head": HEAD,
        "strictness": 0.4,
        "max_bias": 0.9,
        "choices": ["static:0.5", "lenience:0.3", "lossless"],
    }
    return Deployment.of(engine(settings))


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({}, Asked(1, strictness=0.4, max_bias=0.9)),
        ({"strictness": 0.7}, Asked(1, strictness=0.7, max_bias=0.9)),
        ({"strictness": 0}, Asked(1, strictness=0.0, max_bias=0.9)),
        ({"strictness": 1}, Asked()),
        ({"max_bias": 0.2, "max_ratio": 0.5}, Asked(1, strictness=0.4, max_bias=0.2, max_ratio=0.5)),
        ({"rule": "static:0.5"}, Asked(2, max_bias=0.9)),
        ({"rule": "static:0.5", "max_ratio": 0.1}, Asked(2, max_bias=0.9, max_ratio=0.1)),
        ({"rule": "lenience:0.3"}, Asked(3)),
        ({"rule": "lossless"}, Asked()),
    ],
)
def test_reads_what_is_meant(deployment, asked, wanted):
    """Catches a default that outlives what the request says, or reaches a rule that has no such dial."""
    assert read_request(deployment, request(**asked)) == wanted


def test_greedy_requests_follow_the_target(deployment):
    """Catches relaxed greedy decoding: kernels take the best token of whatever logits they are given."""
    assert read_request(deployment, request(temperature=0.0, strictness=0.2)) == Asked()


def test_lossless_is_everybodys_choice():
    """Catches a deployment that forgets to name it, and so forces its rule on who cannot take it."""
    deployment = Deployment.of(engine({"rule": "static:0.3"}))
    assert read_request(deployment, request(rule="lossless")) == Asked()
    assert read_request(deployment, request()) == Asked(1)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"strictness": 7}, r"`diversed_strictness` must lie in \[0, 1\], got 7.0. 0 accepts every draft"),
        ({"strictness": float("nan")}, r"`diversed_strictness` must lie in \[0, 1\], got nan"),
        ({"strictness": "high"}, "`diversed_strictness` must be a number, got 'high'"),
        ({"strictness": True}, "`diversed_strictness` must be a number, got True"),
        ({"strictness": [0.5]}, r"`diversed_strictness` must be a number, got \[0.5\]"),
        ({"max_bias": -0.1}, r"`diversed_max_bias` must lie in \[0, 1\], got -0.1. 0 is lossless"),
        ({"max_ratio": 1.5}, r"`diversed_max_ratio` must lie in \[0, 1\], got 1.5. 1 is lossless"),
        ({"max_drop": 0.1}, "`diversed_max_drop`: nothing was certified for this head"),
        ({"strictness": 0.5, "max_drop": 0.1}, "`diversed_strictness` and `diversed_max_drop` are mutually exclusive"),
        ({"rule": "static:0.9"}, "must be one of diversed, static:0.5, lenience:0.3, lossless, got 'static:0.9'"),
        ({"rule": 3}, "must be one of diversed, static:0.5, lenience:0.3, lossless, got 3"),
        ({"rule": ["diversed"]}, r"must be one of .* got \['diversed'\]"),
        (
            {"rule": "static:0.5", "strictness": 0.5},
            "'static:0.5' has no diversed_strictness; its dials: diversed_max_bias",
        ),
        ({"rule": "lenience:0.3", "max_bias": 0.1}, "'lenience:0.3' has no diversed_max_bias; its dials: none"),
        ({"rule": "lossless", "strictness": 1}, "'lossless' has no diversed_strictness; its dials: none"),
        ({"bias_budget": 1.0}, "needs a sum kept per sequence"),
        ({"qualty": 0.5}, "unknown diversed_qualty; a request may say diversed_rule, diversed_strictness"),
    ],
)
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_refuses_by_name(deployment, asked, words, temperature):
    """Catches a value that would come up in the sampler, where it ends the engine for everybody."""
    with pytest.raises(ValueError, match=words):
        read_request(deployment, request(temperature, **asked))


def certified_head(tmp_path, *drops: tuple[float, float], temperature: float = 1.0) -> str:
    """The embedded head with dials certified for drops, in a folder."""
    head = DiversedHead.from_pretrained(HEAD)
    head.config.certified_drops = [
        {
            "max_drop": drop,
            "confidence": 0.95,
            "strictness": strictness,
            "drop": 0.0,
            "acceptance_rate": None,
            "task": "math",
            "metric": "accuracy",
            "num_prompts": 10,
            "samples_per_prompt": 1,
            "temperature": temperature,
            "top_k": 0,
            "top_p": 1.0,
            "num_assistant_tokens": 5,
            "max_new_tokens": MAX_TOKENS,
            "processors": [],
            "dtype": "",
            "target": "",
            "draft": "",
            "head": module_digest(head),
        }
        for drop, strictness in drops
    ]
    head.save_pretrained(tmp_path / "head")
    return str(tmp_path / "head")


@pytest.fixture
def governed(tmp_path) -> Deployment:
    """A deployment whose dial is governed by a certified drop."""
    return Deployment.of(engine({"head": certified_head(tmp_path, (0.01, 0.6), (0.05, 0.3)), "max_drop": 0.02}))


def test_a_stated_drop_takes_its_certified_dial(governed):
    """Catches a drop that is read as a dial, the strictest entry in place of the most permissive one within it, and a
    deployment's drop beside a request's strictness."""
    assert read_request(governed, request()) == Asked(1, strictness=0.6)
    assert read_request(governed, request(max_drop=0.05)) == Asked(1, strictness=0.3)
    assert read_request(governed, request(strictness=0.8)) == Asked(1, strictness=0.8)
    assert read_request(governed, request(temperature=0.0)) == Asked()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (request(temperature=0.7), r"temperature \(certified 1.0, got 0.7\)"),
        (request(sampling={"max_tokens": 17}), r"max_new_tokens \(certified 16, got 17\)"),
        (request(max_drop=0.001), r"must be at least a drop that was certified \(0.01, 0.05\), got 0.001"),
        (request(sampling={"top_k": 50}), "without cut-offs .* got top_k=50 with a `max_drop`"),
        (request(sampling={"repetition_penalty": 1.1}), "got repetition_penalty=1.1 with a `max_drop`"),
    ],
)
def test_a_drop_holds_only_for_what_was_certified(governed, given, words):
    with pytest.raises(ValueError, match=words):
        read_request(governed, given)


def test_drops_hold_for_one_draft_length(tmp_path):
    head = certified_head(tmp_path, (0.01, 0.6))
    config = engine({"head": head, "max_drop": 0.01})
    config.speculative_config.num_speculative_tokens = 3
    with pytest.raises(ValueError, match=r"num_assistant_tokens \(certified 5, got 3\)"):
        read_request(Deployment.of(config), request())
