"""Validation and storage of a head's configuration."""

import json
import math

import pytest
from transformers import AutoConfig, AutoModel

from hf_diversed.head import DiversedHead, DiversedHeadConfig
from tests.tiny import calibration


GAMMA = "num_assistant_tokens must be an integer from 1 to 64, or None, got"
REFUSED = [
    ({"target_hidden_size": 0}, "target_hidden_size must be an integer >= 1, got 0"),
    ({"draft_hidden_size": True}, "draft_hidden_size must be an integer >= 1, got True"),
    ({"vocab_size": 2.5}, "vocab_size must be an integer >= 1, or None, got 2.5"),
    ({"features": ["hidden"]}, r"features must be one of hidden, distribution, both, got \['hidden'\]"),
    ({"token_features": 1}, "token_features must be True or False, got 1"),
    ({"num_assistant_tokens": 65}, f"{GAMMA} 65"),
    ({"training_temperature": math.inf}, "training_temperature must be a number >= 0, or None, got inf"),
    ({"strictness": 1.5}, "strictness must be a number from 0 to 1, got 1.5"),
    ({"model_type": "llama"}, "model_type must be 'diversed_head', got 'llama'"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_refuses_bad_values(arguments: dict, message: str):
    """Catches a bad configuration that fails only later: with a shape error in torch, or by exhausting memory."""
    with pytest.raises(ValueError, match=message):
        DiversedHeadConfig(**arguments)


def test_refuses_them_in_files(tmp_path):
    """Catches a head's configuration that is used without validation, and a bad value, assigned later, that only fails
    in the next process."""
    DiversedHead(DiversedHeadConfig(8, 8)).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_assistant_tokens": 65}))
    with pytest.raises(ValueError, match=f"{GAMMA} 65"):
        DiversedHead.from_pretrained(tmp_path)
    config = DiversedHeadConfig(8, 8)
    config.strictness = 2
    with pytest.raises(ValueError, match="strictness must be a number from 0 to 1, got 2"):
        config.save_pretrained(tmp_path)


FOREIGN = {"quantization_config": {"quant_method": "gptq", "bits": 4}, "num_labels": 3_000_000}
FOREIGN |= {"auto_map": {"AutoModel": "evil--x.Y"}, "transformers_weights": "../other.safetensors", "to_dict": "x"}


def test_other_entries_are_left_out(tmp_path, caplog):
    """Catches entries of an untrusted config.json that control transformers' loaders: kernels, quantisers, files; and
    a warning for heads that were saved normally."""
    head = DiversedHead(DiversedHeadConfig(8, 8, task="math", dtype="bfloat16"))
    head.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    AutoModel.from_pretrained(tmp_path)
    assert caplog.records == []
    path.write_text(json.dumps(json.loads(path.read_text()) | FOREIGN))
    loaded = AutoModel.from_pretrained(tmp_path)
    (record,) = caplog.records
    assert record.getMessage().startswith("Unknown entries in the configuration of a head are ignored: ")
    assert record.getMessage().endswith(f": {', '.join(sorted(FOREIGN))}.")
    assert loaded.config.task == "math"
    assert not {"quantization_config", "auto_map", "transformers_weights"} & loaded.config.to_dict().keys()
    assert len(loaded.config.id2label) == 2
    assert all((value == loaded.state_dict()[name]).all() for name, value in head.state_dict().items())


def test_auto_config_round_trip(tmp_path):
    """Catches a field that is not stored, so that later checks of pair, task and settings would be skipped."""
    settings = {"target_hidden_size": 8, "draft_hidden_size": 6, "head_type": "mlp", "features": "both"}
    settings |= {"token_features": True, "intermediate_size": 5, "normalize": False}
    settings |= {"task": "mbpp", "num_assistant_tokens": 4, "training_temperature": 0.0, "vocab_size": 77}
    settings |= {"base_model_name_or_path": "org/big", "base_model_revision": "a1"}
    settings |= {"assistant_model_name_or_path": "org/small", "assistant_model_revision": "b2"}
    settings |= {"strictness": 0.35, "calibration": calibration()}
    DiversedHeadConfig(**settings).save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is DiversedHeadConfig
    assert {name: getattr(loaded, name) for name in settings} == settings
