"""Speed measurements: what is timed, the comparisons, and the errors."""

import functools
import json

import pytest
import torch

from benchmarks.rounds import BenchmarkSettings, Point, SyntheticVerifier, benchmark, random_model, shape_names
from benchmarks.rounds.hardware import weight_bytes
from benchmarks.rounds.measure import Case, _parts, _ratios, _time
from benchmarks.rounds.runner import Run, Runner, build_timed
from benchmarks.rounds.tables import tables
from benchmarks.rounds.timing import PHASES
from hf_diversed import LosslessVerifier, StaticEnsembleVerifier
from hf_diversed.generation.planning import diversed_decoding
from hf_diversed.generation.recording import Recorder
from hf_diversed.harness.methods import Method
from hf_diversed.outputs import CompileStats, SpeculativeStats
from hf_diversed.verifiers.base import Verifier
from tests import tiny
from tests.verifier_cases import make_block


# Of the checkpoints on the Hub.
PARAMETERS = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "qwen3-8b": 8_190_735_360,
    "qwen3-0.6b": 596_049_920,
}
SHORT = {"context_lengths": (8,), "draft_lengths": (3,), "max_new_tokens": 16, "repeats": 2, "progress": False}
METHODS = ["target", "upstream", "upstream:0.7", "lossless", "static:0.7", "fresh:both"]


@pytest.fixture(scope="module")
def report(pair) -> dict:
    """A report without a given acceptance, which upstream does not support."""
    return benchmark(*pair, METHODS, BenchmarkSettings(**SHORT, batch_sizes=(1, 3)))


@pytest.fixture(scope="module")
def compiled(pair) -> dict:
    """A report of traced but not compiled rounds, at a given acceptance."""
    settings = BenchmarkSettings(**SHORT, batch_sizes=(1,), acceptance=(1.0,), backend="eager")
    methods = ["target", "compiled:target", "upstream:0.7", "static:0.7", "compiled:static:0.7"]
    return benchmark(*pair, methods, settings)


def record(report: dict, method: str, batch_size: int = 1) -> dict:
    (found,) = [row for row in report["records"] if (row["method"], row["batch_size"]) == (method, batch_size)]
    return found


# Given acceptance


@pytest.mark.parametrize("verifier", [LosslessVerifier(), StaticEnsembleVerifier(0.5)])
def test_synthetic_rates_are_conditional_and_the_verifier_still_runs(verifier):
    """Catches unconditional rates, a list truncated at the wrong end, and a residual of another verifier."""
    draft, target = make_block(rows=2)
    rows, count = draft.tokens.shape
    verdict = SyntheticVerifier(verifier, [0.9, 0.5, 0.25, 0.1])(None, draft, target)
    torch.testing.assert_close(verdict.accept_prob, torch.tensor([[0.9, 0.5, 0.25, 0.1][:count]]).expand(rows, -1))
    positions = torch.zeros(rows, dtype=torch.long)
    torch.testing.assert_close(verdict.replacement(positions), verifier(None, draft, target).replacement(positions))
    assert (SyntheticVerifier(verifier, 0.4)(None, draft, target).accept_prob == 0.4).all()


def test_accepted_counts_follow_the_given_rates(pair):
    """Catches rates without effect on acceptance. Both bounds are 5 standard errors: false alarm below 1e-5."""
    rates = [0.9, 0.5]
    settings = {"verifier": SyntheticVerifier(LosslessVerifier(), rates), "num_assistant_tokens": 2}
    loop = functools.partial(diversed_decoding, assistant_model=pair[1], **settings)
    torch.manual_seed(0)
    inputs = {"input_ids": torch.full((32, 4), 5), "attention_mask": torch.ones(32, 4, dtype=torch.long)}
    sampling = {"do_sample": True, "top_k": 0, "max_new_tokens": 60, "eos_token_id": None, "pad_token_id": 0}
    out = pair[0].generate(**inputs, **sampling, custom_generate=loop, return_dict_in_generate=True)
    first, both = out.stats.accepted_per_position
    # The last rounds of a row may draft fewer than two tokens: at most two rounds per row.
    rounds, slack = out.stats.num_rounds, 2 * 32
    for count, trials, rate in ((first, rounds, rates[0]), (both, first, rates[1])):
        error = 5 * (rate * (1 - rate) * trials) ** 0.5
        assert rate * (trials - slack) - error < count < rate * trials + error


