"""The learned verifier: its strictness, its bound on bias, the inputs of the head, and its errors."""

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_diversed.blocks import DecodingContext
from hf_diversed.head import DiversedHead, DiversedHeadConfig
from hf_diversed.provenance import weights_digest
from hf_diversed.verifiers import DiversedVerifier, LosslessVerifier, PhaseVerifier
from hf_diversed.verifiers.diversed import apply_strictness
from hf_diversed.verifiers.mixture import cap_bias
from tests.verifier_cases import DRAFT_WIDTH, GAMMA, TARGET_WIDTH, make_block, random_head


WIDTHS = {"target_hidden_size": TARGET_WIDTH, "draft_hidden_size": DRAFT_WIDTH}
SIZES = {"num_prompts": 4, "batch_size": 4, "vocab_size": 64, **WIDTHS}
CONTEXT = DecodingContext(**SIZES, temperature=0.0, target_name="org/target", draft_name="org/draft")

unit = st.floats(0.0, 1.0, width=32)
search = settings(max_examples=100, deadline=None, derandomize=True)


def head_for(**settings) -> DiversedHead:
    return DiversedHead(DiversedHeadConfig(TARGET_WIDTH, DRAFT_WIDTH, **settings))


def weights(verifier: DiversedVerifier, rows: int = 4, **block) -> torch.Tensor:
    draft, target = make_block("random", rows=rows, **block)
    return verifier(draft.tokens, draft, target).trace.weight


@search
@given(unit)
def test_strictness_is_exact_at_both_ends_and_in_the_middle(weight: float):
    """Catches rounding: strictness 0.5 must equal the head, 1 lossless and 0 permissive, bit by bit."""
    weight = torch.tensor(weight)
    ends = apply_strictness(weight, torch.tensor([0.0, 0.5, 1.0]))
    assert torch.equal(ends, torch.stack([torch.tensor(0.0), weight, torch.tensor(1.0)]))


def test_strictness_is_linear():
    """Catches strictness applied to logits: it has no effect on a saturated head, whose weights would not change."""
    found = apply_strictness(torch.tensor([0.999, 0.2]), torch.tensor([[0.25], [0.75]]))
    torch.testing.assert_close(found, torch.tensor([[0.4995, 0.1], [0.9995, 0.6]]))


@search
@given(unit, unit, unit)
def test_cap_raises_the_weight_no_further_than_needed(weight: float, tv: float, max_bias: float):
    """Catches a bound that does not hold, that lowers a weight, or that is stricter than requested."""
    weight, tv, max_bias = (torch.tensor(value) for value in (weight, tv, max_bias))
    capped = cap_bias(weight, tv, max_bias)
    assert weight <= capped <= 1.0
    assert (1.0 - capped) * tv <= max_bias + 1e-6
    if capped > weight:
        torch.testing.assert_close((1.0 - capped) * tv, max_bias, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("given", [[0.2, 0.8], torch.tensor([0.2, 0.8])])
def test_settings_repeat_with_the_prompts(given):
    """Catches tiling instead of interleaving: num_return_sequences=2 expands prompts a, b to a, a, b, b."""
    expected = weights(DiversedVerifier(random_head(), [0.2, 0.2, 0.8, 0.8], [0.1, 0.1, 0.3, 0.3]))
    assert torch.equal(weights(DiversedVerifier(random_head(), given, [0.1, 0.3])), expected)


def test_weights_read_their_own_position():
    """Catches an off-by-one error: w uses the states of its position's distributions, never the bonus state."""
    draft, target = make_block("random")
    verifier = DiversedVerifier(random_head("mlp", "both"))
    before = verifier(draft.tokens, draft, target).trace.weight
    for name, block, count in (("target", target, GAMMA + 1), ("draft", draft, GAMMA)):
        for position in range(count):
            hidden = block.hidden.clone()
            hidden[:, position, 0] += 3.0
            changed = {"draft": draft, "target": target, name: replace(block, hidden=hidden)}
            after = verifier(draft.tokens, **changed).trace.weight
            assert torch.equal((after != before).any(0), torch.arange(GAMMA) == position), (name, position)


def test_distribution_head_needs_no_hidden_states():
    """Catches forward passes that return unused hidden states, or a verifier that fails without them."""
    draft, target = make_block("random")
    verifier = DiversedVerifier(random_head(features="distribution"))
    assert not verifier.needs_hidden_states
    assert DiversedVerifier(random_head()).needs_hidden_states
    seen = verifier(draft.tokens, draft, target).trace.weight
    unseen = verifier(draft.tokens, replace(draft, hidden=None), replace(target, hidden=None)).trace.weight
    assert torch.equal(seen, unseen)
    verifier.check(replace(CONTEXT, target_hidden_size=99, draft_hidden_size=99))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_hidden_size": 99}, r"a target model of hidden size 4, got 99; .* trained with \(org/big\)"),
        ({"draft_hidden_size": 98}, r"a draft model of hidden size 3, got 98; .* trained with \(org/small\)"),
        ({"batch_size": 3, "num_prompts": 3}, r"`strictness` must be one value or one per prompt \(3\), got 2"),
    ],
)
def test_refuses_before_the_first_forward(changes: dict, message: str):
    """Catches a head of another pair that fails, or runs, during generation."""
    head = head_for(base_model_name_or_path="org/big", assistant_model_name_or_path="org/small")
    with pytest.raises(ValueError, match=message):
        DiversedVerifier(head, strictness=[0.2, 0.8]).check(replace(CONTEXT, **changes))


