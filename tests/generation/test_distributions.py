"""The distribution of the emitted tokens, end to end: exact probabilities against many sampled rows."""

from collections import Counter
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hf_diversed.verifiers import build_verifier
from tests.tiny import generate
from tests.verifiers.process import Tables, process_probs


@cache
def _tiny_vocabulary_model(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=3, **sizes, pad_token_id=None, eos_token_id=None, bos_token_id=None)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(20.0 if parameter.ndim == 2 else 1.0)
    return model.eval()


@dataclass(frozen=True)
class Models(Tables):
    """The scores of a pair for every prefix; `seed` is that of the target, and the draft model has the next one."""

    def scores(self, model: int, prefix: tuple[int, ...]) -> torch.Tensor:
        return _scores(self.seed + model, prefix)


@cache
@torch.no_grad()
def _scores(seed: int, prefix: tuple[int, ...]) -> torch.Tensor:
    return _tiny_vocabulary_model(seed)(torch.tensor([prefix])).logits[0, -1]


@pytest.mark.parametrize("gamma", [1, 2])
def test_end_to_end_distribution(gamma):
    """Invariant 5 over the whole loop: three tokens follow the process's exact distribution, bonus positions
    (distribution p) included. 20,000 rows; that any of 27 frequencies deviates by more than 5 standard errors has
    probability below 27 * 6e-7 = 2e-5 under the right distribution. Catches a bonus token sampled from v, a wrong
    effective draft length, and rows that share uniforms."""
    pair, verifier, count = (_tiny_vocabulary_model(1), _tiny_vocabulary_model(2)), "static:0.4", 20_000
    torch.manual_seed(0)
    prompts = torch.zeros(count, 1, dtype=torch.long)
    inputs = {"input_ids": prompts, "attention_mask": torch.ones_like(prompts)}
    settings = {"num_assistant_tokens": gamma, "max_new_tokens": 3, "eos_token_id": None, "pad_token_id": 0}
    out = generate(pair, verifier=verifier, **inputs, **settings)
    assert 0.1 < out.stats.acceptance_rate < 0.95
    exact = process_probs(build_verifier(verifier), Models(1), gamma, 3)
    assert sum(exact.values()) == pytest.approx(1.0, abs=1e-6)
    seen = Counter(map(tuple, out.sequences[:, 1:].tolist()))
    for tokens, probability in exact.items():
        error = (probability * (1 - probability) / count) ** 0.5
        assert abs(seen[tokens] / count - probability) < 5 * error, tokens
