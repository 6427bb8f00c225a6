"""When compiled functions are reused, how long they are kept, and which memory they write to."""

import copy
import gc
import logging
import weakref
from collections import Counter

import pytest
import torch
import transformers as tf
from transformers import CompileConfig

import hf_diversed
from hf_diversed import DiversedVerifier, StaticEnsembleVerifier, support
from hf_diversed.engines import compiling, static
from hf_diversed.engines.buffers import pool
from tests.engines.modes import (
    TRACED,
    assert_same,
    decode,
    interrupt,
    keep_functions_untraced,
    run_new_code_untraced,
)
from tests.evaluation.fakes import character_tokenizer
from tests.tiny import ragged_batch, tiny_draft, tiny_head, tiny_model


def test_autocast_strides_and_threads_compile_anew(pair, monkeypatch):
    """Catches generated code that keeps the dtype, strides or number of threads it was compiled for.

    Results are not compared: they differ by rounding.
    """
    pair = tuple(copy.deepcopy(model) for model in pair)
    call = {"num_assistant_tokens": 1, "max_new_tokens": 3, "batch": ragged_batch(1)}
    decode(pair, TRACED, **call)
    keys = run_new_code_untraced(monkeypatch)

    def is_compiled_anew() -> bool:
        keys.clear()
        decode(pair, TRACED, **call)
        return bool(keys)

    assert not is_compiled_anew()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert is_compiled_anew()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        assert is_compiled_anew()
    finally:
        torch.set_num_threads(before)
    assert not is_compiled_anew()
    weight = pair[0].lm_head.weight
    weight.data = weight.data.t().contiguous().t()
    assert is_compiled_anew()


def test_compiled_functions_are_freed_with_their_model():
    """Catches a cache that keeps models alive."""
    target = tiny_model("llama")
    draft = tiny_draft(target)
    assert decode((target, draft), TRACED).stats.compile.num_compiled == 1
    models = [weakref.ref(target), weakref.ref(draft)]
    del target, draft
    gc.collect()
    assert [model() for model in models] == [None, None]


def test_the_least_recently_used_function_is_dropped(pair, monkeypatch):
    """Catches a cache that grows with every batch size, and one that drops functions in use."""
    keep_functions_untraced(monkeypatch)
    monkeypatch.setattr(compiling, "MAX_COMPILED", 2)
    call = {"num_assistant_tokens": 1, "max_new_tokens": 3}
    counts = [decode(pair, TRACED, batch=ragged_batch(rows), **call).stats.compile for rows in (1, 2, 1, 4, 1, 2)]
    assert [count.num_compiled for count in counts] == [1, 1, 0, 1, 0, 1]


def test_dropped_functions_are_freed(pair, monkeypatch):
    """Catches graphs that stay in dynamo's cache after they are dropped here or cleared by the caller."""
    graphs: list[weakref.ref] = []

    def backend(graph, example_inputs):
        graphs.append(weakref.ref(graph))
        return graph.forward

    monkeypatch.setattr(compiling, "MAX_COMPILED", 1)
    mode = {"cache_implementation": "static", "compile_config": CompileConfig(backend=backend)}
    call = {"num_assistant_tokens": 1, "max_new_tokens": 3, "batch": ragged_batch(1)}
    for weight in (0.1, 0.2):
        decode(pair, mode, StaticEnsembleVerifier(weight), **call)
    collect_garbage()
    assert [graph() is None for graph in graphs] == [True, False]
    hf_diversed.clear_compiled()
    collect_garbage()
    assert [graph() is None for graph in graphs] == [True, True]


def test_dropped_functions_leave_no_records_of_dynamo(pair):
    """Catches guards that finalizers keep alive, and fake tensors of views, which garbage collection does not find."""

    def compile_and_drop() -> dict[str, int]:
        call = {"num_assistant_tokens": 1, "max_new_tokens": 3, "batch": ragged_batch(3)}
        assert decode(pair, TRACED, **call).stats.compile.num_compiled == 1
        hf_diversed.clear_compiled()
        collect_garbage()
        names = Counter(type(each).__name__ for each in gc.get_objects())
        return {name: names[name] for name in ("FakeTensor", "CheckFunctionManager")}

    logging.disable()  # pytest keeps log records, some of which refer to fake tensors
    try:
        assert compile_and_drop() == compile_and_drop()
    finally:
        logging.disable(logging.NOTSET)


def collect_garbage() -> None:
    """Collect twice: the first collection frees functions, whose graphs are separate cycles."""
    gc.collect()
    gc.collect()


def dynamic_rope_pair(pair):
    """A pair with dynamic-NTK rotary embeddings, which compare positions on the host and cannot be traced."""
    config = copy.deepcopy(pair[0].config)
    config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    target = type(pair[0])(config).eval()
    target.load_state_dict(pair[0].state_dict())
    target.generation_config = pair[0].generation_config
    return target, tiny_draft(target)


