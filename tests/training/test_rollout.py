"""Rollouts against fresh forward passes of both models, and the loop's own counters; and the order of the prompts."""

from collections import Counter

import pytest
import torch

from hf_diversed.evaluation.decoder import Sampling
from hf_diversed.features import distribution_features, drafted_token_features
from hf_diversed.head import DiversedHead, DiversedHeadConfig
from hf_diversed.outputs import SOURCES
from hf_diversed.training.rollout import RolloutOrder, Sampler
from hf_diversed.zoo.loader import Pair
from tests.tiny import EOS, tiny_draft, tiny_model
from tests.training import runs


MAX_NEW = 12
TEMPERATURE = 0.8
PROMPTS = ["mnop? qrs", "a", "def 1", "zz", "ghi = 22 + 3", "0", "bc", "e"]


class Spy(Sampler):
    """Stores the token records that rollouts were read from."""

    def __init__(self, *args):
        super().__init__(*args)
        self.records = []

    def _decoded(self, *args, **kwargs):
        for order, drawn in super()._decoded(*args, **kwargs):
            self.records.append(drawn.records)
            yield order, drawn


def make_head(target, draft, features: str = "both") -> DiversedHead:
    """A head whose weights differ between positions; with "+token" in its features also between tokens."""
    kind = {"features": features.removesuffix("+token"), "token_features": features.endswith("+token")}
    head = DiversedHead(DiversedHeadConfig.for_pair(target, draft, **kind))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        head.out.weight.normal_(std=0.4, generator=generator)
    return head


def make_sampler(target=None, draft=None, **settings) -> Spy:
    if target is None:
        target, draft = runs.pair()
    settings = {"max_new_tokens": MAX_NEW, "num_assistant_tokens": 3, "temperature": TEMPERATURE, **settings}
    return Spy(Pair(target, draft, runs.tokenizer()), Sampling(**{"batch_size": 3, **settings}))


