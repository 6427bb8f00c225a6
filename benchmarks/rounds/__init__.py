"""Timing of our loop, upstream's assisted decoding and the target alone, with the parts of a round."""

from benchmarks.rounds.measure import benchmark
from benchmarks.rounds.random_models import random_model, shape_names
from benchmarks.rounds.settings import BenchmarkSettings
from benchmarks.rounds.synthetic import SyntheticVerifier


__all__ = [
    "BenchmarkSettings",
    "SyntheticVerifier",
    "benchmark",
    "random_model",
    "shape_names",
]
