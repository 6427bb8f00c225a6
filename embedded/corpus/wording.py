"""Templates: `(a|b|c)` is a choice of words, `$name` a slot, and a `Style` says which choices are frequent."""

import math
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate


@dataclass(frozen=True)
class Style:
    """The habits of a writer.

    Args:
        habit: option `i` of `k` has weight `exp(-habit * i / (k - 1))`. 0 is even-handed, positive prefers the options
            listed first, negative those listed last.
        plan_habit: the same for the choice among the sentence plans of a family.
        forms: weights of the six forms of a sentence with an equation; None for those of `habit`.
    """

    habit: float = 0.0
    plan_habit: float = 0.0
    forms: tuple[float, ...] | None = None


# The target's: at home in every wording, as a large model is.
TARGET_STYLE = Style(habit=0.5)

_SLOT = re.compile(r"\$(\w+)")
_PIECE = re.compile(r"[^()|]+|[()|]")


def pick(rng: random.Random, count: int, habit: float) -> int:
    """Draw an index in `range(count)` with the weights of a habit."""
    return rng.choices(range(count), cum_weights=_cumulative(count, habit))[0]


def write(template: str, slots: Mapping[str, str], rng: random.Random, style: Style) -> str:
    """Fill in a template: draw every choice in `style`, then replace every `$name` from `slots`, repeatedly, so that
    a slot may hold a template of its own. Double spaces left by an empty option are closed up."""
    text = template
    while "(" in text or "$" in text:
        text = _expand(_parse(text), rng, style)
        text = _SLOT.sub(lambda match: slots[match[1]], text)
    return re.sub(r" +", " ", text).strip()


@lru_cache(maxsize=256)
def _cumulative(count: int, habit: float) -> tuple[float, ...]:
    return tuple(accumulate(math.exp(-habit * i / max(count - 1, 1)) for i in range(count)))


def _expand(node: tuple, rng: random.Random, style: Style) -> str:
    """Write out a parsed sequence of strings and choices; a choice is a list of such sequences."""
    parts = []
    for item in node:
        if isinstance(item, list):
            item = _expand(item[pick(rng, len(item), style.habit)], rng, style)
        parts.append(item)
    return "".join(parts)


@lru_cache(maxsize=4096)
def _parse(template: str) -> tuple:
    """Parse a template into a tuple of strings and lists of such tuples."""
    stack: list[list[list]] = [[[]]]  # one frame per open bracket: its options so far, each a growing sequence
    for piece in _PIECE.findall(template):
        if piece == "(":
            stack.append([[]])
        elif piece == "|":
            stack[-1].append([])
        elif piece == ")" and len(stack) > 1:
            options = [tuple(option) for option in stack.pop()]
            stack[-1][-1].append(options)
        else:
            stack[-1][-1].append(piece)
    outermost, *still_open = stack
    if still_open or len(outermost) > 1 or ")" in outermost[0]:
        raise ValueError(f"unbalanced brackets, or a choice outside brackets, in {template!r}")
    return tuple(outermost[0])
