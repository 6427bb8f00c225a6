"""Changes of models, settings and modes between compiled calls; each call must return the tokens of an eager one."""

import copy
import functools
import gc
import itertools
import weakref
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model, inject_adapter_in_model
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

import hf_diversed
from hf_diversed import DiversedVerifier, StaticEnsembleVerifier
from hf_diversed.generation.compiling import fingerprint, settings_of
from hf_diversed.verifiers import SpecCascadeVerifier
from tests.evaluation.fakes import character_tokenizer
from tests.generation.modes import TRACED, decode, run_untraced, shallow
from tests.tiny import ragged_batch, tiny_draft, tiny_head, tiny_model


pytestmark = pytest.mark.filterwarnings("ignore:Already found a `peft_config`")
# Without a draft model, only the forward of the target and verification are compiled.
TEXT = {name: values.repeat(1, 3) for name, values in ragged_batch(1, length=5).items()}
CALL = {"batch": TEXT, "verifier": "lossless", "max_new_tokens": 10, "num_assistant_tokens": None}
CALL |= {"prompt_lookup_num_tokens": 2, "eos_token_id": None, "pad_token_id": 0}


@pytest.fixture(autouse=True)
def nothing_compiled():
    yield
    hf_diversed.clear_compiled()


def adapted_model():
    """Return a model of one layer with two adapters, and full dropout in training mode, which is deterministic."""
    (target,) = shallow((tiny_model("llama"),))
    target.config.attention_dropout = target.model.layers[0].self_attn.attention_dropout = 1.0
    for name in ("one", "two"):
        lora = LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False, r=4, lora_alpha=64)
        inject_adapter_in_model(lora, target, name)
    for layer in adapters(target):
        layer.set_adapter("one")
    return target


def adapters(model):
    return [module for module in model.modules() if isinstance(module, BaseTunerLayer)]


def for_adapters(method, *arguments):
    return lambda model: [getattr(layer, method)(*arguments) for layer in adapters(model)]


def replace_parameter(model):
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().roll(3, 0))


def tie(model):
    model.lm_head.weight = model.get_input_embeddings().weight


def replace_submodule(model):
    norm = copy.deepcopy(model.model.norm)
    norm.variance_epsilon = 0.9
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(-1, 1, len(norm.weight)))
    model.model.norm = norm


def change_constant(model):
    model.model.layers[0].self_attn.scaling *= -8


def in_place(model):
    with torch.no_grad():
        model.lm_head.weight.copy_(model.lm_head.weight.roll(5, 0))


CHANGES = {
    "adapter switched": for_adapters("set_adapter", "two"),
    "adapters disabled": for_adapters("enable_adapters", False),
    "parameter replaced": replace_parameter,
    "parameter changed in place": in_place,
    "tied": tie,
    "submodule replaced": replace_submodule,
    "constant of a module": change_constant,
    "training mode": lambda model: model.train(),
}


def test_compiled_calls_follow_changes_of_the_model():
    """Catches compiled code that keeps a part of the model: each change is made after a call that compiled."""
    target, texts = adapted_model(), []
    for name in (None, *CHANGES):
        if name is not None:
            CHANGES[name](target)
        expected, out = (decode((target, None), mode, **CALL) for mode in ({}, TRACED))
        assert (out.stats.engine, out.stats.engine_reason) == ("compiled", ""), name
        assert torch.equal(out.sequences, expected.sequences), name
        texts.append(expected.sequences.tolist())
    assert all(before != after for before, after in itertools.pairwise(texts))


def test_a_model_with_hooks_of_the_user_runs_eagerly():
    """Catches a hook that compiled code does not run, or runs after its removal."""
    target = adapted_model()
    without = decode((target, None), TRACED, **CALL)
    handle = target.model.norm.register_forward_hook(lambda module, inputs, output: output.roll(1, -1))
    expected, out = (decode((target, None), mode, **CALL) for mode in ({}, TRACED))
    assert (out.stats.engine, out.stats.engine_reason) == ("eager", "the target has forward hooks of the user")
    assert torch.equal(out.sequences, expected.sequences)
    assert not torch.equal(out.sequences, without.sequences)
    handle.remove()
    again = decode((target, None), TRACED, **CALL)
    assert again.stats.compile == hf_diversed.outputs.CompileStats(num_used=2)
    assert torch.equal(again.sequences, without.sequences)


def test_the_adapter_of_a_call_runs_eagerly():
    """Catches a compiled forward that ignores `adapter_names`, which PEFT passes on by hooks."""
    (base,) = shallow((tiny_model("llama"),))
    lora = LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False, r=4, lora_alpha=64)
    target = get_peft_model(base, lora, adapter_name="one")
    target.add_adapter("two", lora)
    target.eval()
    without = decode((target, None), TRACED, **CALL)
    assert without.stats.engine == "compiled"
    expected, out = (decode((target, None), mode, **CALL, adapter_names=["two"]) for mode in ({}, TRACED))
    assert out.stats.engine_reason == "the target has hooks of PEFT for arguments of this call (adapter_names)"
    assert torch.equal(out.sequences, expected.sequences)
    assert not torch.equal(out.sequences, without.sequences)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode, lambda: torch.autocast("cpu")])
def test_compiled_calls_follow_modes(mode):
    """Catches compiled code that keeps a mode of its first call: autocast, gradients, inference."""
    pair = adapted_model(), None
    for context in (nullcontext, mode, nullcontext):
        with context():
            expected, out = decode(pair, {}, **CALL), decode(pair, TRACED, **CALL)
        assert out.stats.engine == "compiled"
        assert torch.equal(out.sequences, expected.sequences)


