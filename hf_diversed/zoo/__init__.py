"""The embedded offline pair: a small target and a smaller draft trained from scratch, with heads for them."""

from hf_diversed.zoo.loader import DemoPair, load_demo_pair


__all__ = ["DemoPair", "load_demo_pair"]
