"""The distribution of the emitted tokens, end to end: exact probabilities against many sampled rows."""

from collections import Counter, defaultdict
from functools import cache

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.generation.test_equals_reference import prompts
from tests.tiny import generate


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


def _process_probs(target, draft, weight: float, gamma: int, remaining: int, prefix: tuple[int, ...]):
    """Exact distribution of the decoding process: {tokens: probability}, by enumerating draft tokens, decisions and
    replacements."""
    horizon = min(gamma, remaining - 1)
    total: dict[tuple[int, ...], float] = defaultdict(float)

    def emit(emitted, token, probability):
        done = (*emitted, token)
        if len(done) == remaining:
            total[done] += probability
            return
        rest = _process_probs(target, draft, weight, gamma, remaining - len(done), prefix + done)
        for tail, share in rest.items():
            total[done + tail] += probability * share

    def walk(emitted, probability):
        p, q = (_probs(model, prefix + emitted) for model in (target, draft))
        if len(emitted) == horizon:
            for token in range(3):
                emit(emitted, token, probability * float(p[token]))
            return
        kept = torch.minimum(q, weight * p + (1 - weight) * q)
        left = (p - q).clamp_min(0)
        for token in range(3):
            emit(emitted, token, probability * float((1 - kept.sum()) * left[token] / left.sum()))
            walk((*emitted, token), probability * float(kept[token]))

    walk((), 1.0)
    return total


@cache
def _probs(model, prefix: tuple[int, ...]) -> torch.Tensor:
    with torch.no_grad():
        return torch.softmax(model(torch.tensor([prefix])).logits[0, -1].double(), -1)


@pytest.mark.parametrize("gamma", [1, 2])
def test_end_to_end_distribution(gamma):
    """Invariant 5 over the whole loop: three tokens follow the process's exact distribution, bonus positions
    (distribution p) included. 20,000 rows; that any of 27 frequencies deviates by more than 5 standard errors has
    probability below 27 * 6e-7 = 2e-5 under the right distribution. Catches a bonus token sampled from v, a wrong
    effective draft length, and rows that share uniforms."""
    torch.manual_seed(0)
    target, draft, weight, count = _tiny_vocabulary_model(1), _tiny_vocabulary_model(2), 0.4, 20_000
    prompts = torch.zeros(count, 1, dtype=torch.long)
    inputs = {"input_ids": prompts, "attention_mask": torch.ones_like(prompts)}
    settings = {"num_assistant_tokens": gamma, "max_new_tokens": 3, "eos_token_id": None, "pad_token_id": 0}
    out = generate((target, draft), verifier=f"static:{weight}", **inputs, **settings)
    assert 0.1 < out.stats.acceptance_rate < 0.95
    exact = _process_probs(target, draft, weight, gamma, remaining=3, prefix=(0,))
    assert sum(exact.values()) == pytest.approx(1.0, abs=1e-9)
    seen = Counter(map(tuple, out.sequences[:, 1:].tolist()))
    for tokens, probability in exact.items():
        error = (probability * (1 - probability) / count) ** 0.5
        assert abs(seen[tokens] / count - probability) < 5 * error, tokens


def test_copies_before_a_draft_model_keep_the_distribution(pair):
    """Catches a copied token that is verified with q of the draft model."""
    target, draft = pair
    ids, rows = prompts(1)["input_ids"], 2_000
    torch.manual_seed(0)
    out = target.generate(
        ids.expand(rows, -1), attention_mask=torch.ones(rows, ids.shape[1], dtype=torch.long),
        assistant_model=draft, verifier="lossless", num_assistant_tokens=3, prompt_lookup_num_tokens=6,
        return_dict_in_generate=True, do_sample=True, top_k=0, max_new_tokens=2, max_matching_ngram_size=3,
    )  # fmt: skip
    assert out.stats.draft_forwards == 1  # the prompt's: the only round copies
    with torch.no_grad():
        p = torch.softmax(target(ids).logits[0, -1].double(), dim=-1)
    found = torch.bincount(out.sequences[:, ids.shape[1]], minlength=len(p)).double() / rows
    assert (found - p).abs().sum() < 3 * (p * (1 - p) / rows).sqrt().sum()
