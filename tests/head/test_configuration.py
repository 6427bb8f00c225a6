"""What a head's configuration refuses and remembers."""

import pytest
from transformers import AutoConfig

from hf_diversed.head import DiversedHeadConfig


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target_hidden_size": 0}, "target_hidden_size must be an integer >= 1, got 0"),
        ({"draft_hidden_size": -3}, "draft_hidden_size must be an integer >= 1, got -3"),
        ({"draft_hidden_size": 2.5}, "draft_hidden_size must be an integer >= 1, got 2.5"),
        ({"intermediate_size": None}, "intermediate_size must be an integer >= 1, got None"),
        ({"head_type": "conv"}, "head_type must be one of 'linear', 'mlp', got 'conv'"),
        ({"features": "logits"}, "features must be one of 'hidden', 'distribution', 'both', got 'logits'"),
        ({"mixing": "logits"}, "mixing must be one of 'probs', got 'logits'"),
    ],
)
def test_refuses_bad_values(arguments: dict, message: str):
    """Catches a bad configuration that only fails later, as a shape error inside torch."""
    with pytest.raises(ValueError, match=message):
        DiversedHeadConfig(**arguments)


def test_auto_config_round_trip(tmp_path):
    """Catches a field that is not stored: the next user's checks on pair, task and settings would pass unseen."""
    settings = {
        "target_hidden_size": 8,
        "draft_hidden_size": 6,
        "head_type": "mlp",
        "features": "both",
        "intermediate_size": 5,
        "normalize": False,
        "mixing": "probs",
        "task": "mbpp",
        "num_assistant_tokens": 4,
        "training_temperature": 0.0,
        "base_model_name_or_path": "org/big",
        "base_model_revision": "a1",
        "assistant_model_name_or_path": "org/small",
        "assistant_model_revision": "b2",
        "vocab_size": 77,
    }
    DiversedHeadConfig(**settings).save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is DiversedHeadConfig
    assert {name: getattr(loaded, name) for name in settings} == settings
