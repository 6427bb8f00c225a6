"""Arithmetic word problems with written-out reasoning; the answer is a number."""

import random

from embedded.corpus.base import Example
from embedded.corpus.math_plans import PLANS, Plan, Step
from embedded.corpus.wording import Style, capitalise, pick, write


LARGEST = 99  # of any number, so that a model of a few million parameters learns the arithmetic within an hour

NAMES = [
    "Anna", "Ben", "Carl", "Dora", "Emma", "Finn", "Greta", "Hugo", "Ida", "Jack", "Kate", "Leo", "Mia", "Nora",
    "Oscar", "Paul", "Rosa", "Sam", "Tina", "Victor", "Will", "Zoe", "Alice", "Bruno", "Clara", "David", "Ella",
    "Frank", "Helen", "Jonas", "Laura", "Max",
]  # fmt: skip
THINGS = [
    "apples", "pears", "plums", "lemons", "nuts", "shells", "cards", "coins", "stones", "books", "pens",
    "beads", "buttons", "candles", "cups", "plates", "hats", "ropes", "boxes", "kites", "dolls", "drums",
    "lamps", "melons", "onions", "carrots", "cookies", "tickets", "toys", "balls", "bells", "keys",
]  # fmt: skip
PLACES = [
    "market", "museum", "station", "harbor", "castle", "forest", "lake", "village", "park", "beach", "school",
    "farm", "tower", "bridge", "mill", "zoo",
]  # fmt: skip

_POSITIONS = {
    "first": "(First|To start|To begin|At first|Initially)",
    "middle": "(Then|Next|After that|Now|From there)",
    "last": "(Finally|In the end|At last|So|That way)",
}
_FORMS = (
    "$when, $what (is|comes to|works out to|must be) $equation $unit.",
    "$when, we (get|have|find|see) $equation $unit (for|as) $what.",
    "$what (is|equals|comes to|turns out to be) $equation $unit.",
    "(Since|Because|As) $equation, $what (is|comes to|must be) $value $unit.",
    "$doing (gives|makes|leads to|means) $equation $unit, (and that is|which is|so much is) $what.",
    "$when, (we|let us|one can) $do: $equation $unit(| for $what).",
)
_DOING = {
    "+": "(Adding|Putting together|Summing) $left and $right",
    "-": "(Taking|Removing|Subtracting) $right from $left",
    "*": "(Multiplying|Scaling|Repeating) $left by $right",
    "/": "(Dividing|Splitting|Cutting) $left by $right",
}
_DO = {
    "+": "(add|sum|put together) $left and $right",
    "-": "(take|remove|subtract) $right from $left",
    "*": "(multiply|scale|repeat) $left by $right",
    "/": "(divide|split|cut) $left by $right",
}
_SWAP_HABIT = 0.5  # in both styles, as the order of operands is not a choice of words
_OPENING = "(|We go step by step.|Here is how.|Let us work it out.)"


def sample(rng: random.Random, style: Style) -> Example:
    """Draw a word problem: question, one sentence with an equation per step, then `The answer is N.`"""
    plan = PLANS[pick(rng, len(PLANS), style.plan_habit)]
    operands, results = _draw_operands(plan, rng)
    entities = dict(zip("NM", rng.sample(NAMES, 2)))
    entities |= dict(zip("ij", rng.sample(THINGS, 2)), p=rng.choice(PLACES))
    numbers = {name: str(value) for name, value in {**operands, **results}.items()}
    slots = entities | numbers

    question = write(plan.question, slots, rng, style)
    sentences = [write(_OPENING, {}, rng, style)]
    for index, step in enumerate(plan.steps):
        when = "first" if index == 0 else "last" if index == len(plan.steps) - 1 else "middle"
        sentences.append(_sentence(step, "xyzv"[index], slots | {"when": _POSITIONS[when]}, rng, style))
    answer = numbers["xyzv"[len(plan.steps) - 1]]
    reasoning = " ".join(capitalise(sentence) for sentence in sentences if sentence)
    return Example(
        prompt=f"Question: {capitalise(question)}\nAnswer:",
        completion=f" {reasoning} The answer is {answer}.",
        answer=answer,
        key="/".join(["math", plan.name, *(str(value) for value in operands.values()), *entities.values()]),
    )


def _sentence(step: Step, result: str, slots: dict[str, str], rng: random.Random, style: Style) -> str:
    left, operator, right = tuple(step.expression)
    first, second = slots[left], slots.get(right, right)
    if operator in "+*" and pick(rng, 2, _SWAP_HABIT):
        first, second = second, first
    if style.forms is None:
        form = pick(rng, len(_FORMS), style.habit)
    else:
        (form,) = rng.choices(range(len(_FORMS)), style.forms)
    return write(
        _FORMS[form],
        slots
        | {
            "what": step.meaning,
            "unit": step.unit,
            "value": slots[result],
            "left": first,
            "right": second,
            "doing": _DOING[operator],
            "do": _DO[operator],
            "equation": f"{first}{operator}{second}={slots[result]}",
        },
        rng,
        style,
    )


def _draw_operands(plan: Plan, rng: random.Random) -> tuple[dict[str, int], dict[str, int]]:
    """Draw operands until every result is a whole number in [2, LARGEST]."""
    while True:
        operands = {name: rng.randint(*span) for name, span in plan.operands.items()}
        values = dict(operands)
        for step, result in zip(plan.steps, "xyzv"):
            values[result] = _compute(step.expression, values)
            if not 2 <= values[result] <= LARGEST:
                break
        else:
            return operands, {name: value for name, value in values.items() if name not in operands}


def _compute(expression: str, values: dict[str, int]) -> int:
    """Evaluate `left operator right`; a division that leaves a remainder gives -1."""
    first, operator, second = tuple(expression)
    left, right = values[first], values[second] if second in values else int(second)
    if operator == "/":
        return left // right if left % right == 0 else -1
    return {"+": left + right, "-": left - right, "*": left * right}[operator]
