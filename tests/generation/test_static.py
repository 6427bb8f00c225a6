"""Calls with static shapes, compiled and not: the tokens of eager calls, and what is compiled anew between calls."""

import copy
import functools
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields

import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

import hf_diversed
from hf_diversed import DiversedVerifier, LosslessVerifier, StaticEnsembleVerifier
from hf_diversed.generation.compiling import fingerprint, settings_of
from hf_diversed.generation.confidence import ConfidenceRule
from hf_diversed.generation.static import gamma_for
from hf_diversed.verifiers import SpecCascadeVerifier
from hf_diversed.verifiers.mixture import MixtureVerifier, Weights
from tests.generation.modes import COMPILED, STATIC, TRACED, assert_same, decode, interrupt, run_untraced, shallow
from tests.test_default_dtype import default_dtype
from tests.tiny import ragged_batch, tiny_draft, tiny_head, tiny_model
from tests.training.runs import tokenizer


@pytest.fixture(scope="module")
def pair(pair):
    """One layer each, which halves the time of tracing."""
    return shallow(pair)


@pytest.fixture(autouse=True)
def nothing_compiled():
    yield
    hf_diversed.clear_compiled()


ROW = ragged_batch(1)
REPEATED = {name: values.repeat(1, 3) for name, values in ragged_batch(1, length=5).items()}
# Without a draft model, only the forward of the target and verification are compiled.
LOOKUP = {"batch": REPEATED, "verifier": "lossless", "max_new_tokens": 10, "num_assistant_tokens": None}
LOOKUP |= {"prompt_lookup_num_tokens": 2, "eos_token_id": None, "pad_token_id": 0}
SAMPLED = {"do_sample": True, "top_k": 0}


# Tokens.


def test_compiling_changes_no_token():
    """Catches constants that should be inputs, lost writes, and branches that are fixed at tracing."""
    target = tiny_model("gemma3_text")
    out = assert_same(shallow((target, tiny_draft(target))), TRACED)
    assert (out.stats.engine, out.stats.engine_reason, out.stats.compile.num_compiled) == ("compiled", "", 4)


def test_inductor_changes_no_token(pair):
    """Catches writes to the caches that generated code loses. The only test with inductor."""
    engines = []
    for length in (4, 5):
        batch = {name: values.repeat(1, 3) for name, values in ragged_batch(2, length).items()}
        out = assert_same((pair[0], None), COMPILED, **LOOKUP | {"batch": batch, "max_new_tokens": 40})
        engines.append((out.stats.engine, out.stats.compile.num_compiled, out.stats.compile.num_used))
    assert engines == [("compiled", 2, 2), ("compiled", 0, 2)]


def test_texts_at_the_edge_of_the_buffers(monkeypatch):
    """Catches positions cropped at the edge, contents lost when buffers grow, and functions of the smaller buffers."""
    run_untraced(monkeypatch)
    pair = (target := tiny_model("llama")), tiny_draft(target)
    for each in pair:
        each.config.max_position_embeddings = 512
    pair, counts = shallow(pair), []
    for new_tokens in (3, 4, 5, 6, 7, 8, 14):
        out = assert_same(pair, TRACED, batch=ragged_batch(1, length=250), max_new_tokens=new_tokens)
        counts.append(out.stats.compile.num_compiled)
    assert counts[0] == 4
    assert sum(counts) == 7  # verification does not read the buffers


def test_scores_and_records_are_the_same(pair, monkeypatch):
    """Catches requested outputs that a compiled round omits or computes from another distribution, and TV(v, p)
    estimated instead of computed."""
    run_untraced(monkeypatch)
    by_token = tiny_head(features="distribution", token_features=True)
    call = {"output_scores": True, "output_logits": True, "output_token_records": True, **SAMPLED}
    for verifier in (StaticEnsembleVerifier(0.4), DiversedVerifier(by_token)):
        outs = []
        for mode in ({}, TRACED):
            torch.manual_seed(0)
            outs.append(decode(pair, mode, verifier, **call, batch=ROW, max_new_tokens=8))
        expected, out = outs
        torch.testing.assert_close(out.scores, expected.scores, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(out.logits, expected.logits, atol=1e-4, rtol=1e-4)
        for item in fields(out.token_records):
            mine, theirs = (getattr(each.token_records, item.name) for each in outs)
            torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4, equal_nan=True)


