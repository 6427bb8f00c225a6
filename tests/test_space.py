"""Tests of the Space without a browser; `tests/browser` drives the page itself."""

import itertools
import math
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub.utils import close_session

from hf_diversed import SpeculativeStats
from hf_diversed.generation.warmup import default_compile_config
from hf_diversed.outputs import TokenRecords
from hf_diversed.zoo.loader import WEIGHTS, Pair
from tests.hub.conftest import point_client_at
from tests.hub.loopback import LoopbackHub
from tests.tiny import EOS, PAD, tiny_draft, tiny_model
from tests.verifier_cases import random_head


SPACE = Path(__file__).parent.parent / "examples" / "space"
NAN = math.nan


@pytest.fixture
def space(monkeypatch):
    """The Space's modules, from the folder of its app."""
    monkeypatch.syspath_prepend(str(SPACE))
    import backend
    import chart
    import choice
    import models
    import pieces
    import rendering

    modules = {"backend": backend, "chart": chart, "choice": choice, "models": models}
    return SimpleNamespace(**modules, pieces=pieces, rendering=rendering)


def record(method: str, acceptance: float | None, quality: float, num_drafts: int = 5) -> dict:
    setting = {"task": "math", "temperature": 1.0, "num_assistant_tokens": num_drafts}
    measured = {"acceptance_rate": acceptance, "quality": quality, "metric": "accuracy", "n": 10}
    return {"method": method, **setting, **measured}


RECORDS = [
    record("target", None, 0.9),
    record("lossless", 0.6, 0.88),
    record("static:0.5", 0.8, 0.5),
    record("diversed@0.75", 0.7, 0.86),
    record("diversed", 0.8, 0.8),
    record("spec_cascade:token_v3:0.5", 0.8, 0.7),
]


def test_front_is_read_by_method(space):
    """Catches "diversed" without its 0.5, lossless on one curve only, and another verifier's points on a curve."""
    front = space.chart.build_front(RECORDS)
    assert [point.parameter for point in front.curves["diversed"]] == [0.5, 0.75, 1.0]
    assert [point.parameter for point in front.curves["static"]] == [0.5, 1.0]
    assert (front.target, front.num_prompts) == (0.9, 10)


def test_front_is_that_of_one_draft_length_and_head(space):
    """Catches points of other draft lengths, which are static only, or of other heads on the curve."""
    others = [record(row["method"], row["acceptance_rate"], 0.1, 3) for row in RECORDS[:3]]
    named = [record(f"diversed:org/head{mark}", 0.9, 0.1) for mark in ("", "@0.5", "@main@0.7")]
    front = space.chart.build_front(RECORDS)
    assert space.chart.build_front(RECORDS + others) == space.chart.build_front(others + RECORDS) == front
    assert space.chart.build_front(RECORDS + named) == front
    assert [point.parameter for point in space.chart.build_front(RECORDS[:2] + named).curves["diversed"]] == [1.0]


@pytest.mark.parametrize(
    ("parameter", "acceptance", "quality"),
    [(0.5, 0.8, 0.8), (0.75, 0.7, 0.86), (0.625, 0.75, 0.83), (0.9, 0.64, 0.872), (1.0, 0.6, 0.88), (0.1, 0.8, 0.8)],
)
def test_strictness_between_measurements(space, parameter, acceptance, quality):
    """Catches a marker off the line, on the wrong segment, or extrapolated."""
    point = space.chart.interpolate(space.chart.build_front(RECORDS).curves["diversed"], parameter)
    assert (point.acceptance, point.quality) == pytest.approx((acceptance, quality))


def test_model_output_is_no_markup(space):
    """Catches model output that is inserted into the page as markup."""
    run = space.backend.Run(
        [space.pieces.Piece("<script>", "draft", 0.25, 0.5, 0.5), space.pieces.Piece("</b>", "bonus")],
        SpeculativeStats(),
    )
    panels = [getattr(space.rendering, f"{kind}_panel")(run, "DIVERSED") for kind in ("source", "weight")]
    for panel in (*panels, space.rendering.plain_panel(run), space.rendering.notice("<script>")):
        assert "<script>" not in panel
        assert "&lt;script&gt;" in panel
    assert "--w:0.250" in space.rendering.weight_panel(run, "DIVERSED")
    assert space.pieces.ORIGINS["bonus"].color in space.rendering.source_panel(run, "DIVERSED")


