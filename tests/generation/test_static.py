"""Calls with static shapes, compiled and not, against eager ones."""

import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

import pytest
import torch

import hf_diversed
from hf_diversed import DiversedVerifier, LosslessVerifier, StaticEnsembleVerifier
from hf_diversed.generation.confidence import ConfidenceRule
from hf_diversed.generation.static import gamma_for
from hf_diversed.verifiers.mixture import MixtureVerifier, Weights
from tests.generation.modes import (
    COMPILED,
    STATIC,
    TRACED,
    assert_same,
    decode,
    interrupt,
    run_untraced,
    shallow,
)
from tests.tiny import (
    ragged_batch,
    tiny_draft,
    tiny_head,
    tiny_model,
)


@pytest.fixture(scope="module")
def pair(pair):
    """One layer each, which halves the time of tracing."""
    return shallow(pair)


@pytest.fixture(autouse=True)
def nothing_compiled():
    yield
    hf_diversed.clear_compiled()


def llama():
    """Return a pair of two layers with a length of its own."""
    pair = (target := tiny_model("llama")), tiny_draft(target)
    for each in pair:
        each.config.max_position_embeddings = 512
    return pair


def test_compiling_changes_no_token():
    """Catches constants that should be inputs, lost writes, and branches that are fixed at tracing."""
    target = tiny_model("gemma3_text")
    out = assert_same(shallow((target, tiny_draft(target))), TRACED)
    assert (out.stats.engine, out.stats.engine_reason, out.stats.compile.num_compiled) == ("compiled", "", 4)


def test_inductor_changes_no_token(pair):
    """Catches writes to the caches that generated code loses. The only test with inductor; without a draft model it
    compiles two functions, the forward of the target and verification."""
    call = {"prompt_lookup_num_tokens": 2, "num_assistant_tokens": None, "verifier": "lossless", "max_new_tokens": 40}
    pair, engines = (pair[0], None), []
    for length in (4, 5):
        batch = {name: values.repeat(1, 3) for name, values in ragged_batch(2, length).items()}
        out = assert_same(pair, COMPILED, batch=batch, **call)
        engines.append((out.stats.engine, out.stats.compile.num_compiled, out.stats.compile.num_used))
    assert engines == [("compiled", 2, 2), ("compiled", 0, 2)]


def test_many_calls_compile_once(pair, monkeypatch, caplog):
    """Catches a function per prompt length, a silent fallback, and a compilation without a message."""
    run_untraced(monkeypatch)
    assert decode(pair, TRACED, batch=ragged_batch(1, length=5)).stats.compile.num_compiled == 4
    assert "Compiled 4 functions for LlamaForCausalLM in" in caplog.text
    functions, engines = 0, set()
    for seed in range(12):
        batch = ragged_batch(1, length=2 + 5 * seed, seed=seed)
        out = decode(pair, TRACED, batch=batch, max_new_tokens=2 + seed % 4)
        engines.add(out.stats.engine)
        functions += out.stats.compile.num_compiled
    assert (functions, engines) == (0, {"compiled"})
    assert caplog.text.count("Compiled") == 1


def test_a_text_that_outgrows_its_buffers(monkeypatch):
    """Catches contents that are lost when buffers grow, and functions of the smaller buffers."""
    run_untraced(monkeypatch)
    out = assert_same(shallow(llama()), TRACED, batch=ragged_batch(2, length=249), max_new_tokens=12)
    assert out.stats.compile.num_compiled == 7  # verification does not read the buffers


def test_last_rounds_at_every_distance_from_the_edge_of_the_buffers():
    """Catches positions cropped at the edge."""
    pair = llama()
    for new_tokens in range(3, 9):
        assert_same(pair, STATIC, batch=ragged_batch(1, length=250), max_new_tokens=new_tokens)


def test_scores_and_records_are_the_same(pair, monkeypatch):
    """Catches requested outputs that a compiled round omits or computes from another distribution, and TV(v, p)
    estimated instead of computed."""
    run_untraced(monkeypatch)
    by_token = tiny_head(features="distribution", token_features=True)
    call = {"output_scores": True, "output_logits": True, "output_token_records": True, "do_sample": True, "top_k": 0}
    for verifier in (StaticEnsembleVerifier(0.4), DiversedVerifier(by_token)):
        outs = []
        for mode in ({}, TRACED):
            torch.manual_seed(0)
            outs.append(decode(pair, mode, verifier, **call, batch=ragged_batch(1), max_new_tokens=8))
        expected, out = outs
        torch.testing.assert_close(out.scores, expected.scores, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(out.logits, expected.logits, atol=1e-4, rtol=1e-4)
        for item in fields(out.token_records):
            mine, theirs = (getattr(each.token_records, item.name) for each in outs)
            torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4, equal_nan=True)


