"""Code that is compiled ahead of time is what later calls run, and is compiled once."""

import pytest
import torch
from transformers import CompileConfig

from hf_diversed import LosslessVerifier, StaticEnsembleVerifier, clear_compiled, warmup
from tests import tiny
from tests.generation.modes import run_untraced, shallow


CONFIG = CompileConfig(backend="eager", mode="default")
GAMMA = 1
DRAWN = {"top_k": 0, "temperature": 0.8, "compile_config": CONFIG}


@pytest.fixture(autouse=True)
def nothing_traced(monkeypatch):
    run_untraced(monkeypatch)
    yield
    clear_compiled()


@pytest.fixture
def pair():
    target = tiny.tiny_model()
    target.config.max_position_embeddings = 1024  # which its rotary positions do not depend on
    return shallow((target, tiny.tiny_draft(target)))


def decode(pair, verifier, rows: int, length: int, **options):
    prompts = torch.randint(4, tiny.VOCAB_SIZE, (rows, length), generator=torch.Generator().manual_seed(length))
    ours = {"assistant_model": pair[1], "verifier": verifier, "num_assistant_tokens": GAMMA}
    static = {"cache_implementation": "static", "return_dict_in_generate": True, "do_sample": True}
    return (
        pair[0].generate(prompts, attention_mask=torch.ones_like(prompts), **ours, **static, **DRAWN, **options).stats
    )


def test_later_calls_compile_nothing(pair):
    """Catches sizes that no prompt leads to, state that is not compiled, and models that look changed later."""
    verifier = StaticEnsembleVerifier(0.5)
    state = torch.random.get_rng_state()
    stats = warmup(*pair, verifier=verifier, max_length=300, num_assistant_tokens=GAMMA, **DRAWN)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert stats.num_compiled == 5  # two sizes of buffers, which verification does not read
    assert stats.seconds > 0
    for length in (5, 90, 250, 280):
        found = decode(pair, verifier, 1, length, max_new_tokens=20)
        assert (found.engine, found.compile.num_compiled) == ("compiled", 0)
        pair[0].generate(torch.full((1, length), 5), cache_implementation="static", max_new_tokens=2 + length % 7)
    assert warmup(*pair, verifier=verifier, max_length=300, num_assistant_tokens=GAMMA, **DRAWN).num_compiled == 0


def test_batches_and_greedy_calls_are_compiled_for_themselves(pair):
    """Catches batch sizes that are ignored, and sampling that is compiled instead of greedy decoding."""
    options = {"verifier": LosslessVerifier(), "max_length": 100, "num_assistant_tokens": GAMMA}
    options |= {"compile_config": CONFIG, "do_sample": False}
    assert warmup(*pair, **options, batch_sizes=(1, 3)).num_compiled == 5  # verification of 1 row, not of 3
    assert warmup(*pair, **options, batch_sizes=(4,)).num_compiled == 1
    assert warmup(*pair, **options | {"do_sample": True}).num_compiled == 2  # the forward of the target is the same


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"verifier": None}, "needs verifier= or diversed_head="),
        ({"batch_sizes": (0,)}, "at least one row"),
        ({"num_assistant_tokens": 0}, "num_assistant_tokens must be an integer >= 1"),
        ({"compile_config": None}, "nothing was compiled.*pass compile_config="),
    ],
)
def test_refusals(pair, changes, words):
    """Catches a warm-up without effect and without an error."""
    with pytest.raises((TypeError, ValueError), match=words):
        warmup(*pair, **{"verifier": "static:0.5", "compile_config": CONFIG, **changes})


def test_a_pair_that_cannot_be_compiled_is_refused(pair):
    """Catches a warm-up that returns although it has compiled nothing."""
    target, draft = pair
    target.forward = target.forward
    with pytest.raises(ValueError, match=r"nothing was compiled.*has a forward that was replaced"):
        warmup(target, draft, verifier="static:0.5", max_length=64, compile_config=CONFIG)
