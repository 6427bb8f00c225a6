"""Points and options of a benchmark."""

from collections.abc import Iterable
from dataclasses import dataclass

from hf_diversed.harness.sampling import Sampling


PROMPTS_AS_GIVEN = 0
_LEAST_ROUNDS = 3


@dataclass(frozen=True)
class Point:
    """Batch size, prompt length (0: the given prompts as they are) and draft tokens per round."""

    batch_size: int
    context_length: int
    num_assistant_tokens: int


@dataclass(frozen=True)
class BenchmarkSettings:
    """Settings that all methods of a benchmark share.

    The first batch size, context length and draft length are the base point; others are varied one at a time.

    Args:
        batch_sizes: rows. Upstream's assisted decoding runs at 1 only.
        context_lengths: prompt tokens per row; 0 uses the given prompts unchanged and stops at EOS. At other lengths
            all rows decode `max_new_tokens`.
        draft_lengths: draft tokens per round.
        max_new_tokens: tokens per row.
        repeats: timed turns, after one for warming up.
        temperature: 0 decodes greedily; top-k and top-p are off.
        acceptance: conditional acceptance rate of our methods, one for all positions or one for each
            (`SyntheticVerifier`); None for the models' own.
        breakdown: also time the parts of an eager round, in separate runs.
        backend: of `torch.compile`, for compiled methods; "eager" traces without compiling, for testing.
        progress: show a progress bar; None: if standard error is a terminal.

    Raises:
        ValueError: for values out of range, too few tokens for three rounds, or greedy decoding with `acceptance`.
    """

    batch_sizes: tuple[int, ...] = (1, 4, 8, 16)
    context_lengths: tuple[int, ...] = (128,)
    draft_lengths: tuple[int, ...] = (5,)
    max_new_tokens: int = 64
    repeats: int = 7
    temperature: float = 1.0
    acceptance: tuple[float, ...] | None = None
    seed: int = 0
    breakdown: bool = True
    backend: str = "inductor"
    progress: bool | None = None

    def __post_init__(self) -> None:
        for name, low in (("batch_sizes", 1), ("context_lengths", 0), ("draft_lengths", 1)):
            _check_list(name, getattr(self, name), low)
        if 1 in self.context_lengths:
            raise ValueError(
                "`context_lengths` must be 0 (the prompts as given) or >= 2, as 1 leaves nothing to prefill, got "
                f"{list(self.context_lengths)}; replace 1."
            )
        for name, low in (("repeats", 1), ("seed", 0), ("temperature", 0)):
            value = getattr(self, name)
            if not value >= low:  # also rejects NaN
                raise ValueError(f"`{name}` must be >= {low}, got {value!r}.")
        least = _LEAST_ROUNDS * (max(self.draft_lengths) + 1)
        if self.max_new_tokens < least:
            raise ValueError(
                f"`max_new_tokens` must be >= {least}, got {self.max_new_tokens!r}: with {max(self.draft_lengths)} "
                f"draft tokens per round, fewer tokens give fewer than {_LEAST_ROUNDS} rounds."
            )
        if self.acceptance is not None:
            self._check_acceptance(self.acceptance)

    def _check_acceptance(self, rates: tuple[float, ...]) -> None:
        if not rates or not all(0 <= rate <= 1 for rate in rates):
            raise ValueError(f"`acceptance` must be rates in [0, 1], got {list(rates)!r}.")
        longest = max(self.draft_lengths)
        if len(rates) not in (1, longest):
            raise ValueError(f"`acceptance` must be one rate or one per draft token ({longest}), got {len(rates)}.")
        if self.temperature == 0:
            raise ValueError("`acceptance` needs a temperature above 0: greedy decoding draws no random numbers.")

    def points(self) -> list[Point]:
        """Return the base point, then each other value of each setting with the rest as in the base point."""
        (batch, *batches), (context, *contexts) = self.batch_sizes, self.context_lengths
        gamma, *gammas = self.draft_lengths
        return [
            Point(batch, context, gamma),
            *(Point(other, context, gamma) for other in batches),
            *(Point(batch, other, gamma) for other in contexts),
            *(Point(batch, context, other) for other in gammas),
        ]

    def sampling(self, point: Point) -> Sampling:
        return Sampling(
            temperature=self.temperature,
            num_assistant_tokens=point.num_assistant_tokens,
            max_new_tokens=self.max_new_tokens,
            batch_size=point.batch_size,
        )


def _check_list(name: str, values: Iterable[int], low: int) -> None:
    values = list(values)
    if not values or not all(isinstance(value, int) and value >= low for value in values):
        raise ValueError(f"`{name}` must be integers >= {low}, at least one, got {values!r}.")
    if len(set(values)) < len(values):
        raise ValueError(f"`{name}` must not repeat a value, got {values!r}.")
