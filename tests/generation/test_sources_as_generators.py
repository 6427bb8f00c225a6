"""Each source of draft tokens also drafts in transformers' own assisted decoding."""

import random
from collections import Counter

import pytest
import torch
import transformers as tf
from transformers.generation.candidate_generator import CandidateGenerator

from hf_diversed import draft_source
from tests.tiny import BASE, VOCAB_SIZE, tiny_draft, tiny_model


COPIES = {"prompt_lookup_num_tokens": 4, "max_matching_ngram_size": 1}
SOURCES = {"draft model": (True, {}), "prompt lookup": (False, COPIES), "copies before a draft model": (True, COPIES)}


@pytest.fixture(scope="module")
def pair():
    target = tiny_model("llama")
    return target, tiny_draft(target)


def assisted(monkeypatch, pair, source: str, ids: torch.Tensor, **call) -> tuple[torch.Tensor, Counter]:
    """Run transformers' assisted decoding with a source of this library.

    Returns:
        the sequences, and the number of candidates by kind, plus `matches`.
    """
    (target, draft), (has_draft_model, settings) = pair, SOURCES[source]
    seen: Counter = Counter()

    def build(generation_config, input_ids, logits_processor, assistant_model, model_kwargs, **_):
        found = draft_source(
            target, input_ids, generation_config, logits_processor, assistant_model, model_kwargs.get("attention_mask")
        )
        assert isinstance(found, CandidateGenerator)
        get, update = found.get_candidates, found.update_candidate_strategy

        def get_candidates(text):
            candidates, logits = get(text)
            count = candidates.shape[1] - text.shape[1]
            seen["copied" if logits is None else "drafted"] += count
            assert logits is None or logits.shape == (1, count, target.config.vocab_size)
            return candidates, logits

        def update_candidate_strategy(text, scores, num_matches):
            seen["matches"] += num_matches
            update(text, scores, num_matches)

        found.get_candidates, found.update_candidate_strategy = get_candidates, update_candidate_strategy
        return found

    monkeypatch.setattr(target, "_get_candidate_generator", build, raising=False)
    if has_draft_model:
        call["assistant_model"] = draft
    return target.generate(ids, **settings | call), seen


@pytest.mark.parametrize("source", SOURCES)
def test_greedy_text_is_that_of_plain_generation(source, pair, monkeypatch):
    """Catches a text, cache or length that differs from transformers' after a round: 30 random calls."""
    rng, total = random.Random(0), Counter()
    for seed in range(30):
        ids = repetitive_prompt(rng)
        mask = torch.ones_like(ids)
        if seed % 4 == 0:
            ids[0, :2], mask[0, :2] = 0, 0
        call = {"attention_mask": mask, "do_sample": False, "max_new_tokens": rng.randint(1, 16)}
        call |= {"num_assistant_tokens": rng.randint(1, 6), "repetition_penalty": rng.choice([1.0, 1.3])}
        if source == "prompt lookup":
            call["num_assistant_tokens"] = COPIES["prompt_lookup_num_tokens"]
        elif seed % 3 == 0:
            call["num_assistant_tokens_schedule"] = "confidence"
        expected = pair[0].generate(ids, **{name: call[name] for name in call if "assistant" not in name})
        found, seen = assisted(monkeypatch, pair, source, ids, **call)
        monkeypatch.undo()
        assert found.tolist() == expected.tolist(), seed
        total += seen
    assert total["matches"] > 12
    check_kinds(source, total)


def test_draft_model_agrees_with_itself(pair, monkeypatch):
    """Catches a draft model's cache that is wrong after a round, which lossless verification would hide."""
    _, seen = assisted(
        monkeypatch,
        (pair[0], pair[0]),
        "draft model",
        torch.arange(4, 10)[None],
        do_sample=False,
        max_new_tokens=40,
        eos_token_id=None,
        num_assistant_tokens=4,
    )
    assert seen["matches"] == seen["drafted"] > 20


@pytest.mark.parametrize("source", ["draft model", "copies before a draft model"])
def test_sampled_text_follows_the_target(source, monkeypatch):
    """Catches logits that the candidates were not drawn from: chi-square of each token's successors."""
    target = markov_model()
    call = {"do_sample": True, "temperature": 2.0, "top_k": 3, "max_new_tokens": 300, "eos_token_id": None}
    call |= {"num_assistant_tokens": COPIES["prompt_lookup_num_tokens"], "max_matching_ngram_size": 4}
    with torch.no_grad():
        logits = target(torch.arange(4)[:, None]).logits[:, 0] / call["temperature"]
    lowest = logits.topk(call["top_k"]).values[:, -1:]
    probs = logits.masked_fill(logits < lowest, -torch.inf).softmax(dim=-1)
    torch.manual_seed(0)
    found, total = torch.zeros(4, 4), Counter()
    for _ in range(2):
        ids, seen = assisted(monkeypatch, (target, tiny_draft(target, noise=0.3)), source, torch.tensor([[3]]), **call)
        monkeypatch.undo()
        found.index_put_((ids[0, :-1], ids[0, 1:]), torch.tensor(1.0), accumulate=True)
        total += seen
    check_kinds(source, total)
    drafted = total["copied"] + total["drafted"]
    assert 0.1 * drafted < total["matches"] < 0.95 * drafted
    expected = probs * found.sum(dim=-1, keepdim=True)
    assert (found[expected == 0] == 0).all()
    statistic = ((found - expected).square() / expected)[expected > 0].sum()
    assert statistic < 8 + 4 * 16**0.5  # of four tokens with three successors each: 8 degrees of freedom


def check_kinds(source: str, total: Counter) -> None:
    """Check which tokens a source has drafted."""
    assert (total["drafted"] > 0) == (source != "prompt lookup")
    assert (total["copied"] > 0) == (source != "draft model")


def markov_model():
    """Return a model of four tokens without attention, whose distribution depends on the last token only."""
    model = tiny_model(lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**BASE | {"vocab_size": 4})))
    for layer in model.model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
    return model


def repetitive_prompt(rng: random.Random) -> torch.Tensor:
    """Return a prompt of 3 to 15 ids from 6 different ones, long `[1, S]`."""
    ids = rng.sample(range(4, VOCAB_SIZE), 6)
    return torch.tensor([rng.choices(ids, k=rng.randint(3, 15))])
