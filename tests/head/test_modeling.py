"""The head: its untrained output, its precision, and its inputs from two distributions."""

import itertools
import math

import pytest
import torch

from hf_diversed import features as features_module
from hf_diversed.features import distribution_features, drafted_token_features, vocabulary_features
from hf_diversed.head import DiversedHead, DiversedHeadConfig
from tests.verifier_cases import DRAFT_WIDTH, TARGET_WIDTH, make_block, random_head


HEADS = list(itertools.product(("linear", "mlp"), ("hidden", "distribution", "both"), (False, True)))
every_head = pytest.mark.parametrize(("head_type", "features", "token"), HEADS)
token_heads = pytest.mark.parametrize(("head_type", "features"), [head[:2] for head in HEADS if head[2]])


def inputs(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Return all possible inputs of a head, at the same positions."""
    draft, target = make_block(rows=3)
    p, q = target.probs()[:, :-1], draft.probs()
    return {
        "target_hidden": target.hidden[:, :-1].to(dtype),
        "draft_hidden": draft.hidden.to(dtype),
        "features": distribution_features(p, q),
        "token": drafted_token_features(p, q, draft.tokens),
    }


@every_head
def test_untrained_head_predicts_one_half(head_type: str, features: str, token: bool):
    """Catches random initialisation of the output layer: training should start from an even mixture; and a hidden
    layer initialised to zero, which would receive no gradient."""
    kind = {"head_type": head_type, "features": features, "token_features": token}
    head = DiversedHead(DiversedHeadConfig(TARGET_WIDTH, DRAFT_WIDTH, **kind))
    logit = head(**inputs())
    assert (logit == 0.0).all()
    logit.sum().backward()
    assert (head.out.weight.grad != 0.0).any()


@pytest.mark.parametrize("normalize", [True, False], ids=["normalized", "raw"])
@every_head
def test_computes_in_float32_from_bfloat16(head_type: str, features: str, token: bool, normalize: bool):
    """Catches arithmetic in bfloat16, which resolves w to 2^-9, and converted heads with normalised states: they were
    trained on raw ones. The reference is float64 on equal rounded values."""
    head = random_head(head_type, features, token).to(torch.bfloat16)
    head.config.normalize, given = normalize, inputs(torch.bfloat16)
    found = head(**given)
    states = [given[name] for name in ("target_hidden", "draft_hidden") if features != "distribution"]
    seen = [_normalised(each) if normalize else each.double() for each in states]
    seen += [given["features"].double()] * (features != "hidden") + [given["token"].double()] * token
    values = torch.cat(seen, dim=-1)
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


def test_refuses_inputs_of_another_width():
    """Catches a head of another pair: swapped or wrong states must raise a clear error."""
    right = {"target_hidden": torch.ones(2, 4), "draft_hidden": torch.ones(2, 3), "features": torch.ones(2, 8)}
    for features, token, name, given, message in (
        ("hidden", False, "draft_hidden", torch.ones(2, 4), "draft_hidden must have width 3 .*'hidden', got width 4"),
        ("both", False, "features", None, "features must have width 8 .*'both', got nothing"),
        ("hidden", True, "token", torch.ones(2, 4), "token must have width 5 .*token_features=True, got width 4"),
    ):
        head = random_head(features=features, token_features=token)
        with pytest.raises(ValueError, match=message):
            head(**right | {name: given})


def test_distribution_features_by_definition():
    """Catches a feature at the wrong index, in bits, of swapped distributions, or infinite on a truncated support."""
    draft, target = make_block(rows=3)
    p, q = target.probs()[:, :-1].flatten(0, 1), draft.probs().flatten(0, 1)
    found = distribution_features(p, q)
    assert found.isfinite().all()
    expected = [_figures(*pair) for pair in zip(p.double().tolist(), q.double().tolist())]
    torch.testing.assert_close(found.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-4, atol=1e-5)


def _figures(p: list[float], q: list[float]) -> list[float]:
    def log_ratio(a: float, b: float) -> float:
        return min(20.0, max(-20.0, math.log(a / b))) if b > 0.0 else 20.0

    entropies = [-sum(value * math.log(value) for value in probs if value > 0.0) for probs in (p, q)]
    kl = sum(a * log_ratio(a, b) for a, b in zip(p, q) if a > 0.0)
    tv = 0.5 * sum(abs(a - b) for a, b in zip(p, q))
    same_best = float(p.index(max(p)) == q.index(max(q)))
    implausible = sum(b for a, b in zip(p, q) if a < 0.01)
    return [*entropies, max(p), max(q), tv, math.log1p(kl), same_best, math.log(implausible + 1e-3)]


def test_standardize_scales_inputs_and_travels_with_the_head(tmp_path):
    """Catches a scale that is not saved, that is unbounded for a constant input, or that uses the wrong axis."""
    torch.manual_seed(0)
    head = DiversedHead(DiversedHeadConfig(4, 3, features="both"))
    torch.nn.init.normal_(head.out.weight)
    inputs = {"target_hidden": torch.randn(50, 4), "draft_hidden": torch.randn(50, 3)}
    inputs["features"] = torch.randn(50, 8) * 5 + 2
    inputs["features"][:, 3] = 0.25
    head.standardize(**inputs)
    values = (head.concatenate(**inputs) - head.input_mean) / head.input_std
    torch.testing.assert_close(values.mean(0), torch.zeros(15), atol=1e-5, rtol=0)
    varying = [i for i in range(15) if i != 10]
    torch.testing.assert_close(values.std(0, correction=0)[varying], torch.ones(14))
    assert values[:, 10].abs().max() < 1e-3
    expected = values @ head.out.weight[0] + head.out.bias
    torch.testing.assert_close(head(**inputs), expected)
    head.save_pretrained(tmp_path)
    assert torch.equal(DiversedHead.from_pretrained(tmp_path)(**inputs), head(**inputs))


def test_token_features_by_definition():
    """Catches a feature at the wrong index or of swapped distributions, ranks that count ties, and unbounded logs."""
    draft, target = make_block(rows=3)
    p, q = target.probs()[:, :-1].flatten(0, 1), draft.probs().flatten(0, 1)
    for token in range(p.shape[-1]):
        found = drafted_token_features(p, q, torch.full((len(p),), token))
        pairs = zip(p.double().tolist(), q.double().tolist())
        expected = torch.tensor([_token_figures(*pair, token) for pair in pairs], dtype=torch.float64)
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


def _token_figures(p: list[float], q: list[float], x: int) -> list[float]:
    def log(value: float) -> float:
        return math.log(max(value, torch.finfo(torch.float32).tiny))

    rank = sum(other > p[x] for other in p)
    figures = [min(log(p[x]) - log(q[x]), 0.0), log(p[x]) - log(max(p)), log(p[x]), log(q[x])]
    return [max(value, -10.0) for value in figures] + [math.log1p(rank)]


@pytest.mark.parametrize("held", [1, 20, 2**18])
@pytest.mark.parametrize("size", [6, 300])
def test_features_of_the_vocabulary_are_those_of_its_tokens(size: int, held: int, monkeypatch):
    """Catches chunks in the wrong order, a rank within the chunk only, and ranks beyond the last one not merged."""
    monkeypatch.setattr(features_module, "MAX_HELD", held)
    generator = torch.Generator().manual_seed(0)
    p, q = (torch.softmax((3.0 * torch.randn(4, size, generator=generator)).round(), -1) for _ in range(2))
    p[0] = torch.where(p[0] < p[0].median(), 0.0, p[0])
    found = torch.cat(list(vocabulary_features(p, q)), dim=1)
    for token in range(size):
        assert torch.equal(found[:, token], drafted_token_features(p, q, torch.full((4,), token)))
    assert len(list(vocabulary_features(p, q))) == {1: size, 20: size // 5 + (size % 5 > 0), 2**18: 1}[held]
    assert (found[..., -1].max() == torch.tensor(127.0).log1p()) == (size == 300)


@token_heads
def test_tokens_of_one_prefix_at_once(head_type: str, features: str):
    """Catches a prefix combined with another one's tokens, and two different results for one logit."""
    head, given = random_head(head_type, features, True), inputs()
    others = torch.stack([given["token"], given["token"].flip(0), given["token"] + 1.0], dim=-2)
    together = head(**given | {"token": others})
    for number in range(3):
        alone = head(**given | {"token": others[..., number, :]})
        torch.testing.assert_close(together[..., number], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("head_type", ["linear", "mlp"])
def test_starts_at_a_lenience(head_type: str):
    """Catches a start in standardised inputs, a wrong sign, and a prefix that affects the untrained head."""
    torch.manual_seed(0)
    kind = {"head_type": head_type, "features": "both", "token_features": True}
    head, given = DiversedHead(DiversedHeadConfig(TARGET_WIDTH, DRAFT_WIDTH, **kind)), inputs()
    expected = 2.0 * (math.log(0.2) - given["token"][..., 0])
    for _ in range(2):  # the second time with standardised inputs
        head.start_lenient(0.2)
        torch.testing.assert_close(head(**given), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(head.ratio_slope(), torch.tensor(2.0), rtol=1e-4, atol=1e-4)
        head.standardize(**{name: values.flatten(0, 1) for name, values in given.items()})
    head(**given).sum().backward()
    assert (head.out.weight.grad != 0).any()
    with pytest.raises(ValueError, match="start_lenient needs a head with token_features=True"):
        DiversedHead(DiversedHeadConfig(4, 3)).start_lenient(0.2)


def test_slope_is_never_flat():
    """Catches a head that learned to ignore p/q, for which strictness would have no effect or be inverted."""
    head = random_head(token_features=True)
    for slope in (0.0, 3.0):
        with torch.no_grad():
            head.out.weight[0, -5] = slope
        assert head.ratio_slope() == 1.0