def comparison(space, speeds: list[float], plain_speeds: list[float]):
    """Return a finished comparison with invented times."""
    stats = SpeculativeStats(num_rounds=10, num_drafted=50, num_accepted=30, num_emitted=40)
    run = space.backend.Run([space.pieces.Piece("x", "relaxed", 0.1)], stats, seconds=2.0)
    plain = space.backend.Run([], SpeculativeStats(num_rounds=10, num_emitted=10), seconds=1.0)
    return space.backend.Comparison(run, plain, speeds, plain_speeds, repeat=len(speeds), done=True)


def test_figures(space):
    """Catches swapped figures, NaN on the page, and a first figure that is not the speed."""
    both = comparison(space, [18.0, 20.0, 20.0, 20.0, 20.0, 21.0], [9.0, 10.0, 10.0, 10.0, 10.0, 10.0])
    shown = space.rendering.tiles(both, "DIVERSED")
    interval = "2.00 to 2.10, 95% interval, 6 runs"
    for value in ("20", "18 to 21; large model alone 10", "2.00x", interval, "60%", "30 of 50", "1"):
        assert f">{value}<" in shown, value
    assert re.search(r'data-tile="(\w+)"', shown)[1] == "ratio"
    for other in (space.backend.Comparison(), replace(both, run=both.plain)):
        assert "nan" not in space.rendering.tiles(other, "Plain")


@pytest.mark.parametrize(
    ("speeds", "plain"), [([59.0, 388.0, 508.0] * 2, [50.0] * 6), ([20.0] * 5, [10.0] * 5), ([20.0] * 6, None)]
)
def test_without_a_precise_speed_the_first_figure_is_tokens_per_pass(space, speeds, plain):
    """Catches a ratio of few times or with a wide interval, and one that is shown before all runs have ended."""
    both = comparison(space, speeds, plain or [10.0] * 6)
    shown = space.rendering.tiles(both if plain else replace(both, done=False), "Static")
    assert re.search(r'data-tile="(\w+)".*?<strong>(.*?)</strong>', shown).groups() == ("forward", "4.00")
    assert "2.00x" not in shown


@pytest.mark.parametrize(("count", "outside"), [(6, 1), (18, 5)])
def test_the_interval_of_the_median_covers_it(space, count, outside):
    """Catches an interval between the wrong order statistics; the coverage follows from the binomial distribution."""
    spread = space.backend.median_with_interval([float(value) for value in reversed(range(count))])
    assert (spread.low, spread.high) == (outside - 1, count - outside)
    missed = lambda number: 2 * sum(math.comb(count, k) for k in range(number)) / 2**count  # noqa: E731
    assert missed(outside) <= 0.05 < missed(outside + 1)
    assert space.backend.median_with_interval([1.0] * 5).high == math.inf


