"""Plain data of one round: both models' scores, the verifier's verdict, and the outcome.

Letters: B batch, G drafted positions, V vocabulary, D hidden width. Needs torch only.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from hf_diversed.sampling import RoundNoise


@dataclass(eq=False)
class BlockOutput:
    """Scores of one model at N consecutive positions of each row.

    Attributes:
        scores: float32 `[B, N, V]`, logits after all processors.
        hidden: `[B, N, D]`, inputs of the output embedding, in the model's dtype and on its device; None unless
            requested.
        raw_logits: float32 `[B, N, V]`, logits before any processor; None unless requested.
    """

    scores: torch.Tensor
    hidden: torch.Tensor | None = None
    raw_logits: torch.Tensor | None = None
    _top: torch.Tensor | None = field(default=None, init=False, repr=False)
    _log_mass: torch.Tensor | None = field(default=None, init=False, repr=False)

    @property
    def top(self) -> torch.Tensor:
        """float32 `[B, N]`: the highest score."""
        if self._top is None:
            self._top = self.scores.amax(dim=-1)
        return self._top

    @property
    def log_mass(self) -> torch.Tensor:
        """float32 `[B, N]`: log-sum-exp of `scores - top`.

        Separate from `top`, because the difference of a large score and a large log-sum-exp loses precision.
        """
        if self._log_mass is None:
            self._log_mass = (self.scores - self.top[..., None]).exp_().sum(dim=-1).log_()
        return self._log_mass

    def top_prob(self) -> torch.Tensor:
        """Return the highest probability at every position: float32 `[B, N]`."""
        return torch.exp(-self.log_mass)

    def prob(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the probability of `tokens` (long `[B, M]`, M <= N) at the first M positions: float32 `[B, M]`."""
        count = tokens.shape[1]
        chosen = self.scores[:, :count].gather(-1, tokens[..., None]).squeeze(-1)
        return torch.exp(chosen - self.top[:, :count] - self.log_mass[:, :count])

    def at(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the scores at one position per row (long `[B]`): `[B, V]`."""
        return self.scores[torch.arange(len(positions), device=positions.device), positions]

    def probs(self, positions: torch.Tensor | None = None) -> torch.Tensor:
        """Return the distribution: `[B, V]` at one position per row (long `[B]`), or `[B, N, V]` at all of them."""
        if positions is None:
            return torch.softmax(self.scores, dim=-1)
        return torch.softmax(self.at(positions), dim=-1)


@dataclass(eq=False)
class DraftOutput(BlockOutput):
    """The draft model's block: N = G positions, with the draft tokens.

    Attributes:
        tokens: long `[B, G]`.
        sampled: whether the tokens were drawn from q (True) or are its argmax (greedy decoding).
        active: bool `[B, G]`, the positions that the verifier decides; all by default. False after a row's draft
            length, after its first drafted EOS, and where another verifier decides. Verifiers that treat positions
            independently may ignore it.
        lengths: long `[B]`, number of ids of each row; None if every row fills all columns.
        num_drafted: long `[B]`, number of draft tokens of each row up to its limit or first EOS, for all
            verifiers together; by default the number of active positions.
    """

    tokens: torch.Tensor = field(kw_only=True)
    sampled: bool = field(kw_only=True)
    active: torch.Tensor = field(kw_only=True, default=None)  # type: ignore[assignment]
    lengths: torch.Tensor | None = field(kw_only=True, default=None)
    num_drafted: torch.Tensor = field(kw_only=True, default=None)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.active is None:
            self.active = torch.ones_like(self.tokens, dtype=torch.bool)
        if self.num_drafted is None:
            self.num_drafted = self.active.sum(dim=-1)


@dataclass(eq=False)
class TargetOutput(BlockOutput):
    """The target model's block: N = G + 1 positions, the last one after all draft tokens."""


@dataclass(frozen=True, eq=False)
class Trace:
    """Diagnostics of a verdict; decoding does not use them. Every field may be None.

    Attributes:
        weight: float32 `[B, G]`, weight on the target at the draft token, for mixtures.
        tv: float32 `[B, G]`, TV(p, q), if the verifier computed it.
        bias: float32 `[B, G]`, TV(v, p) of verifiers with a weight per token: the exact value if the verifier computed
            it, else the unbiased estimate (1 - w) max(1 - p/q, 0) from the draft token. None with one weight per
            position, where TV(v, p) is (1 - w) TV(p, q).
        inputs: inputs of a learned verifier's head, by name, `[B, G, ...]`, if the verifier keeps them.
        emitted_probs: returns the distribution that sampling emits at the draft positions, float32 `[B, G, V]`; None
            if the verifier does not compute it. In a `PhaseVerifier`, NaN where the verifier that decides does not
            compute it. In a `BlockVerifier`, that of its inner verifier; accepted tokens follow it jointly over the
            block, not given each acceptance.
        strict_prob: float32 `[B, G]`, probability that lossless verification of the same kind (token-wise, block, FLy)
            accepts the draft token; None for token-wise verification, where it is min(1, p / q).
    """

    weight: torch.Tensor | None = None
    tv: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    inputs: dict[str, torch.Tensor] | None = None
    emitted_probs: Callable[[], torch.Tensor] | None = None
    strict_prob: torch.Tensor | None = None


@dataclass(eq=False)
class Verdict:
    """A verifier's decision on one block.

    Attributes:
        accept_prob: float32 `[B, G]`, probability of accepting each draft token, given the block and that all earlier
            draft tokens were accepted (0 or 1 when greedy, also as bool).
        replacement: maps long `[B]` (position of the first rejection) to the unnormalised distribution `[B, V]` of
            the residual token; when greedy, to any `[B, V]` whose argmax is that token.
        trace: diagnostics.
    """

    accept_prob: torch.Tensor
    replacement: Callable[[torch.Tensor], torch.Tensor]
    trace: Trace = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.trace is None:  # `torch.compile` does not trace default instances or factories
            self.trace = Trace()


@dataclass(frozen=True, eq=False)
class Round:
    """Inputs, verdict and outcome of one round; tensors of the outcome have one entry per row.

    Attributes:
        draft, verdict: None if no row had draft tokens.
        num_drafted: long `[B]`, draft tokens up to the row's gamma or its first drafted EOS.
        num_accepted: long `[B]`, 0 to `num_drafted`.
        next_token: long `[B]`, the residual token at the first rejection, or the bonus token after all draft tokens.
        num_emitted: long `[B]`: `num_accepted + 1`, or `num_accepted` where the last accepted draft token is EOS.
        ended: bool `[B]`, an EOS was emitted.
        faults: long `[B]`, error code per row; 0 means that all values used were valid.
    """

    draft: DraftOutput | None
    target: TargetOutput
    round_noise: RoundNoise
    verdict: Verdict | None
    num_drafted: torch.Tensor
    num_accepted: torch.Tensor
    next_token: torch.Tensor
    num_emitted: torch.Tensor
    ended: torch.Tensor
    faults: torch.Tensor


@dataclass(frozen=True)
class DecodingContext:
    """Settings of a call that a verifier may check before the first forward pass.

    `batch_size` rows come from `num_prompts` prompts (`num_return_sequences` each). `temperature` is 0 when greedy and
    None in vLLM, where it differs between rows. `target` and `draft` are the models without wrappers, or None in vLLM;
    `draft` is also None for prompt lookup. `draft_hidden_size` is None for draft tokens without a distribution (prompt
    lookup, and greedy draft tokens in vLLM), and 0 for those with a distribution but no hidden states. `draft_name` is
    empty without a draft model, or names the source of draft tokens.
    """

    batch_size: int
    num_prompts: int
    vocab_size: int
    temperature: float | None
    target_hidden_size: int
    draft_hidden_size: int | None
    target_name: str
    draft_name: str
    target: torch.nn.Module | None = None
    draft: torch.nn.Module | None = None
