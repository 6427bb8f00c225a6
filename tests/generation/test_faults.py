"""NaN and infinite values end a call before a token is emitted, with an error that names their source."""

import copy
import math

import pytest
import torch
from transformers.generation.streamers import BaseStreamer

import hf_diversed
from hf_diversed.blocks import Verdict
from hf_diversed.verifiers import (
    BlockVerifier,
    DistributionVerifier,
    DiversedVerifier,
    PhaseVerifier,
    Verifier,
    build_verifier,
)
from tests.tiny import ragged_batch, tiny_head


def with_fault(model, value: float, first: int = 2):
    """Return a copy whose logits are `value` in one column from its `first`-th forward pass on; the first is the
    prefill."""
    model = copy.deepcopy(model)
    calls = []

    def spoil(module, inputs, outputs):
        calls.append(None)
        if len(calls) >= first:
            outputs.logits = outputs.logits.clone()
            outputs.logits[..., 7] = value
        return outputs

    model.register_forward_hook(spoil)
    return model


class StoringStreamer(BaseStreamer):
    def __init__(self):
        self.puts = []

    def put(self, value):
        self.puts.append(value)

    def end(self):
        pass


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize(
    "rule", ["lossless", "static:0.5", "lenience:0.5", "fuzzy:0.1", "block:static:0.5", "typical:0.3:0.3"]
)
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("culprit", ["target", "draft model"])
def test_a_models_faults_are_named(pair, culprit, value, rule, do_sample):
    """Catches NaN logits that become token 0 (greedy) or V - 1 (sampled), and an error that names the wrong model."""
    target, draft = (
        with_fault(m, value) if role == culprit else m for role, m in zip(("target", "draft model"), pair)
    )
    call = {"assistant_model": draft, "verifier": rule, "max_new_tokens": 12, "do_sample": do_sample}
    torch.manual_seed(0)
    with pytest.raises(FloatingPointError, match=f"the {culprit}'s scores are not finite"):
        target.generate(**ragged_batch(3), **call)


def test_nothing_is_emitted_after_a_fault(pair):
    """Catches a check after the streamer: the streamed text must end before the fault."""
    target, draft = pair
    prompt = {name: values[:1] for name, values in ragged_batch().items()}
    call = {"assistant_model": draft, "verifier": "lossless", "max_new_tokens": 24, "do_sample": False}
    whole, streamer = target.generate(**prompt, **call), StoringStreamer()
    with pytest.raises(FloatingPointError):
        with_fault(target, math.nan, first=4).generate(**prompt, **call, streamer=streamer)
    streamed = torch.cat([put.flatten() for put in streamer.puts])
    assert 9 < len(streamed) < whole.shape[1]
    assert torch.equal(streamed, whole[0, : len(streamed)])


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_faults_of_a_head_are_those_of_its_verifier(pair, value, do_sample):
    """Catches weights that became NaN in memory, such as after diverged training, alone and inside another
    verifier."""
    target, draft = pair
    head = tiny_head()
    head.out.weight.data.fill_(value)
    rule = DiversedVerifier(head)
    for verifier in (rule, PhaseVerifier(rule, rule, begin=5, end=6)):
        with pytest.raises(FloatingPointError, match=f"{type(verifier).__name__} returned an acceptance"):
            target.generate(
                **ragged_batch(), assistant_model=draft, verifier=verifier, max_new_tokens=8, do_sample=do_sample
            )


class Nowhere(DistributionVerifier):
    def emitted_probs(self, draft, target):
        return draft.probs() * math.nan


@pytest.mark.parametrize("do_sample", [False, True])
def test_a_verifier_without_a_distribution_is_named(pair, do_sample):
    """Catches a NaN distribution, whose argmax is token 0."""
    target, draft = pair
    with pytest.raises(FloatingPointError, match="Nowhere"):
        target.generate(
            **ragged_batch(), assistant_model=draft, verifier=Nowhere(), max_new_tokens=8, do_sample=do_sample
        )