def test_methods_are_timed_alternately_until_the_speedup_is_precise(space, monkeypatch):
    """Catches methods timed one after the other, a timed first run, text that a repetition replaces, and runs that
    end too early or never."""
    calls, speeds = [], {}

    def decode(pair, prompt, verifier, choice):
        calls.append(verifier)
        emitted = next(speeds[verifier])
        yield space.backend.Run(
            [space.pieces.Piece(str(len(calls)), "draft")], SpeculativeStats(num_emitted=emitted), seconds=0.1
        )

    def decoded(verifier, fast, plain):
        calls.clear()
        speeds.update({"verifier": itertools.cycle(fast), None: itertools.cycle(plain)})
        *_, both = space.backend.compare(None, [], verifier, None)
        return both

    monkeypatch.setattr(space.backend, "decode", decode)
    both = decoded("verifier", [10], [5])
    assert calls == ["verifier", None] * (1 + space.backend.LEAST_REPEATS)
    assert both.speeds == pytest.approx([100.0] * 6)
    assert both.plain_speeds == pytest.approx([50.0] * 6)
    assert [run.pieces[0].text for run in (both.run, both.plain)] == ["1", "2"]
    decoded("verifier", [10, 20, 40], [5])
    assert calls == ["verifier", None] * (1 + space.backend.MOST_REPEATS)
    decoded("verifier", [10], [1] + [5, 6] + [5] * 20)  # the first run is not timed; one of the others deviates
    assert len(calls) == 2 * (1 + 9)
    with monkeypatch.context() as patch:
        patch.setattr(space.backend, "MOST_SECONDS", 0.0)
        decoded("verifier", [10, 20, 40], [5])
    assert len(calls) == 2 * (1 + 1)
    alone = decoded(None, [], [2, 3])
    assert calls == [None] * (1 + space.backend.LEAST_REPEATS)
    assert alone.speeds == alone.plain_speeds
    assert alone.run is alone.plain


def choice(space, **given):
    settings = {"prompt": "x", "task": "math", "method": "DIVERSED", "strictness": 0.5, "lenience": 0.3}
    settings |= {"weight": 0.5, "max_bias": 1.0}
    settings |= {"gamma": 5, "temperature": 1.0, "max_new_tokens": 8, "seed": 0, "head": "", "engine": "Eager"}
    return space.choice.Choice(**settings | given)


@pytest.fixture
def pair(space):
    """A pair of which only the device, the length and the heads are used."""
    text_config = SimpleNamespace(max_position_embeddings=64)
    target = SimpleNamespace(device="cpu", config=SimpleNamespace(get_text_config=lambda: text_config))
    return Pair(target, object(), SimpleNamespace(chat_template=None))


def test_visitors_name_heads_of_the_hub_only(space, pair, monkeypatch, tmp_path):
    """Catches a visitor who can read local folders or the owner's private heads, or download any model."""
    random_head().save_pretrained(tmp_path / "org" / "here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_owner")
    with LoopbackHub() as hub:
        point_client_at(hub.endpoint, monkeypatch, tmp_path / "cache")
        hub.add("org/head", tmp_path / "org" / "here")
        hub.add("org/llama", {"config.json": b'{"model_type": "llama"}', "model.safetensors": bytes(300_000)})
        for name in ("org/head", "org/head@main", " org/head "):
            assert space.choice.choose_verifier(pair, choice(space, head=name)).head.config.target_hidden_size > 1
        assert (hub.tokens["resolve config.json"], hub.tokens["resolve model.safetensors"]) == (None, None)
        hub.log.clear()
        local = ("org/here", str(tmp_path / "org/here"), "./org/here", "../org/here", "~/x", "file:///x")
        for name in (*local, "head", "a/b/c"):
            with pytest.raises(ValueError, match=r"could not be loaded\. Name a head of the Hub, as org/name"):
                space.choice.choose_verifier(pair, choice(space, head=name))
        assert hub.log == []
        with pytest.raises(ValueError, match=r"'org/llama' could not be loaded.*'llama'"):
            space.choice.choose_verifier(pair, choice(space, head="org/llama"))
        assert "resolve model.safetensors" not in hub.log
        close_session()
    assert not list((tmp_path / "cache").glob("models--*"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"prompt": " "}, "prompt is empty"),
        ({"prompt": "x" * 20_001}, "20001 characters; at most 20000 are allowed"),
        ({"prompt": "x" * 57}, "57 tokens; at most 56 leave room for the answer"),
    ],
)
def test_prompts_are_capped(space, pair, given, words):
    """Catches a prompt without a length limit for tokenization or decoding."""
    tokenizer = lambda texts, **_: {"input_ids": [[1] * len(text) for text in texts]}  # noqa: E731
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match=words):
        space.choice.tokenize(replace(pair, tokenizer=tokenizer), choice(space, **given))


