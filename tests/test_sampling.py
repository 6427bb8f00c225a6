"""The sampling functions on plain tensors: edge cases by enumeration."""

import itertools

import pytest
import torch

from hf_diversed.sampling import acceptance, count_accepted, draw, draw_noise, residual, total_variation


DENORMAL = 1e-42
PROBABILITIES = torch.tensor([0.0, DENORMAL, 1e-30, 1e-6, 0.2, 0.5, 1.0])


def test_acceptance_is_min_1_v_over_q():
    """Catches a mixture with the weights swapped, a missing clamp, and a weight that does not broadcast."""
    positive = PROBABILITIES[2:]
    p, q = torch.cartesian_prod(PROBABILITIES, positive).unbind(-1)
    weight = torch.tensor([0.0, 0.1, 0.5, 0.9, 1.0])[:, None]
    v = weight.double() * p.double() + (1.0 - weight.double()) * q.double()
    expected = (v / q.double()).clamp_max(1.0)
    torch.testing.assert_close(acceptance(p, q, weight).double(), expected, rtol=0.0, atol=1e-6)


def test_acceptance_is_exact_at_both_ends():
    """Catches 0 * inf and 0 / 0 at weight 0, and a mixture that rounds differently from lossless sampling."""
    p, q = torch.cartesian_prod(PROBABILITIES, PROBABILITIES).unbind(-1)
    assert (acceptance(p, q, 0.0) == 1.0).all()
    assert (acceptance(p, q, torch.zeros_like(p)) == 1.0).all()
    p, q = torch.cartesian_prod(PROBABILITIES, PROBABILITIES[2:]).unbind(-1)
    assert torch.equal(acceptance(p, q), (p / q).clamp_max(1.0))
    assert (acceptance(torch.zeros(3), PROBABILITIES[:3]) == 0.0).all()


def test_residual_is_the_surplus_or_the_fallback():
    """Catches negative values, one row's fallback used for all, and an empty distribution where v equals q."""
    v = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [0.6, 0.4, 0.0]])
    q = torch.tensor([[0.2, 0.5, 0.3], [0.2, 0.3, 0.5], [0.0, 0.0, 1.0]])
    fallback = torch.tensor([[9.0, 9.0, 9.0], [0.1, 0.9, 0.0], [9.0, 9.0, 9.0]])
    expected = torch.tensor([[0.3, 0.0, 0.0], [0.1, 0.9, 0.0], [0.6, 0.4, 0.0]])
    torch.testing.assert_close(residual(v, q, fallback), expected)


def test_count_accepted_over_all_decisions():
    """Catches a count that skips a rejection, continues past a row's draft tokens, or reads another row."""
    cases = list(itertools.product(itertools.product([False, True], repeat=4), range(5)))
    expected = [next((i for i, kept in enumerate(row) if not kept or i == count), 4) for row, count in cases]
    accept_prob = torch.linspace(0.2, 0.8, len(cases))[:, None].expand(-1, 4)
    kept, num_drafted = torch.tensor([row for row, _ in cases]), torch.tensor([count for _, count in cases])
    uniforms = torch.where(kept, accept_prob - 0.1, accept_prob + 0.1)
    assert count_accepted(accept_prob, uniforms, num_drafted).tolist() == expected


def test_uniforms_at_the_ends():
    """Catches `<=` for `<`: 0 must not accept probability 0, and a uniform below 1 must accept probability 1."""
    largest = torch.nextafter(torch.tensor(1.0), torch.tensor(0.0))
    accept_prob = torch.tensor([[0.0], [1.0], [1.0]])
    uniforms = torch.tensor([[0.0], [0.0], [largest]])
    assert count_accepted(accept_prob, uniforms, torch.ones(3, dtype=torch.long)).tolist() == [0, 1, 1]