def test_a_model_that_cannot_be_traced_runs_uncompiled(pair, caplog):
    """Catches a call that ends in dynamo's error, a warning per call, and one that does not name the model."""
    pair = dynamic_rope_pair(pair)
    engines = []
    for _ in range(2):
        stats = assert_same(pair, TRACED).stats
        engines.append(stats.engine)
        assert "torch.compile cannot trace LlamaForCausalLM" in stats.engine_reason
    assert engines == ["static (forwards)", "eager"]
    assert caplog.text.count("cannot trace LlamaForCausalLM") == 1


def test_a_setting_that_changes_during_a_call(pair):
    """Catches guards that are checked once per call although user code runs between the rounds."""
    verifier = StaticEnsembleVerifier(1.0)

    class Relaxing(tf.StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            verifier.weight = 1.0 if input_ids.shape[1] < 14 else 0.0
            return torch.zeros(len(input_ids), dtype=torch.bool)

    call = {"verifier": verifier, "stopping_criteria": tf.StoppingCriteriaList([Relaxing()]), "batch": ragged_batch(1)}
    call |= {"num_assistant_tokens": 1, "max_new_tokens": 30}
    expected = decode(pair, {}, **call)
    verifier.weight = 1.0
    out = decode(pair, TRACED, **call)
    assert torch.equal(out.sequences, expected.sequences)
    assert out.stats.num_accepted == expected.stats.num_accepted
    assert out.stats.compile.num_recompiled == 1


def test_stop_strings_of_the_generation_config_compile_once(pair):
    """Catches functions that belong to a temporary copy of the model, which such a call uses."""
    target = copy.deepcopy(pair[0])
    target.generation_config.stop_strings = ["never"]
    call = {"num_assistant_tokens": 1, "tokenizer": character_tokenizer()}
    calls = [decode((target, pair[1]), TRACED, **call) for _ in range(2)]
    assert [call.stats.compile.num_compiled for call in calls] == [1, 0]


def test_views_share_the_key_of_their_model(pair, monkeypatch):
    """Catches functions with hidden states that later calls do not recognise as compiled."""
    model = pair[0]
    for view in (support.recording_view(model), copy.copy(model)):
        assert support.weak_key(view) is model.get_input_embeddings()
        assert support.weak_key(support.recording_view(view)) is model.get_input_embeddings()
    keep_functions_untraced(monkeypatch)
    for _ in range(2):
        decode(pair, TRACED, DiversedVerifier(tiny_head(features="both")))
    assert {len(function.labels) for function in compiling._compiled[model.get_input_embeddings()]} == {1}


def test_modes_of_inductor():
    """Catches a mode of None, which transformers accepts, passed as the table of all modes."""
    assert compiling._options(CompileConfig(mode=None)) == compiling._options(CompileConfig(mode="default"))


@pytest.fixture
def replaying(monkeypatch):
    """Treat the CPU as if functions were CUDA graphs: buffers come from the pool, results are copied."""
    keep_functions_untraced(monkeypatch)
    monkeypatch.setattr(compiling, "replays", lambda config: True)
    monkeypatch.setattr(compiling, "REPLAYING_DEVICES", ("cpu",))


@pytest.fixture
def borrowed(monkeypatch):
    """The buffers that calls borrow from an empty pool, in order."""
    pool.clear()
    found, borrow = [], pool.borrow
    monkeypatch.setattr(pool, "borrow", lambda *args: found.append(borrow(*args)) or found[-1])
    return found


def test_replayed_graphs_use_the_same_buffers(pair, replaying, borrowed):
    """Catches buffers at an address that a recorded graph does not use, and a buffer that is used twice."""
    assert_same(pair, TRACED)
    assert_same(pair, TRACED, batch=ragged_batch(length=13))
    first, second = ([each.keys[0].data_ptr() for each in borrowed[start : start + 2]] for start in (0, 2))
    assert first == second
    assert first[0] != first[1]


def test_an_interrupted_call_returns_its_buffers(pair, replaying, borrowed):
    """Catches buffers that only a call without an error returns."""
    for _ in range(3):
        interrupt(pair, TRACED)
    assert len(borrowed) == 6
    assert len({id(buffers) for buffers in borrowed}) == 2


def test_buffers_of_inference_mode_are_not_lent_outside(pair, replaying):
    """Catches inference tensors that a call outside of inference mode cannot write to."""
    with torch.inference_mode():
        decode(pair, TRACED)
    assert_same(pair, TRACED)


def test_results_of_a_replay_are_copied(pair, replaying, monkeypatch):
    """Catches statistics in memory that the next round overwrites."""
    tensors: list = []
    original = static.StaticEngine.run_round

    def overwriting(self, *args):
        for tensor in tensors:
            tensor.zero_()
        round = original(self, *args)
        tensors[:] = [round.verdict.trace.weight, round.num_drafted]
        return round

    monkeypatch.setattr(static.StaticEngine, "run_round", overwriting)
    expected = decode(pair, {}, StaticEnsembleVerifier(0.4))
    out = decode(pair, TRACED, StaticEnsembleVerifier(0.4))
    assert out.stats.mean_weight == pytest.approx(expected.stats.mean_weight)
    assert torch.equal(out.sequences, expected.sequences)
