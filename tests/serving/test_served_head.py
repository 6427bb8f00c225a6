"""Heads for serving: the same logits with fewer operations."""

import pytest
import torch

from hf_diversed.features import distribution_features, drafted_token_features
from hf_diversed.head import DiversedHead, DiversedHeadConfig
from hf_diversed.serving.vllm.served_head import ServedHead
from hf_diversed.zoo.loader import HEADS, MIXTURE, WEIGHTS


def deep_head() -> DiversedHead:
    """Return a head with a hidden layer and standardised inputs."""
    torch.manual_seed(0)
    config = DiversedHeadConfig(8, 8, features="distribution", token_features=True, intermediate_size=6)
    head = DiversedHead(config)
    torch.nn.init.normal_(head.out.weight)
    torch.nn.init.normal_(head.out.bias)
    head.standardize(**{name: values[:, 0] for name, values in inputs(True).items()})
    return head.eval()


def inputs(sees_token: bool) -> dict[str, torch.Tensor]:
    """Return the inputs of 64 positions, from similar distributions to very different ones."""
    generator = torch.Generator().manual_seed(1)
    p, q = ((4.0 * torch.randn(64, 1, 32, generator=generator)).softmax(-1) for _ in range(2))
    tokens = torch.randint(32, (64, 1), generator=generator)
    token = {"token": drafted_token_features(p, q, tokens)} if sees_token else {}
    return {"features": distribution_features(p, q), **token}


@pytest.mark.parametrize("kind", [HEADS, MIXTURE, "deep"])
def test_equals_the_head(kind):
    """Catches a mean or deviation applied twice or not at all, and layers in another order."""
    head = deep_head() if kind == "deep" else DiversedHead.from_pretrained(WEIGHTS / kind / "math").eval()
    served, seen = ServedHead(head), inputs(head.needs_token)
    with torch.no_grad():
        expected = head(**seen)
        assert expected.std() > 0.1
        torch.testing.assert_close(served(**seen), expected, rtol=1e-5, atol=1e-4)
        if head.needs_token:
            torch.testing.assert_close(served.ratio_slope(), head.ratio_slope())
