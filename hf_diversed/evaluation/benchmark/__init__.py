"""Speed, with its parts and its limit: our loop, upstream's assisted decoding and plain decoding, in turns."""

from hf_diversed.evaluation.benchmark.hardware import copy_bandwidth
from hf_diversed.evaluation.benchmark.measure import Record, benchmark
from hf_diversed.evaluation.benchmark.random_models import random_model, shape_names
from hf_diversed.evaluation.benchmark.settings import BenchmarkSettings, Point
from hf_diversed.evaluation.benchmark.synthetic import SyntheticVerifier


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
