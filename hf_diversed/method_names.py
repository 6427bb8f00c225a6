"""Names of decoding methods, `[compiled:]name[:parameter ...][@strictness]`. Imports no torch or transformers."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from hf_diversed.formatting import COMPILED, PLAIN


DIVERSED, UPSTREAM = "diversed", "upstream"
AS_TRAINED = 0.5  # strictness
# Sampling arguments of `generate` that remove tokens from the target's distribution, and tests of their values.
TRUNCATIONS: dict[str, Callable[[float], bool]] = {
    "top_p": lambda value: 0 < value <= 1,
    "top_k": lambda value: value >= 0 and value.is_integer(),
    "min_p": lambda value: 0 <= value <= 1,
    "typical_p": lambda value: 0 < value <= 1,
    "epsilon_cutoff": lambda value: 0 <= value < 1,
    "eta_cutoff": lambda value: 0 <= value < 1,
}


@dataclass(frozen=True)
class MethodName:
    """The parts of a method's name; `str` formats them.

    Attributes:
        name: "target", "upstream", "diversed", a name in `VERIFIERS`, or any label without colons.
        parameters: the text after the colon, or None; for "diversed" the head's folder or Hub id.
        strictness: for "diversed", the number after the last @; otherwise None.
        compiled: whether the name starts with "compiled:".
    """

    name: str
    parameters: str | None = None
    strictness: float | None = None
    compiled: bool = False

    @classmethod
    def parse(cls, text: str) -> "MethodName":
        """Split a name or label; every text is accepted."""
        rest, strictness = text.removeprefix(COMPILED), None
        before, _, last = rest.rpartition("@")
        if re.split("[:@]", rest)[0] == DIVERSED and before and (value := parse_number(last)) is not None:
            rest, strictness = before, value
        name, colon, parameters = rest.partition(":")
        return cls(name, parameters if colon else None, strictness, text.startswith(COMPILED))

    def __str__(self) -> str:
        parameters = "" if self.parameters is None else f":{self.parameters}"
        strictness = "" if self.strictness is None else f"@{self.strictness:g}"
        return f"{COMPILED if self.compiled else ''}{self.name}{parameters}{strictness}"

    @property
    def family(self) -> tuple[str, float | None]:
        """The method family and its parameter: ("static", 0.7) for "static:0.7", ("diversed", 0.5) for "diversed".

        The parameter is the last one if it is a number, or the strictness of "diversed"; None otherwise.
        """
        if self.name == DIVERSED:
            strictness = AS_TRAINED if self.strictness is None else self.strictness
            return str(replace(self, strictness=None)), strictness
        family, colon, last = str(self).rpartition(":")
        value = parse_number(last) if colon else None
        return (str(self), None) if value is None else (family, value)

    @property
    def values(self) -> list[float | str]:
        """The parameters between colons, as numbers where they are numbers: ["token_v3", 0.5]."""
        words = [] if self.parameters is None else self.parameters.split(":")
        return [word if (value := parse_number(word)) is None else value for word in words]

    def truncation(self) -> dict[str, float]:
        """Return the arguments of `generate` in "target:top_p=0.9:top_k=50"; empty for "target". Raises ValueError for
        other arguments, and for values that are not numbers or out of range."""
        arguments: dict[str, float] = {}
        for part in self.values:
            name, _, value = str(part).partition("=")
            number = parse_number(value)
            if name not in TRUNCATIONS or number is None or not TRUNCATIONS[name](number):
                raise ValueError(
                    f"method {str(self)!r} must have the form {PLAIN}, or {PLAIN}:<name>=<value> with names of "
                    f"{', '.join(TRUNCATIONS)}, an integer top_k >= 0, and other values from 0 to 1, for example "
                    f"{PLAIN}:top_p=0.9."
                )
            arguments[name] = int(number) if name == "top_k" else number
        return arguments


def parse_number(text: str) -> float | None:
    """Return the number that a text denotes, or None."""
    try:
        return float(text)
    except ValueError:
        return None
