"""What the Space shows, without a browser: `tests/browser` drives the page itself."""

import json
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
from transformers import CompileConfig

from hf_diversed import SpeculativeStats
from hf_diversed.corpus import held_out_examples
from hf_diversed.evaluation import plots
from hf_diversed.outputs import TokenRecords
from hf_diversed.token_view import ORIGINS, Piece, PieceStreamer, TokenReader
from hf_diversed.zoo import smollm2
from hf_diversed.zoo.loader import WEIGHTS
from tests.hub.conftest import point_client_at
from tests.hub.loopback import WRITER, LoopbackHub
from tests.tiny import EOS, PAD, tiny_draft, tiny_model
from tests.verifier_cases import random_head


SPACE = Path(__file__).parent.parent / "examples" / "space"
NAN = math.nan


@pytest.fixture
def space(monkeypatch):
    """The Space's own modules, which stand beside its app."""
    monkeypatch.syspath_prepend(str(SPACE))
    import backend
    import chart
    import models
    import rendering

    return SimpleNamespace(backend=backend, chart=chart, models=models, rendering=rendering)


def record(method: str, acceptance: float | None, quality: float, num_drafts: int = 5) -> dict:
    setting = {"task": "math", "temperature": 1.0, "num_assistant_tokens": num_drafts}
    measured = {"acceptance_rate": acceptance, "quality": quality, "metric": "accuracy", "n": 10}
    return {"method": method, **setting, **measured}


RECORDS = [
    record("ar", None, 0.9),
    record("sd", 0.6, 0.88),
    record("static:0.5", 0.8, 0.5),
    record("diversed@0.75", 0.7, 0.86),
    record("diversed", 0.8, 0.8),
    record("spec_cascade:token_v3:0.5", 0.8, 0.7),
]


def test_front_is_read_by_method(space):
    """Catches "diversed" without its 0.5, lossless on one curve only, and another rule's points on a curve."""
    front = space.chart.build_front(RECORDS)
    assert [point.parameter for point in front.curves["diversed"]] == [0.5, 0.75, 1.0]
    assert [point.parameter for point in front.curves["static"]] == [0.5, 1.0]
    assert (front.target, front.num_prompts) == (0.9, 10)


def test_lenience_is_a_curve_where_it_was_measured(space):
    """Catches a method without its curve, a curve without its lossless end, and a key for what is not drawn."""
    assert "lenience" not in space.chart.build_front(RECORDS).curves
    assert "lenience" not in space.chart.front_chart(space.chart.build_front(RECORDS), "lenience", 0.3)
    front = space.chart.build_front([*RECORDS, record("lenience:0.3", 0.9, 0.87)])
    assert [point.parameter for point in front.curves["lenience"]] == [0.3, 1.0]
    shown = space.chart.front_chart(front, "lenience", 0.3)
    assert "87.0% accuracy with 90.0% of drafts accepted" in shown
    assert 'class="line lenience"' in shown


@pytest.mark.parametrize("family", ["static", "diversed", "lenience"])
def test_a_method_has_one_colour(family):
    """Catches a curve of the page in the colour that another method has in print."""
    css = (SPACE / "style.css").read_text()
    used = {
        color for mark in ("polyline", "circle", "i") for color in re.findall(rf"{mark}\.{family} {{[^}}]*(#\w+)", css)
    }
    assert used == {plots._STYLES[family][0]}


def test_front_is_that_of_one_draft_length(space):
    """Catches points of other draft lengths, which are static only, on the curve or in its place."""
    others = [record(row["method"], row["acceptance_rate"], 0.1, 3) for row in RECORDS[:3]]
    front = space.chart.build_front(RECORDS)
    assert space.chart.build_front(RECORDS + others) == space.chart.build_front(others + RECORDS) == front


def test_front_of_named_heads(space):
    """Catches a label that is not read as the library writes it, and another head's points under the dial."""
    named = [record(f"diversed:org/head{mark}", 0.9, 0.1) for mark in ("", "@0.5", "@main@0.7")]
    assert space.chart.build_front(RECORDS + named) == space.chart.build_front(RECORDS)
    assert [point.parameter for point in space.chart.build_front(RECORDS[:2] + named).curves["diversed"]] == [1.0]


