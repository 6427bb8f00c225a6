"""What may be deployed: refused when the engine starts, by name and with what to do, and never silently lossless."""

import json

import pytest

from hf_diversed.head import DiversedHead, DiversedHeadConfig
from hf_diversed.serving.vllm.deployment import Deployment, named_settings
from hf_diversed.verifiers import VERIFIERS
from tests.serving.fakes import HEAD, engine, speculative


SPELLED = {
    **{"static": "static:0.5", "lenience": "lenience:0.5", "lossy": "lossy:0.3", "fuzzy": "fuzzy:0.1"},
    **{"cactus": "cactus:0.1", "regret_budget": "regret_budget:1"},
}
REFUSED = {"spec_cascade", "regret_budget", "fly", "block", "phase"}


def test_names_nothing_does_nothing():
    """Catches a plugin that acts where nobody asked for it: it is loaded into every vLLM beside it."""
    assert named_settings({}) is None
    assert named_settings({"other": 1}) is None
    assert Deployment.of(engine()) is None


def test_the_environment_names_a_rule_too(monkeypatch):
    monkeypatch.setenv("HF_DIVERSED_VLLM", json.dumps({"rule": "static:0.5", "max_bias": 0.2}))
    deployment = Deployment.of(engine())
    assert (deployment.names, dict(deployment.dials)) == (("static:0.5",), {"max_bias": 0.2})
    assert Deployment.of(engine({"rule": "lenience:0.5"})).names == ("lenience:0.5",)


def test_an_environment_that_is_no_json_is_refused(monkeypatch):
    monkeypatch.setenv("HF_DIVERSED_VLLM", "static:0.5")
    with pytest.raises(ValueError, match=r"environment variable HF_DIVERSED_VLLM must be JSON, got 'static:0.5'"):
        Deployment.of(engine())


def test_every_rule_is_served_or_refused_by_name():
    """Catches a new rule that nobody thought about here."""
    for name in REFUSED:
        with pytest.raises(ValueError, match=rf"rule '{name}.* is not served by vLLM: .* Served are cactus, "):
            Deployment.of(engine({"rule": SPELLED.get(name, name)}))
    for name in VERIFIERS.keys() - REFUSED:
        settings = {"rule": SPELLED.get(name, name)} | ({"head": HEAD} if name == "diversed" else {})
        assert type(Deployment.of(engine(settings)).rules[0]) is VERIFIERS[name]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ([], "must be an object with some of rule, head, choices, strictness, max_bias, max_ratio, max_drop"),
        ({"hed": HEAD}, "must be an object with some of .*; got hed in it"),
        ({}, "the rule 'diversed' needs `head`"),
        ({"rule": "static:0.5", "head": HEAD}, "a head belongs to the rule 'diversed', which is not among static:0.5"),
        ({"head": HEAD, "choices": "static:0.5"}, "`choices` must be a list of rules by name, got 'static:0.5'"),
        ({"rule": "static"}, "lacks or has wrong parameters"),
        ({"rule": "statik:0.5"}, "unknown verifier 'statik'"),
        (
            {"rule": "static:0.5", "strictness": 0.5},
            "rule 'static:0.5' has no strictness; its dials: max_bias, max_ratio",
        ),
        ({"rule": "static:0.5:0.1"}, "brings bounds of its own; say `max_bias` or `max_ratio` beside the rule"),
        ({"head": HEAD, "strictness": 2}, r"`strictness` must lie in \[0, 1\], got 2.0"),
        ({"head": HEAD, "strictness": "low"}, "`strictness` must be a number, got 'low'"),
        ({"head": HEAD, "max_drop": 0.01}, "nothing was certified for this head"),
        ({"head": HEAD, "strictness": 0.5, "max_drop": 0.01}, "`strictness` and `max_drop` are mutually exclusive"),
    ],
)
def test_refuses_settings_by_name(settings, words):
    with pytest.raises(ValueError, match=words):
        Deployment.of(engine(settings))


@pytest.mark.parametrize(
    ("drafting", "words"),
    [
        (
            speculative(draft_sample_method="greedy"),
            'Add "draft_sample_method": "probabilistic" to --speculative-config',
        ),
        (speculative(rejection_sample_method="block"), "got rejection_sample_method='block'"),
        (speculative(rejection_sample_method="fly"), "got rejection_sample_method='fly'"),
        (speculative(method="medusa"), "'medusa' shows the sampler no law of its drafts"),
    ],
)
def test_refuses_drafts_without_laws(drafting, words):
    """Catches a deployment that pays for a rule and decodes losslessly, as vLLM does without draft probabilities."""
    with pytest.raises(ValueError, match=words):
        Deployment.of(engine({"rule": "static:0.5"}, drafting))


def test_refuses_an_engine_without_drafts():
    config = engine({"rule": "static:0.5"})
    config.speculative_config = None
    with pytest.raises(ValueError, match="this engine has none; add --speculative-config"):
        Deployment.of(config)


def test_looked_up_drafts_are_one_hot():
    """Catches draft laws that are waited for where tokens are looked up, and rules that read how sure a draft is."""
    ngram = speculative(method="ngram", draft_sample_method="greedy")
    assert Deployment.of(engine({"rule": "static:0.5"}, ngram)).looked_up
    assert Deployment.of(engine({"head": HEAD}, ngram)).looked_up
    assert not Deployment.of(engine({"head": HEAD})).looked_up
    with pytest.raises(ValueError, match="reads how sure the draft is"):
        Deployment.of(engine({"rule": "contrastive"}, ngram))


def test_refuses_heads_that_do_not_fit(tmp_path):
    """Catches hidden states that vLLM does not show, and a head made for another vocabulary."""
    DiversedHead(DiversedHeadConfig(8, 8)).save_pretrained(tmp_path / "hidden")
    with pytest.raises(ValueError, match=r"reads hidden states \(features='hidden'\)"):
        Deployment.of(engine({"head": str(tmp_path / "hidden")}))
    with pytest.raises(ValueError, match="made for a vocabulary of 1024 ids, got 32000"):
        Deployment.of(engine({"head": HEAD}, vocab_size=32000))
    with pytest.raises(OSError, match="nowhere"):
        Deployment.of(engine({"head": str(tmp_path / "nowhere")}))
