"""Rounds over static shapes, compiled and not, against the eager engine."""

import copy
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
import transformers as tf
from transformers.models.mllama.configuration_mllama import MllamaTextConfig

import hf_diversed
from hf_diversed import DiversedVerifier, LosslessVerifier, StaticEnsembleVerifier, diversed_decoding
from hf_diversed.engines import buffers, static
from hf_diversed.verifiers.mixture import MixtureVerifier, Weights
from tests.engines.modes import (
    COMPILED,
    SMALL,
    STATIC,
    TRACED,
    assert_same,
    decode,
    interrupt,
    keep_functions_untraced,
    run_new_code_untraced,
    shallow,
)
from tests.tiny import (
    ARCHITECTURES,
    EAGER_ONLY,
    EOS,
    VOCAB_SIZE,
    Listener,
    ragged_batch,
    tiny_draft,
    tiny_head,
    tiny_model,
)


TRACED_ARCHITECTURES = ("qwen3", "gemma3_text", "mistral", "gpt_oss")


def pair_of(architecture: str):
    target = tiny_model(architecture, attention="eager" if architecture in EAGER_ONLY else "sdpa")
    return target, tiny_draft(target)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_static_shapes_change_no_token(architecture):
    """Catches masks, windows and positions that are correct for growing shapes only, and reads of padding rows."""
    pair = pair_of(architecture)
    repeated = {name: values[[1, 0, 1]] for name, values in ragged_batch(2).items()}
    batches = [repeated]
    # Full, sliding and eager attention, learned positions.
    if architecture in ("llama", "gemma3_text", "gpt_oss", "gpt2"):
        batches += [ragged_batch(1), ragged_batch(8)]
    for batch in batches:
        out = assert_same(pair, STATIC, batch=batch, max_new_tokens=14, num_assistant_tokens=5)
        assert out.stats.engine == "static"


def test_layers_without_keys_and_values():
    """Catches a layer that is taken for a filled one, such as cross-attention of Mllama without an image."""
    sizes = {"num_hidden_layers": 3, "cross_attention_layers": [1], "num_key_value_heads": 2, "hidden_size": 32}
    sizes |= {"num_attention_heads": 4, "intermediate_size": 48, "pad_token_id": 0, "eos_token_id": EOS}
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    config = MllamaTextConfig(vocab_size=VOCAB_SIZE, rope_parameters=rope, **sizes)
    target = tiny_model(lambda: tf.MllamaForCausalLM(config))
    assert assert_same((target, tiny_draft(target)), STATIC).stats.engine == "static"


@pytest.mark.parametrize("architecture", TRACED_ARCHITECTURES)
def test_compiling_changes_no_token(architecture):
    """Catches constants that should be inputs, lost writes, and branches that are fixed at tracing."""
    out = assert_same(pair_of(architecture), TRACED)
    assert out.stats.engine == "compiled"
    assert out.stats.compile.num_compiled == 1


def test_models_do_not_run_each_others_code():
    """Catches a target that, in a round without draft tokens, runs code compiled for a draft step."""
    target, draft = pair_of("llama")
    del draft.model.layers[1:]
    draft.config.num_hidden_layers = 1
    assert target.config.num_hidden_layers > 1
    for new_tokens in range(3, 8):
        call = {"batch": ragged_batch(1), "max_new_tokens": new_tokens, "num_assistant_tokens": 3}
        out = assert_same((target, draft), TRACED, **call, no_repeat_ngram_size=4)
        assert out.stats.engine == "compiled (forwards)"


def test_hooks_with_a_state(pair):
    """Catches a user's hook whose state is a constant of the compiled round."""
    texts = []

    for mode in ({}, TRACED):
        calls: list[int] = []

        def roll(module, inputs, output, calls=calls):
            calls.append(1)
            return output.roll(len(calls) % 5, -1)

        handle = pair[0].model.norm.register_forward_hook(roll)
        call = {"batch": ragged_batch(1), "num_assistant_tokens": 1, "max_new_tokens": 4}
        out = decode(pair, mode, **call, eos_token_id=None, pad_token_id=0)
        handle.remove()
        assert out.stats.engine == ("compiled" if mode else "eager")
        texts.append(out.sequences)
    assert torch.equal(*texts)


