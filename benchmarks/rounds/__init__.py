"""Timing of our loop, upstream's assisted decoding and the target alone, with the parts of a round."""

from benchmarks.rounds.hardware import copy_bandwidth
from benchmarks.rounds.measure import Record, benchmark
from benchmarks.rounds.random_models import random_model, shape_names
from benchmarks.rounds.settings import BenchmarkSettings, Point
from benchmarks.rounds.synthetic import SyntheticVerifier


__all__ = [
    "BenchmarkSettings",
    "Point",
    "Record",
    "SyntheticVerifier",
    "benchmark",
    "copy_bandwidth",
    "random_model",
    "shape_names",
]