def test_all_strictness_values_share_a_function(pair, monkeypatch):
    """Catches one compiled function per value of a setting."""
    run_untraced(monkeypatch)
    counts, head = [], tiny_head()
    for strictness in (0.5, 0.3, [0.1, 0.2, 0.8, 0.9]):
        verifier = DiversedVerifier(head, strictness=strictness)
        out = assert_same(pair, TRACED, verifier=verifier, num_assistant_tokens=1, suppress_tokens=[5, 6, 7, 20])
        counts.append(out.stats.compile.num_compiled)
    assert counts == [3, 0, 0]


class NoRepeats(LosslessVerifier):
    """Rejects every draft token that the row already contains."""

    needs_input_ids = True

    def __call__(self, input_ids, draft, target):
        verdict = super().__call__(input_ids, draft, target)
        repeated = (draft.tokens[..., None] == input_ids[:, None]).any(-1)
        verdict.accept_prob = verdict.accept_prob * ~repeated
        return verdict


class Peeking(MixtureVerifier):
    """Branches on a number on the host, which cannot be traced."""

    def weights(self, draft, target, row_values):
        return Weights(torch.ones(draft.tokens.shape) if target.top.max() > 0 else torch.zeros(draft.tokens.shape))


REPEATED = {name: values.repeat(1, 3) for name, values in ragged_batch(1, length=4).items()}
# Arguments of a call, the number of its compiled functions, and why not all are compiled.
NOT_COMPILED = {
    "prefix processor": ({"repetition_penalty": 1.3}, 4, ""),
    "lookup": ({"prompt_lookup_num_tokens": 2, "num_assistant_tokens": None, "batch": REPEATED}, 2, ""),
    "reads the text": ({"verifier": NoRepeats(), "batch": ragged_batch(1)}, 3, "NoRepeats reads the text so far"),
    "caller's verifier": ({"verifier": Peeking()}, 3, "Peeking may depend on more than its attributes"),
    "scores": ({"output_scores": True}, 3, "the call returns scores or records"),
}


@pytest.mark.parametrize("name", NOT_COMPILED)
def test_what_cannot_be_compiled_runs_between_compiled_functions(pair, name, monkeypatch):
    """Catches a verifier that receives two ids instead of the text, and processors that receive another prefix."""
    run_untraced(monkeypatch)
    call, number, reason = NOT_COMPILED[name]
    draft = None if name == "lookup" else pair[1]
    stats = assert_same((pair[0], draft), TRACED, **call).stats
    assert (stats.engine, stats.compile.num_used) == ("compiled", number)
    assert stats.engine_reason == (reason and f"verification is not compiled: {reason}")


def test_a_model_that_cannot_be_traced_runs_uncompiled(pair, caplog):
    """Catches a call that ends in the compiler's error, a silent fallback, and an attempt in every call."""
    config = copy.deepcopy(pair[0].config)  # dynamic rotary embeddings compare positions on the host
    config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    target = type(pair[0])(config).eval()
    target.load_state_dict(pair[0].state_dict())
    target.generation_config = pair[0].generation_config
    counts = []
    for _ in range(2):
        stats = assert_same((target, pair[1]), TRACED).stats
        counts.append(stats.compile.num_compiled)
        assert stats.engine_reason.startswith("extend of LlamaForCausalLM is not compiled: ")
    assert (counts, stats.compile.num_used) == ([3, 0], 3)
    assert caplog.text.count("extend of LlamaForCausalLM is not compiled") == 1


@pytest.mark.parametrize(("mode", "engine"), [({}, "eager"), (STATIC, "static"), (TRACED, "compiled")])
def test_calls_after_an_interrupted_call(pair, mode, engine, monkeypatch):
    """Catches state of an interrupted call that later calls use."""
    run_untraced(monkeypatch)
    expected = decode(pair, {}).sequences
    for _ in range(2):
        interrupt(pair, mode)
        out = decode(pair, mode)
        assert torch.equal(out.sequences, expected)
        assert out.stats.engine == engine


