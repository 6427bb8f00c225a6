"""The objective against an enumeration of the whole decoding process."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import pytest
import torch

from hf_diversed.sampling import acceptance
from hf_diversed.training.objective import (
    Decisions,
    MixtureAcceptance,
    TokenAcceptance,
    accepted_share,
    diversed_loss,
    expected_acceptance,
    leave_one_out,
    policy_terms,
)


MODELS = {"mixture": MixtureAcceptance(), "token": TokenAcceptance()}
MIXTURE = MODELS["mixture"]
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())

VOCAB, LENGTH, GAMMA = 3, 5, 2
TOKEN_LENGTH = 4  # a rejection of each token is a path of its own
TOLERANCE = 1e-10  # of the gradient's norm, in float64
PREFIXES = [p for n in range(LENGTH) for p in itertools.product(range(VOCAB), repeat=n)]
INDEX = {prefix: i for i, prefix in enumerate(PREFIXES)}

Prefix = tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """One emitted token: its kind, the prefix, and, where needed, the draft token that it replaces."""

    source: str
    prefix: Prefix
    token: int
    drafted: int | None = None


@dataclass(frozen=True)
class Leaf:
    """One possible rollout; `prob` is differentiable in the head's parameters."""

    prob: torch.Tensor
    steps: tuple[Step, ...]

    @property
    def tokens(self) -> Prefix:
        return tuple(step.token for step in self.steps)


