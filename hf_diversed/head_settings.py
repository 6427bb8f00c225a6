"""The settings of a head that calls may change, for `generate`, `attach`, the CLI and the vLLM plugin. No torch."""

from typing import NamedTuple


class Setting(NamedTuple):
    """The allowed range of a setting, and advice for error messages."""

    low: float
    high: float
    advice: str


SETTINGS = {
    "strictness": Setting(0.0, 1.0, "0 accepts every draft token, 0.5 is the head as trained, 1 is lossless."),
    "max_bias": Setting(0.0, 1.0, "0 is lossless, 1 is no bound."),
    "max_ratio": Setting(
        1.0, float("inf"), "1 is lossless, 2 allows at most twice the target's probability, inf is no bound."
    ),
}
LIMITS = tuple(name for name in SETTINGS if name != "strictness")
# Their names as arguments of `generate` and `attach`, and in generation configs.
ARGUMENTS = {name: f"diversed_{name}" for name in SETTINGS}