def test_synthetic_needs_what_its_verifier_needs():
    """Catches a head timed without hidden states, and skipped checks."""

    class Demanding(Verifier):
        needs_hidden_states = needs_raw_logits = needs_draft_confidence = greedy_only = True
        num_assistant_tokens = 3

        def check(self, context):
            raise ValueError("asked")

    outer = SyntheticVerifier(Demanding(), 0.5)
    flags = ("needs_hidden_states", "needs_raw_logits", "needs_draft_confidence", "greedy_only")
    assert all(getattr(outer, name) for name in flags)
    assert outer.num_assistant_tokens == 3
    with pytest.raises(ValueError, match="asked"):
        outer.check(None)


def test_synthetic_refuses():
    """Catches rates out of range and positions without a rate."""
    with pytest.raises(ValueError, match=r"acceptance.*\[0, 1\]"):
        SyntheticVerifier(LosslessVerifier(), 1.5)
    with pytest.raises(ValueError, match="2 rates for 3 drafts"):
        SyntheticVerifier(LosslessVerifier(), [0.5, 0.5])(None, *make_block(rows=1))


# Timing


def test_phases_add_up_to_the_rounds(pair):
    """Catches a prefill or a first round in the phases, and a module whose calls are not timed."""
    settings = BenchmarkSettings(context_lengths=(16,), draft_lengths=(3,), max_new_tokens=24, acceptance=(0.7,))
    runner = Runner(*pair, settings, None)
    (method,) = build_timed(["fresh:both"], *pair, None, settings.acceptance)
    point = Point(2, 16, 3)
    began = runner.watch.mark()
    phases = runner.phases(method, point, seed=0)
    (wall,) = runner.watch.milliseconds([began, runner.watch.mark()])
    assert tuple(phases.ms) == PHASES
    assert all(value > 0 for value in phases.ms.values())
    assert sum(phases.ms.values()) < wall
    run = runner(method, point, seed=0)
    assert phases.rounds == len(run.rounds_ms) == run.rounds - 1


def test_inputs_of_an_untrained_head(pair):
    """Catches an input that is parsed and not used."""
    methods = build_timed(["fresh:distribution+token", "fresh:distribution+token+lookahead+target_after"], *pair, None)
    heads = [method.verifier.head for method in methods]
    found = [(head.needs_token, head.lookahead, head.target_after) for head in heads]
    assert found == [(True, 0, False), (True, 4, True)]


def test_timing_leaves_no_trace(pair):
    """Catches hooks and wrappers that outlive a run, including an aborted one."""
    settings = BenchmarkSettings(context_lengths=(8,), draft_lengths=(3,), max_new_tokens=12)
    runner = Runner(*pair, settings, None)
    add = Recorder.add

    class Failing(Verifier):
        def __call__(self, *args, **kwargs):
            raise RuntimeError("aborted")

    (method,) = build_timed(["lossless"], *pair)
    object.__setattr__(method, "verifier", Failing())
    for call in (runner, runner.phases):
        with pytest.raises(RuntimeError, match="aborted"):
            call(method, Point(1, 8, 3), 0)
    assert Recorder.add is add
    assert all(not model._forward_hooks and not model._forward_pre_hooks for model in pair)
    assert pair[0].generation_config.eos_token_id == tiny.EOS


def test_rounds_are_counted_without_prefill(pair):
    """Catches a prefill counted as a round, by the number of forwards of plain decoding and of our loop."""
    settings = BenchmarkSettings(context_lengths=(8,), draft_lengths=(3,), max_new_tokens=16, acceptance=(1.0,))
    runner = Runner(*pair, settings, None)
    plain, ours = build_timed(["target", "lossless"], *pair, None, settings.acceptance)
    point = Point(1, 8, 3)
    run = runner(plain, point, 0)
    assert (run.rounds, len(run.rounds_ms), run.num_tokens) == (16, 15, 16)
    run = runner(ours, point, 0)
    assert (run.rounds, len(run.rounds_ms), run.num_tokens) == (4, 3, 16)


