"""Sampling settings, shared by training and evaluation so that both use the same distributions."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sampling:
    """Sampling settings of completions.

    Args:
        temperature: 0 decodes greedily.
        top_k: 0 disables it.
        top_p: 1 disables it.
        num_assistant_tokens: draft tokens per round; None for the defaults of `generate`.
        max_new_tokens: largest number of new tokens.
        batch_size: prompts per call; affects which random numbers each prompt gets.
        stop_strings: strings that end a completion, in addition to EOS.

    Raises:
        ValueError: if a value is out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    num_assistant_tokens: int | None = 5
    max_new_tokens: int = 128
    batch_size: int = 16
    stop_strings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.check_at_least(temperature=0, top_k=0, num_assistant_tokens=1, max_new_tokens=1, batch_size=1)
        if not 0 < self.top_p <= 1:
            raise ValueError(f"`top_p` must lie in (0, 1], got {self.top_p!r}; 1 turns it off.")

    def check_at_least(self, **lowest: float) -> None:
        """Raise if a field is below its lowest value; None is allowed."""
        for name, low in lowest.items():
            value = getattr(self, name)
            if value is not None and not value >= low:  # also rejects NaN
                raise ValueError(f"`{name}` must be >= {low}, got {value!r}.")

    def generate_kwargs(self) -> dict[str, Any]:
        """Return the arguments of `generate`; other settings of the target's generation config still apply."""
        kwargs: dict[str, Any] = {"do_sample": self.temperature > 0, "max_new_tokens": self.max_new_tokens}
        if self.temperature > 0:
            kwargs |= {"temperature": float(self.temperature), "top_k": self.top_k, "top_p": float(self.top_p)}
        return kwargs | {"repetition_penalty": 1.0}  # some generation configs set one, which changes p and q