@pytest.mark.parametrize("seed", range(2))
def test_draw_is_torch_multinomial(seed: int):
    """Catches draws that do not follow upstream's random number stream: one seed would give other tokens."""
    distribution = torch.rand(6, 50, generator=torch.Generator().manual_seed(99)) ** 4
    distribution[:, ::3] = 0.0
    distribution[1:] /= distribution[1:].sum(-1, keepdim=True)  # normalised or not
    noise = torch.empty_like(distribution).exponential_(generator=torch.Generator().manual_seed(seed))
    expected = torch.multinomial(distribution, 1, generator=torch.Generator().manual_seed(seed)).squeeze(-1)
    assert torch.equal(draw(distribution, noise), expected)


def test_draw_by_inversion_follows_the_distribution():
    """Catches an interval of uniforms that is assigned to the wrong token.

    On an even grid of N uniforms, every token's share is within 1/N of its probability, and tokens of probability 0
    get none, including at both ends.
    """
    distribution = torch.tensor([0.0, 0.3, 0.0, 0.05, 2e-4, 0.65, 0.0]) * 3.7
    grid = torch.arange(0, 1, 1 / 4096)
    grid[-1] = 1 - 2**-24
    tokens = draw(distribution.expand(len(grid), -1), grid[:, None])
    shares = torch.bincount(tokens, minlength=len(distribution)) / len(grid)
    torch.testing.assert_close(shares, distribution / distribution.sum(), atol=1 / 4096 + 1e-6, rtol=0)
    assert set(tokens.tolist()) == {1, 3, 4, 5}


def test_draw_never_returns_a_token_of_probability_0(monkeypatch):
    """Catches a cumulative sum that rounding raises at such a token, as in a sum that is computed in parallel."""
    calls, cumsum, raised = [], torch.Tensor.cumsum, torch.tensor([0.0, 0.2, 0.0])
    monkeypatch.setattr(
        torch.Tensor, "cumsum", lambda self, dim, dtype: calls.append(dim) or cumsum(self, dim) + raised
    )
    grid = torch.arange(0, 1, 1 / 64)
    tokens = draw(torch.tensor([0.3, 0.0, 0.7]).expand(len(grid), -1), grid[:, None])
    assert calls
    assert set(tokens.tolist()) == {0, 2}


def test_rare_tokens_of_a_batch_are_drawn_as_often_as_their_probability():
    """Catches noise or a cumulative sum in float32, of which some tokens get too large a share and others none."""
    probs = torch.tensor([1.0, *[3e-9] * 4000])
    noise = draw_noise(probs.expand(2, -1)).new_tensor([[0.0], [2e-9], [1.1e-5]])
    assert draw(probs.expand(3, -1), noise).tolist() == [4000, 4000, 334]
    assert len(set((draw_noise(probs.expand(4096, -1)) * 2**24).frac().flatten().tolist())) > 4000


def test_noise_has_the_shape_of_the_draw():
    """Catches a single row that does not follow upstream's random numbers, and a batch whose rows share them."""
    torch.manual_seed(0)
    distribution = torch.softmax(torch.randn(1, 40), dim=-1)
    expected = torch.multinomial(distribution, 1)
    torch.manual_seed(0)
    torch.randn(1, 40)
    assert torch.equal(draw(distribution, draw_noise(distribution)), expected.squeeze(-1))
    noise = draw_noise(distribution.expand(64, -1))
    assert noise.shape == (64, 1)
    assert len(noise.unique()) > 60


def test_draw_without_noise_is_the_argmax():
    """Catches greedy decoding that treats negative or -inf scores as probabilities."""
    assert draw(torch.tensor([[-3.0, -1.0, -torch.inf], [0.0, 0.2, 0.7]]), None).tolist() == [1, 2]


def test_total_variation():
    """Catches a missing factor 1/2, or TV summed over the batch."""
    p = torch.tensor([[0.5, 0.5, 0.0], [0.1, 0.2, 0.7], [1.0, 0.0, 0.0]])
    q = torch.tensor([[0.0, 0.5, 0.5], [0.1, 0.2, 0.7], [0.0, 0.5, 0.5]])
    torch.testing.assert_close(total_variation(p, q), torch.tensor([0.5, 0.0, 1.0]))