@pytest.mark.parametrize("mode", [{}, STATIC], ids=["eager", "static"])
def test_threads_decode_at_the_same_time(pair, mode):
    """Catches caches, buffers or settings of a call that calls of other threads change."""

    def call(number: int) -> torch.Tensor:
        verifier = ("lossless", "lenience:0.2", "static:0.3")[number % 3]
        batch = ragged_batch(1 + number % 4, 6 + number, seed=number)
        return decode(pair, mode, batch=batch, verifier=verifier, do_sample=False, max_new_tokens=24).sequences

    expected = list(map(call, range(8)))
    with ThreadPoolExecutor(4) as threads:
        for found, alone in zip(threads.map(call, range(8)), expected):
            assert torch.equal(found, alone)


def test_only_uncompiled_batches_are_compacted(pair, monkeypatch, rows_left):
    """Catches compacting to a size that must first be compiled, and a batch that is never compacted."""
    run_untraced(monkeypatch)
    batch = ragged_batch(4)
    ends = decode(pair, {}, batch=batch, max_new_tokens=24).sequences[:3, 11].tolist()
    call = {"batch": batch, "eos_token_id": ends, "max_new_tokens": 24}
    rows_left.clear()
    decode(pair, TRACED, **call)
    assert rows_left == []
    decode(pair, STATIC, **call)
    assert rows_left == [1]
    assert_same(pair, TRACED, **call)


def test_what_static_shapes_cannot_serve_is_reported(pair, caplog, monkeypatch):
    """Catches a fallback without its reason or with draft lengths of static calls, and a warning for the first of
    several models only."""
    target, draft = pair
    rules, build = [], ConfidenceRule.for_models
    monkeypatch.setattr(ConfidenceRule, "for_models", lambda *models: rules.append(build(*models)) or rules[-1])
    out = decode(pair, STATIC, batch={"input_ids": torch.tensor([[5]])}, num_assistant_tokens=None)
    assert len(rules) == 1
    assert out.stats.engine == "eager"
    assert out.stats.engine_reason == "the prompt has one token, and filling the caches needs at least two"
    for _ in range(2):
        bound = copy.deepcopy(target)
        bound.forward = bound.forward
        for _ in range(2):
            stats = decode((bound, draft), STATIC).stats
            assert stats.engine == "eager"
            assert "the target has a forward that was replaced" in stats.engine_reason
    assert caplog.text.count("has a forward that was replaced") == 2


def test_draft_lengths_beyond_the_room(pair, monkeypatch):
    """Catches drafting far beyond a call's length limit, and a compilation for each remaining length."""
    forwards = []
    counter = pair[1].get_input_embeddings().register_forward_hook(lambda *call: forwards.append(1))
    for gamma, new_tokens in ((1000, 6), (300, 40)):
        call = {"num_assistant_tokens": gamma, "max_new_tokens": new_tokens, "batch": ragged_batch(1)}
        rounds = assert_same(pair, STATIC, **call).stats.num_rounds
        forwards.clear()
        decode(pair, STATIC, **call)
        assert len(forwards) <= 1 + rounds * gamma_for(new_tokens)
    counter.remove()
    run_untraced(monkeypatch)
    call = {"num_assistant_tokens": 16, "batch": ragged_batch(1)}
    counts = [
        decode(pair, TRACED, **call, max_new_tokens=count).stats.compile.num_compiled for count in (5, 7, 17, 30)
    ]
    assert counts == [3, 0, 2, 0]


@pytest.mark.parametrize("rows", [1, 3])
def test_one_seed_draws_the_same_text_over_static_shapes(pair, rows, monkeypatch):
    """Catches random numbers drawn for draft tokens beyond the rows' length limit."""
    call = {"do_sample": True, "top_k": 0, "eos_token_id": None, "pad_token_id": 0, "batch": ragged_batch(rows)}
    run_untraced(monkeypatch)
    for seed in range(6):
        texts = []
        for mode in ({}, STATIC, *[TRACED] * (rows == 1)):  # in batches, compiled calls remove finished rows later
            torch.manual_seed(seed)
            texts.append(decode(pair, mode, **call, max_new_tokens=10 + seed % 5).sequences)
        assert all(torch.equal(text, texts[0]) for text in texts)


def test_a_cpu_compiles_only_on_request(pair, caplog):
    """Catches a first call that compiles without a request, and static shapes reported as compiled."""
    out = decode(pair, {"cache_implementation": "static"})
    assert out.stats.engine == "static"
    assert "is not compiled on cpu unless compile_config= is given" in caplog.text