@pytest.mark.parametrize("rows", [1, 3])
def test_one_seed_draws_the_same_text_over_static_shapes(pair, rows, monkeypatch):
    """Catches random numbers drawn for draft tokens beyond the rows' length limit."""
    call = {**SAMPLED, "eos_token_id": None, "pad_token_id": 0, "batch": ragged_batch(rows)}
    run_untraced(monkeypatch)
    for seed in range(4):
        texts = []
        for mode in ({}, STATIC, *[TRACED] * (rows == 1)):  # in batches, compiled calls remove finished rows later
            torch.manual_seed(seed)
            texts.append(decode(pair, mode, **call, max_new_tokens=10 + seed).sequences)
        assert all(torch.equal(text, texts[0]) for text in texts)


def test_tokens_of_a_seed_do_not_depend_on_earlier_calls(pair, monkeypatch, rows_left):
    """Catches noise of another shape after calls with fewer rows, compacting to a size that must first be compiled,
    and a batch that is never compacted."""
    run_untraced(monkeypatch)
    batch = ragged_batch(4)
    ends = decode(pair, {}, batch=batch, max_new_tokens=24).sequences[:3, 11].tolist()
    call = {**SAMPLED, "batch": batch, "max_new_tokens": 24, "eos_token_id": ends, "temperature": 0.7}
    rows_left.clear()

    def sample():
        torch.manual_seed(3)
        return decode(pair, TRACED, **call).sequences

    before = sample()
    for rows in (1, 2):
        decode(pair, TRACED, **call | {"batch": ragged_batch(rows)})
    assert torch.equal(sample(), before)
    assert rows_left == []
    greedy = call | {"do_sample": False, "temperature": None, "top_k": None}
    decode(pair, STATIC, **greedy)
    assert rows_left == [1]
    assert_same(pair, TRACED, **greedy)


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
        return decode(pair, mode, batch=batch, verifier=verifier, max_new_tokens=16).sequences

    expected = list(map(call, range(6)))
    with ThreadPoolExecutor(3) as threads:
        for found, alone in zip(threads.map(call, range(6)), expected):
            assert torch.equal(found, alone)


def test_drafting_stops_at_the_length_limit(pair):
    """Catches drafting far beyond a call's length limit."""
    forwards = []
    counter = pair[1].get_input_embeddings().register_forward_hook(lambda *call: forwards.append(1))
    for gamma, new_tokens in ((1000, 6), (300, 40)):
        call = {"num_assistant_tokens": gamma, "max_new_tokens": new_tokens, "batch": ROW}
        rounds = assert_same(pair, STATIC, **call).stats.num_rounds
        forwards.clear()
        decode(pair, STATIC, **call)
        assert len(forwards) <= 1 + rounds * gamma_for(new_tokens)
    counter.remove()


# What runs uncompiled.


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


