"""The embedded offline pair: a small target and a smaller draft trained from scratch, with heads for them."""

from hf_diversed.zoo.loader import load_demo_pair


__all__ = ["load_demo_pair"]