@pytest.mark.parametrize(
    ("parameter", "acceptance", "quality"),
    [(0.5, 0.8, 0.8), (0.75, 0.7, 0.86), (0.625, 0.75, 0.83), (0.9, 0.64, 0.872), (1.0, 0.6, 0.88), (0.1, 0.8, 0.8)],
)
def test_dial_between_measurements(space, parameter, acceptance, quality):
    """Catches a dot off the line, on the wrong segment, or extrapolated."""
    point = space.chart.interpolate(space.chart.build_front(RECORDS).curves["diversed"], parameter)
    assert (point.acceptance, point.quality) == pytest.approx((acceptance, quality))


def test_chart_says_what_was_measured(space):
    """Catches a dot for a method without drafts, and a number below the lowest measurement without a word."""
    front = space.chart.build_front(RECORDS)
    shown = space.chart.front_chart(front, "diversed", 0.5)
    assert 'class="dot"' in shown
    assert "80.0% accuracy with 80.0% of drafts accepted" in shown
    assert "nothing measured below 0.5" in space.chart.front_chart(front, "diversed", 0.2)
    assert 'class="dot"' not in space.chart.front_chart(front, None, 0.0)
    assert "Not measured" in space.chart.front_chart(None, "diversed", 0.5)


def test_front_comes_from_the_results(space, tmp_path):
    """Catches a reader that the results have left behind, and a frontier that does not win over a head's figures."""
    assert space.chart.load_front("math").num_prompts >= 100
    assert space.chart.load_front("poetry") is None
    for name, target in (("math.json", 0.1), ("frontier-math.json", 0.2)):
        (tmp_path / name).write_text(json.dumps({"records": [record("ar", None, target)]}))
        assert space.chart.load_front("math", (tmp_path,)).target == target


def test_model_output_is_no_markup(space):
    """Catches a model that writes a script into the page."""
    run = space.backend.Run([Piece("<script>", "draft", 0.25, 0.5, 0.5), Piece("</b>", "bonus")], SpeculativeStats())
    for panel in (
        space.rendering.source_panel(run, "DIVERSED"),
        space.rendering.weight_panel(run, "DIVERSED"),
        space.rendering.plain_panel(run),
        space.rendering.notice("<script>"),
    ):
        assert "<script>" not in panel
        assert "&lt;script&gt;" in panel
    assert "--w:0.250" in space.rendering.weight_panel(run, "DIVERSED")
    assert ORIGINS["bonus"].color in space.rendering.source_panel(run, "DIVERSED")


def test_figures(space):
    """Catches figures that are swapped, and nan on the page."""
    stats = SpeculativeStats(num_rounds=10, num_drafted=50, num_accepted=30, num_emitted=40)
    run = space.backend.Run([Piece("x", "relaxed", 0.1)], stats, seconds=2.0)
    plain = space.backend.Run([], SpeculativeStats(num_rounds=10, num_emitted=10), seconds=1.0)
    shown = space.rendering.tiles(run, plain, "DIVERSED")
    for value in ("20", "plain 10", "2.00x", "60%", "30 of 50", "4.00", "1"):
        assert f">{value}<" in shown, value
    assert "nan" not in space.rendering.tiles(None, None, "Plain")
    assert "nan" not in space.rendering.tiles(plain, plain, "Plain")


def choice(space, **given):
    settings = {"prompt": "x", "task": "math", "method": "DIVERSED", "quality": 0.5, "lenience": 0.3}
    settings |= {"weight": 0.5, "max_bias": 1.0}
    settings |= {"gamma": 5, "temperature": 1.0, "max_new_tokens": 8, "seed": 0, "head": "", "engine": "Eager"}
    return space.backend.Choice(**settings | given)


@pytest.fixture
def pair(space):
    """A pair of which only the device, the length and the heads matter."""
    text_config = SimpleNamespace(max_position_embeddings=64)
    target = SimpleNamespace(device="cpu", config=SimpleNamespace(get_text_config=lambda: text_config))
    return space.backend.Pair(target, object(), SimpleNamespace(chat_template=None))