@pytest.mark.parametrize(
    ("made_for", "message"),
    [
        ({"base_model_name_or_path": "org/a"}, "trained with another target model (org/a): this one is org/target"),
        ({"assistant_model_name_or_path": "org/b"}, "trained with another draft model (org/b): this one is org/draft"),
        ({"training_temperature": 0.9}, "trained at temperature 0.9, but this call decodes greedily"),
    ],
)
def test_another_use_is_warned_of(made_for: dict, message: str):
    """Catches a head that is silently used on a new pair or temperature, also within another verifier."""
    own = {"base_model_name_or_path": "org/target", "assistant_model_name_or_path": "org/draft"}
    verifier = DiversedVerifier(head_for(**{**own, "training_temperature": 0.0, **made_for}))
    for each in (verifier, PhaseVerifier(verifier, begin=1, end=2)):
        (remark,) = each.remarks(CONTEXT)
        assert message in remark
    unnamed = replace(CONTEXT, target_name="", draft_name="", temperature=made_for.get("training_temperature", 0.0))
    assert LosslessVerifier().remarks(CONTEXT) == verifier.remarks(unnamed) == []


def small(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, 4))


def test_other_weights_are_warned_of():
    """Catches a random or swapped model of the same size and name, and a warning about the models of the training."""
    target, draft = small(0), small(1)
    own = {"base_model_digest": weights_digest(target), "assistant_model_digest": weights_digest(draft)}
    verifier, context = DiversedVerifier(head_for(**own)), replace(CONTEXT, target=target, draft=draft)
    assert verifier.remarks(context) == []
    for role in ("target", "draft"):
        (remark,) = verifier.remarks(replace(context, **{role: small(2)}))
        assert f"trained with another {role} model: this one (org/{role}) has digest" in remark
    assert len(verifier.remarks(replace(context, target=draft, draft=target))) == 2
    with torch.no_grad():
        draft[0].weight.mul_(2.0)
    assert len(verifier.remarks(context)) == 1
    renamed = DiversedVerifier(head_for(**own, base_model_name_or_path="/data/copy/target"))
    assert renamed.remarks(replace(context, draft=small(1))) == []
    half = replace(context, target=copy.deepcopy(target).to(torch.bfloat16), draft=small(1))
    assert verifier.remarks(half) == []  # digests of other dtypes cannot be compared


def test_a_head_without_a_pair_is_warned_of():
    """Catches a head that runs with any pair because it records none."""
    context = replace(CONTEXT, target=small(0), draft=small(1))
    remarks = DiversedVerifier(head_for()).remarks(context)
    assert len(remarks) == 2
    assert all(f"does not record the {role} model" in text for role, text in zip(("target", "draft"), remarks))
    with pytest.raises(ValueError) as raised:
        DiversedVerifier(head_for()).check(replace(context, target_hidden_size=99))
    assert "None" not in str(raised.value)


def test_a_draft_model_replaced_by_prompt_lookup_is_warned_of():
    context = replace(CONTEXT, target=small(0), draft=None, draft_hidden_size=None, draft_name="")
    found = {"features": "distribution", "base_model_digest": weights_digest(small(0))}
    (remark,) = DiversedVerifier(head_for(**found, assistant_model_name_or_path="org/draft")).remarks(context)
    assert (
        "was trained with a draft model (org/draft), but the draft tokens of this call have no distribution" in remark
    )
    assert DiversedVerifier(head_for(**found)).remarks(context) == []