def test_prompts(pair):
    """Catches equal rows, a wrong length, and given prompts that are truncated."""
    runner = Runner(*pair, BenchmarkSettings(max_new_tokens=64), [[4, 5, 6], [7, 8]])
    assert runner._prompt_rows(Point(3, 0, 5)) == [[4, 5, 6], [7, 8], [4, 5, 6]]
    assert runner._prompt_rows(Point(2, 4, 5)) == [[4, 5, 6, 7], [8, 4, 5, 6]]
    inputs = runner._options(Method("target"), Point(2, 0, 5), pair[1])
    assert inputs["input_ids"].tolist() == [[4, 5, 6], [tiny.PAD, 7, 8]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1], [0, 1, 1]]


# Reports


def test_records(report):
    """Catches missing methods and figures, upstream at an unsupported batch size, and JSON that is not strict."""
    json.dumps(report, allow_nan=False)
    places = {(row["method"], row["batch_size"]) for row in report["records"] if row["implementation"] != "machine"}
    assert places == {(name, size) for name in METHODS for size in (1, 3) if size == 1 or "upstream" not in name}
    for name in METHODS:
        row = record(report, name)
        assert row["ms_per_round"]["median"] > 0
        low, high = row["seconds"]["quartiles"]
        assert low <= row["seconds"]["median"] <= high
        assert row["num_assistant_tokens"] == (None if name == "target" else 3)
        ours = row["implementation"] == "hf_diversed"
        assert (row["breakdown"] is not None) == (row["acceptance_rate"] is not None) == ours
        if name != "target":
            assert 1 <= row["block_efficiency"] <= 4
    assert 0 < record(report, "fresh:both")["head_percent"]["median"] < 100
    assert record(report, "lossless")["head_percent"] is None
    source = report["provenance"]
    assert source["target"]["hidden_size"] == 32
    assert source["benchmark"]["repeats"] == 2
    assert {"versions", "device", "threads", "copy_bytes_per_second"} <= source.keys()


def test_ours_draws_upstreams_tokens(report):
    """Catches rounds compared over different texts."""
    for name in ("lossless", "static:0.7"):
        assert record(report, name)["same_tokens_as_upstream"] is True
    assert record(report, "lossless", 3)["same_tokens_as_upstream"] is None


def test_ratios_are_to_the_right_reference(report):
    """Catches a static ensemble compared with lossless upstream, and inverted ratios."""
    assert record(report, "target")["ratios"] == {}
    assert record(report, "lossless")["ratios"].keys() == {"plain", "upstream"}
    assert record(report, "fresh:both", 3)["ratios"].keys() == {"plain", "upstream", "lossless"}
    assert record(report, "upstream")["ratios"].keys() == {"plain"}
    # With two turns the median is the mean, and a ratio of seconds lies between those of the turns.
    mine, theirs = record(report, "static:0.7"), record(report, "upstream:0.7")
    low, high = (mine["seconds"]["quartiles"][i] / theirs["seconds"]["quartiles"][1 - i] for i in (0, 1))
    assert 0.5 * low < mine["ratios"]["upstream"]["seconds"]["median"] < 2 * high


def test_ratios_are_mine_over_theirs(pair):
    """Catches inverted ratios, with given times."""
    (method,) = build_timed(["lossless"], *pair)
    runs = [Run(seconds, [seconds, 10.0, 0.1], 3, [[1] * 6], None) for seconds in (1.0, 2.0)]
    fast, slow = (Case(method, Point(1, 8, 3), [run]) for run in runs)
    found = {name: value["median"] for name, value in _ratios(slow, fast).items()}
    assert found == {"seconds": 2.0, "ms_per_round": 2.0, "tokens_per_second": 0.5}


