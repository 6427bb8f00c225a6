"""What may be deployed; everything else is refused when the engine starts, never decoded losslessly without notice."""

import pytest

from hf_diversed.head import DiversedHead, DiversedHeadConfig
from hf_diversed.serving.vllm.deployment import Deployment
from hf_diversed.verifiers import VERIFIERS
from tests.serving.fakes import HEAD, engine, speculative


SPELLED = {"static": "static:0.5", "lenience": "lenience:0.5", "lossy": "lossy:0.3", "fuzzy": "fuzzy:0.1"}
REFUSED = {"spec_cascade", "fly", "block", "phase"}


def test_every_verifier_is_served_or_refused_by_name():
    """Catches a new verifier that is missing from the list of those not served."""
    for name in REFUSED:
        with pytest.raises(ValueError, match=rf"verifier '{name}.* is not served by vLLM: .* Served are contr"):
            Deployment.of(engine({"verifier": SPELLED.get(name, name)}))
    for name in VERIFIERS.keys() - REFUSED:
        settings = {"verifier": SPELLED.get(name, name)} | ({"head": HEAD} if name == "diversed" else {})
        assert type(Deployment.of(engine(settings)).verifiers[0]) is VERIFIERS[name]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ([], "must be an object with some of verifier, head, choices, strictness, max_bias, max_ratio"),
        ({"quality": 0.5}, "got quality in it"),
        ({}, "the verifier 'diversed' needs `head`"),
        ({"verifier": "static:0.5", "head": HEAD}, "`head` belongs to the verifier 'diversed', which is not among"),
        ({"verifier": "statik:0.5"}, "unknown verifier 'statik'"),
        ({"verifier": "static:0.5", "strictness": 0.5}, "'static:0.5' has no strictness; its settings: max_bias"),
        ({"verifier": "static:0.5:0.1"}, "has bounds in its name; set `max_bias` or `max_ratio` beside the verifier"),
        ({"head": HEAD, "strictness": 2}, r"`strictness` must lie in \[0, 1\], got 2.0"),
    ],
)
def test_refuses_settings_by_name(settings, words):
    """Catches a setting that is ignored, so that the engine serves other text than asked for."""
    with pytest.raises(ValueError, match=words):
        Deployment.of(engine(settings))


@pytest.mark.parametrize(
    ("drafting", "words"),
    [
        (speculative(rejection_sample_method="block"), "got rejection_sample_method='block'"),
        (speculative(method="custom_class"), "'custom_class' is not served: the distribution of its draft tokens"),
        (None, "needs draft tokens; add --speculative-config"),
    ],
)
def test_refuses_speculative_configurations_that_cannot_be_served(drafting, words):
    """Catches draft tokens that may be random without a distribution, and verification other than token by token."""
    config = engine({"verifier": "static:0.5"})
    config.speculative_config = drafting
    with pytest.raises(ValueError, match=words):
        Deployment.of(config)


def test_which_draft_tokens_are_one_hot():
    """Catches distributions expected of draft tokens that are looked up, greedy, or of Medusa."""
    sampling = ("draft_model", "eagle", "eagle3", "mtp", "dflash", "dspark")
    one_hot = ("draft_model, greedy", "ngram", "ngram_gpu", "suffix", "medusa")
    for method in (*sampling, *one_hot):
        name, *greedy = method.split(", ")
        drafting = speculative(method=name, draft_sample_method="greedy" if greedy else "probabilistic")
        assert Deployment.of(engine({"verifier": "lenience:0.3"}, drafting)).one_hot == (method in one_hot)
    with pytest.raises(ValueError, match=r"confidence, which greedy and looked-up draft tokens do not have"):
        Deployment.of(engine({"verifier": "contrastive"}, drafting))


def test_refuses_heads_that_do_not_fit(tmp_path):
    """Catches hidden states, which vLLM's sampler does not receive, and a head for another vocabulary."""
    DiversedHead(DiversedHeadConfig(8, 8)).save_pretrained(tmp_path / "hidden")
    with pytest.raises(ValueError, match=r"reads hidden states \(features='hidden'\)"):
        Deployment.of(engine({"head": str(tmp_path / "hidden")}))
    with pytest.raises(ValueError, match="trained for a vocabulary of 1024 ids, got 32000"):
        Deployment.of(engine({"head": HEAD}, vocab_size=32000))
    with pytest.raises(OSError, match="nowhere"):
        Deployment.of(engine({"head": str(tmp_path / "nowhere")}))
