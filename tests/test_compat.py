"""One test per assumption about transformers and peft; a failure here identifies what a release changed."""

import inspect
from pathlib import Path
from types import SimpleNamespace

import peft
import pytest
import torch
import transformers as tf
from transformers.cache_utils import LinearAttentionLayer
from transformers.generation import logits_process as lp
from transformers.masking_utils import LAYER_PATTERN_TO_MASK_FUNCTION_MAPPING, create_masks_for_generate

from hf_diversed import support
from hf_diversed.cache import RaggedCache
from hf_diversed.generation import checks
from tests import tiny, versions


ROOT = Path(__file__).parents[1]
# peft 0.21 reads `is_gradient_checkpointing`, deprecated in transformers 5.23 (peft_model.py, PeftModel.__init__).
peft_asks_for_a_deprecated_name = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)


@pytest.fixture(scope="module")
def llama():
    return tiny.tiny_model("llama")


@pytest.fixture(scope="module", params=tiny.ARCHITECTURES)
def model(request):
    return tiny.tiny_model(request.param, attention="eager" if request.param in tiny.EAGER_ONLY else "sdpa")


def prepared(model, **kwargs):
    """Return the arguments that `generate` passes to a custom loop."""
    seen = {}

    def loop(model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs):
        seen.update(config=generation_config, criteria=stopping_criteria, kwargs=model_kwargs)
        return input_ids

    model.generate(**{**tiny.ragged_batch(2, 6), "max_new_tokens": 3, **kwargs}, custom_generate=loop)
    return seen


@versions.since("5.23", "has no layer with recurrent states")
def test_states_to_restore_are_all_that_a_recurrent_layer_has():
    """Breaks `RaggedCache.copy_recurrent_states`, which would not restore a new kind of state."""
    constants = {"number_of_states", "device", "dtype", "record_past", "conv_kernel_size"}
    flags = {"is_conv_states_initialized", "is_recurrent_states_initialized", "has_previous_state"}
    assert set(vars(LinearAttentionLayer(1))) == {"conv_states", "recurrent_states", *flags, *constants}


def test_masks_are_those_transformers_would_build(model, monkeypatch):
    """Breaks `mask_windows`: dict or single mask, its keys, and the visible keys, for every architecture."""
    config, (batch, length) = support.text_config(model), (2, 20)
    attention_mask = torch.ones(batch, length, dtype=torch.long)
    attention_mask[1, :3] = 0
    with monkeypatch.context() as patch:
        patch.setattr(config, "_attn_implementation", "eager")  # sdpa omits masks it does not need
        theirs = create_masks_for_generate(config, torch.zeros(batch, length, 32), attention_mask, None)
    cache = RaggedCache(1, length, attention_mask.bool(), support.mask_windows(model))
    ours = cache.mask(cache.open(torch.zeros(batch, dtype=torch.long), 0, 0, length), torch.float32)
    assert isinstance(ours, dict) == isinstance(theirs, dict)
    if not isinstance(ours, dict):
        ours, theirs = {"all": ours}, {"all": theirs}
    assert ours.keys() == theirs.keys()
    for kind in ours:
        real = attention_mask.bool()[:, None]  # masks of padding queries may differ
        torch.testing.assert_close(ours[kind][real.expand(ours[kind].shape[:3])], theirs[kind][real])


def test_requirement_covers_exactly_the_tested_releases():
    """Catches a cap that was raised without the tests' version, so that users get a release that was not tested."""
    oldest, newest = support.TESTED_TRANSFORMERS.split(" to 5.")
    assert f'"transformers>={oldest},<5.{int(newest) + 1}",' in (ROOT / "pyproject.toml").read_text()
    assert f"transformers==5.{newest}." in (ROOT / "constraints.txt").read_text()
    assert f"transformers=={oldest}\n" in (ROOT / "constraints-oldest.txt").read_text()


def test_forward_and_config_of_every_architecture(model):
    """Breaks `RaggedModel` and the facts about a model: 4D masks with positions and a foreign cache, `logits_to_keep`,
    the last hidden state, and entries with another name in an old or a nested config."""
    parameters = inspect.signature(model.forward).parameters
    assert {"input_ids", "attention_mask", "position_ids", support.CACHE_ARGUMENT, "use_cache"} <= set(parameters)
    ids = tiny.ragged_batch(1, 7)["input_ids"]
    keep = {"logits_to_keep": 2} if support.logits_to_keep(model) != "all" else {}
    with torch.no_grad():
        out = model(ids, use_cache=True, output_hidden_states=True, **keep)
    assert out.logits.shape == (1, 2 if keep else 7, support.vocab_size(model))
    assert out.hidden_states[-1].shape == (1, 7, support.hidden_width(model))
    assert len(out[support.CACHE_ARGUMENT].layers) == support.num_layers(model) == 2
    assert support.attention_implementation(model) in support.MASKED_ATTENTION
    assert set(support.layer_types(model)) <= support.LAYER_TYPES
    refuse_model(model)


def refuse_model(model):
    """Raise the error of a call with this target, if its model is not supported."""
    checks.refuse(SimpleNamespace(models=[("target", model)], model=model, draft=None), checks.MODELS)


