"""Tests of the Space without a browser; `tests/browser` drives the page itself."""

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hf_diversed import LosslessVerifier, SpeculativeStats, StaticEnsembleVerifier, load_demo_pair
from hf_diversed.evaluation.decoder import Decoder, Method, Sampling
from hf_diversed.outputs import TokenRecords
from hf_diversed.zoo.loader import WEIGHTS


SPACE = Path(__file__).parent.parent / "examples" / "space"
SAMPLING = Sampling(num_assistant_tokens=4, max_new_tokens=24)
VERIFIERS = [LosslessVerifier(), StaticEnsembleVerifier(0.3)]


@pytest.fixture(scope="module")
def embedded():
    return load_demo_pair()


@pytest.fixture
def space(monkeypatch):
    """The Space's modules, from the folder of its app, with the embedded pair."""
    monkeypatch.syspath_prepend(str(SPACE))
    for name in ("TARGET", "DRAFT", "HEAD"):
        monkeypatch.delenv(f"HF_DIVERSED_{name}", raising=False)
    import models
    import pieces
    import race
    import rendering

    return SimpleNamespace(models=models, pieces=pieces, race=race, rendering=rendering)


def test_both_sides_decode_as_alone(space, embedded):
    """Catches sides that share random numbers or clocks, a lost token, and statistics of the other side."""
    prompt = embedded.tokenizer("Question: Mia has 74 dollars and buys 9 pens.").input_ids
    frames = list(space.race.race(embedded, prompt, VERIFIERS, SAMPLING, seed=3))
    decoder = Decoder(embedded, SAMPLING)
    for verifier, lane in zip(VERIFIERS, frames[-1]):
        alone = decoder(Method("alone", verifier), [prompt], 3)
        assert lane.text == "".join(piece.text for piece in lane.pieces) == decoder.text(alone.tokens[0])
        assert (lane.stats.num_accepted, lane.stats.num_rounds) == (alone.stats.num_accepted, alone.stats.num_rounds)
        assert lane.seconds > 0


def test_a_race_that_ends_early(space, embedded):
    """Catches a stopped run that goes on in the background, and a page that waits forever for a side that failed."""

    class Broken(LosslessVerifier):
        def __call__(self, *args, **kwargs):
            raise ValueError("broken")

    before = threading.active_count()
    running = space.race.race(embedded, [5, 6, 7], VERIFIERS, Sampling(num_assistant_tokens=4, max_new_tokens=400))
    next(running)
    running.close()
    assert threading.active_count() == before
    with pytest.raises(ValueError, match="broken"):
        list(space.race.race(embedded, [5, 6, 7], [LosslessVerifier(), Broken()], SAMPLING))


def test_panel_of_a_side(space):
    """Catches model output that is inserted into the page as markup, NaN on the page, and swapped figures."""
    stats = SpeculativeStats(num_rounds=10, num_drafted=50, num_accepted=30, num_emitted=40)
    pieces = [space.pieces.Piece("<script>", "draft", 0.25, 0.5, 0.5)]
    lane = space.race.Lane(LosslessVerifier(), pieces, stats, 2.0, "x")
    shown = space.rendering.lane_panel("Exact", lane, "right")
    for name, value in (("seconds", "2.0"), ("tokens/s", "20"), ("accepted", "60%"), ("score", "right")):
        assert f'data-tile="{name}"><strong>{value}</strong>' in shown, name
    assert space.pieces.ORIGINS["draft"].color in shown
    started = space.rendering.lane_panel("Exact", space.race.Lane(LosslessVerifier(), pieces))
    for markup in (shown, started, space.rendering.notice("<script>")):
        assert "<script>" not in markup
        assert "&lt;script&gt;" in markup
        assert "nan" not in markup


def test_prompts_are_refused(space):
    """Catches a prompt without a length limit, a traceback, and a kind that the embedded pair was not trained on."""
    for prompt, words in (
        (None, "is empty"),
        ("Why is the sky blue?", "word problems"),
        ("Question: " + "many words " * 500 + "\nAnswer:", "leave room for the answer"),
        ("x" * 20_001, "at most 20000 are allowed"),
        ("Question: \ud800\nAnswer:", "lone surrogates"),
    ):
        with pytest.raises(ValueError, match=words):
            space.models.Model().tokenize(prompt, 128)


def test_strictness_of_the_slider(space):
    """Catches a strictness that does not reach the verifier, one outside of its range, and a pair without a head."""
    model = space.models.Model()
    assert model.verifier("math", 0.25).settings()["strictness"] == [0.25]
    with pytest.raises(ValueError, match="0 to 1"):
        model.verifier("math", 1.5)
    named = space.models.Model(str(WEIGHTS / "target"), str(WEIGHTS / "draft"))
    vars(named)["pair"] = SimpleNamespace(heads={})
    assert named.verifier("scitldr", 0.0).settings()["lenience"] == 0.01
    assert named.tasks == ["scitldr"]


def test_examples_are_scored(space):
    """Catches a score of another example, one of a changed prompt, and an example that cannot be decoded."""
    model = space.models.Model()
    (prompt, record), *_ = model.examples("math").items()
    assert model.score("math", prompt, record["completion"]) == "right"
    assert model.score("math", prompt, "The answer is -1.") == "wrong"
    assert model.score("math", prompt + " ", record["completion"]) == ""
    named = space.models.Model("target", "draft")
    (prompt,) = named.examples("scitldr")
    assert named.score("scitldr", prompt, space.models.ABSTRACT["tldr"]) == "ROUGE-2 100"


def records(tokens: list[int], sources: list[int], relaxed: list[bool]) -> TokenRecords:
    """Return records of one row; only the columns that the page reads differ."""
    numbers = torch.full((1, len(tokens)), 0.5)
    weight = torch.tensor([[0.5 if source != 2 else torch.nan for source in sources]])
    fields = {"tokens": torch.tensor([tokens]), "source": torch.tensor([sources]), "relaxed": torch.tensor([relaxed])}
    return SimpleNamespace(**fields, weight=weight, p=numbers, q=numbers)


def test_tokens_are_spelled_in_context(space):
    """Catches lost spaces, half characters, special tokens as text, and rounds decoded without the previous one."""
    pieces = {1: b"caf", 2: b"\xc3", 3: b"\xa9", 4: b" x", 9: b"</s>"}
    tokenizer = SimpleNamespace(
        all_special_ids=[9], decode=lambda ids: b"".join(pieces[token] for token in ids).decode(errors="replace")
    )
    reader = space.pieces.TokenReader(tokenizer)
    first = reader.read(records([1, 2], [0, 0], [True, False]))
    second = reader.read(records([3, 4, 9, 1], [1, 2, 2, -1], [False] * 4))
    found = [(piece.text, piece.origin) for piece in first + second]
    assert found == [("caf", "relaxed"), ("é", "residual"), (" x", "bonus")]
    assert (first[0].weight, second[1].weight) == (0.5, None)
