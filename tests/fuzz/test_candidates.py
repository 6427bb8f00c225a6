"""Random calls with every candidate generator: lossless greedy decoding equals plain generation.

5 calls per generator run with the other tests; FUZZ_CASES=1000 runs that many in all (`make fuzz`).
"""

import os
import random

import pytest
import torch
from transformers.modeling_layers import MtpModel

from tests.generation import sources
from tests.tiny import EOS, VOCAB_SIZE, ragged_batch


CALLS = max(1, int(os.environ.get("FUZZ_CASES", 5 * len(sources.SOURCES))) // len(sources.SOURCES))


def random_call(draw: random.Random, may_forbid: bool) -> dict:
    """Return a prompt and settings that plain greedy decoding supports as well.

    Args:
        may_forbid: whether processors may forbid tokens; a sampling generator must apply them itself.
    """
    ids = [draw.randrange(2, VOCAB_SIZE) for _ in range(draw.randint(3, 14))]
    length = draw.randint(1, 24)
    call = {"inputs": torch.tensor([ids]), "max_new_tokens": length, "do_sample": False}
    settings = {
        "repetition_penalty": draw.uniform(1.0, 1.5),
        "eos_token_id": [EOS, draw.randrange(4, VOCAB_SIZE), draw.randrange(4, VOCAB_SIZE)],
    }
    if may_forbid:
        settings["bad_words_ids"] = [[draw.randrange(4, VOCAB_SIZE)]]
        settings["min_new_tokens"] = draw.randint(1, length)
        settings["no_repeat_ngram_size"] = draw.randint(2, 3)
    for name, value in settings.items():
        if draw.random() < 0.3:
            call[name] = value
    return call


@pytest.mark.parametrize("name", sources.parameters())
def test_lossless_greedy_equals_plain_generation(name, monkeypatch):
    """Catches two settings that are right alone and wrong together."""
    monkeypatch.setattr(MtpModel, "from_pretrained", sources.random_mtp_model)
    target, selects = sources.SOURCES[name]()
    draw = random.Random(name)
    for _ in range(CALLS):
        call = random_call(draw, may_forbid=name != "own_from_states")
        ours = {"verifier": draw.choice(["lossless", "block:lossless"])}
        if name == "own":
            count = draw.randint(1, 4)
            batch = ragged_batch(count, draw.randint(3, 14), seed=draw.randrange(1000))
            call |= {"inputs": batch["input_ids"], "attention_mask": batch["attention_mask"]}
            ours["candidate_generator"] = [sources.Copies() for _ in range(count)]
        if draw.random() < 0.5:
            ours["num_assistant_tokens"] = draw.randint(1, 7)
        found = target.generate(**call | selects | ours)
        assert torch.equal(found, target.generate(**call)), (call, ours)