@pytest.mark.parametrize("prompt", ["Why is the sky blue?", "Question: who are you?", "Summary:", "Task: sing."])
def test_other_prompts_are_refused(space, prompt):
    """Catches a meaningless answer, and an error without the form of an allowed prompt."""
    with pytest.raises(ValueError, match=r"three kinds of prompt.*of an example, or write"):
        space.choice.check_kind(prompt)


@pytest.fixture
def compiler(space, monkeypatch):
    """A compiler that takes half a second, counts its calls, and can be set to fail."""
    compiler = SimpleNamespace(count=0, refuses=False)

    def compile_slowly(graph, inputs, **_):
        assert not compiler.refuses, "no C++ compiler"
        compiler.count += 1
        time.sleep(0.5)
        return graph.forward

    config = default_compile_config(torch.device("cpu"))
    config.backend = compile_slowly
    monkeypatch.setattr(space.backend, "default_compile_config", lambda device: config)
    return compiler


@pytest.fixture
def tiny(space):
    """A pair whose tokens are letters."""
    spelled = SimpleNamespace(all_special_ids=[PAD, EOS], decode=lambda ids, **_: "".join(chr(97 + i) for i in ids))
    spelled.pad_token_id, spelled.eos_token_id = PAD, EOS
    target = tiny_model()
    return Pair(target, tiny_draft(target), spelled)


def follow(space, pair, verifier, given, length: int = 4):
    """Decode a prompt and return the run, what it waited for in each frame, and the wall time in seconds."""
    began, waits = time.perf_counter(), []
    for run in space.backend.decode(pair, list(range(3, 3 + length)), verifier, given):
        waits.append(run.waits_for)
    return run, waits, time.perf_counter() - began


def test_decodes_compiled(space, tiny, compiler):
    """Catches a side that is eager, does not stream, counts compile time, recompiles, or hides what it waits for."""
    given = {"method": "Static", "max_new_tokens": 12, "temperature": 0.0, "gamma": 1}
    verifier = space.choice.choose_verifier(tiny, choice(space, **given))
    eager, waits, _ = follow(space, tiny, verifier, choice(space, **given))
    assert compiler.count == 0
    assert set(waits) == {""}
    run, waits, seconds = follow(space, tiny, verifier, choice(space, engine="Compiled", **given))
    assert compiler.count > 0
    assert "compiling" in waits
    assert waits[-1] == ""
    assert run.seconds < seconds - 0.5
    assert [piece.text for piece in run.pieces] == [piece.text for piece in eager.pieces]
    assert run.stats.num_emitted == eager.stats.num_emitted > 0
    compiled = compiler.count
    for length in (3, 9, 30):
        _, waits, _ = follow(space, tiny, verifier, choice(space, engine="Compiled", **given), length)
        assert set(waits) == {""}
    assert compiler.count == compiled


def test_a_failed_compilation_is_a_message(space, tiny, compiler, monkeypatch):
    """Catches a traceback on a machine without a compiler."""
    compiler.refuses = True
    with pytest.raises(ValueError, match=r"could not be compiled: .*Choose the eager engine"):
        follow(space, tiny, None, choice(space, method="Plain", engine="Compiled"))


def test_the_named_head_replaces_those_of_the_embedded_pair(space, monkeypatch, tmp_path):
    """Catches visitors who see the results of a packaged head in place of the named one."""
    random_head().save_pretrained(tmp_path)
    for name in ("TARGET", "DRAFT"):
        monkeypatch.delenv(f"HF_DIVERSED_{name}", raising=False)
    monkeypatch.setenv("HF_DIVERSED_HEAD", str(tmp_path))
    (model,) = space.models.find_models()
    assert list(model.pair.heads) == [""]