def test_visitors_name_heads_of_the_hub_only(space, pair, monkeypatch, tmp_path):
    """Catches a visitor who reads folders of the machine, its owner's private heads, or fills its disk."""
    random_head().save_pretrained(tmp_path / "org" / "here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", WRITER)
    with LoopbackHub() as hub:
        point_client_at(hub.endpoint, monkeypatch, tmp_path / "cache")
        hub.add("org/head", tmp_path / "org" / "here")
        hub.add("org/private", tmp_path / "org" / "here", private=True)
        hub.add("org/heavy", hub.files("org/head") | {"model.safetensors": bytes(300_000)})
        hub.add("org/llama", {"config.json": b'{"model_type": "llama"}', "model.safetensors": bytes(300_000)})
        for name in ("org/head", "org/head@main", " org/head "):
            assert space.backend.choose_rule(pair, choice(space, head=name)).head.config.target_hidden_size > 1
        hub.log.clear()
        for name in (
            "org/here",
            str(tmp_path / "org/here"),
            "./org/here",
            "../org/here",
            "~/x",
            "head",
            "a/b/c",
            "file:///x",
        ):
            with pytest.raises(ValueError, match=r"could not be loaded\. Name one of the Hub, as org/name"):
                space.backend.choose_rule(pair, choice(space, head=name))
        assert hub.log == []
        for name, words in (
            ("org/private", "is private"),
            ("org/heavy", "has 300,000 bytes"),
            ("org/llama", "'llama'"),
        ):
            with pytest.raises(ValueError, match=f"'{name}' could not be loaded.*{words}"):
                space.backend.choose_rule(pair, choice(space, head=name))
        assert "download" not in hub.log
        close_session()
    assert not list((tmp_path / "cache").glob("models--*"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"prompt": " "}, "prompt is empty"),
        ({"prompt": "x" * 20_001}, "20001 characters, of 20000 at most"),
        ({"prompt": "x" * 57}, "57 tokens, where 56 fit beside the answer"),
    ],
)
def test_prompts_are_capped(space, pair, given, words):
    """Catches a prompt that is tokenized, or decoded, however long it is."""
    tokenizer = lambda texts, **_: {"input_ids": [[1] * len(text) for text in texts]}  # noqa: E731
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match=words):
        space.backend.tokenize(replace(pair, tokenizer=tokenizer), choice(space, **given))


@pytest.mark.parametrize("task", ["math", "summary", "code"])
def test_prompts_of_the_embedded_pair_are_taken(space, task):
    """Catches a kind of prompt that the corpus writes and the page declines."""
    for example in held_out_examples(task, 20, seed=1):
        space.backend.check_kind(example.prompt)
        space.backend.check_kind(f"\n{example.prompt}  ")


@pytest.mark.parametrize("prompt", ["Why is the sky blue?", "Question: who are you?", "Summary:", "Task: sing."])
def test_other_prompts_are_declined_kindly(space, prompt):
    """Catches nonsense as an answer, and a refusal that does not say what to write."""
    with pytest.raises(ValueError, match=r"three kinds of prompt.*Take an example"):
        space.backend.check_kind(prompt)


def test_every_method_has_its_rule(space, pair):
    """Catches a method of the page that no rule stands behind, and a dial that is another's."""
    with_head = replace(pair, heads={"math": random_head()})
    given = {"lenience": 0.25, "weight": 0.75, "quality": 0.6}
    rules = [
        space.backend.choose_rule(with_head, choice(space, method=name, **given)) for name in space.backend.METHODS
    ]
    assert rules[0] is None
    names = ["LosslessVerifier", "LenientVerifier", "StaticEnsembleVerifier", "DiversedVerifier"]
    assert [type(rule).__name__ for rule in rules[1:]] == names
    assert (rules[2].lenience, rules[3].weight) == (0.25, 0.75)


@pytest.fixture
def compiler(space, monkeypatch):
    """A compiler that takes half a second, counts how often it was asked, and may refuse."""
    told = SimpleNamespace(count=0, refuses=False)

    def compile_slowly(graph, inputs, **_):
        assert not told.refuses, "there is no C++ here"
        told.count += 1
        time.sleep(0.5)
        return graph.forward

    config = CompileConfig(backend=compile_slowly, mode="default", dynamic=False)
    config._compile_all_devices = True
    monkeypatch.setattr(space.backend, "default_compile_config", lambda device: config)
    return told


@pytest.fixture
def tiny(space):
    """A pair whose tokens are letters."""
    spelled = SimpleNamespace(all_special_ids=[PAD, EOS], decode=lambda ids, **_: "".join(chr(97 + i) for i in ids))
    spelled.pad_token_id, spelled.eos_token_id = PAD, EOS
    target = tiny_model()
    return space.backend.Pair(target, tiny_draft(target), spelled)


def follow(space, pair, rule, given, length: int = 4):
    """Decode a prompt of some length: the run, what it waited for in each frame, and seconds by the clock."""
    began, waits = time.perf_counter(), []
    for run in space.backend.decode(pair, list(range(3, 3 + length)), rule, given):
        waits.append(run.waits_for)
    return run, waits, time.perf_counter() - began


