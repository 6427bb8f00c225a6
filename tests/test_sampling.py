"""Counts and draws on plain tensors. `tests/verifiers` enumerates the distributions of acceptance and residual."""

import itertools

import torch

from hf_diversed.sampling import count_accepted, draw, draw_noise, total_variation


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
    distribution = torch.softmax(torch.randn(1, 40, generator=torch.Generator().manual_seed(0)), dim=-1)
    for seed in range(10):
        torch.manual_seed(seed)
        expected = torch.multinomial(distribution, 1)
        torch.manual_seed(seed)
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
