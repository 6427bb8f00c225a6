"""Templates: `(a|b|c)` is a choice of words, `$name` a slot; a `Style` weights the choices."""

import math
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate


@dataclass(frozen=True)
class Style:
    """Weights of choices.

    Args:
        habit: option `i` of `k` has weight `exp(-habit * i / (k - 1))`. 0 is uniform, a positive value prefers the
            first options, a negative value the last.
        plan_habit: the same for the sentence plans of a family.
        forms: weights of the six forms of a sentence with an equation; None for those of `habit`.
    """

    habit: float = 0.0
    plan_habit: float = 0.0
    forms: tuple[float, ...] | None = None


# Of the target model, which is to know every wording.
TARGET_STYLE = Style(habit=0.5)

_SLOT = re.compile(r"\$(\w+)")
_PIECE = re.compile(r"[^()|]+|[()|]")


def pick(rng: random.Random, count: int, habit: float) -> int:
    """Draw an index in `range(count)` with the weights of `habit`."""
    return rng.choices(range(count), cum_weights=_cumulative(count, habit))[0]


def write(template: str, slots: Mapping[str, str], rng: random.Random, style: Style) -> str:
    """Fill in a template: choose words with the weights of `style` and replace every `$name` by its slot.

    A slot may contain a template. Repeated spaces are reduced to one.
    """
    text = template
    while "(" in text or "$" in text:
        text = _expand(_parse(text), rng, style)
        text = _SLOT.sub(lambda match: slots[match[1]], text)
    return re.sub(r" +", " ", text).strip()


def capitalise(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


@lru_cache(maxsize=256)
def _cumulative(count: int, habit: float) -> tuple[float, ...]:
    return tuple(accumulate(math.exp(-habit * i / max(count - 1, 1)) for i in range(count)))


def _expand(node: tuple, rng: random.Random, style: Style) -> str:
    """Expand a parsed sequence of strings and choices; a choice is a list of such sequences."""
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
        elif piece == ")":
            options = [tuple(option) for option in stack.pop()]
            stack[-1][-1].append(options)
        else:
            stack[-1][-1].append(piece)
    return tuple(stack[0][0])
