"""The demo's timings, on invented seconds."""

import itertools

import pytest
from rich.console import Console

from hf_diversed.cli import comparison
from hf_diversed.cli.rendering import comparison_table, compiled_line
from hf_diversed.harness.decode import Decoded
from hf_diversed.harness.methods import Method
from hf_diversed.harness.sampling import Sampling
from hf_diversed.outputs import SpeculativeStats
from hf_diversed.verifiers import LosslessVerifier


METHODS = [Method("target"), Method("lossless", LosslessVerifier())]


@pytest.fixture
def invent(monkeypatch):
    """Replace decoding: `invent(seconds)` makes call number n of a method take `seconds(label, n)`."""

    def install(seconds):
        calls = []

        class Decoder:
            def __init__(self, *_):
                pass

            def __call__(self, method, batch, seed, **kwargs):
                calls.append((method.label, *(len(ids) for ids in batch)))
                number = sum(label == method.label for label, *_ in calls) - 2  # the first call is the warm-up
                stats = None if method.verifier is None else SpeculativeStats()
                return Decoded([[1] * 10 for _ in batch], seconds(method.label, number), stats)

            def text(self, ids):
                return ""

        monkeypatch.setattr(comparison, "Decoder", Decoder)
        monkeypatch.setattr(comparison, "encode", lambda tokenizer, prompts: [[0] * len(text) for text in prompts])
        return calls

    return install


def compare(methods=METHODS, batch_size=1, repeats=3):
    from types import SimpleNamespace

    cases = [(method, Sampling(batch_size=batch_size)) for method in methods]
    return comparison.compare(SimpleNamespace(tokenizer=None), cases, ["a", "bb"], 0, repeats, Console(quiet=True))


def shown(table) -> str:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_methods_alternate_prompt_by_prompt(invent):
    """Catches a method that is timed after another one has finished, while the machine's load changes."""
    calls = invent(lambda label, number: 1.0)
    compare(repeats=2)
    turns = [(label, length) for length in (1, 2) for label in ("target", "lossless")]
    assert calls == [("target", 2), ("lossless", 2), *turns, *turns]
    calls.clear()
    compare(batch_size=2, repeats=1)
    assert calls[2:] == [("target", 1, 2), ("lossless", 1, 2)]


def test_a_load_that_grows_leaves_the_ratio(invent):
    """Catches "15.62x": each method was timed once, the target while another program ran."""
    loads = itertools.cycle([1.0, 2.0, 8.0])
    load = {number: next(loads) for number in range(-1, 6)}
    invent(lambda label, number: load[number] * (2.0 if label == "target" else 1.0))
    text = shown(comparison_table(compare()))
    assert "2.00x (2.00-2.00)" in text
    assert max(map(len, text.splitlines())) <= 80


def test_noise_gives_no_ratio(invent):
    """Catches a ratio of times that vary by more than 30% between repetitions."""
    invent(lambda label, number: [1.0, 1.0, 3.0][number // 2] if label == "target" else 1.0)
    rows = compare()
    assert rows[0].seconds == [2.0, 2.0, 6.0]
    assert "too noisy to say" in shown(comparison_table(rows))
    assert compiled_line([*rows, *rows]).count("too noisy to say") == 1
