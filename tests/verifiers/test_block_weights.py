"""Weights that depend on the rest of the block: what holds for whole blocks, by enumeration, and what is refused."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from hf_diversed.features import lookahead_features
from hf_diversed.generation import ragged_model
from hf_diversed.head import DiversedHead, DiversedHeadConfig
from hf_diversed.verifiers import BlockVerifier, DiversedVerifier, LenientVerifier, LosslessVerifier, PhaseVerifier
from hf_diversed.verifiers.mixture import MixtureVerifier, Weights
from tests.tiny import ragged_batch, tiny_draft, tiny_model
from tests.verifier_cases import DRAFT_WIDTH, TARGET_WIDTH, make_block, random_head
from tests.verifiers.process import VOCAB, Tables, Tokens, judge, rounds


ROUNDING = 1e-6
SEEDS = range(4)
PREFIX = (0,)


class OfBlock(MixtureVerifier):
    """Weights from a table `[V^G, G]`: an arbitrary function of the whole block."""

    def __init__(self, table: torch.Tensor, **limits):
        super().__init__(**limits)
        self.table = table

    def weights(self, draft, target, row_values) -> Weights:
        return Weights(self.table, of_block=True)


def tables_of_weights(gamma: int, seed: int) -> list[torch.Tensor]:
    """Weights of all blocks: arbitrary, and 0 or 1, which is as far from the mean of a block as weights can be."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.rand(VOCAB**gamma, gamma, generator=generator)
    return [table, table.round()]


def block_head(lookahead: int = 2, target_after: bool = True, head_type: str = "mlp", width: int = VOCAB, **config):
    kind = {"head_type": head_type, "intermediate_size": 5, "features": "distribution", "token_features": True}
    config = DiversedHeadConfig(width, **kind, lookahead=lookahead, target_after=target_after, **config)
    head, generator = DiversedHead(config).eval().requires_grad_(False), torch.Generator().manual_seed(5)
    for parameter in head.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return head


def starts(verifier, tables: Tables, gamma: int) -> dict[Tokens, float]:
    """The probability that a round starts with some tokens, up to the first residual token."""
    found: dict[Tokens, float] = {}
    for tokens, chance, _ in rounds(verifier, tables, PREFIX, gamma, None, Tables.p):
        for n in range(1, min(len(tokens), gamma) + 1):
            found[tokens[:n]] = found.get(tokens[:n], 0.0) + chance
    return found


def bound(of, tables: Tables, tokens: Tokens) -> float:
    """The product over positions of `of(p, q)` at the token."""
    values = [
        of(tables.p(PREFIX + tokens[:n])[token], tables.q(PREFIX + tokens[:n])[token])
        for n, token in enumerate(tokens)
    ]
    return float(torch.stack(values).prod())


@pytest.mark.parametrize("gamma", [1, 3])
def test_starts_of_rounds_stay_between_both_models(gamma: int):
    """Catches starts of a round outside [prod min(p, q), prod max(p, q)] for some weights of a block."""
    for seed in SEEDS:
        tables = Tables(seed)
        for table in tables_of_weights(gamma, seed):
            for tokens, chance in starts(OfBlock(table), tables, gamma).items():
                assert chance >= bound(torch.minimum, tables, tokens) - ROUNDING
                assert chance <= bound(torch.maximum, tables, tokens) + ROUNDING


@pytest.mark.parametrize("max_ratio", [1.0, 1.25])
@pytest.mark.parametrize("gamma", [1, 3])
def test_max_ratio_bounds_whole_blocks(gamma: int, max_ratio: float):
    """Catches a bound that holds on average over the rest of the block, but not for the tokens emitted together."""
    for seed in SEEDS:
        tables = Tables(seed)
        for table in tables_of_weights(gamma, seed):
            for tokens, chance in starts(OfBlock(table, max_ratio=max_ratio), tables, gamma).items():
                assert chance <= bound(lambda p, q: max_ratio * p, tables, tokens) + ROUNDING


