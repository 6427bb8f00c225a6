"""What goes beside every result, and what must not."""

import json

import pytest
import torch
from transformers import SchedulerType

from hf_diversed.provenance import provenance, publishable


SECRET = "hf_" + "aB3" * 10


@pytest.mark.parametrize(
    "given",
    [
        ["train", "--hub_token", SECRET, "--task", "math"],
        ["train", "--hub_token", "a password that looks like none"],
        [f"--hub_token={SECRET}"],
        ["--model_init_kwargs", json.dumps({"token": "short", "dtype": "auto"})],
        ["--model_args", f"pretrained=org/target,token={SECRET}"],
        {"model_init_kwargs": {"token": "short"}, "api_key": "short"},
        {"nested": [{"HF_TOKEN": "short"}]},
    ],
)
def test_secrets_are_blanked(given):
    """Catches a token that is pushed to the Hub with the command that it was passed to."""
    text = json.dumps(publishable(given))
    assert "***" in text
    assert all(secret not in text for secret in (SECRET, "a password", "short"))


def test_everything_else_stays():
    """Catches options that merely sound like secrets, ids, and folders that are not absolute."""
    kept = ["train", "--num_assistant_tokens", "5", "--target", "org/model", "--output_dir", "runs/head", "--resume"]
    assert publishable(kept) == kept
    assert publishable(["/root/secret/run.yaml", "--config=/home/me/run.yaml"]) == ["run.yaml", "--config=run.yaml"]
    assert publishable({"num_assistant_tokens": 5, "token": None, "seed": 1}) == {
        "num_assistant_tokens": 5,
        "token": None,
        "seed": 1,
    }


def test_device_is_that_of_the_models():
    """Catches a GPU that is named because it is there, not because it was used."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "get_device_name", lambda device=None: f"Accelerator {device}")
        assert provenance(0, "cpu")["device"].startswith("cpu (")
        assert provenance(0)["device"].startswith("cpu (")
        assert provenance(0, "cuda:1")["device"] == "Accelerator cuda:1"


def test_choices_are_recorded_by_their_values():
    """Catches "SchedulerType.LINEAR" in a record, which no training accepts again."""
    assert publishable({"lr_scheduler_type": SchedulerType.LINEAR}) == {"lr_scheduler_type": "linear"}
    assert type(publishable(SchedulerType.LINEAR)) is str