@pytest.mark.parametrize("method", ["Static", "Plain"])
def test_both_sides_decode_compiled(space, tiny, compiler, method):
    """Catches a side that stays eager, that streams nothing, whose speed has compiling in it, or that is compiled
    for every length of a prompt anew; and a page that does not say what it waits for."""
    given = {"method": method, "max_new_tokens": 12, "temperature": 0.0, "gamma": 1}
    rule = space.backend.choose_rule(tiny, choice(space, **given))
    eager, waits, _ = follow(space, tiny, rule, choice(space, **given))
    assert compiler.count == 0
    assert set(waits) == {""}
    run, waits, seconds = follow(space, tiny, rule, choice(space, engine="Compiled", **given))
    assert compiler.count > 0
    assert "compiling" in waits
    assert waits[-1] == ""
    assert run.seconds < seconds - 0.5
    assert [piece.text for piece in run.pieces] == [piece.text for piece in eager.pieces]
    assert run.stats.num_emitted == eager.stats.num_emitted > 0
    compiled = compiler.count
    for length in (3, 9, 30):
        _, waits, _ = follow(space, tiny, rule, choice(space, engine="Compiled", **given), length)
        assert set(waits) == {""}
    assert compiler.count == compiled


def test_what_cannot_be_compiled_is_said(space, tiny, compiler, monkeypatch):
    """Catches a traceback on a machine without a compiler."""
    compiler.refuses = True
    with pytest.raises(ValueError, match=r"could not be compiled here.*Choose the eager engine"):
        follow(space, tiny, None, choice(space, method="Plain", engine="Compiled"))


def test_a_run_waits_for_one_that_was_stopped(space, tiny):
    """Catches two runs at a time, of which one compiles, and seconds of waiting in the figures."""
    decoding = space.backend.decode(tiny, [3, 4, 5], None, choice(space, method="Plain"))
    with space.backend._one_at_a_time:
        assert next(decoding).waits_for == "stopped"
        time.sleep(0.5)
    *_, run = decoding
    assert (run.waits_for, run.stats.num_emitted) == ("", 8)
    assert 0 < run.seconds < 0.5


def test_what_a_run_waits_for_is_told(space):
    """Catches a page that is silent for a minute, and one that speaks while nothing is waited for."""
    waiting = space.rendering.waiting
    assert waiting(space.backend.Run(), "Lenience", 3) == ""
    compiling = space.backend.Run(waits_for=space.backend.COMPILING)
    assert "Compiling Lenience for 3 drafts per round" in waiting(compiling, "Lenience", 3)
    assert "Compiling plain decoding" in waiting(compiling, "Plain", 3)
    assert "stopped" in waiting(space.backend.Run(waits_for=space.backend.STOPPED), "Lenience", 3)
    hints = [space.rendering.engine_hint(engine) for engine in space.backend.ENGINES]
    assert hints[0] == ""
    assert "a minute or two" in hints[1]


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """A cache of models of the package index, empty, and an environment that names nothing."""
    for name in ("TARGET", "DRAFT", "HEAD"):
        monkeypatch.delenv(f"HF_DIVERSED_{name}", raising=False)
    monkeypatch.setattr(smollm2, "CACHE", tmp_path)
    return tmp_path


def test_models_on_offer(space, cache, monkeypatch):
    """Catches a download that nobody asked for, a choice where the environment has chosen, and half a pair."""
    offered = lambda: [(model.target, model.draft) for model in space.models.find_models()]  # noqa: E731
    assert offered() == [(None, None)]
    (cache / smollm2.FOLDER).mkdir()
    assert offered() == [(None, None), ("smollm2", "lookup")]
    monkeypatch.setenv("HF_DIVERSED_HEAD", "org/head")
    assert offered() == [(None, None)]
    monkeypatch.setenv("HF_DIVERSED_TARGET", "org/target")
    with pytest.raises(ValueError, match="set both, or neither"):
        offered()
    monkeypatch.setenv("HF_DIVERSED_DRAFT", "lookup")
    assert offered() == [("org/target", "lookup")]