def test_limit_counts_the_bytes_that_are_read(report, pair):
    """Catches an input embedding that counts as read, tied ones counted twice, and draft forwards counted once."""
    target, draft = pair
    table = target.get_input_embeddings().weight.numel()
    assert weight_bytes(target) == 4 * (sum(p.numel() for p in target.parameters()) - table)
    tied = random_model("embedded-1024-draft", num_layers=1, device="meta")
    assert weight_bytes(tied) == 4 * sum(p.numel() for p in tied.parameters())
    bandwidth = report["provenance"]["copy_bytes_per_second"]
    limits = {row["num_assistant_tokens"]: row["limit_ms"] for row in report["records"] if row["method"][0] == "b"}
    assert limits[None] == pytest.approx(1e3 * weight_bytes(target) / bandwidth)
    assert limits[3] == pytest.approx(1e3 * (weight_bytes(target) + 3 * weight_bytes(draft)) / bandwidth)
    assert record(report, "lossless")["limit_ms"] == limits[3]


# Compiled rounds


def test_compiled_methods_run_compiled(compiled):
    """Catches a compiled method that decodes eagerly, and an acceptance that applies to one engine only."""
    eager, ours = record(compiled, "static:0.7"), record(compiled, "compiled:static:0.7")
    assert (eager["engine"], ours["engine"]) == ("eager", "compiled")
    assert ours["acceptance_rate"] == eager["acceptance_rate"] == 1.0
    assert ours["block_efficiency"] == eager["block_efficiency"] == 4.0
    assert (eager["compile_seconds"], eager["forwards_ms"], eager["own_percent"]) == (None, None, None)
    assert ours["breakdown"] is None
    assert ours["forwards_ms"]["median"] > 0
    for name in ("compiled:target", "compiled:static:0.7"):
        assert record(compiled, name)["compile_seconds"] > 0
    assert compiled["provenance"]["benchmark"]["backend"] == "eager"


def test_compiled_methods_have_a_table(report, compiled):
    """Catches a table without rows, and one that lists uncompiled methods."""
    assert "compiled methods" not in [table.title for table in tables(report["records"])]
    (found,) = [table for table in tables(compiled["records"]) if table.title == "compiled methods"]
    assert list(found.columns[0].cells) == ["compiled:target", "compiled:static:0.7"]


def test_own_work_is_what_the_forwards_leave(pair):
    """Catches an inverted share, and forwards compared with another turn's rounds."""
    (method,) = build_timed(["compiled:lossless"], *pair, backend="eager")
    runs = [Run(1.0, [ms, ms, 99.0], 3, [[1]], None) for ms in (10.0, 20.0)]
    found = _parts(Case(method, Point(1, 8, 3), runs, forwards_ms=[8.0, 18.0]))
    assert found["forwards_ms"]["median"] == 13.0
    assert found["own_percent"]["median"] == pytest.approx((20.0 + 10.0) / 2)


def test_a_turn_that_compiles_is_taken_again(pair):
    """Catches compilation in a timed turn, when a text reaches the next buffer size."""
    (method,) = build_timed(["compiled:lossless"], *pair, backend="eager")
    turns = [(3, 9.0), (0, 1.0)]

    def runner(*args) -> Run:
        compiled, seconds = turns.pop(0)
        return Run(seconds, [1.0], 2, [[1]], SpeculativeStats(compile=CompileStats(num_compiled=compiled)))

    case = Case(method, Point(1, 8, 3), first_seconds=[5.0])
    _time(case, runner, 0, breakdown=False)
    assert [run.seconds for run in case.runs] == [1.0]
    assert case.compile_seconds == 8.0 + 4.0