# Arguments of a call, the number of its compiled functions, and why not all are compiled.
NOT_COMPILED = {
    "prefix processor": ({"repetition_penalty": 1.3}, 4, ""),
    "lookup": (LOOKUP, 2, ""),
    "reads the text": ({"verifier": NoRepeats(), "batch": ROW}, 3, "NoRepeats reads the text so far"),
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
        stats = assert_same((target, None), TRACED, **LOOKUP).stats
        counts.append(stats.compile.num_compiled)
        assert stats.engine_reason.startswith("extend of LlamaForCausalLM is not compiled: ")
    assert (counts, stats.compile.num_used) == ([1, 0], 1)
    assert caplog.text.count("extend of LlamaForCausalLM is not compiled") == 1


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


def test_a_cpu_compiles_only_on_request(pair, caplog):
    """Catches a first call that compiles without a request, and static shapes reported as compiled."""
    out = decode(pair, {"cache_implementation": "static"})
    assert out.stats.engine == "static"
    assert "is not compiled on cpu unless compile_config= is given" in caplog.text


def test_hooks_run_eagerly(monkeypatch):
    """Catches hooks of the user that compiled code does not run, or runs after their removal."""
    run_untraced(monkeypatch)
    target = adapted_model()
    without = decode((target, None), TRACED, **LOOKUP)
    assert without.stats.engine == "compiled"
    norm = target.get_base_model().model.norm
    handle = norm.register_forward_hook(lambda module, inputs, output: output.roll(1, -1))
    expected, out = (decode((target, None), mode, **LOOKUP) for mode in ({}, TRACED))
    assert (out.stats.engine, out.stats.engine_reason) == ("eager", "the target has forward hooks of the user")
    assert torch.equal(out.sequences, expected.sequences)
    assert not torch.equal(out.sequences, without.sequences)
    handle.remove()
    again = decode((target, None), TRACED, **LOOKUP)
    assert again.stats.compile == hf_diversed.outputs.CompileStats(num_used=2)
    assert torch.equal(again.sequences, without.sequences)


# What later calls compile.


def adapted_model():
    """Return a model of one layer with two adapters, and full dropout in training mode, which is deterministic."""
    (base,) = shallow((tiny_model("llama"),))
    base.config.attention_dropout = base.model.layers[0].self_attn.attention_dropout = 1.0
    lora = LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False, r=4, lora_alpha=64)
    target = get_peft_model(base, lora, adapter_name="one")
    target.add_adapter("two", lora)
    return target.eval()


def disable_adapters(model):
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            module.enable_adapters(False)


def replace_parameter(model):
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().roll(3, 0))


def change_in_place(model):
    with torch.no_grad():
        model.lm_head.weight.copy_(model.lm_head.weight.roll(5, 0))


def tie(model):
    model.lm_head.weight = model.get_input_embeddings().weight


def replace_submodule(model):
    model.model.norm = copy.deepcopy(model.model.norm)


def change_constant(model):
    model.model.layers[0].self_attn.scaling *= -8


# Changes of a model between calls, and whether the next call compiles its forward anew.
CHANGES = {
    "nothing": (lambda model: None, False),
    "parameter changed in place": (change_in_place, False),
    "tied": (tie, True),
    "submodule replaced": (replace_submodule, True),
    "constant of a module": (change_constant, True),
    "adapter switched": (lambda model: model.set_adapter("two"), True),
    "adapters disabled": (disable_adapters, True),
    "training mode": (lambda model: model.train(), True),
}


def test_compiled_functions_follow_changes_of_the_model(monkeypatch):
    """Catches a change that compiled code does not follow, functions that are never used again, and a cache of them
    that keeps the model alive."""
    run_untraced(monkeypatch)
    target = adapted_model()
    assert decode((target, None), TRACED, **LOOKUP).stats.compile.num_compiled == 2
    for name, (change, is_compiled) in CHANGES.items():
        change(target.get_base_model() if "adapter" not in name else target)
        assert decode((target, None), TRACED, **LOOKUP).stats.compile.num_compiled == is_compiled, name
    model = weakref.ref(target)
    del target
    gc.collect()
    assert model() is None


def test_compiled_functions_read_the_tensors_of_the_call(pair):
    """Catches compiled code that keeps a parameter, in the mode in which users often call `generate`."""
    target, texts = copy.deepcopy(pair[0]), []
    with torch.inference_mode():
        for change in (change_in_place, replace_parameter, None):
            expected, out = (decode((target, None), mode, **LOOKUP) for mode in ({}, TRACED))
            assert (out.stats.engine, out.stats.engine_reason) == ("compiled", "")
            assert torch.equal(out.sequences, expected.sequences)
            texts.append(out.sequences.tolist())
            if change is not None:
                change(target)
    assert texts[0] != texts[1] != texts[2]


@contextmanager
def threads():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 7)
        yield


@pytest.mark.parametrize(
    "state", [lambda: default_dtype(torch.float64), threads, torch.inference_mode, lambda: torch.autocast("cpu")]
)
def test_global_settings_compile_anew(pair, state, monkeypatch):
    """Catches generated code that keeps a setting or a mode of its first call."""
    run_untraced(monkeypatch)

    def num_compiled() -> int:
        return decode((pair[0], None), TRACED, **LOOKUP).stats.compile.num_compiled

    assert num_compiled() == 2
    with state():
        assert [num_compiled(), num_compiled()] == [2, 0]
    assert num_compiled() == 0