def fresh(model, prompt_ids: list[int], completion: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Distributions `[T, V]` and hidden states `[T, D]` at each token of a completion, from one plain forward."""
    ids = torch.tensor([prompt_ids + completion])
    with torch.no_grad():
        output = model(ids, output_hidden_states=True)
    place = slice(len(prompt_ids) - 1, -1)
    return torch.softmax(output.logits[0, place] / TEMPERATURE, -1), output.hidden_states[-1][0, place]


@pytest.mark.parametrize(("architecture", "features"), [("gpt2", "both"), ("llama", "distribution+token")])
def test_decisions_are_those_of_a_fresh_forward(architecture: str, features: str):
    """Catches probabilities or inputs of another position, row or rejected token, and raw distributions."""
    target = tiny_model(architecture)
    draft = tiny_draft(target, noise=0.3)
    sampler, head = make_sampler(target, draft), make_head(target, draft, features)
    rollouts = sampler.relaxed(PROMPTS, head, seed=1)
    decisions, inputs = rollouts.decisions, rollouts.inputs
    # Batches hold the prompts by length; their rows in that order.
    prompts = [sampler.pair.tokenizer(prompt).input_ids for prompt in PROMPTS]
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    sources = dict(zip(order, (row for records in sampler.records for row in records.source.tolist())))
    by_token = features.endswith("+token")
    names = {"features"} | ({"target_hidden", "draft_hidden"} if features == "both" else set())
    assert set(inputs) == names | ({"token"} if by_token else set())
    for row, ids in enumerate(rollouts.completion_ids):
        p, target_hidden = fresh(target, prompts[row], ids)
        q, draft_hidden = fresh(draft, prompts[row], ids)
        mine = decisions.sequence == row
        decided = [source >= 0 and SOURCES[source] != "bonus" for source in sources[row]]
        places = torch.tensor(decided).nonzero()[:, 0]
        tokens = torch.tensor(ids)[places]
        expected = {
            "target_prob": p[places, tokens],
            "draft_prob": q[places, tokens],
            "tv": 0.5 * (p - q).abs().sum(-1)[places],
        }
        for name, values in expected.items():
            torch.testing.assert_close(getattr(decisions, name)[mine], values, rtol=0.0, atol=1e-4)
        known = {"features": distribution_features(p, q), "target_hidden": target_hidden, "draft_hidden": draft_hidden}
        strict, kept = decisions.strict_prob[mine], decisions.accepted[mine]
        lossless = (p[places, tokens] / q[places, tokens]).clamp_max(1.0)
        torch.testing.assert_close(strict[kept], lossless[kept], rtol=0.0, atol=1e-3)
        # A rejected token has p < q, and the token in its place p > q.
        assert (strict[~kept] < 1.0).all()
        assert (p > q)[places, tokens][~kept].all()
        if by_token:
            known["token"] = drafted_token_features(p[places], q[places], tokens)
            drafted = inputs["token"][mine]
            torch.testing.assert_close(drafted[kept], known["token"][kept], rtol=0.0, atol=2e-3)
            torch.testing.assert_close(drafted[:, 0].exp(), strict, rtol=0.0, atol=1e-4)
        for name, values in inputs.items():
            if name == "token":
                continue
            torch.testing.assert_close(values[mine], known[name][places], rtol=0.0, atol=2e-3)


def test_rollouts_depend_on_the_seed_and_the_weights_only():
    """Catches rollouts that depend on the global random state, which a resumed run does not share, or change it, and
    rollouts at the default strictness of a calibrated head."""
    sampler = make_sampler()
    head = make_head(sampler.pair.target, sampler.pair.draft)
    torch.manual_seed(1)
    one = sampler.relaxed(PROMPTS, head, seed=7)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    head.config.strictness = 0.0
    same, other = sampler.relaxed(PROMPTS, head, seed=7), sampler.relaxed(PROMPTS, head, seed=8)
    assert one.completion_ids == same.completion_ids != other.completion_ids
    assert torch.equal(one.decisions.tv, same.decisions.tv)
    texts = sampler.lossless(PROMPTS, seed=7)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(3)
    assert texts == sampler.lossless(PROMPTS, seed=7) != sampler.lossless(PROMPTS, seed=8)


def test_rollouts_end_at_eos_and_stop_strings():
    """Catches padding or tokens after the end, decisions on tokens that were cut off, and a completion with EOS at its
    last position that counts as truncated; reference completions end at the same places."""
    _, ids = make_sampler(batch_size=16).lossless(PROMPTS * 2, seed=0)
    drawn = Counter(token for row in ids for token in row if token > 3)
    (first, _), *_, (second, _) = drawn.most_common(8)
    target, draft = runs.pair()
    for model in (target, draft):
        model.generation_config.eos_token_id = [EOS, first]
    stop = runs.tokenizer().decode([second])
    sampler, prompts = make_sampler(target, draft, stop_strings=(stop,), batch_size=96), PROMPTS * 12
    rollouts = sampler.relaxed(prompts, make_head(target, draft), seed=1)
    ends = (EOS, first, second)
    for rows in (rollouts.completion_ids, sampler.lossless(prompts, seed=1)[1]):
        ended = [row[-1] in ends for row in rows]
        assert 5 < sum(ended) < len(ended)
        assert not any(token in ends for row in rows for token in row[:-1])
        assert {row[-1] for row in rows} > {first, second}
        assert all(end or len(row) == MAX_NEW for row, end in zip(rows, ended))
    ended = [row[-1] in ends for row in rollouts.completion_ids]
    assert rollouts.finished == ended
    assert any(end and len(row) == MAX_NEW for row, end in zip(rollouts.completion_ids, ended))
    accepted, sequence = rollouts.decisions.accepted, rollouts.decisions.sequence
    for kept, name in ((accepted, "num_accepted"), (~accepted, "num_rejected")):
        counts = torch.bincount(sequence[kept], minlength=len(prompts)).tolist()
        assert counts == [getattr(row, name) for row in rollouts.stats]
        assert sum(counts) > 5


def order(num_prompts=7, batch_size=8, num_updates=12, seed=0) -> RolloutOrder:
    return RolloutOrder(num_prompts, batch_size, 2, 3, num_updates, seed)


def test_order_of_the_prompts():
    """Catches updates with the prompts of other rollouts, divided groups, prompts drawn with replacement, too few
    prompts for a batch, and an order that a resumed or extended run does not repeat."""
    indices = list(order(num_updates=42))
    assert len(indices) == len(order(num_updates=42)) == 8 * 42
    found = [indices[start : start + 8] for start in range(0, len(indices), 8)]
    assert all(found[k] == found[k - k % 3] for k in range(42))
    assert all(group[::2] == group[1::2] for group in found)
    drawn = [index for group in found[::3] for index in group[::2]]
    passes = [tuple(drawn[start : start + 7]) for start in range(0, 56, 7)]
    assert [sorted(each) for each in passes] == [list(range(7))] * 8
    assert len(set(passes)) > 1
    assert list(order()) == list(order()) == indices[: len(order())] != list(order(seed=1))
    assert Counter(order(num_prompts=3, batch_size=12, num_updates=3)) == {0: 12, 1: 12, 2: 12}
