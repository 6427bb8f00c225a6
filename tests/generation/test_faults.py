"""NaN and infinite values end a call before a token is emitted, with an error that names their source."""

import copy
import math

import pytest
import torch

from hf_diversed.blocks import Verdict
from hf_diversed.verifiers import (
    BlockVerifier,
    DistributionVerifier,
    DiversedVerifier,
    PhaseVerifier,
    Verifier,
    build_verifier,
)
from tests.tiny import Listener, generate, ragged_batch, tiny_head


def with_fault(model, value: float, first: int = 2):
    """Return a copy whose logits are `value` in a column from its `first`-th forward on; the prefill is first."""
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


@pytest.mark.parametrize(
    ("verifier", "value", "do_sample"), [("lossless", math.nan, False), ("block:static:0.5", math.inf, True)]
)
@pytest.mark.parametrize("culprit", ["target", "draft model"])
def test_a_models_faults_are_named(pair, culprit, verifier, value, do_sample):
    """Catches NaN logits that become token 0 (greedy) or V - 1 (sampled), and an error that names the wrong model."""
    models = dict(zip(("target", "draft model"), pair))
    models[culprit] = with_fault(models[culprit], value)
    torch.manual_seed(0)
    with pytest.raises(FloatingPointError, match=f"the {culprit}'s scores are not finite"):
        generate(tuple(models.values()), verifier=verifier, do_sample=do_sample)


def test_nothing_is_emitted_after_a_fault(pair):
    """Catches a check after the streamer: the streamed text must end before the fault."""
    call = {**ragged_batch(1), "verifier": "lossless", "max_new_tokens": 24, "do_sample": False}
    whole, streamer = generate(pair, **call).sequences, Listener()
    with pytest.raises(FloatingPointError):
        generate((with_fault(pair[0], math.nan, first=4), pair[1]), **call, streamer=streamer)
    assert 9 < len(streamer.tokens) < whole.shape[1]
    assert streamer.tokens == whole[0, : len(streamer.tokens)].tolist()


def test_unused_values_are_not_checked(pair):
    """Catches a check of whole blocks: values after a rejection and in finished rows do not matter."""
    call = {"max_new_tokens": 24, "do_sample": False}
    expected = generate(pair, **call, verifier="lossless").sequences

    class Spoiling(type(build_verifier("lossless"))):
        """Sets the values after each row's first rejection to NaN, as a fault there would."""

        def __call__(self, input_ids, draft, target):
            verdict = super().__call__(input_ids, draft, target)
            kept = (verdict.accept_prob * draft.active).cumprod(-1).sum(-1, keepdim=True)
            columns = torch.arange(draft.tokens.shape[1])
            draft.scores.masked_fill_((columns > kept)[..., None], math.nan)
            return verdict

    assert torch.equal(generate(pair, **call, verifier=Spoiling()).sequences, expected)


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

    def __call__(self, input_ids, draft, target):
        accept_prob = torch.full_like(draft.tokens, self.accept, dtype=torch.float32)
        return Verdict(accept_prob, lambda positions: self.change(target.probs(positions)))


def test_an_unused_replacement_is_not_checked(pair):
    """Catches a residual of 0 that is reported where no token was rejected, as for equal p and q."""
    accepted = generate(pair, verifier=Accepting(1.0, lambda p: 0.0 * p), do_sample=True, max_new_tokens=12)
    assert accepted.stats.num_rejected == 0


def faulty_head(value):
    head = tiny_head()
    head.out.weight.data.fill_(value)
    return DiversedVerifier(head)


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize(
    "verifier",
    [
        PhaseVerifier(*[faulty_head(math.nan)] * 2, begin=5, end=6),
        faulty_head(math.inf),
        Emitting(lambda q: q * math.nan),
        Accepting(0.0, lambda p: p * math.nan),
    ],
)
def test_faults_of_a_verifier_are_named(pair, verifier, do_sample):
    """Catches weights that became NaN in memory, and a NaN distribution, whose argmax is token 0."""
    with pytest.raises(FloatingPointError, match=f"{type(verifier).__name__} returned an acceptance"):
        generate(pair, verifier=verifier, do_sample=do_sample)


@pytest.mark.parametrize(
    ("verifier", "words"),
    [
        (Emitting(lambda q: 2 * q), "invalid probabilities"),
        (Emitting(lambda q: q[..., :-1]), r"must have shape \[\d, 5, 64\], got \[\d, 5, 63\]"),
        (Accepting(1.5), "invalid probabilities"),
        (Accepting(change=lambda p: -p), "invalid probabilities"),
        (BlockVerifier(Emitting(lambda q: 2 * q)), "invalid probabilities"),
    ],
)
def test_a_callers_verifier_must_return_distributions(pair, verifier, words):
    """Catches an emitted distribution of 2 q, which accepts every draft token, and negative or empty ones."""
    with pytest.raises(ValueError, match=f"{type(verifier).__name__}.*{words}"):
        generate(pair, verifier=verifier)


def test_greedy_acceptance_must_be_0_or_1(pair):
    """Catches probabilities between 0 and 1, which greedy decoding would round."""
    with pytest.raises(ValueError, match="0 or 1 in greedy decoding"):
        generate(pair, verifier=Accepting(0.7), do_sample=False)


def test_acceptance_may_be_bool(pair):
    """Catches uniforms in the dtype of `accept_prob`: a bool 0.5 is True, so every draft token is rejected."""

    class Agreeing(Verifier):
        def __call__(self, input_ids, draft, target):
            return Verdict(draft.tokens == target.scores[:, :-1].argmax(dim=-1), target.at)

    expected, found = (generate(pair, verifier=each, do_sample=False) for each in ("lossless", Agreeing()))
    assert torch.equal(found.sequences, expected.sequences)
    assert found.stats.num_accepted == expected.stats.num_accepted > 0