HEAD = tiny_head()
CASCADE = {"verifier": SpecCascadeVerifier("token_v3", 0.5), **SAMPLED}
# Calls, and the number of functions that each compiles after those before it.
CALLS = {
    "settings of verifiers": (
        [
            {"verifier": verifier}
            for verifier in (
                *(StaticEnsembleVerifier(0.9), StaticEnsembleVerifier(0.1), StaticEnsembleVerifier(0.1)),
                *(DiversedVerifier(HEAD, max_bias=0.1), DiversedVerifier(HEAD, max_bias=0.1, max_ratio=2.0)),
                *(DiversedVerifier(tiny_head(seed=5), max_bias=0.1), "lenience:0.1", "lenience:0.2"),
            )
        ],
        [4, 1, 0, 4, 1, 1, 1, 1],
    ),
    "values per row": (
        [{"verifier": DiversedVerifier(HEAD, strictness=value)} for value in (0.5, 0.3, [0.1, 0.2, 0.8, 0.9])],
        [4, 0, 0],
    ),
    "temperatures": ([{**SAMPLED, "temperature": heat} for heat in (1.0, 0.5, 2.0, 0.5)], [4, 2, 2, 0]),
    "raw logits that are the scores": ([CASCADE | {"temperature": heat} for heat in (1.0, 0.5, 2.0)], [4, 3, 2]),
    "draft lengths": (
        [{"num_assistant_tokens": 16, "max_new_tokens": count, "batch": ROW} for count in (5, 7, 17, 30)],
        [3, 0, 2, 0],
    ),
    "lengths": (
        [{"batch": ragged_batch(1, length=2 + 5 * n, seed=n), "max_new_tokens": 14 - 3 * n} for n in range(4)],
        [4, 0, 0, 0],
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_compile_what_they_lack(pair, name, monkeypatch, caplog):
    """Catches compiled code that keeps a setting of an earlier call, which is a constant in it, a function per value
    or length, and a compilation without a message."""
    run_untraced(monkeypatch)
    calls, expected = CALLS[name]
    stats = [decode(pair, TRACED, **call).stats for call in calls]
    assert [each.compile.num_compiled for each in stats] == expected
    assert {each.engine for each in stats} == {"compiled"}
    assert f"Compiled {expected[0]} functions for LlamaForCausalLM in" in caplog.text
    assert caplog.text.count("Compiled") == sum(count > 0 for count in expected)


def test_a_changed_generation_config_compiles_nothing(pair, monkeypatch):
    """Catches functions that belong to a temporary copy of the model, which calls with stop strings use."""
    run_untraced(monkeypatch)
    target, draft = copy.deepcopy(pair[0]), pair[1]
    decode((target, draft), TRACED)
    target.generation_config.stop_strings = ["never"]
    out = decode((target, draft), TRACED, tokenizer=tokenizer())
    assert (out.stats.engine, out.stats.compile.num_compiled) == ("compiled", 0)


def test_keys():
    """Catches values that are equal but compile differently, and keys that differ between equal models."""
    model = tiny_model("llama")
    assert fingerprint(model) == fingerprint(model)
    assert hash(fingerprint(model)) == hash(fingerprint(model))
    assert fingerprint(model) != fingerprint(copy.deepcopy(model))
    one, true = StaticEnsembleVerifier(1.0), StaticEnsembleVerifier(1.0)
    assert settings_of(one) == settings_of(true)
    true.weight = True
    assert settings_of(one) != settings_of(true)
    module, keys = nn.Linear(1, 1), []
    partial = functools.partial(F.gelu, approximate="tanh")
    for act in (F.gelu, torch.tanh, F.silu, partial, module.extra_repr):
        module.act = act
        keys.append(fingerprint(module))
    module.act = functools.partial(F.gelu, approximate="tanh")
    assert len(set(keys)) == 5
    assert fingerprint(module) == keys[3]
