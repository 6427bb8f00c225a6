"""The head: what it says when fresh, in which precision, and what it sees of two laws."""

import math

import pytest
import torch

from hf_diversed.features import distribution_features
from hf_diversed.head import DiversedHead, DiversedHeadConfig
from tests.verifier_cases import DRAFT_WIDTH, TARGET_WIDTH, make_block, random_head


HEADS = [(head_type, features) for head_type in ("linear", "mlp") for features in ("hidden", "distribution", "both")]
every_head = pytest.mark.parametrize(("head_type", "features"), HEADS)


def inputs(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Everything any head may ask for, at the same positions."""
    draft, target = make_block(rows=3)
    return {
        "target_hidden": target.hidden[:, :-1].to(dtype),
        "draft_hidden": draft.hidden.to(dtype),
        "features": distribution_features(target.probs()[:, :-1], draft.probs()),
    }


@every_head
def test_fresh_head_says_one_half_everywhere(head_type: str, features: str):
    """Catches random initialisation of the output layer: training would start from noise, not from an even mixture."""
    config = DiversedHeadConfig(TARGET_WIDTH, DRAFT_WIDTH, head_type=head_type, features=features)
    assert (torch.sigmoid(DiversedHead(config)(**inputs())) == 0.5).all()


def test_fresh_mlp_can_learn():
    """Catches a hidden layer initialised to zero: no gradient would ever reach it."""
    head = DiversedHead(DiversedHeadConfig(TARGET_WIDTH, DRAFT_WIDTH, head_type="mlp"))
    head(**inputs()).sum().backward()
    assert head.out.weight.grad.abs().min() > 0.0


@every_head
def test_computes_in_float32_from_bfloat16(head_type: str, features: str):
    """Catches arithmetic in bfloat16, which knows w to 2^-9 only: reference in float64 on the same rounded values."""
    head = random_head(head_type, features).to(torch.bfloat16)
    given = inputs(torch.bfloat16)
    found = head(**given)
    seen = [_normalised(given[name]) for name in ("target_hidden", "draft_hidden") if features != "distribution"]
    values = torch.cat(seen + [given["features"].double()] * (features != "hidden"), dim=-1)
    layers = {name: parameter.double() for name, parameter in head.named_parameters()}
    if head_type == "mlp":
        values = values @ layers["dense.weight"].T + layers["dense.bias"]
        values = 0.5 * values * (1.0 + torch.erf(values / math.sqrt(2.0)))
    expected = (values @ layers["out.weight"].T + layers["out.bias"])[..., 0]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


def _normalised(hidden: torch.Tensor) -> torch.Tensor:
    centred = hidden.double() - hidden.double().mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def test_normalize_can_be_switched_off():
    """Catches converted heads seeing normalised states: theirs were trained on raw ones."""
    head = random_head()
    head.config.normalize = False
    given = inputs()
    raw = torch.cat([given["target_hidden"], given["draft_hidden"]], dim=-1)
    torch.testing.assert_close(head(**given), (raw @ head.out.weight.T + head.out.bias)[..., 0])


@pytest.mark.parametrize(
    ("features", "name", "given", "message"),
    [
        ("hidden", "target_hidden", torch.ones(2, 7), "target_hidden must have width 4 .*'hidden', got width 7"),
        ("hidden", "draft_hidden", torch.ones(2, 4), "draft_hidden must have width 3 .*'hidden', got width 4"),
        ("both", "draft_hidden", None, "draft_hidden must have width 3 .*'both', got nothing"),
        ("distribution", "features", torch.ones(2, 3), "features must have width 8 .*'distribution', got width 3"),
        ("both", "features", None, "features must have width 8 .*'both', got nothing"),
    ],
)
def test_refuses_inputs_of_another_width(features: str, name: str, given: torch.Tensor | None, message: str):
    """Catches a head of another pair: swapped or wrong states must fail by name, not deep inside a matrix product."""
    right = {"target_hidden": torch.ones(2, 4), "draft_hidden": torch.ones(2, 3), "features": torch.ones(2, 8)}
    with pytest.raises(ValueError, match=message):
        random_head(features=features)(**{**right, name: given})


def test_distribution_head_takes_no_hidden_states():
    """Catches a distribution head that still looks at hidden states."""
    given = inputs()
    head = random_head(features="distribution")
    assert torch.equal(head(None, None, given["features"]), head(**given))


def test_distribution_features_by_definition():
    """Catches a figure in the wrong place, in bits, of swapped laws, or that is not finite on a truncated support."""
    draft, target = make_block(rows=3)
    p, q = target.probs()[:, :-1].flatten(0, 1), draft.probs().flatten(0, 1)
    found = distribution_features(p, q)
    assert found.isfinite().all()
    expected = [_figures(*laws) for laws in zip(p.double().tolist(), q.double().tolist())]
    torch.testing.assert_close(found.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-4, atol=1e-5)


def _figures(p: list[float], q: list[float]) -> list[float]:
    def log_ratio(a: float, b: float) -> float:
        return min(20.0, max(-20.0, math.log(a / b))) if b > 0.0 else 20.0

    entropies = [-sum(value * math.log(value) for value in law if value > 0.0) for law in (p, q)]
    kl = sum(a * log_ratio(a, b) for a, b in zip(p, q) if a > 0.0)
    tv = 0.5 * sum(abs(a - b) for a, b in zip(p, q))
    same_best = float(p.index(max(p)) == q.index(max(q)))
    implausible = sum(b for a, b in zip(p, q) if a < 0.01)
    return [*entropies, max(p), max(q), tv, math.log1p(kl), same_best, math.log(implausible + 1e-3)]


def test_standardize_scales_inputs_and_travels_with_the_head(tmp_path):
    """Catches a scale that is lost on the way to disk, one that blows up a constant input, and one over the wrong
    axis."""
    torch.manual_seed(0)
    head = DiversedHead(DiversedHeadConfig(4, 3, features="both"))
    torch.nn.init.normal_(head.out.weight)
    inputs = {
        "target_hidden": torch.randn(50, 4),
        "draft_hidden": torch.randn(50, 3),
        "features": torch.randn(50, 8) * 5 + 2,
    }
    inputs["features"][:, 3] = 0.25
    head.standardize(**inputs)
    values = (head._values(**inputs) - head.input_mean) / head.input_std
    torch.testing.assert_close(values.mean(0), torch.zeros(15), atol=1e-5, rtol=0)
    varying = [i for i in range(15) if i != 10]
    torch.testing.assert_close(values.std(0, correction=0)[varying], torch.ones(14))
    assert values[:, 10].abs().max() < 1e-3
    expected = values @ head.out.weight[0] + head.out.bias
    torch.testing.assert_close(head(**inputs), expected)
    head.save_pretrained(tmp_path)
    assert torch.equal(DiversedHead.from_pretrained(tmp_path)(**inputs), head(**inputs))