def test_inductor_changes_no_token():
    """Catches writes to the caches that generated code loses. The only test with inductor."""
    pair = pair_of("llama")
    out = assert_same(pair, COMPILED, batch=ragged_batch(2))
    assert (out.stats.engine, out.stats.compile.num_compiled) == ("compiled", 1)
    again = assert_same(pair, COMPILED, batch=ragged_batch(2, length=15, seed=4), max_new_tokens=40)
    assert again.stats.compile == hf_diversed.outputs.CompileStats(num_used=1)


def test_many_calls_compile_once(pair):
    """Catches a function per prompt length, and a silent fallback."""
    decode(pair, TRACED, batch=ragged_batch(1, length=5))
    functions, engines = 0, set()
    for seed in range(60):
        batch = ragged_batch(1, length=2 + seed % 60, seed=seed)
        out = decode(pair, TRACED, batch=batch, max_new_tokens=2 + seed % 4)
        engines.add(out.stats.engine)
        functions += out.stats.compile.num_compiled + out.stats.compile.num_recompiled
    assert (functions, engines) == (0, {"compiled"})


@pytest.mark.parametrize("mode", [STATIC, TRACED], ids=["static", "traced"])
def test_a_text_that_outgrows_its_buffers(mode):
    """Catches contents that are lost when buffers grow."""
    for each in (long_pair := shallow(pair_of("llama"))):
        each.config.max_position_embeddings = 512
    out = assert_same(long_pair, mode, batch=ragged_batch(2, length=249), max_new_tokens=12)
    assert out.stats.compile.num_compiled in (0, 2)


def test_last_rounds_at_every_distance_from_the_edge_of_the_buffers():
    """Catches positions cropped at the edge."""
    for each in (pair := pair_of("llama")):
        each.config.max_position_embeddings = 512
    for new_tokens in range(1, 9):
        assert_same(pair, STATIC, batch=ragged_batch(1, length=250), max_new_tokens=new_tokens)


CALLS = {
    "strictness per row": {
        "verifier": lambda: DiversedVerifier(tiny_head(), strictness=[0.1, 0.5, 0.7, 1.0], max_bias=0.3)
    },
    "end inside a block": {"eos_token_id": [EOS, 9, 17, 33, 41, 57], "max_new_tokens": 30},
    "suppressed": {"suppress_tokens": [5, 6, 7, 20]},
}


@pytest.mark.parametrize("mode", [STATIC, TRACED], ids=["static", "traced"])
def test_token_records_are_the_same(pair, mode):
    """Catches a compiled round without the emitted distribution, and TV(v, p) estimated instead of computed."""
    by_token = tiny_head(features="distribution", token_features=True)
    call = {"output_token_records": True, "do_sample": True, "top_k": 0, "batch": ragged_batch(1), "max_new_tokens": 8}
    for verifier in (StaticEnsembleVerifier(0.4), DiversedVerifier(by_token)):
        records = []
        for each in ({}, mode):
            torch.manual_seed(0)
            records.append(decode(pair, each, verifier, **call).token_records)
        expected, found = records
        assert torch.equal(found.tokens, expected.tokens)
        for name in ("log_prob", "bias", "p", "q"):
            assert torch.allclose(getattr(found, name), getattr(expected, name), atol=1e-5, equal_nan=True), name


@pytest.mark.parametrize("mode", [STATIC, TRACED], ids=["static", "traced"])
@pytest.mark.parametrize("name", CALLS)
def test_options_of_a_call(pair, mode, name):
    """Catches settings, state, EOS ids and processors that a compiled round keeps from its first call."""
    call = dict(CALLS[name])
    make = call.pop("verifier", lambda: None)
    expected, out = decode(pair, {}, make(), **call), decode(pair, mode, make(), **call)
    assert torch.equal(out.sequences, expected.sequences)
    assert out.stats.mean_weight == pytest.approx(expected.stats.mean_weight, nan_ok=True, abs=1e-5)
    assert out.stats.mean_bias == pytest.approx(expected.stats.mean_bias, nan_ok=True, abs=1e-5)


