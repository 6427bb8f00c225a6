"""`benchmarks/forwards.py`: counts of a batch in which each row has a rule of its own."""

import torch
from transformers import GenerationConfig

from benchmarks import forwards
from hf_diversed import load_demo_pair
from hf_diversed.generation.confidence import ConfidenceRule


def test_rows_of_a_batch_are_calls_of_their_own(monkeypatch):
    """Catches rows whose blocks end where another row's do, and rules that move to another row when one has ended."""
    monkeypatch.setattr(forwards, "CONSTANTS", (3,))
    monkeypatch.setattr(forwards, "COSTS", (0.1,))
    pair, texts = load_demo_pair(), ("Question: Mia has 74 dollars and buys 9 pens.", "Question: Tom", "The river")
    prompts = [pair.tokenizer(text)["input_ids"] for text in texts]
    call = {"verifier": "lossless", "do_sample": False, "max_new_tokens": 40}
    found = forwards.count_lengths(pair, prompts, 0, **call)
    monkeypatch.setattr(ConfidenceRule, "for_models", lambda *_: ConfidenceRule(0.1))
    constant = {"num_assistant_tokens": 3, "num_assistant_tokens_schedule": "constant"}
    for method, given in (("confidence 0.1", {}), ("constant 3", constant)):
        config = GenerationConfig(return_dict_in_generate=True)
        inputs = [torch.tensor([ids]) for ids in prompts]
        stats = [
            pair.target.generate(ids, assistant_model=pair.draft, generation_config=config, **call, **given).stats
            for ids in inputs
        ]
        forward = [(each.num_emitted, each.target_forwards - 1, each.draft_forwards - 1) for each in stats]
        assert found[method] == tuple(map(sum, zip(*forward)))