def test_global_settings_compile_anew(monkeypatch):
    """Catches generated code that keeps the number of threads or the default dtype."""
    run_untraced(monkeypatch)
    pair = adapted_model(), None

    def is_compiled_anew() -> bool:
        return decode(pair, TRACED, **CALL).stats.compile.num_compiled > 0

    assert [is_compiled_anew(), is_compiled_anew()] == [True, False]
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 7)
        assert [is_compiled_anew(), is_compiled_anew()] == [True, False]
    try:
        torch.set_default_dtype(torch.float64)
        assert [is_compiled_anew(), is_compiled_anew()] == [True, False]
    finally:
        torch.set_default_dtype(torch.float32)
    assert not is_compiled_anew()


def test_a_draft_model_that_shares_the_targets_head(monkeypatch):
    """Catches functions of one model that run with the weights of the other."""
    target, draft = shallow((target := tiny_model("llama"), tiny_draft(target)))
    run_untraced(monkeypatch)
    for _ in range(2):
        expected, out = (decode((target, draft), mode) for mode in ({}, TRACED))
        assert torch.equal(out.sequences, expected.sequences)
        draft.lm_head.weight = target.lm_head.weight


def sample_in_both_modes(pair, verifier, **call):
    """Return an eager and a compiled output with the same random numbers."""
    outs = []
    for mode in ({}, TRACED):
        torch.manual_seed(3)
        call |= {"do_sample": True, "top_k": 0, "max_new_tokens": 24, "batch": ragged_batch(1)}
        outs.append(decode(pair, mode, verifier, **call))
    return outs


def test_compiled_verification_follows_the_weights_of_its_head(pair):
    """Catches verification that keeps the weights of the head of an earlier call."""
    pair, weights = shallow(pair), []
    for seed in (0, 5):
        expected, out = sample_in_both_modes(pair, DiversedVerifier(tiny_head(seed=seed)))
        assert torch.equal(out.sequences, expected.sequences)
        assert out.stats.mean_weight == pytest.approx(expected.stats.mean_weight)
        weights.append(out.stats.mean_weight)
    assert abs(weights[0] - weights[1]) > 1e-3


def test_other_settings_compile_verification_anew(pair, monkeypatch):
    """Catches verification that keeps the settings of an earlier call, which are constants in compiled code."""
    run_untraced(monkeypatch)
    head, counts = tiny_head(), []
    for verifier in (
        StaticEnsembleVerifier(0.9),
        StaticEnsembleVerifier(0.1),
        StaticEnsembleVerifier(0.1),
        DiversedVerifier(head, max_bias=0.1),
        DiversedVerifier(head, max_bias=0.1, max_ratio=2.0),
        "lenience:0.1",
        "lenience:0.2",
    ):
        counts.append(decode(pair, TRACED, verifier).stats.compile.num_compiled)
    assert counts == [4, 1, 0, 4, 1, 1, 1]


def test_verification_follows_whether_raw_logits_are_the_scores(pair):
    """Catches verification that reads the scores in place of raw logits, which are one tensor without processors."""
    pair = shallow(pair)
    for temperature in (1.0, 0.3):
        expected, out = sample_in_both_modes(pair, SpecCascadeVerifier("token_v3", 0.5), temperature=temperature)
        assert torch.equal(out.sequences, expected.sequences)


def test_tokens_of_a_seed_do_not_depend_on_earlier_calls(pair, monkeypatch):
    """Catches noise of another shape after calls with fewer rows."""
    run_untraced(monkeypatch)
    batch = ragged_batch(4)
    ends = decode(pair, {}, batch=batch, max_new_tokens=24).sequences[:3, 11].tolist()
    call = {"do_sample": True, "top_k": 0, "max_new_tokens": 24, "eos_token_id": ends, "temperature": 0.7}

    def sample():
        torch.manual_seed(3)
        return decode(pair, TRACED, **call, batch=batch).sequences

    before = sample()
    for rows in (1, 2):
        decode(pair, TRACED, **call, batch=ragged_batch(rows))
    assert torch.equal(sample(), before)


def test_processors_in_draft_steps_follow_their_settings(pair, monkeypatch):
    """Catches a draft step that keeps the temperature, and one that is compiled for each call."""
    run_untraced(monkeypatch)
    call = {"do_sample": True, "top_k": 0, "max_new_tokens": 24, "batch": ragged_batch(1)}
    used = [decode(pair, TRACED, **call, temperature=heat).stats.compile.num_compiled for heat in (1.0, 0.5, 2.0, 0.5)]
    assert used == [4, 2, 2, 0]


def test_a_changed_generation_config_compiles_nothing(pair, monkeypatch):
    """Catches functions that belong to a temporary copy of the model, which calls with stop strings use."""
    run_untraced(monkeypatch)
    target, draft = copy.deepcopy(pair[0]), pair[1]
    decode((target, draft), TRACED)
    target.generation_config.stop_strings = ["never"]
    out = decode((target, draft), TRACED, tokenizer=character_tokenizer())
    assert (out.stats.engine, out.stats.compile.num_compiled) == ("compiled", 0)


def test_compiled_functions_are_freed_with_their_model(monkeypatch):
    """Catches a cache that keeps models alive."""
    run_untraced(monkeypatch)
    target = adapted_model()
    assert decode((target, None), TRACED, **CALL).stats.compile.num_compiled == 2
    model = weakref.ref(target)
    del target
    gc.collect()
    assert model() is None


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