def test_all_strictness_values_share_a_function(pair):
    """Catches one compiled function per value of a setting."""
    counts = []
    for strictness in (0.5, 0.3, [0.1, 0.2, 0.8, 0.9]):
        verifier = DiversedVerifier(tiny_head(), strictness=strictness)
        out = assert_same(pair, TRACED, verifier=verifier, num_assistant_tokens=1)
        counts.append(out.stats.compile.num_compiled)
    assert counts == [1, 0, 0]


FORWARDS_ONLY = {
    "prefix processor": {"repetition_penalty": 1.3},
    "caller's verifier": {},
    "lookup": {"prompt_lookup_num_tokens": 2, "num_assistant_tokens": None},
}


class NoRepeats(LosslessVerifier):
    """Rejects every draft token that the row already contains."""

    def __call__(self, input_ids, draft, target):
        verdict = super().__call__(input_ids, draft, target)
        repeated = (draft.tokens[..., None] == input_ids[:, None]).any(-1)
        verdict.accept_prob = verdict.accept_prob * ~repeated
        return verdict


@pytest.mark.parametrize("mode", [STATIC, TRACED], ids=["static", "traced"])
@pytest.mark.parametrize("name", FORWARDS_ONLY)
def test_what_cannot_be_compiled_runs_between_compiled_forwards(pair, mode, name):
    """Catches a verifier that receives two ids instead of the text, and processors that receive another prefix."""
    target, draft = pair
    settings = dict(FORWARDS_ONLY[name])
    if name == "caller's verifier":
        settings["batch"] = ragged_batch(1)  # in a batch, its text would include the padding
    verifier = NoRepeats() if name == "caller's verifier" else LosslessVerifier()
    draft = None if name == "lookup" else draft
    if draft is None:
        text = ragged_batch(2)["input_ids"][:, -4:]
        settings["batch"] = {"input_ids": text.repeat(1, 3), "attention_mask": torch.ones_like(text).repeat(1, 3)}
    out = assert_same((target, draft), mode, verifier=verifier, **settings)
    assert out.stats.engine == ("static (forwards)" if mode is STATIC else "compiled (forwards)")
    assert out.stats.compile.num_used <= (0 if mode is STATIC else 4)


class Peeking(MixtureVerifier):
    """Branches on a number on the host, which cannot be traced."""

    def weights(self, draft, target, row_values):
        return Weights(torch.ones(draft.tokens.shape) if target.top.max() > 0 else torch.zeros(draft.tokens.shape))


def test_a_verifier_that_cannot_be_traced_is_reported(pair, caplog, monkeypatch):
    """Catches a call that ends in the compiler's error, a silent fallback, and an attempt in every call."""
    out = assert_same(pair, TRACED, verifier=Peeking())
    assert out.stats.engine == "compiled (forwards)"
    assert "Peeking or a processor cannot be compiled" in caplog.text
    keys = run_new_code_untraced(monkeypatch)
    again = assert_same(pair, TRACED, verifier=Peeking()).stats
    assert (again.engine, again.engine_reason, keys) == ("compiled (forwards)", out.stats.engine_reason, [])
    assert assert_same(pair, TRACED).stats.engine == "compiled"


