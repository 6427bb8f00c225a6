"""Random calls with every candidate generator: lossless greedy decoding equals plain generation.

5 calls per generator run with the other tests; FUZZ_CASES=1000 runs that many in all (`make fuzz`).
"""

import os
import random

import pytest
import torch
from transformers.modeling_layers import MtpModel

from tests.generation import sources
from tests.tiny import EOS, VOCAB_SIZE


CALLS = max(1, int(os.environ.get("FUZZ_CASES", 5 * len(sources.SOURCES))) // len(sources.SOURCES))


def random_call(draw: random.Random) -> dict:
    """Return a prompt and settings that plain greedy decoding supports as well."""
    ids = [draw.randrange(2, VOCAB_SIZE) for _ in range(draw.randint(3, 14))]
    length = draw.randint(1, 24)
    call = {"inputs": torch.tensor([ids]), "max_new_tokens": length, "do_sample": False}
    for name, value in (
        ("repetition_penalty", draw.uniform(1.0, 1.5)),
        ("bad_words_ids", [[draw.randrange(4, VOCAB_SIZE)]]),
        ("min_new_tokens", draw.randint(1, length)),
        ("no_repeat_ngram_size", draw.randint(2, 3)),
        ("eos_token_id", [EOS, draw.randrange(4, VOCAB_SIZE), draw.randrange(4, VOCAB_SIZE)]),
    ):
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
        call = random_call(draw)
        ours = {"verifier": draw.choice(["lossless", "block:lossless"])}
        if draw.random() < 0.5:
            ours["num_assistant_tokens"] = draw.randint(1, 7)
        found = target.generate(**call, **selects, **ours)
        assert torch.equal(found, target.generate(**call)), (call, ours)