@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_first_token_has_a_distribution(spread: float):
    """Catches a first token whose rejections and bias do not add up to TV(p, q)."""
    for seed in SEEDS:
        tables, gamma = Tables(seed, spread), 2
        p, q = tables.p(PREFIX), tables.q(PREFIX)
        for table in tables_of_weights(gamma, seed):
            block = judge(OfBlock(table), tables, PREFIX, gamma)
            first = starts(OfBlock(table), tables, gamma)
            emitted = torch.tensor([first.get((x,), 0.0) for x in range(VOCAB)]).double()
            rejected = float(block.chances @ (1.0 - block.verdict.accept_prob[:, 0].double()))
            assert 0.5 * float((q - emitted).abs().sum()) == pytest.approx(rejected, abs=ROUNDING)
            bias = 0.5 * float((p - emitted).abs().sum())
            assert bias + rejected == pytest.approx(0.5 * float((p - q).abs().sum()), abs=ROUNDING)


def test_target_after_is_the_state_after_the_token():
    """Catches a shifted state: with `target_after` alone, the weight is that of a token after its prefix, and every
    position emits q - w (q - p)+ + R norm((p - q)+)."""
    verifier = DiversedVerifier(block_head(lookahead=0))

    def distributions(tables: Tables, prefix: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        """Of accepted draft tokens, unnormalised, and of emitted tokens."""
        p, q = tables.p(prefix), tables.q(prefix)
        weight = judge(verifier, tables, prefix, 1).verdict.trace.weight[:, 0].double()
        accepted = q - weight * (q - p).clamp_min(0.0)
        lacking = (p - q).clamp_min(0.0)
        return accepted, accepted + (1.0 - accepted.sum()) * lacking / lacking.sum()

    for seed in SEEDS:
        tables, gamma = Tables(seed), 3
        for tokens, chance in starts(verifier, tables, gamma).items():
            steps = [distributions(tables, PREFIX + tokens[:n]) for n in range(len(tokens))]
            accepted = [float(step[0][token]) for step, token in zip(steps[:-1], tokens)]
            expected = math.prod(accepted) * float(steps[-1][1][tokens[-1]])
            assert chance == pytest.approx(expected, abs=ROUNDING)


def test_target_after_needs_no_states_of_the_draft_model(monkeypatch: pytest.MonkeyPatch):
    """Catches draft steps that return unused hidden states, and states that a combination of verifiers lacks."""
    after, both = DiversedVerifier(block_head(width=TARGET_WIDTH)), DiversedVerifier(random_head())
    assert after.needs_hidden_states == "target"
    for phases in ((after,), (LosslessVerifier(), after)):
        assert PhaseVerifier(*phases, begin=1, end=2).needs_hidden_states == "target"
    assert PhaseVerifier(after, both, begin=1, end=2).needs_hidden_states is True
    draft, target = make_block()
    with_states = after(draft.tokens, draft, target).accept_prob
    assert torch.equal(after(draft.tokens, replace(draft, hidden=None), target).accept_prob, with_states)

    model = tiny_model("llama")
    draft_model = tiny_draft(model)
    requested: dict[str, list[bool]] = {}
    run_model = ragged_model.run_model

    def record(called, *args):
        requested["draft" if called.config is draft_model.config else "target"].append(args[-1])
        return run_model(called, *args)

    monkeypatch.setattr(ragged_model, "run_model", record)
    head = block_head(width=model.config.hidden_size, draft_hidden_size=99)
    for source in ({"assistant_model": draft_model}, {"prompt_lookup_num_tokens": 3}):
        requested |= {"target": [], "draft": []}
        call = {
            **source,
            "diversed_head": head,
            "do_sample": True,
            "max_new_tokens": 24,
            "return_dict_in_generate": True,
        }
        stats = model.generate(**ragged_batch(), **call).stats
        assert stats.num_drafted > 0
        assert any(requested["target"])
        assert bool(requested["draft"]) == ("assistant_model" in source)
        assert not any(requested["draft"])


def test_lookahead_reads_the_next_tokens_up_to_the_end():
    """Catches the token's own features, those before it, and features after the row's end."""
    features, token = torch.rand(2, 4, 8), -torch.rand(2, 4, 5)
    active = torch.tensor([[True] * 4, [True, True, False, False]])
    found = lookahead_features(features, token, active, 2)
    assert found.shape == (2, 4, 2, 4)
    for row, length in enumerate((4, 2)):
        for t, k in itertools.product(range(4), range(2)):
            u = t + 1 + k
            own = [token[row, u, 0], features[row, u, 4], features[row, u, 0], 1.0] if u < length else [0.0] * 4
            assert found[row, t, k].tolist() == pytest.approx([float(value) for value in own])


def test_a_row_does_not_depend_on_longer_rows():
    """Catches lookahead beyond a row's own draft length, which would make a batch differ from single calls."""
    draft, target = make_block(rows=1)
    verifier = DiversedVerifier(block_head(width=TARGET_WIDTH))
    active = torch.tensor([True, True, False]).expand(draft.tokens.shape)
    short = replace(
        draft, scores=draft.scores[:, :2], hidden=None, raw_logits=None, tokens=draft.tokens[:, :2], active=None
    )
    cut = replace(target, scores=target.scores[:, :3], hidden=target.hidden[:, :3])
    whole = verifier(draft.tokens, replace(draft, active=active), target).accept_prob[:, :2]
    torch.testing.assert_close(whole, verifier(draft.tokens, short, cut).accept_prob, equal_nan=True)


@pytest.mark.parametrize("max_ratio", [None, 5.0, 1.0])
def test_greedy_accepts_mismatches_below_the_price(max_ratio: float | None):
    """Catches a threshold on the wrong side, a replaced token other than the target's best, and a bound not kept."""
    draft, target = make_block("random", rows=40, sampled=False)
    head = block_head(width=TARGET_WIDTH)
    inputs, _ = DiversedVerifier(head).observe(draft, target)
    head.out.bias.sub_(head(**inputs).median())  # half of the draft tokens are cheap
    verifier = DiversedVerifier(head, max_ratio=max_ratio)
    verdict = verifier(draft.tokens, draft, target)
    best, weight = target.scores[:, :-1].argmax(-1), verdict.trace.weight
    cheap = weight < 0.5
    if max_ratio is not None:
        lenient = LenientVerifier(1.0 / max_ratio)(draft.tokens, draft, target).accept_prob.bool()
        cheap &= lenient
    assert torch.equal(verdict.accept_prob.bool(), cheap | (draft.tokens == best))
    assert (cheap & (draft.tokens != best)).any() == (max_ratio != 1.0)
    for position in range(draft.tokens.shape[1]):
        chosen = verdict.replacement(torch.full((40,), position)).argmax(-1)
        assert torch.equal(chosen, best[:, position])


@pytest.mark.parametrize("sampled", [True, False])
def test_ends_of_strictness(sampled: bool):
    draft, target = make_block("random", rows=40, sampled=sampled)
    lossless = LosslessVerifier()(draft.tokens, draft, target).accept_prob
    for strictness, expected in ((0.0, torch.ones(40, 3)), (1.0, lossless)):
        verifier = DiversedVerifier(block_head(width=TARGET_WIDTH), strictness=strictness)
        torch.testing.assert_close(verifier(draft.tokens, draft, target).accept_prob, expected)


def test_what_does_not_hold_is_refused():
    """Catches bounds per position and block verification of weights that have no emitted distribution."""
    head = block_head()
    for name in ("max_bias", "bias_budget"):
        with pytest.raises(ValueError, match=f"`{name}` bounds TV.*use `max_ratio`"):
            DiversedVerifier(head, **{name: 0.1})
    with pytest.raises(ValueError, match="needs a verifier with an emitted distribution"):
        BlockVerifier(DiversedVerifier(head))
    verdict = judge(DiversedVerifier(head), Tables(0), PREFIX, 2).verdict
    assert verdict.trace.emitted_probs is None
    assert verdict.trace.bias.isnan().all()


@pytest.mark.parametrize("kind", [{"token_features": False}, {"features": "hidden"}])
def test_heads_without_the_features_of_the_token_are_refused(kind: dict):
    config = {"features": "distribution", "token_features": True, "lookahead": 2} | kind
    with pytest.raises(ValueError, match="lookahead and target_after need token_features=True"):
        DiversedHead(DiversedHeadConfig(TARGET_WIDTH, DRAFT_WIDTH, **config))
