"""The exact distribution of a whole decoding process under any verifier, by enumeration of all outcomes.

Models are tables: random scores for every prefix of a three-token vocabulary.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache

import torch

from hf_diversed.blocks import DraftOutput, Round, TargetOutput, Verdict
from hf_diversed.generation.recording import describe_round
from hf_diversed.sampling import RoundNoise
from hf_diversed.verifiers import Verifier


VOCAB = 3
Tokens = tuple[int, ...]
Distribution = Callable[["Tables", Tokens], torch.Tensor]
Stop = Callable[["Tables", Tokens, Tokens], bool]  # whether a block ends after some draft tokens, given its prefix


@dataclass(frozen=True)
class Tables:
    """A random pair: scores of p and q, float32 `[V]`, for every prefix."""

    seed: int
    spread: float = 1.5

    def scores(self, model: int, prefix: Tokens) -> torch.Tensor:
        return _scores(self.seed, self.spread, model, prefix)

    def p(self, prefix: Tokens) -> torch.Tensor:
        return torch.softmax(self.scores(0, prefix).double(), -1)

    def q(self, prefix: Tokens) -> torch.Tensor:
        return torch.softmax(self.scores(1, prefix).double(), -1)


@cache
def _scores(seed: int, spread: float, model: int, prefix: Tokens) -> torch.Tensor:
    generator = torch.Generator().manual_seed(hash((seed, model, prefix)) % 2**31)
    return spread * torch.randn(VOCAB, generator=generator)


@dataclass(frozen=True)
class Block:
    """All draft blocks of one round: `paths` of G tokens, their probabilities under q, and the verdict on each."""

    paths: list[Tokens]
    chances: torch.Tensor
    verdict: Verdict
    draft: DraftOutput
    target: TargetOutput

    def kept(self) -> torch.Tensor:
        """Return float64 `[N, G + 1]`: the probability that exactly 0..G draft tokens of a path are accepted."""
        reached = torch.cat(
            [torch.ones(len(self.paths), 1).double(), self.verdict.accept_prob.double().cumprod(-1)], dim=-1
        )
        return torch.cat([reached[:, :-1] - reached[:, 1:], reached[:, -1:]], dim=-1)

    def importance(self, count: int, token: int) -> torch.Tensor:
        """Return the importance weight from token records, `[N]`, of `count` accepted tokens and then `token`."""
        counts = torch.full((len(self.paths),), count)
        outcome = (self.draft.num_drafted, counts, torch.full_like(counts, token), counts, counts, counts)
        noise = RoundNoise(torch.zeros_like(self.verdict.accept_prob), torch.zeros(1))
        records = describe_round(Round(self.draft, self.target, noise, self.verdict, *outcome))
        names = [item.name for item in fields(records) if item.name != "inputs"]
        emitted = {name: getattr(records, name)[:, : count + 1] for name in names}
        return replace(records, **emitted).importance_weights().double()

    def expected_accepted(self) -> float:
        counts = torch.arange(self.kept().shape[1]).double()
        return float(self.chances @ (self.kept() @ counts))


def drafted_paths(tables: Tables, prefix: Tokens, gamma: int, stop: Stop | None) -> dict[int, list[Tokens]]:
    """Return every block of at most `gamma` draft tokens that ends where `stop` returns True, by length."""
    found: dict[int, list[Tokens]] = defaultdict(list)
    open_paths: list[Tokens] = [()]
    while open_paths:
        longer = [(*path, token) for path in open_paths for token in range(VOCAB)]
        ends = [len(path) == gamma or (stop is not None and stop(tables, prefix, path)) for path in longer]
        for path, end in zip(longer, ends):
            if end:
                found[len(path)].append(path)
        open_paths = [path for path, end in zip(longer, ends) if not end]
    return found


def judge(
    verifier: Verifier,
    tables: Tables,
    prefix: Tokens,
    gamma: int,
    paths: list[Tokens] | None = None,
) -> Block:
    """Verify blocks of `gamma` draft tokens after `prefix`, which starts with a prompt token; all unless `paths`."""
    paths = drafted_paths(tables, prefix, gamma, None)[gamma] if paths is None else paths
    q = torch.stack([torch.stack([tables.scores(1, prefix + x[:i]) for i in range(gamma)]) for x in paths])
    p = torch.stack([torch.stack([tables.scores(0, prefix + x[:i]) for i in range(gamma + 1)]) for x in paths])
    tokens = torch.tensor(paths)
    chances = torch.softmax(q.double(), -1).gather(-1, tokens[..., None])[..., 0].prod(-1)
    draft = DraftOutput(q, hidden=q, raw_logits=q, tokens=tokens, sampled=True)  # scores serve as hidden states
    ids = torch.tensor([prefix]).expand(len(paths), -1)
    target = TargetOutput(p, hidden=p, raw_logits=p)
    return Block(paths, chances, verifier(ids, draft, target), draft, target)


def rounds(
    verifier: Verifier,
    tables: Tables,
    prefix: Tokens,
    gamma: int,
    bonus: Distribution,
    weighted: bool = False,
    stop: Stop | None = None,
) -> Iterator[tuple[Tokens, float]]:
    """Yield every outcome of one round: new tokens, and their probability (times importance weight)."""
    if gamma == 0:
        for token, share in enumerate(bonus(tables, prefix).tolist()):
            yield (token,), share
        return
    for length, paths in drafted_paths(tables, prefix, gamma, stop).items():
        block = judge(verifier, tables, prefix, length, paths)
        yield from outcomes(block, tables, prefix, length, bonus, weighted)


def outcomes(
    block: Block, tables: Tables, prefix: Tokens, gamma: int, bonus: Distribution, weighted: bool
) -> Iterator[tuple[Tokens, float]]:
    """Yield every outcome of blocks of `gamma` draft tokens, see `rounds`."""
    kept = block.kept()
    for count in range(gamma + 1):
        if count < gamma:
            distribution = block.verdict.replacement(torch.full((len(block.paths),), count)).double()
            distribution = distribution / distribution.sum(-1, keepdim=True)
        weights = [block.importance(count, token) if weighted else None for token in range(VOCAB)]
        for row, path in enumerate(block.paths):
            chance = float(block.chances[row] * kept[row, count])
            if chance <= 0.0:
                continue
            following = distribution[row] if count < gamma else bonus(tables, prefix + path)
            for token, (share, weight) in enumerate(zip(following.tolist(), weights)):
                # A share of zero has no finite weight.
                factor = 1.0 if weight is None or share <= 0.0 else float(weight[row])
                yield (*path[:count], token), chance * share * factor


def process_probs(
    verifier: Verifier,
    tables: Tables,
    gamma: int,
    length: int,
    prefix: Tokens = (0,),
    bonus: Distribution = Tables.p,
    weighted: bool = False,
    stop: Stop | None = None,
) -> dict[Tokens, float]:
    """Return the distribution of `length` tokens after `prefix`.

    As in `generate`, no round drafts the last token. With `weighted`, probabilities are multiplied by the importance
    weights of the token records.
    """
    nodes: dict[Tokens, float] = {prefix: 1.0}
    total: dict[Tokens, float] = defaultdict(float)
    while nodes:
        here, chance = nodes.popitem()
        left = length - (len(here) - len(prefix))
        if left == 0:
            total[here[len(prefix) :]] += chance
            continue
        for added, share in rounds(verifier, tables, here, min(gamma, left - 1), bonus, weighted, stop):
            nodes[here + added] = nodes.get(here + added, 0.0) + chance * share
    return dict(total)


def product_probs(
    distribution: Distribution, tables: Tables, length: int, prefix: Tokens = (0,)
) -> dict[Tokens, float]:
    """Return the distribution of `length` tokens that all follow `distribution`."""
    total = {}
    for tokens in itertools.product(range(VOCAB), repeat=length):
        chances = [float(distribution(tables, prefix + tokens[:i])[token]) for i, token in enumerate(tokens)]
        total[tokens] = float(torch.tensor(chances).double().prod())
    return total


def distance(a: dict[Tokens, float], b: dict[Tokens, float]) -> float:
    """Total variation."""
    return 0.5 * sum(abs(a.get(tokens, 0.0) - b.get(tokens, 0.0)) for tokens in a.keys() | b.keys())
