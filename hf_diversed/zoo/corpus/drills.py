"""Bare sums: the arithmetic of the word problems without their words, many equations to a line.

A word problem has three equations in a hundred tokens; a drill has twelve. Mixed into the training text it lets a
model of a few million parameters learn to compute within the hour.
"""

import random
import re

from hf_diversed.zoo.corpus.base import Example, Family
from hf_diversed.zoo.corpus.wording import Style


LARGEST = 99
_EQUATIONS_PER_LINE = 12
_EQUATION = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)")


def sample(rng: random.Random, style: Style) -> Example:
    """Draw a line of equations with results up to `LARGEST`; it has no wording, so the style does not matter."""
    equations = [_equation(rng) for _ in range(_EQUATIONS_PER_LINE)]
    prompt = f"Sums: {equations[0]}"
    return Example(
        prompt, "".join(f", {e}" for e in equations[1:]) + ".", answer="", key=f"drills/{' '.join(equations)}"
    )


def score(completion: str, example: Example) -> float:
    """Share of the completion's equations that hold; 0 where there is none."""
    found = _EQUATION.findall(completion)
    right = sum(_holds(int(a), operator, int(b), int(result)) for a, operator, b, result in found)
    return right / len(found) if found else 0.0


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


def _holds(a: int, operator: str, b: int, result: int) -> bool:
    if operator == "/":
        return b != 0 and a == b * result
    return result == {"+": a + b, "-": a - b, "*": a * b}[operator]


DRILLS = Family(sample=sample, score=score)