def test_a_model_whose_drafts_are_looked_up(space, cache, monkeypatch):
    """Catches words about the embedded pair, its prompts, or a head that this model has not; and one that does not
    decode, in SmolLM2's place the embedded target."""
    for part in ("target", "tokenizer"):
        shutil.copytree(WEIGHTS / part, cache / smollm2.FOLDER, dirs_exist_ok=True)
    monkeypatch.setenv("HF_DIVERSED_TARGET", "smollm2")
    monkeypatch.setenv("HF_DIVERSED_DRAFT", "lookup")
    monkeypatch.setattr(smollm2, "fetch", lambda: cache / smollm2.FOLDER)
    (model,) = space.models.find_models()
    assert "draft model" not in model.masthead
    assert "looked up" in model.about
    assert [name for _, name in model.tasks] == ["repeat"]
    prompt = model.example("repeat", seed=0)
    assert prompt.startswith("Repeat the following text")
    model.check(prompt)
    given = choice(space, prompt=prompt, task="repeat", method=model.method, temperature=model.temperature)
    ids = space.backend.tokenize(model.pair, given)
    *_, run = space.backend.decode(model.pair, ids, space.backend.choose_rule(model.pair, given), given)
    assert len(run.pieces) > 1
    assert run.stats.num_drafted > 0
    learned = replace(given, method="DIVERSED")
    with pytest.raises(ValueError, match=r"looked up in the prompt\. Choose another"):
        space.backend.choose_rule(model.pair, learned)
    with pytest.raises(ValueError, match="reads what goes on inside a draft model"):
        space.backend.choose_rule(replace(model.pair, heads={"": random_head()}), learned)


def test_the_embedded_pair_says_what_it_is(space, cache):
    """Catches a page that lets visitors of the embedded pair ask anything, or names no task of its heads."""
    (model,) = space.models.find_models()
    assert "three kinds of prompt" in model.about
    assert {name for _, name in model.tasks} == set(model.pair.heads)
    assert model.method == "DIVERSED"
    for _, task in model.tasks:
        model.check(model.example(task))
    with pytest.raises(ValueError, match="three kinds of prompt"):
        model.check("Why is the sky blue?")


def records(tokens: list[int], source: list[int], relaxed: list[bool]) -> TokenRecords:
    numbers = torch.tensor([[0.5] + [NAN] * (len(tokens) - 1)])
    return TokenRecords(
        torch.tensor([tokens]), torch.tensor([source], dtype=torch.int8), torch.tensor([relaxed]), *[numbers] * 6
    )


def test_tokens_are_spelled_in_context():
    """Catches lost spaces, half characters, special tokens as text, and rounds that are spelled without the last."""
    pieces = {1: b"caf", 2: b"\xc3", 3: b"\xa9", 4: b" x", 9: b"</s>"}
    tokenizer = SimpleNamespace(
        all_special_ids=[9], decode=lambda ids: b"".join(pieces[token] for token in ids).decode(errors="replace")
    )
    reader = TokenReader(tokenizer)
    first = reader.read(records([1, 2], [0, 0], [True, False]))
    second = reader.read(records([3, 4, 9, 1], [1, 2, 2, -1], [False] * 4))
    assert [(piece.text, piece.origin) for piece in first + second] == [
        ("caf", "relaxed"),
        ("é", "residual"),
        (" x", "bonus"),
    ]
    assert (first[0].weight, second[1].weight) == (0.5, None)


def test_long_texts_are_spelled_piece_by_piece():
    """Catches an answer whose every token has all before it decoded again, and text lost where that is cut off."""
    letters = "naïve café — 東京 𝄞 plain words "
    pieces = [bytes([byte]) for byte in (letters * 12).encode()]
    lengths = []

    def decode(ids):
        lengths.append(len(ids))
        return b"".join(pieces[token] for token in ids).decode(errors="replace")

    reader = TokenReader(SimpleNamespace(all_special_ids=[], decode=decode))
    found = reader.read_plain(torch.arange(len(pieces)))
    assert "".join(piece.text for piece in found) == letters * 12
    assert max(lengths) < 100 < len(pieces)


def test_plain_tokens_are_rounds_of_one():
    """Catches the prompt among the answer, and relaxed decoding told twice."""
    tokenizer = SimpleNamespace(all_special_ids=[], decode=lambda ids: "a" * len(ids))
    for plain, expected in ((True, ["a", "a"]), (False, [])):
        heard, total = [], SpeculativeStats()
        streamer = PieceStreamer(tokenizer, lambda pieces, stats: (heard.extend(pieces), total.add(stats)), plain)  # noqa: B023
        for value in (torch.tensor([[5, 6, 7]]), torch.tensor([8]), torch.tensor([9])):
            streamer.put(value)
        assert [piece.text for piece in heard] == expected
        assert total.num_emitted == len(expected)
    assert math.isnan(total.acceptance_rate)