def test_calls_of_a_kind_share_what_is_compiled(pair):
    """Catches copies of the models per call, which would lose compiled code, and forwards of other shapes."""
    settings = BenchmarkSettings(context_lengths=(8,), draft_lengths=(2,), max_new_tokens=12, backend="eager")
    runner = Runner(*pair, settings, None)
    lossless, plain = build_timed(["compiled:lossless", "target"], *pair, backend="eager")
    point = Point(3, 8, 2)
    first, second = (runner(lossless, point, seed).stats.compile for seed in (0, 1))
    assert (first.num_compiled, second.num_compiled, second.num_used) == (1, 0, 1)
    assert runner._models(plain, point) is not runner._models(plain, Point(1, 8, 2))
    assert runner.forwards_ms(lossless, point) > 0
    (forwards,) = runner._forwards.values()
    assert [call.args[6].shape for call in forwards._calls] == [(4, 2), (4, 1), (4, 3)]
    assert forwards._calls[0].args[5].real.shape == (4, 256)


# Random models


@pytest.mark.parametrize(("name", "count"), PARAMETERS.items())
def test_shapes_have_the_parameters_of_the_real_models(name, count):
    """Catches a wrong field in a shipped configuration."""
    assert sum(parameter.numel() for parameter in random_model(name, device="meta").parameters()) == count


def test_random_models(tmp_path):
    """Catches layers that are not removed, layer types of another number, and weights that differ between runs."""
    assert {"embedded-1024-target", *PARAMETERS} <= set(shape_names())
    qwen = random_model("qwen3-0.6b", num_layers=2, device="meta")
    assert (qwen.config.num_hidden_layers, len(qwen.config.layer_types)) == (2, 2)
    config = tiny.ARCHITECTURES["gemma3_multimodal"]().config
    config.save_pretrained(tmp_path)
    text = random_model(tmp_path / "config.json", num_layers=1, seed=3)
    assert (text.config.num_hidden_layers, text.config.hidden_size) == (1, 32)
    assert text.config.layer_types == config.text_config.layer_types[:1]
    again = random_model(tmp_path / "config.json", num_layers=1, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(text.parameters(), again.parameters()))


# Errors


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_sizes": ()}, "batch_sizes"),
        ({"batch_sizes": (0,)}, "batch_sizes.*>= 1"),
        ({"draft_lengths": (5, 5)}, "repeat"),
        ({"context_lengths": (1,)}, "context_lengths"),
        ({"repeats": 0}, "repeats.*>= 1"),
        ({"max_new_tokens": 17}, "max_new_tokens.*>= 18"),
        ({"acceptance": (1.2,)}, r"\[0, 1\]"),
        ({"acceptance": ()}, r"\[0, 1\]"),
        ({"acceptance": (0.5, 0.5)}, r"one per draft \(5\), got 2"),
        ({"acceptance": (0.5,), "temperature": 0.0}, "greedy"),
    ],
)
def test_settings_refuse(settings, words):
    """Catches settings that would fail, or have no effect, after minutes."""
    with pytest.raises(ValueError, match=words):
        BenchmarkSettings(**settings)


@pytest.mark.parametrize(
    ("methods", "settings", "words"),
    [
        (["nonsense"], {}, "unknown method"),
        (["upstream:x"], {}, "weight in"),
        (["upstream:1"], {}, "weight in"),
        (["compiled:upstream:0.7"], {}, "no static cache"),
        (["compiled:nonsense"], {}, "unknown method"),
        (["fresh:nonsense"], {}, "features must be one of"),
        (["fresh:both+nonsense"], {}, "unknown input 'nonsense'"),
        (["lossless", "lossless"], {}, "different methods"),
        ([], {}, "at least one"),
        (["diversed"], {}, "needs a head"),
        (["upstream"], {"batch_sizes": (2,)}, "one row"),
        (["lossless"], {"context_lengths": (0,)}, "context_lengths"),
        (["lossless"], {"context_lengths": (100,)}, "takes 128 positions.*needs 164"),
    ],
)
def test_benchmark_refuses(pair, methods, settings, words):
    """Catches errors that would occur only after minutes."""
    with pytest.raises(ValueError, match=words):
        benchmark(*pair, methods, BenchmarkSettings(**{"context_lengths": (8,), **settings}))


@pytest.mark.parametrize("content", ["[1]", "{", '{"model_type": "llama"}', None])
def test_random_model_refuses(tmp_path, content):
    """Catches tracebacks about keys for a file that is not a configuration."""
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=r"config\.json"):
        random_model(path)