class Process:
    """Speculative decoding with random context-dependent distributions and a head, implemented naively from its
    definition. In a mixture a rejection has one score for all draft tokens; with weights per token it has several."""

    def __init__(
        self,
        seed: int,
        eos: int | None = None,
        free_head: bool = False,
        kind: str = "mixture",
        theta: torch.Tensor | None = None,
    ):
        self.seed, self.eos, self.free_head, self.kind = seed, eos, free_head, kind
        self.model, self.by_token = MODELS[kind], kind == "token"
        self.length = TOKEN_LENGTH if self.by_token else LENGTH
        self.random = torch.Generator().manual_seed(seed)
        self.p, self.q = (torch.softmax(1.5 * self.normal(len(PREFIXES), VOCAB), -1) for _ in range(2))
        inputs = len(PREFIXES) * VOCAB if self.by_token else len(PREFIXES)
        self.features = torch.eye(inputs, dtype=torch.float64) if free_head else self.normal(inputs, 4)
        self.theta = (self.normal(self.features.shape[1]) if theta is None else theta).requires_grad_()
        self.logits = (self.features @ self.theta).view(len(PREFIXES), -1)
        self.w = torch.sigmoid(self.logits)
        self.strict = (self.p / self.q).clamp_max(1.0)
        self.kept = self.q * (1.0 - self.w + self.w * self.strict)
        surplus = (self.p - self.q).clamp_min(0.0)
        self.residual = surplus / surplus.sum(-1, keepdim=True)
        self.v = self.kept + (self.q - self.kept).sum(-1, keepdim=True) * self.residual

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.random, dtype=torch.float64)

    @cached_property
    def leaves(self) -> list[Leaf]:
        return list(self.round(torch.ones((), dtype=torch.float64), ()))

    def round(self, prob: torch.Tensor, steps: tuple[Step, ...]) -> Iterator[Leaf]:
        if len(steps) == self.length or (steps and steps[-1].token == self.eos):
            yield Leaf(prob, steps)
        else:
            yield from self.verify(prob, steps, min(GAMMA, self.length - len(steps) - 1))

    def verify(self, prob: torch.Tensor, steps: tuple[Step, ...], left: int) -> Iterator[Leaf]:
        prefix = tuple(step.token for step in steps)
        i = INDEX[prefix]
        for token in range(VOCAB):
            draft, bonus = ((*steps, Step(source, prefix, token, token)) for source in ("draft", "bonus"))
            if left == 0:
                yield from self.round(prob * self.p[i, token], bonus)
                continue
            kept = prob * self.kept[i, token]
            yield from self.round(kept, draft) if token == self.eos else self.verify(kept, draft, left - 1)
            if self.residual[i, token] > 0:
                for drafted, chance in self.rejections(i):
                    residual = (*steps, Step("residual", prefix, token, drafted))
                    yield from self.round(prob * chance * self.residual[i, token], residual)

    def rejections(self, i: int) -> list[tuple[int | None, torch.Tensor]]:
        """What is known of a rejected draft, and its chance."""
        rejected = self.q[i] - self.kept[i]
        return (
            [(x, rejected[x]) for x in range(VOCAB) if rejected[x] > 0] if self.by_token else [(None, rejected.sum())]
        )

    @cached_property
    def probs(self) -> torch.Tensor:
        return torch.stack([leaf.prob for leaf in self.leaves])

    @cached_property
    def flat(self) -> list[tuple[int, Step]]:
        return [(n, step) for n, leaf in enumerate(self.leaves) for step in leaf.steps if step.source != "bonus"]

    @cached_property
    def where(self) -> torch.Tensor:
        """Index into PREFIXES of every decision."""
        return torch.tensor([INDEX[step.prefix] for _, step in self.flat])

    @cached_property
    def drafted(self) -> torch.Tensor:
        """The draft token of every decision; 0 where it is not used."""
        return torch.tensor([step.drafted or 0 for _, step in self.flat])

    @cached_property
    def decisions(self) -> Decisions:
        """What a recorder would have written down, with one rollout per leaf."""
        tokens = torch.tensor([step.token for _, step in self.flat])
        return Decisions(
            sequence=torch.tensor([n for n, _ in self.flat]),
            target_prob=self.p[self.where, tokens],
            draft_prob=self.q[self.where, tokens],
            tv=0.5 * (self.p - self.q).abs().sum(-1)[self.where],
            strict_prob=self.strict[self.where, self.drafted],
            accepted=torch.tensor([step.source == "draft" for _, step in self.flat]),
            num_sequences=len(self.leaves),
        )

    @property
    def logit(self) -> torch.Tensor:
        logits = (self.features @ self.theta).view(len(PREFIXES), -1)
        return logits[self.where, self.drafted] if self.by_token else logits[self.where, 0]

    @cached_property
    def rewards(self) -> torch.Tensor:
        """A random number per token sequence, the same for every path to it."""
        values: dict[Prefix, float] = {}
        for leaf in self.leaves:
            values.setdefault(leaf.tokens, self.normal(1).item())
        return torch.tensor([values[leaf.tokens] for leaf in self.leaves], dtype=torch.float64)

    def gradient(self, value: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(value, self.theta, retain_graph=True)[0]


PROCESSES = {
    f"{kind}-seed{seed}{'' if eos is None else '-eos'}{'-free' if free else ''}": Process(seed, eos, free, kind)
    for kind in MODELS
    for seed, eos, free in [(0, None, False), (2, 0, False), (3, 2, True)]
}
every_process = pytest.mark.parametrize("process", PROCESSES.values(), ids=PROCESSES.keys())


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


def record(accepted, p, q, tv=None, sequence=None, num_sequences=None, dtype=torch.float64) -> Decisions:
    """Return a record from lists; p and q are also those of the draft token."""
    sequence = list(range(len(p))) if sequence is None else sequence
    p, q = torch.tensor(p, dtype=dtype), torch.tensor(q, dtype=dtype)
    tv = torch.tensor([0.5] * len(p) if tv is None else tv, dtype=dtype)
    count = len(set(sequence)) if num_sequences is None else num_sequences
    probs = {"target_prob": p, "draft_prob": q, "strict_prob": acceptance(p, q), "tv": tv}
    sequence, accepted = torch.tensor(sequence, dtype=torch.long), torch.tensor(accepted, dtype=torch.bool)
    return Decisions(sequence=sequence, accepted=accepted, num_sequences=count, **probs)


@every_process
def test_enumeration_covers_the_process(process: Process):
    """Catches a reference that misses outcomes: its probabilities sum to 1, over all kinds of rounds."""
    torch.testing.assert_close(process.probs.sum().item(), 1.0, rtol=0.0, atol=1e-12)
    assert {step.source for leaf in process.leaves for step in leaf.steps} == {"draft", "residual", "bonus"}
    assert process.eos is None or min(len(leaf.tokens) for leaf in process.leaves) == 1


@every_process
def test_score_is_the_gradient_of_the_expected_reward(process: Process):
    """Catches any wrong score: of accepted tokens with p > q, of residual or bonus tokens, or of rejections."""
    exact = process.gradient(process.probs @ process.rewards)
    scores = process.model.log_prob(process.logit, process.decisions)
    weights = (process.probs * process.rewards).detach()
    by_score = process.gradient((weights[process.decisions.sequence] * scores).sum())
    assert relative_error(by_score, exact) < TOLERANCE


@every_process
def test_policy_loss_has_that_gradient_at_ratio_1(process: Process):
    """Catches a detached ratio, a clip within its range, a sign, and a mean over decisions."""
    exact = process.gradient(process.probs @ process.rewards)
    advantage = (process.probs * process.rewards).detach()
    for clip_range in (None, 0.2):
        logit = process.logit
        loss = policy_terms(process.model, logit, logit, process.decisions, advantage, clip_range)[0]
        assert relative_error(-process.gradient(loss) * len(process.leaves), exact) < TOLERANCE


@every_process
def test_accepted_share_counts_decisions(process: Process):
    """Catches a share of emitted tokens, and one that depends on w."""
    kept = [[step.source == "draft" for step in leaf.steps if step.source != "bonus"] for leaf in process.leaves]
    share = torch.tensor([sum(coins) / len(coins) for coins in kept], dtype=torch.float64)
    torch.testing.assert_close(accepted_share(process.decisions), share)


@every_process
def test_ratios_reweight_to_another_policy(process: Process):
    """Catches a log-probability with the right gradient but wrong differences, such as a missing term with w."""
    theta = process.theta.detach() + 0.7 * process.normal(len(process.theta))
    other = Process(process.seed, process.eos, process.free_head, process.kind, theta)
    change = process.model.log_prob(other.logit, process.decisions) - process.model.log_prob(
        process.logit, process.decisions
    )
    ratio = change.new_zeros(len(process.leaves)).index_add(0, process.decisions.sequence, change).exp()
    assert (process.probs * ratio - other.probs).abs().max() < TOLERANCE * other.probs.max()
    assert ((process.probs * ratio - other.probs) @ process.rewards).abs() < TOLERANCE
    assert (process.probs - other.probs).abs().max() > 1e-3


@every_process
def test_expected_acceptance_counts_decisions(process: Process):
    """Catches 1 - TV or 1 - (1 - w) TV: expected and actual acceptance have the same expectation."""
    decisions = process.decisions
    accepts = torch.bincount(decisions.sequence[decisions.accepted], minlength=len(process.leaves)).double()
    expected = expected_acceptance(process.model, process.logit, decisions) * decisions.counts()
    torch.testing.assert_close(process.probs @ expected, process.probs @ accepts, rtol=TOLERANCE, atol=0.0)


@every_process
def test_expected_acceptance_is_differentiated_at_fixed_visitation(process: Process):
    """Catches a mean over the batch's positions instead of each rollout's, and a detached weight."""
    accept = process.kept / process.q if process.by_token else process.kept.sum(-1, keepdim=True).expand(-1, VOCAB)
    coins = accept[process.where, process.drafted]
    per_leaf = torch.stack([coins[process.decisions.sequence == n].mean() for n in range(len(process.leaves))])
    found = expected_acceptance(process.model, process.logit, process.decisions)
    torch.testing.assert_close(found, per_leaf, rtol=TOLERANCE, atol=0.0)
    pathwise = process.gradient(process.probs.detach() @ found)
    assert relative_error(pathwise, process.gradient(process.probs.detach() @ per_leaf)) < TOLERANCE


@pytest.mark.parametrize("accepted", [False, True])
@pytest.mark.parametrize(("advantage", "change"), [(1, 0.5), (1, -0.5), (-1, 0.5), (-1, -0.5), (1, 0.1)])
@every_model
def test_clip_removes_gradients_beyond_the_range(model, accepted: bool, advantage: float, change: float):
    """Catches max instead of min, and a clip in the other direction: A > 0 clips above, A < 0 below."""
    decisions, moves = record([accepted], [0.0 if accepted else 0.9], [0.5]), advantage * change < 0.2
    logit = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    # The ratio is exp(change) for either kind: log w of a rejection, log (1 - w) q of a draft with p = 0.
    share = 0.5 * torch.exp(torch.tensor([-change], dtype=torch.float64))
    old = torch.logit(share) if not accepted else -torch.logit(share)
    loss, metrics = diversed_loss(
        model, logit, old, decisions, torch.tensor([advantage], dtype=torch.float64), clip_range=0.2
    )
    torch.testing.assert_close(metrics["ratio"].log().item(), change)
    (slope,) = torch.autograd.grad(loss, logit)
    direction = -0.5 if accepted else 0.5
    ratio = metrics["ratio"].item()
    torch.testing.assert_close(slope.item(), -advantage * ratio * direction if moves else 0.0)
    assert metrics["clip_fraction"] == (0.0 if moves else 1.0)
    torch.testing.assert_close(
        loss.item(), -min(advantage * ratio, advantage * min(max(ratio, 0.8), 1.2)), rtol=1e-12, atol=0.0
    )


@every_model
def test_rollouts_without_decisions_change_nothing(model):
    """Catches 0 / 0, which would make the gradient of the batch NaN, and a metric that includes constants."""
    logit = torch.tensor([0.3, -0.2], dtype=torch.float64, requires_grad=True)
    terms = {"acceptance_coef": 1.0, "clip_range": 0.2}
    slopes = []
    for sequence, rewards in (([0, 1], [1.0, -1.0]), ([1, 3], [5.0, 1.0, 5.0, -1.0, 5.0])):
        decisions = record([True, False], [0.1, 0.6], [0.4, 0.2], [0.3, 0.4], sequence, len(rewards))
        loss, metrics = diversed_loss(model, logit, logit, decisions, torch.tensor(rewards), **terms)
        slopes.append(torch.autograd.grad(loss * len(rewards), logit)[0])
        expected = 1.0 - model.expected_rejection(logit, decisions)
        torch.testing.assert_close(metrics["expected_acceptance"], expected.mean().detach())
        for share in (expected_acceptance(model, logit, decisions), accepted_share(decisions)):
            assert (share[decisions.counts() == 0] == 1.0).all()
    torch.testing.assert_close(*slopes)
    empty = record([], [], [], num_sequences=2)
    loss, _ = diversed_loss(model, logit[:0], logit[:0], empty, torch.ones(2), clip_range=0.2)
    assert loss == 0.0


def test_leave_one_out():
    """Catches a reward in its own baseline, rollouts of another prompt in it, and missing rewards that are counted."""
    rewards = torch.tensor([1.0, 0.0, 0.5, 0.0, 9.0, 2.0, 0.7, 0.7, 0.7])
    valid = torch.tensor([True, True, True, True, False, False, True, True, True])
    found = leave_one_out(rewards, valid, 3)
    expected = [0.75, -0.75, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    torch.testing.assert_close(found, torch.tensor(expected), rtol=0.0, atol=1e-6)
    two = leave_one_out(torch.tensor([3.0, float("nan"), 1.0]), torch.tensor([True, False, True]), 3)
    assert two.tolist() == [2.0, 0.0, -2.0]


@pytest.mark.parametrize("clip_range", [None, 0.2])
@pytest.mark.parametrize("gain", [-30.0, 30.0])
@every_model
def test_float32_stays_finite_in_every_corner(model, clip_range: float | None, gain: float):
    """Catches log 0, 0 / 0, exp overflow, 0 * inf behind a `where`: p = q, p = 0, q tiny, w rounded to 0 or 1."""
    corners = [0.0, 1e-45, 1e-38, 1e-7, 0.5, 1.0 - 2**-24, 1.0]
    logits = [-1e4, -120.0, -17.0, 0.0, 17.0, 120.0, 1e4]
    rows = list(itertools.product([False, True], corners, corners, [0.0, 1.0], logits, logits))
    accepted, p, q, tv, new, old = zip(*rows)
    decisions = record(accepted, p, q, tv, sequence=[0] * len(rows), dtype=torch.float32)
    logit = torch.tensor(new, requires_grad=True)
    coefs = {"acceptance_coef": 0.5, "clip_range": clip_range}
    loss, metrics = diversed_loss(model, logit, torch.tensor(old), decisions, torch.tensor([gain]), **coefs)
    for value in (loss, model.log_prob(logit, decisions), expected_acceptance(model, logit, decisions)):
        (slope,) = torch.autograd.grad(value.sum(), logit, retain_graph=True)
        assert value.isfinite().all()
        assert slope.isfinite().all()
    assert all(value.isfinite() for value in metrics.values())


@every_model
def test_float32_matches_float64(model):
    """Catches cancellation: 1 - w with w rounded to 1, or v at p = 0, where the score is exactly -w."""
    corners = [0.0, 1e-30, 1e-6, 0.3, 0.9]
    cases = [
        (a, p, q, z) for a in (True, False) for p in corners for q in corners[1:] for z in (-30.0, -1.0, 9.0, 30.0)
    ]
    accepted, p, q, logits = zip(*cases)
    slopes = []
    for dtype in (torch.float32, torch.float64):
        logit = torch.tensor(logits, dtype=dtype, requires_grad=True)
        scores = model.log_prob(logit, record(accepted, p, q, dtype=dtype))
        slopes.append(torch.autograd.grad(scores.sum(), logit)[0].double())
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-4, atol=1e-6)
