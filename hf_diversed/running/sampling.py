"""How tokens are drawn, in one place, so that training and measuring see the same laws."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sampling:
    """How a pair draws completions.

    Args:
        temperature: 0 decodes greedily. top_k, top_p: 0 and 1 leave p and q the models' own laws.
        num_assistant_tokens: drafts per round; None for the rule's own preference, or 5.
        max_new_tokens: longest completion.
        batch_size: prompts per call. It decides which random numbers a prompt gets.
        stop_strings: where a completion ends, beside EOS.

    Raises:
        ValueError: on values out of range.
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
        """Refuse fields below their lowest values; None is left alone."""
        for name, low in lowest.items():
            value = getattr(self, name)
            if value is not None and not value >= low:  # also refuses nan
                raise ValueError(f"`{name}` must be >= {low}, got {value!r}.")

    def generate_kwargs(self) -> dict[str, Any]:
        """How `generate` draws tokens and how many; what else the target's generation config says stays in force."""
        kwargs: dict[str, Any] = {"do_sample": self.temperature > 0, "max_new_tokens": self.max_new_tokens}
        if self.temperature > 0:
            kwargs |= {"temperature": float(self.temperature), "top_k": self.top_k, "top_p": float(self.top_p)}
        return kwargs | {"repetition_penalty": 1.0}  # some models bring one: q and p would be other laws