def test_a_model_whose_drafts_are_looked_up(space, monkeypatch, tmp_path):
    """Catches text about the embedded pair or its head, and a model that does not decode."""
    for part in ("target", "tokenizer"):
        shutil.copytree(WEIGHTS / part, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("HF_DIVERSED_TARGET", str(tmp_path))
    monkeypatch.setenv("HF_DIVERSED_DRAFT", "lookup")
    monkeypatch.delenv("HF_DIVERSED_HEAD", raising=False)
    (model,) = space.models.find_models()
    assert "draft model" not in model.masthead
    assert "copied from the prompt" in model.about
    assert [name for _, name in model.tasks] == ["repeat"]
    prompt = model.example("repeat", seed=0)
    assert prompt.startswith("Repeat the following text")
    model.check(prompt)
    given = choice(space, prompt=prompt, task="repeat", method=model.method, temperature=model.temperature)
    ids = space.choice.tokenize(model.pair, given)
    *_, run = space.backend.decode(model.pair, ids, space.choice.choose_verifier(model.pair, given), given)
    assert len(run.pieces) > 1
    assert run.stats.num_drafted > 0
    learned = replace(given, method="DIVERSED")
    with pytest.raises(ValueError, match=r"no head for prompt lookup\. Name a head"):
        space.choice.choose_verifier(model.pair, learned)
    with pytest.raises(ValueError, match="reads the hidden states of a draft model"):
        space.choice.choose_verifier(replace(model.pair, heads={"": random_head()}), learned)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"prompt": "Question: \ud800\nAnswer:"}, "prompt must be valid Unicode text"),
        ({"head": "org/\udfff"}, "head must be valid Unicode text"),
        ({"seed": 2**70}, "Seed must be an integer from 0 to 9007199254740991, got 1180591620717411303424"),
        ({"seed": None}, "Seed must be .*, got an empty field"),
        ({"gamma": 11}, "Draft tokens per round must be an integer from 1 to 10, got 11"),
        ({"gamma": 2.5}, "must be an integer from 1 to 10, got 2.5"),
        ({"temperature": NAN}, "Temperature must be a number from 0 to 1.5, got nan"),
        ({"method": None}, "Method must be one of Plain, .*, got None"),
        ({"engine": "x"}, "Engine must be one of Eager, Compiled, got 'x'"),
    ],
)
def test_invalid_settings_are_refused(space, given, words):
    """Catches a lone surrogate or a huge seed that ends in a traceback, and a draft length without a limit."""
    choice(space).check()
    with pytest.raises(ValueError, match=words):
        choice(space, **given).check()


def records(tokens: list[int], source: list[int], relaxed: list[bool]) -> TokenRecords:
    numbers = torch.tensor([[0.5] + [NAN] * (len(tokens) - 1)])
    return TokenRecords(
        torch.tensor([tokens]), torch.tensor([source], dtype=torch.int8), torch.tensor([relaxed]), *[numbers] * 8
    )


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


def test_long_texts_are_spelled_piece_by_piece(space):
    """Catches decoding the whole prefix for every token, and text lost where the prefix is cut off."""
    letters = "naïve café — 東京 𝄞 plain words "
    pieces = [bytes([byte]) for byte in (letters * 12).encode()]
    lengths = []

    def decode(ids):
        lengths.append(len(ids))
        return b"".join(pieces[token] for token in ids).decode(errors="replace")

    reader = space.pieces.TokenReader(SimpleNamespace(all_special_ids=[], decode=decode))
    found = reader.read_target(torch.arange(len(pieces)))
    assert "".join(piece.text for piece in found) == letters * 12
    assert max(lengths) < 100 < len(pieces)


def test_plain_tokens_are_rounds_of_one(space):
    """Catches the prompt in the answer, and relaxed decoding reported twice."""
    tokenizer = SimpleNamespace(all_special_ids=[], decode=lambda ids: "a" * len(ids))
    for plain, expected in ((True, ["a", "a"]), (False, [])):
        shown, total = [], SpeculativeStats()

        def receive(pieces, stats, shown=shown, total=total):
            shown.extend(pieces)
            total.add(stats)

        streamer = space.pieces.PieceStreamer(tokenizer, receive, plain)
        for value in (torch.tensor([[5, 6, 7]]), torch.tensor([8]), torch.tensor([9])):
            streamer.put(value)
        assert [piece.text for piece in shown] == expected
        assert total.num_emitted == len(expected)
    assert math.isnan(total.acceptance_rate)
