"""Equations: the arithmetic of the word problems without words, several equations per line.

A word problem has three equations in a hundred tokens; a drill has twelve. Drills in the training text let a model of
a few million parameters learn arithmetic within an hour.
"""

import random

from embedded.corpus.base import Example
from embedded.corpus.wording import Style


LARGEST = 99
_EQUATIONS_PER_LINE = 12


def sample(rng: random.Random, style: Style) -> Example:
    """Draw a line of equations with results up to `LARGEST`; the style has no effect."""
    equations = [_equation(rng) for _ in range(_EQUATIONS_PER_LINE)]
    prompt = f"Sums: {equations[0]}"
    return Example(
        prompt, "".join(f", {e}" for e in equations[1:]) + ".", answer="", key=f"drills/{' '.join(equations)}"
    )


def _equation(rng: random.Random) -> str:
    operator = rng.choice("+-*/")
    if operator in "+-":
        total = rng.randint(3, LARGEST)
        part = rng.randint(1, total - 1)
        return f"{part}+{total - part}={total}" if operator == "+" else f"{total}-{part}={total - part}"
    factor = rng.randint(2, LARGEST // 2)
    other = rng.randint(2, LARGEST // factor)
    if rng.random() < 0.5:
        factor, other = other, factor
    product = factor * other
    return f"{factor}*{other}={product}" if operator == "*" else f"{product}/{factor}={other}"
