"""The same tokens as assisted decoding of transformers under the same seed."""

import copy
import itertools

import pytest
import torch
from transformers import GenerationConfig
from transformers.generation import candidate_generator
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from tests.tiny import EOS, Listener, generate, ragged_batch, tiny_model


GAMMA = 4
SAMPLED = [{"do_sample": True, "top_k": 0}, {"do_sample": True, "top_k": 8}]


def upstream_assisted(pair, inputs, gamma=GAMMA, eos=EOS, threshold=0.0, **kwargs):
    """Upstream's assisted decoding with a constant schedule; without a pad id, which corrupts its draft's mask."""
    target, draft = pair
    saved = draft.generation_config, target.generation_config
    common = {"pad_token_id": None, "eos_token_id": eos}
    fixed = {"num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": threshold}
    draft.generation_config = GenerationConfig(**common, **fixed, num_assistant_tokens=gamma)
    target.generation_config = GenerationConfig(**common)
    try:
        return target.generate(**inputs, assistant_model=draft, **kwargs)
    finally:
        draft.generation_config, target.generation_config = saved


def ours(pair, verifier, inputs, **call):
    settings = {"attention_mask": None, "num_assistant_tokens": GAMMA}
    return generate(pair, verifier=verifier, **settings | inputs | call)


@pytest.mark.parametrize(
    ("weight", "sampling"),
    [*itertools.product([None, 0.3, 0.7], SAMPLED), (0.3, {"do_sample": False}), (0.6, {"do_sample": False})],
)
def test_matches_upstream_token_for_token(pair, weight, sampling):
    """Invariant 6 at batch size 1. Catches draws in another order or shape, a shifted bonus token and an outdated q.
    Temperature 1 only: upstream applies the temperature twice to the draft model (still lossless, but with another q
    than requested)."""
    verifier = "lossless" if weight is None else f"static:{weight}"
    for seed in range(4):
        prompt = {"input_ids": ragged_batch(seed=seed)["input_ids"][:1]}
        kwargs = {"max_new_tokens": 24, **sampling}
        torch.manual_seed(seed)
        theirs = upstream_assisted(pair, prompt, assistant_ensemble_weight=weight, **kwargs)
        torch.manual_seed(seed)
        assert torch.equal(ours(pair, verifier, prompt, **kwargs).sequences, theirs), (seed, weight)


def test_threshold_is_that_of_transformers(pair, monkeypatch):
    """Catches max q in place of q(x), and a block that ends one token earlier or later: a seed gives the same tokens
    only if every round draws the same random numbers. scikit-learn would change upstream's threshold."""
    monkeypatch.setattr(candidate_generator, "is_sklearn_available", lambda: False)
    for seed, threshold in enumerate((0.3, 0.7, 0.3, 0.7)):
        prompt = {"input_ids": ragged_batch(seed=seed)["input_ids"][:1]}
        sampling = {"max_new_tokens": 24, "do_sample": True, "top_k": 0}
        torch.manual_seed(seed)
        theirs = upstream_assisted(pair, prompt, gamma=8, threshold=threshold, **sampling)
        call = {**prompt, "attention_mask": None, **sampling, "verifier": "lossless", "num_assistant_tokens": 8}
        torch.manual_seed(seed)
        ours = generate(pair, **call, assistant_confidence_threshold=threshold)
        assert torch.equal(ours.sequences, theirs), seed
        monkeypatch.setattr(pair[1].generation_config, "assistant_confidence_threshold", threshold, raising=False)
        torch.manual_seed(seed)
        assert torch.equal(generate(pair, **call).sequences, theirs), "from the draft model's generation config"
        monkeypatch.delattr(pair[1].generation_config, "assistant_confidence_threshold")


@pytest.mark.parametrize("step", [1, 3, 4, 5, 6])  # draft tokens, the bonus token, and the block after it
@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("mode", [{}, {"cache_implementation": "static"}], ids=["eager", "static"])
def test_eos_in_the_middle_of_a_block(step, do_sample, mode):
    """Catches tokens after an accepted EOS in the sequence, the stream, the scores or the statistics, as transformers
    emitted them (transformers#47912). All draft tokens are accepted, and static rounds also draft after an EOS."""
    target = tiny_model("llama", seed=23)
    pair, inputs = (target, copy.deepcopy(target)), {"input_ids": ragged_batch()["input_ids"][:1]}
    kwargs = {"max_new_tokens": 10, "do_sample": do_sample, "top_k": 0, "output_scores": True}
    kwargs["return_dict_in_generate"] = True
    torch.manual_seed(step)
    whole = ours(pair, "lossless", inputs, eos_token_id=None, **kwargs).sequences[0, 9:].tolist()
    eos, stream = whole[step - 1], Listener()
    end = whole.index(eos) + 1
    torch.manual_seed(step)
    theirs = upstream_assisted(pair, inputs, eos=eos, **kwargs)
    torch.manual_seed(step)
    out = ours(pair, "lossless", inputs, eos_token_id=eos, streamer=stream, **kwargs, **mode)
    assert out.sequences.tolist() == theirs.sequences.tolist()
    assert out.sequences[0, 9:].tolist() == stream.tokens[9:] == whole[:end]
    assert len(out.scores) == len(theirs.scores) == end
    assert out.stats.num_emitted == end
    assert out.stats.num_drafted == out.stats.num_accepted


@pytest.mark.parametrize("ngram_size", [None, 3])
def test_looks_up_what_upstream_looks_up(pair, ngram_size, monkeypatch):
    """Catches another match, length or n-gram size than upstream's: same prefixes, same candidates."""
    calls = []
    inner = PromptLookupCandidateGenerator.get_candidates

    def spy(self, input_ids, **kwargs):
        candidates, _ = inner(self, input_ids, **kwargs)
        calls.append((input_ids[0].tolist(), candidates[0, input_ids.shape[1] :].tolist()))
        return candidates, None

    monkeypatch.setattr(PromptLookupCandidateGenerator, "get_candidates", spy)
    kwargs = {"prompt_lookup_num_tokens": GAMMA, "max_matching_ngram_size": ngram_size}
    for seed in range(3):
        prompt = {"input_ids": ragged_batch(seed=seed)["input_ids"][:1].repeat(1, 2)}
        call = {**prompt, **kwargs, "max_new_tokens": 24, "do_sample": False}
        theirs = pair[0].generate(**call)
        expected = calls.copy()
        calls.clear()
        found = pair[0].generate(**call, verifier="lossless")
        # Where one token is left nothing can be drafted: upstream asks all the same, and drops the answer.
        limit = prompt["input_ids"].shape[1] + 23
        assert calls == [call for call in expected if len(call[0]) < limit]
        assert torch.equal(found, theirs)
        calls.clear()
