"""Small Python functions over a list of numbers: description, code, and tests."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from embedded.corpus.base import Example
from embedded.corpus.wording import Style, pick, write


NAMES = [
    "solve", "apply", "compute", "collect", "process", "digest", "reduce_list", "scan", "evaluate", "check_all",
    "fold", "work_out", "measure", "summarize", "inspect", "combine",
]  # fmt: skip
_TESTS = 3
_SIGNATURE = "(takes a list of numbers|gets a list|is given numbers)"


@dataclass(frozen=True)
class Part:
    """Part of a program: description, code (`v`: the number, `k`: the constant) and the equivalent function."""

    words: str
    code: str
    run: Callable[[int, int], int]


FILTERS = {
    "all": Part("(all|the) numbers", "", lambda v, k: 1),
    "even": Part("the even numbers", "v % 2 == 0", lambda v, k: v % 2 == 0),
    "odd": Part("the odd numbers", "v % 2 == 1", lambda v, k: v % 2 == 1),
    "above": Part("the numbers (above|greater than) $k", "v > k", lambda v, k: v > k),
    "below": Part("the numbers (below|less than) $k", "v < k", lambda v, k: v < k),
    "multiple": Part("the (multiples of|numbers divisible by) $k", "v % k == 0", lambda v, k: v % k == 0),
}
CHANGES = {
    "same": Part("", "v", lambda v, k: v),
    "square": Part("the squares of ", "v * v", lambda v, k: v * v),
    "double": Part("(the doubles of|twice) ", "2 * v", lambda v, k: 2 * v),
    "add": Part("$k (plus|more than) ", "v + k", lambda v, k: v + k),
    "times": Part("$k times ", "k * v", lambda v, k: k * v),
}
AGGREGATIONS: dict[str, tuple[str, Callable[[list[int]], object]]] = {
    "sum": ("the (sum|total) of ", sum),
    "largest": ("the (largest|maximum) of ", max),
    "smallest": ("the (smallest|minimum) of ", min),
    "count": ("(how many there are|the count) of ", len),
    "list": ("a list of ", list),
}


def sample(rng: random.Random, style: Style) -> Example:
    """Sample a task: aggregate (sum, count, ...) the transformed (squared, ...) numbers that pass a filter."""
    aggregation = rng.choice(list(AGGREGATIONS))
    change = "same" if aggregation == "count" else rng.choice(list(CHANGES))
    condition = rng.choice(list(FILTERS))
    bound, amount = str(rng.randint(2, 9)), str(rng.randint(2, 9))
    name = rng.choice(NAMES)
    words = (
        write(AGGREGATIONS[aggregation][0], {}, rng, style),
        write(CHANGES[change].words, {"k": amount}, rng, style),
        write(FILTERS[condition].words, {"k": bound}, rng, style),
    )
    signature = write(_SIGNATURE, {}, rng, style)
    description = " ".join(word for word in words if word)
    has_bound, has_amount = "k" in FILTERS[condition].code, "k" in CHANGES[change].code
    return Example(
        prompt=f"Task: Write a function {name} that {signature} and returns {description}.\nCode:\n",
        completion=_code(name, aggregation, CHANGES[change], FILTERS[condition], amount, bound, rng, style),
        answer="\n".join(_tests(name, aggregation, CHANGES[change], FILTERS[condition], int(amount), int(bound), rng)),
        key="/".join(["code", name, aggregation, change, condition, amount * has_amount, bound * has_bound]),
    )


def _code(
    name: str,
    aggregation: str,
    change: Part,
    condition: Part,
    amount: str,
    bound: str,
    rng: random.Random,
    style: Style,
) -> str:
    """Write the function as a comprehension or as a loop; `style` weights the variable names."""

    def either(*options: str) -> str:
        return options[pick(rng, len(options), style.habit)]

    items, v = either("numbers", "values", "items"), either("n", "v", "item")
    value = change.code.replace("v", v).replace("k", amount)
    test = condition.code.replace("k", bound).replace("v", v)
    lines = [f"def {name}({items}):"]
    if either("plain", "loop") == "plain":
        found = f"{value} for {v} in {items}" + (f" if {test}" if test else "")
        if aggregation in ("count", "list"):
            found = f"[{found}]"
    else:
        found = either("result", "found", "out")
        lines += [f"    {found} = []", f"    for {v} in {items}:"]
        if test:
            lines.append(f"        if {test}:")
        lines.append(f"{' ' * (12 if test else 8)}{found}.append({value})")
    wrap = {"sum": "sum(_)", "largest": "max(_)", "smallest": "min(_)", "count": "len(_)", "list": "_"}
    lines.append(f"    return {wrap[aggregation].replace('_', found)}")
    return "\n".join(lines) + "\n"


def _tests(
    name: str, aggregation: str, change: Part, condition: Part, amount: int, bound: int, rng: random.Random
) -> list[str]:
    """Return assertions on lists in which some numbers pass the filter and, unless it is empty, some do not."""
    tests: list[str] = []
    while len(tests) < _TESTS:
        numbers = [rng.randint(1, 20) for _ in range(6)]
        passed = [change.run(v, amount) for v in numbers if condition.run(v, bound)]
        if len(passed) >= 2 and (len(passed) < len(numbers) or not condition.code):
            tests.append(f"assert {name}({numbers}) == {AGGREGATIONS[aggregation][1](passed)}")
    return tests