def test_layer_types_known_to_transformers():
    """Breaks the rejection of layers that cannot be rolled back: a new kind needs a review before it is supported."""
    kinds = set(LAYER_PATTERN_TO_MASK_FUNCTION_MAPPING)
    assert kinds >= support.LAYER_TYPES
    assert {"chunked_attention", "linear_attention"} <= kinds - support.LAYER_TYPES
    config = tf.LlamaConfig(num_hidden_layers=1)
    for kind in kinds - support.LAYER_TYPES:
        model = tiny.tiny_model("llama")
        model.config.layer_types = [kind, "full_attention"]
        with pytest.raises(ValueError, match=kind):
            refuse_model(model)
    assert not hasattr(config, "layer_types")  # otherwise `mask_windows` would return a dict for every Llama


@pytest.mark.parametrize("tokens", [3, pytest.param(0, marks=versions.since("5.17", "marks no cache"))])
def test_user_caches_are_told_from_those_of_generate(llama, tokens):
    """Breaks the rejection of `past_key_values`: `generate` creates an empty cache, and marks the caller's."""
    assert not support.is_user_cache(prepared(llama)["kwargs"].get(support.CACHE_ARGUMENT))
    assert not support.is_user_cache(prepared(llama, cache_implementation="static")["kwargs"][support.CACHE_ARGUMENT])
    mine = tf.DynamicCache(config=llama.config)
    if tokens:
        with torch.no_grad():
            llama(tiny.ragged_batch(2, tokens)["input_ids"], **{support.CACHE_ARGUMENT: mine})
    given = prepared(llama, **{support.CACHE_ARGUMENT: mine})
    assert support.is_user_cache(given["kwargs"][support.CACHE_ARGUMENT])


@pytest.mark.parametrize(("pad", "eos", "expected"), [(0, [7, 8], 0), (None, [7, 8], 7), (None, None, 0)])
def test_pad_id(llama, pad, eos, expected, monkeypatch):
    """Breaks padding of finished rows: the prepared pad id is in a private entry of the generation config."""
    monkeypatch.setattr(llama, "generation_config", tf.GenerationConfig(pad_token_id=pad, eos_token_id=eos))
    assert support.pad_token_id(prepared(llama)["config"]) == expected


def test_entries_of_a_generation_config(llama, tmp_path):
    """Breaks "was it set": a default that `generate` or the constructor fills in looks like a user's choice, or an
    entry of ours is not kept and saved for clients that can only send JSON."""
    config = prepared(llama)["config"]
    assert config.num_assistant_tokens == 20
    assert support.explicit_entry(config, "num_assistant_tokens") is None
    config = prepared(llama, generation_config=tf.GenerationConfig(num_assistant_tokens=7))["config"]
    assert support.explicit_entry(config, "num_assistant_tokens") == 7
    tf.GenerationConfig(diversed_strictness=0.3).save_pretrained(tmp_path)
    loaded = support.entries(tf.GenerationConfig.from_pretrained(tmp_path))
    assert loaded["diversed_strictness"] == 0.3
    assert "diversed_max_bias" not in loaded


@peft_asks_for_a_deprecated_name
def test_peft_wrappers():
    """Breaks PEFT targets and drafts: the inner model, the adapter's kind, the attribute `PeftModel.generate` sets."""
    lora = peft.get_peft_model(tiny.tiny_model("llama"), peft.LoraConfig(task_type="CAUSAL_LM", r=2))
    assert type(support.base_model(lora)) is tf.LlamaForCausalLM
    assert support.prompt_learning_adapter(lora) is None
    assert support.num_layers(lora) == 2
    assert support.hidden_width(lora) == 32
    assert support.logits_to_keep(lora) == "index"

    prompt = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    wrapped = peft.get_peft_model(tiny.tiny_model("llama"), prompt)
    assert "PROMPT_TUNING" in support.prompt_learning_adapter(wrapped)
    inner = support.base_model(wrapped)
    inner.prepare_inputs_for_generation = wrapped.prepare_inputs_for_generation  # as `PeftModel.generate` does
    assert "PROMPT_TUNING" in support.prompt_learning_adapter(inner)
    assert "prepare_inputs_for_generation = self.prepare_inputs_for_generation" in inspect.getsource(
        peft.PeftModelForCausalLM.generate
    )


def test_pointwise_processors_are_pointwise():
    """Breaks processing of a whole block: a processor that reads the ids or neighbouring rows, or writes in place."""
    processors = [
        lp.TemperatureLogitsWarper(0.7),
        lp.TopKLogitsWarper(3),
        lp.TopPLogitsWarper(0.6),
        lp.MinPLogitsWarper(0.1),
        lp.TypicalLogitsWarper(0.5),
        lp.EpsilonLogitsWarper(0.03),
        lp.EtaLogitsWarper(0.03),
        lp.SuppressTokensLogitsProcessor([3, 5]),
        lp.InfNanRemoveLogitsProcessor(),
        lp.LogitNormalization(),
    ]
    assert {type(processor) for processor in processors} == support.POINTWISE_PROCESSORS
    generator = torch.Generator().manual_seed(0)
    for processor in processors:
        given = 3 * torch.randn(6, 11, generator=generator)
        if isinstance(processor, lp.InfNanRemoveLogitsProcessor):
            given[2, 4], given[3, 1] = torch.inf, torch.nan
        scores = given.clone()
        together = processor(torch.zeros(6, 1, dtype=torch.long), scores)
        torch.testing.assert_close(scores, given, equal_nan=True, atol=0, rtol=0)
        assert not torch.equal(together, given)
        for row in range(6):
            ids = torch.randint(11, (1, 7), generator=generator)
            torch.testing.assert_close(processor(ids, given[row : row + 1])[0], together[row])