def test_scores_records_and_streams(pair):
    """Catches requested outputs that a compiled round omits."""
    call = {"output_scores": True, "output_logits": True, "output_token_records": True}
    expected, out = decode(pair, {}, **call), decode(pair, TRACED, **call)
    torch.testing.assert_close(torch.stack(out.scores), torch.stack(expected.scores), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(torch.stack(out.logits), torch.stack(expected.logits), atol=1e-4, rtol=1e-4)
    for name in ("tokens", "source", "relaxed", "weight", "p", "q", "tv"):
        mine, theirs = getattr(out.token_records, name), getattr(expected.token_records, name)
        torch.testing.assert_close(mine, theirs, equal_nan=True, atol=1e-4, rtol=1e-4)

    listener = Listener()
    text = decode(pair, STATIC, streamer=listener, batch=ragged_batch(1), return_dict_in_generate=False)
    assert listener.tokens == text[0].tolist()
    streamed = torch.cat([records.tokens[0] for records, _ in listener.rounds])
    assert torch.equal(streamed, text[0, 9:])


@pytest.mark.parametrize(("mode", "engine"), [({}, "eager"), (STATIC, "static"), (TRACED, "compiled")])
def test_calls_after_an_interrupted_call(pair, mode, engine):
    """Catches state of an interrupted call that later calls use."""
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

    expected = list(map(call, range(12)))
    with ThreadPoolExecutor(4) as threads:
        for found, alone in zip(threads.map(call, range(12)), expected):
            assert torch.equal(found, alone)


def test_criteria(pair):
    """Catches criteria that receive ids without those of the last round."""
    stop = tf.StoppingCriteriaList([partial(_contains, token=int(decode(pair, {}).sequences[0, 14]))])
    assert_same(pair, STATIC, stopping_criteria=stop)


def _contains(input_ids, scores, token: int):
    return (input_ids[:, 9:] == token).any(dim=-1)


def test_batches_are_compacted_to_compiled_sizes_only(pair, monkeypatch):
    """Catches compacting to a size that must first be compiled, and a batch that is never compacted."""
    keep_functions_untraced(monkeypatch)
    batch = ragged_batch(4)
    ends = decode(pair, {}, batch=batch, max_new_tokens=24).sequences[:3, 11].tolist()
    call = {"batch": batch, "eos_token_id": ends, "max_new_tokens": 24}
    assert assert_same(pair, TRACED, **call).stats.compile.num_used == 1
    decode(pair, TRACED, **{**call, "batch": ragged_batch(1)})
    assert assert_same(pair, TRACED, **call).stats.compile.num_used == 2


def test_deep_models_run_in_parts(pair, monkeypatch):
    """Catches parts that do not add up to the round: a step of two tokens, a step of one, and verification."""
    monkeypatch.setattr(static, "MAX_LAYERS", 0)
    assert assert_same(pair, STATIC, verifier=DiversedVerifier(tiny_head())).stats.compile.num_used == 0
    assert assert_same(pair, TRACED).stats.compile.num_used == 3


def test_what_static_shapes_cannot_serve_is_reported(pair, caplog):
    """Catches a fallback without its reason, and a warning for the first of several models only."""
    target, draft = pair
    out = decode(pair, STATIC, batch={"input_ids": torch.tensor([[5]])})
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
        assert len(forwards) <= 1 + rounds * buffers.gamma_for(new_tokens)
    counter.remove()
    monkeypatch.setattr(static, "MAX_LAYERS", 0)  # draft tokens are compiled one by one
    call = {"num_assistant_tokens": 16, "batch": ragged_batch(1)}
    counts = [
        decode(pair, TRACED, **call, max_new_tokens=count).stats.compile.num_compiled for count in (5, 7, 17, 30)
    ]
    assert counts == [3, 0, 1, 0]


@pytest.mark.parametrize("rows", [1, 3])
def test_one_seed_draws_the_same_text_over_static_shapes(pair, rows):
    """Catches random numbers drawn for draft tokens beyond the rows' length limit."""
    call = {"do_sample": True, "top_k": 0, "eos_token_id": None, "pad_token_id": 0, "batch": ragged_batch(rows)}
    for seed in range(20):
        texts = []
        for mode in ({}, STATIC):
            torch.manual_seed(seed)
            texts.append(decode(pair, mode, **call, max_new_tokens=10 + seed % 5).sequences)
        assert torch.equal(*texts)


def test_a_cpu_compiles_only_on_request(pair, caplog):
    """Catches a first call that compiles without a request, and static shapes reported as compiled."""
    out = decode(pair, {"cache_implementation": "static"})
    assert out.stats.engine == "static"
    assert "is not compiled on cpu unless compile_config= is given" in caplog.text


def test_without_the_hook(pair):
    """Catches an engine that can be chosen only through the patched `generate`."""
    target, draft = pair
    loop = partial(diversed_decoding, assistant_model=draft, verifier=StaticEnsembleVerifier(0.6))
    out = target.generate(**ragged_batch(), custom_generate=loop, **{**SMALL, **STATIC})
    assert out.stats.engine == "static"