def test_unused_values_are_not_checked(pair):
    """Catches a check of whole blocks: values after a rejection and in finished rows do not matter."""
    target, draft = pair
    prompts = ragged_batch()
    call = {"assistant_model": draft, "max_new_tokens": 24, "do_sample": False}
    expected = target.generate(**prompts, **call, verifier="lossless")

    class Spoiling(type(build_verifier("lossless"))):
        """Sets the values after each row's first rejection to NaN, as a fault there would."""

        def __call__(self, input_ids, draft, target, state=None):
            verdict = super().__call__(input_ids, draft, target, state)
            kept = (verdict.accept_prob * draft.active).cumprod(-1).sum(-1, keepdim=True)
            columns = torch.arange(draft.tokens.shape[1])
            draft.scores.masked_fill_((columns > kept)[..., None], math.nan)
            return verdict

    assert torch.equal(target.generate(**prompts, **call, verifier=Spoiling()), expected)


@pytest.mark.parametrize("spec", ["contrastive:inf", "cactus:inf", "contrastive:nan", "lenience:nan", "static:nan"])
def test_infinite_settings_are_refused(spec):
    """Catches an infinite contrast, whose distribution is NaN."""
    with pytest.raises(ValueError, match="must lie in"):
        hf_diversed.verifiers.build_verifier(spec)


class Emitting(DistributionVerifier):
    """Verifies against `change` of the draft's distribution."""

    def __init__(self, change):
        self.change = change

    def emitted_probs(self, draft, target):
        return self.change(draft.probs())


class Accepting(Verifier):
    """Accepts with a constant probability and replaces from `change` of the target's distribution."""

    def __init__(self, accept=0.5, change=lambda p: p):
        self.accept, self.change = accept, change

    def __call__(self, input_ids, draft, target, state=None):
        accept_prob = torch.full_like(draft.tokens, self.accept, dtype=torch.float32)
        return Verdict(accept_prob, lambda positions: self.change(target.probs(positions)))


@pytest.mark.parametrize("mode", [{}, {"cache_implementation": "static"}], ids=["eager", "static"])
@pytest.mark.parametrize(
    ("verifier", "words"),
    [
        (Emitting(lambda q: 2 * q), "invalid probabilities"),
        (Emitting(lambda q: q - 0.01), "invalid probabilities"),
        (Emitting(lambda q: torch.cat([1.5 * q[..., :1], -q[..., 1:]], -1)), "invalid probabilities"),
        (Emitting(lambda q: q[..., :-1]), r"must have shape \[\d, 5, 64\], got \[\d, 5, 63\]"),
        (Accepting(-0.1), "invalid probabilities"),
        (Accepting(1.5), "invalid probabilities"),
        (Accepting(change=lambda p: -p), "invalid probabilities"),
        (Accepting(change=lambda p: 0 * p), "invalid probabilities"),
        (BlockVerifier(Emitting(lambda q: 2 * q)), "invalid probabilities"),
    ],
)
def test_a_callers_verifier_must_return_distributions(pair, verifier, words, mode):
    """Catches an emitted distribution of 2 q, which accepts every draft token, and negative or empty ones."""
    target, draft = pair
    call = {**ragged_batch(3), **mode, "max_new_tokens": 8, "do_sample": True}
    with pytest.raises(ValueError, match=f"{type(verifier).__name__}.*{words}"):
        target.generate(**call, assistant_model=draft, verifier=verifier)


@pytest.mark.parametrize("do_sample", [False, True])
def test_a_callers_verifier_is_checked_once(pair, do_sample):
    """Catches a check in every round, which costs passes over the vocabulary, and one that refuses good values."""
    target, draft = pair
    calls = []

    def copy_of(q):
        calls.append(None)
        return q if len(calls) == 1 else 2 * q

    call = {**ragged_batch(3), "max_new_tokens": 24, "do_sample": do_sample}
    target.generate(**call, assistant_model=draft, verifier=Emitting(copy_of))
    assert len(calls) > 2
