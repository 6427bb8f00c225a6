"""The embedded offline pair: a small target and a smaller draft model trained from scratch, with their heads; and
other pairs by name."""

from hf_diversed.zoo.loader import LOOKUP, Pair, best_device, embedded_head, load_demo_pair, load_pair


# The target solves it with every seed tried; at strictness 0 most answers are wrong.
EXAMPLE_PROMPT = "Question: Mia has 74 dollars and buys 9 pens at 7 dollars each. How much money is left?\nAnswer:"

__all__ = ["EXAMPLE_PROMPT", "LOOKUP", "Pair", "best_device", "embedded_head", "load_demo_pair", "load_pair"]
