"""All facts about models, logits processors and releases of transformers: tables first, then functions.

`make test-newest` fails if a release of transformers changes one of the internals that this module reads.
"""

import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import transformers
from packaging.version import Version
from torch import nn
from torch.nn.modules import module as _module
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import logits_process as lp
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList


# --- Releases ---
RELEASE = Version(transformers.__version__).release
_MARKS_USER_CACHES = RELEASE >= (5, 17)

TESTED_TRANSFORMERS = "5.16.1 to 5.24"  # as in pyproject.toml

# Argument of a model's forward for its cache, and all names that `generate` accepts for it.
CACHE_ARGUMENT = "cache" if RELEASE >= (5, 24) else "past_key_values"
CACHE_NAMES = ("cache", "past_key_values")

# --- Logits processors ---

# Processors that reshape a distribution. The tokens they remove depend on the scores, not on the prefix.
WARPERS = frozenset(
    {
        lp.TemperatureLogitsWarper,
        lp.TopKLogitsWarper,
        lp.TopPLogitsWarper,
        lp.MinPLogitsWarper,
        lp.TypicalLogitsWarper,
        lp.EpsilonLogitsWarper,
        lp.EtaLogitsWarper,
        lp.TopHLogitsWarper,
    }
)

# Processors of single positions. They use neither prefix nor row, so one call processes a whole block. Top-h is not
# included, as compiling it has not been tested.
POINTWISE_PROCESSORS = (WARPERS - {lp.TopHLogitsWarper}) | {
    lp.SuppressTokensLogitsProcessor,
    lp.InfNanRemoveLogitsProcessor,
    lp.LogitNormalization,
}

# Processors that read the prefix of a row, but not its index or other rows; a repetition penalty may have one number
# of ignored tokens per row.
ROWWISE_PROCESSORS = frozenset(
    {
        lp.RepetitionPenaltyLogitsProcessor,
        lp.NoRepeatNGramLogitsProcessor,
        lp.NoBadWordsLogitsProcessor,
        lp.SequenceBiasLogitsProcessor,
        lp.MinLengthLogitsProcessor,
        lp.MinNewTokensLengthLogitsProcessor,
        lp.ForcedBOSTokenLogitsProcessor,
        lp.ForcedEOSTokenLogitsProcessor,
        lp.SuppressTokensAtBeginLogitsProcessor,
        lp.ExponentialDecayLengthPenalty,
    }
)

# Processors that call a model, count calls or are for other modalities: wrong for rows of different lengths.
REFUSED_PROCESSORS = {
    lp.UnbatchedClassifierFreeGuidanceLogitsProcessor: "it runs the model itself, token by token (`guidance_scale`)",
    lp.ClassifierFreeGuidanceLogitsProcessor: "it expects a doubled batch",
    lp.SynthIDTextWatermarkLogitsProcessor: "it counts its calls (SynthID watermark)",
    lp.WhisperTimeStampLogitsProcessor: "it is made for speech",
    lp.AlternatingCodebooksLogitsProcessor: "it is made for audio codebooks",
    lp.BarkEosPrioritizerLogitsProcessor: "it is made for audio",
    lp.DiaClassifierFreeGuidanceLogitsProcessor: "it is made for audio",
    lp.DiaEOSChannelFilterLogitsProcessor: "it is made for audio",
    lp.DiaEOSDelayPatternLogitsProcessor: "it is made for audio",
    lp.WhisperNoSpeechDetection: "it is made for speech",
}

# --- Models ---

MASKED_ATTENTION = ("sdpa", "eager")
LAYER_TYPES = {"full_attention", "sliding_attention"}

# Layers with recurrent or convolution states; "hybrid" ones store keys and values as well.
RECURRENT_LAYER_TYPES = {"linear_attention", "conv", "hybrid", "hybrid_sliding"}
_ATTENTION_OF_HYBRIDS = {"hybrid": "full_attention", "hybrid_sliding": "sliding_attention"}
_STATELESS_LAYER_TYPES = {"mlp", "moe"}
# Models with such layers whose forward over several tokens continues the cached states, as `make families` shows.
_CONTINUES_STATES = {
    *("bailing_hybrid", "bamba", "falcon_h1", "granitemoehybrid", "inkling2_text", "inkling_text", "kimi_linear"),
    *("lfm2", "lfm2_moe", "lfm3", "nemotron_h", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text"),
    *("qwen3_next", "zamba2", "zaya"),
}

# Models with a bias per attention head from absolute key positions, which a ragged 4D mask cannot represent.
ALIBI_MODEL_TYPES = {"bloom", "mpt"}

_UNSUPPORTED_CACHES = {
    "cpmant": "adds tokens before the prompt",
    **dict.fromkeys(("kosmos_2_text_model", "kosmos_2_5_text_model"), "counts positions from the padding id"),
    "dory": "adds layers to its cache while it runs",
    "prophetnet": "reads only one token at a time after its cache",
    "xlm": "adds a mask token after the text",
    **dict.fromkeys(("falcon_mamba", "jamba", "mamba", "zamba"), "ignores its state when it reads several tokens"),
}

if RELEASE < (5, 19):
    _MISREAD = "computes wrong masks for several tokens in transformers before 5.19"
    _UNSUPPORTED_CACHES |= dict.fromkeys(("big_bird", "doge", "git", "megatron-bert", "rembert", "roformer"), _MISREAD)

# Libraries whose code does not index rows: those of models and of quantized layers.
_LIBRARIES = {
    *("torch", "transformers", "peft", "accelerate", __package__),
    *("bitsandbytes", "torchao", "compressed_tensors", "gptqmodel", "hqq", "liger_kernel", "optimum"),
}
_VIEWED = "_viewed_module"  # attribute of the modules of a view
LogitsToKeep = Literal["all", "number", "index"]


def text_config(model: PreTrainedModel):
    return model.config.get_text_config(decoder=True)


def num_layers(model: PreTrainedModel) -> int:
    """Number of decoder layers. In configs with an encoder, `num_hidden_layers` may be the encoder's."""
    config = text_config(model)
    return getattr(config, "decoder_layers", None) or config.num_hidden_layers


def max_positions(model: PreTrainedModel) -> int | None:
    """Maximum number of positions in the config; None if it has no such entry."""
    return getattr(text_config(model), "max_position_embeddings", None)


def has_learned_positions(model: PreTrainedModel) -> bool:
    """Whether positions are looked up in a table, as in GPT-2, so that a forward beyond `max_positions` fails."""
    most, decoder = max_positions(model), base_model(model).get_decoder()
    if most is None:
        return False
    tables = [
        module.num_embeddings
        for name, module in decoder.named_modules()
        if isinstance(module, nn.Embedding) and ("pos" in name or "wpe" in name)
    ]
    buffers = [len(values) for name, values in decoder.named_buffers() if "embed_positions" in name]  # GPT-J, CodeGen
    return most in tables or most + 2 in tables or most in buffers  # OPT and BART store two more


def readable_columns(model: PreTrainedModel, positions: torch.Tensor) -> int | None:
    """Return how many columns every row can read with learned positions; None without such positions.

    Args:
        positions: of the prompts, long `[B, S]`.
    """
    most = max_positions(model)
    if most is None or not has_learned_positions(model):
        return None
    return positions.shape[1] + most - 1 - int(positions[:, -1].max())


def rotary_limit(model: PreTrainedModel) -> tuple[int, str] | None:
    """Return the length at which rotary frequencies change, and the rope type.

    Beyond it, the highest position of a forward determines the rotation of all its keys: longrope uses its long
    factors, and dynamic NTK a base that grows with each position. None for models with constant frequencies.
    """
    config = text_config(model)
    given = getattr(config, "rope_parameters", None) or {}
    for parameters in (given, *(each for each in given.values() if isinstance(each, dict))):
        rope_type = parameters.get("rope_type", "default")
        if rope_type == "longrope":
            return parameters["original_max_position_embeddings"], rope_type
        if "dynamic" in rope_type:
            return config.max_position_embeddings, rope_type
    return None


def layer_types(model: PreTrainedModel) -> list[str]:
    """Layer types in the config; empty for models with one type."""
    return list(getattr(text_config(model), "layer_types", None) or [])


def mask_windows(model: PreTrainedModel) -> dict[str, int | None] | int | None:
    """Sliding window of each mask of the model, in the form that `RaggedCache` expects.

    As in `create_masks_for_generate`, models with `layer_types` in the config take a dict of masks.
    """
    window = getattr(text_config(model), "sliding_window", None)
    types = set(layer_types(model))
    if types & RECURRENT_LAYER_TYPES:  # models name the masks of hybrid layers in one of two ways
        types |= {_ATTENTION_OF_HYBRIDS[kind] for kind in types & set(_ATTENTION_OF_HYBRIDS)}
        types -= {"linear_attention", "conv"} | _STATELESS_LAYER_TYPES
    elif not types:
        return window
    return {kind: window if kind in ("sliding_attention", "hybrid_sliding") else None for kind in sorted(types)}


def recurrent_states(model: PreTrainedModel) -> list[int]:
    """Number of recurrent states of each layer, 0 for attention layers; empty for models without such states."""
    types = layer_types(model)
    count = getattr(text_config(model), "number_of_conv_states", 1)
    states = [count if kind in RECURRENT_LAYER_TYPES else 0 for kind in types]
    return states if any(states) else []


def cannot_roll_back(model: PreTrainedModel) -> str | None:
    """Return why the rows of a model's cache cannot be rolled back one by one, and what to use; None if they can."""
    if model.config.is_encoder_decoder:
        return "is an encoder-decoder model, which is not supported; use a decoder-only one."
    config = text_config(model)
    reason = _UNSUPPORTED_CACHES.get(config.model_type)
    if reason is None and (kinds := _refused_layers(model)):
        remedy = "use a model with full or sliding-window attention only."
        if config.model_type in _CONTINUES_STATES and RELEASE < (5, 23):
            remedy = f"upgrade transformers from {transformers.__version__} to 5.23 or later."
        return f"has layers that cannot be rolled back ({', '.join(kinds)}); {remedy}"
    if reason is None and CACHE_ARGUMENT not in _forward_parameters(model):  # GPT-1 has no cache
        return (
            f"has no argument {CACHE_ARGUMENT!r} in its forward, so it cannot read a block of draft tokens "
            f"after its cache. Installed is transformers {transformers.__version__}; hf_diversed was tested with "
            f"{TESTED_TRANSFORMERS}. Use another model, or a tested release."
        )
    if reason is not None:
        return f"{reason}, so it cannot read a block of draft tokens after its cache; use another model."
    if config.model_type in ALIBI_MODEL_TYPES or getattr(config, "alibi", False):
        return "uses ALiBi, which needs equal row lengths; use rotary positions."
    if getattr(config, "use_bidirectional_attention", None) in (True, "all"):  # Gemma 4's "vision" is for images only
        return (
            "attends to all tokens of the prompt (use_bidirectional_attention in its config), so states of earlier "
            "tokens depend on later ones; use a causal model."
        )
    return None


def _refused_layers(model: PreTrainedModel) -> list[str]:
    config, kinds = text_config(model), set(layer_types(model))
    if config.model_type in _CONTINUES_STATES and RELEASE >= (5, 23):
        kinds -= RECURRENT_LAYER_TYPES | _STATELESS_LAYER_TYPES
    elif not kinds & RECURRENT_LAYER_TYPES and getattr(base_model(model), "_is_stateful", False):
        kinds.add("recurrent state")
    if kinds <= LAYER_TYPES and getattr(config, "attention_chunk_size", None) is not None:
        kinds.add("chunked attention")
    return sorted(kinds - LAYER_TYPES)


def needs_equal_rows(model: PreTrainedModel) -> str | None:
    """Return why the model can only decode rows of equal length; None if their lengths may differ."""
    config = text_config(model)
    if "position_ids" not in _forward_parameters(model):
        return "takes no position_ids and counts positions from the cache"
    if config.model_type in ("inkling_text", "inkling2_text"):
        return "ignores position_ids and counts positions from the cache"
    if config.model_type == "gpt_neo" and "local" in config.attention_layers:
        return "has local attention that counts its window from the end of the cache"
    return None


def recomputes_activations(model: PreTrainedModel) -> bool:
    """Whether gradient checkpointing is active (training mode), in which layers ignore the cache."""
    return any(m.training and getattr(m, "gradient_checkpointing", False) for m in base_model(model).modules())


def reads_token_types(model: PreTrainedModel) -> bool:
    """Whether all-zero token types change the output, as in GPT-2, which embeds them with the token embedding."""
    if "token_type_ids" not in _forward_parameters(model):
        return False
    is_multimodal = text_config(model) is not model.config
    return not (is_multimodal or hasattr(text_config(model), "type_vocab_size"))


def device(model: PreTrainedModel) -> torch.device | None:
    """Return the device of the model's inputs; None for a model without weights (on "meta").

    Offloaded models are on "meta" as well. For them, it is the first execution device of accelerate's hooks.
    """
    if model.device.type != "meta":
        return model.device
    hooks = [vars(module)["_hf_hook"] for module in base_model(model).modules() if "_hf_hook" in vars(module)]
    each = [single for hook in hooks for single in getattr(hook, "hooks", [hook])]
    places = (getattr(hook, "execution_device", None) for hook in each)
    return next((torch.device(place) for place in places if place is not None), None)


def attention_implementation(model: PreTrainedModel) -> str:
    return text_config(model)._attn_implementation


def base_model(model: PreTrainedModel) -> PreTrainedModel:
    """Return the transformers model inside a wrapper of torch.compile or PEFT, or the model itself."""
    model = getattr(model, "_orig_mod", model)
    return model if isinstance(model, PreTrainedModel) else getattr(model, "get_base_model", lambda: model)()


def prompt_learning_adapter(model: PreTrainedModel) -> str | None:
    """Return the name of the active PEFT method if it adds virtual tokens (prompt, prefix, p-tuning), else None.

    `PeftModel.generate` binds its own `prepare_inputs_for_generation` to the inner model, so the wrapper can be found
    from the inner model.
    """
    wrapper = getattr(vars(model).get("prepare_inputs_for_generation"), "__self__", model)
    config = getattr(wrapper, "active_peft_config", None)
    return str(config.peft_type) if config is not None and config.is_prompt_learning else None


def peft_inputs(model: PreTrainedModel) -> str:
    """Return the arguments of PEFT's `generate` that belong to rows or to positions of the prompt in this call.

    "adapter_names" is one adapter per row, "task_ids" one task of Poly per row, and "alora_offsets" where an activated
    LoRA starts. Forward hooks, which are partial functions or closures, pass them on.
    """
    hooks = [hook for module in base_model(model).modules() for hook in module._forward_pre_hooks.values()]
    partials = {name for hook in hooks for name in getattr(hook, "keywords", ())}
    closures = {name for hook in hooks if (code := getattr(hook, "__code__", None)) for name in code.co_freevars}
    return ", ".join(sorted((partials | closures) & {"adapter_names", "task_ids", "alora_offsets"}))


def hidden_width(model: PreTrainedModel) -> int:
    """Input width of the output embedding. `config.hidden_size` differs in models with an output projection."""
    return _matrix_shape(model.get_output_embeddings())[1]


def vocab_size(model: PreTrainedModel) -> int:
    """Width of the logits. It can differ from the config after resizing, and from the matrix of a cut embedding."""
    output = model.get_output_embeddings()
    rows = getattr(output, "num_ids", None) or _matrix_shape(output)[0]
    unpadded = getattr(text_config(model), "unpadded_vocab_size", None)  # Inkling cuts its logits to it
    return rows if unpadded is None else min(rows, unpadded)


def known_ids(model: PreTrainedModel) -> int:
    """Number of ids that the model can embed."""
    return _matrix_shape(model.get_input_embeddings())[0]


def _matrix_shape(module: Any) -> tuple[int, int]:
    """Rows and columns of an embedding's matrix.

    Quantized modules pack or rename their weights, but keep the sizes as attributes. The attributes of an ordinary
    layer can be outdated after its weight was replaced, so its weight takes precedence.
    """
    weight = getattr(module, "weight", None)
    if isinstance(weight, torch.Tensor) and weight.is_floating_point() and weight.ndim == 2:
        return weight.shape[0], weight.shape[1]
    if hasattr(module, "out_features"):
        return module.out_features, module.in_features
    return module.num_embeddings, module.embedding_dim


def weight_bytes(model: PreTrainedModel) -> int:
    """Return the bytes, as stored, of the weights that the text decoder reads in a forward pass over one token.

    These are the parameters of the decoder and of the output layer, without embedding tables, and the buffers of
    linear layers, where some quantized layers store weights. A matrix that is also the embedding table counts once.
    All experts of a mixture count, as a draft block reads many of them.
    """
    tensors: dict[int, torch.Tensor | None] = {}
    for module in [*base_model(model).get_decoder().modules(), *model.get_output_embeddings().modules()]:
        if not isinstance(module, nn.Embedding):
            stored = [*module._parameters.values()]
            if "out_features" in vars(module):
                stored += module._buffers.values()
            tensors |= {id(each): each for each in stored}
    return sum(_stored_bytes(each) for each in tensors.values() if each is not None)


def _stored_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor; a quantized one of torchao consists of several tensors."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return tensor.numel() * tensor.element_size()
    names, _ = tensor.__tensor_flatten__()
    return sum(_stored_bytes(getattr(tensor, name)) for name in names)


def _forward_parameters(model: PreTrainedModel):
    """Parameters of the class's forward. Wrappers bound to an instance often take *args and **kwargs."""
    return inspect.signature(type(base_model(model)).forward).parameters


def logits_to_keep(model: PreTrainedModel) -> LogitsToKeep:
    """Return how a model's forward selects positions for its logits.

    Gemma 4 accepts an index, but skips positions in the layers that share keys only if it gets a number.
    """
    if "logits_to_keep" not in _forward_parameters(model):
        return "all"
    shares_keys = getattr(base_model(model).config.get_text_config(), "num_kv_shared_layers", 0)
    return "number" if shares_keys else "index"


def forward_inputs(model: PreTrainedModel) -> set[str]:
    """Names of forward arguments other than ids and generation settings: masks, positions, pixels, audio."""
    return set(_forward_parameters(model)) - {"self", "input_ids", "kwargs", *vars(GenerationConfig())}


def weak_key(model: PreTrainedModel) -> nn.Module:
    """Return the key of weak dictionaries for data that outlives a call: the model's input embedding.

    Shallow copies of a model, which `generate` may run, share it. For a view it is that of the original model.
    """
    return viewed(base_model(model).get_input_embeddings())


def viewed(module: nn.Module) -> nn.Module:
    """Return the module that a module of a view was copied from, or the module itself."""
    original: nn.Module = vars(module).get(_VIEWED, module)
    return original


def _view(module: nn.Module):
    """Copy the module tree with shared parameters and buffers."""
    twin = module.__class__.__new__(module.__class__)  # `copy.copy` fails for modules that do not support pickling
    twin.__dict__ = module.__dict__.copy()
    twin.__dict__.pop("_compiled_call_impl", None)  # `module.compile()` binds it to the original module
    twin.__dict__[_VIEWED] = viewed(module)
    twin._buffers = module._buffers.copy()  # a forward may register buffers, which belong to the view's attributes
    twin._modules = {name: child and _view(child) for name, child in module._modules.items()}
    twin._forward_hooks, twin._forward_pre_hooks = module._forward_hooks.copy(), module._forward_pre_hooks.copy()
    return twin


def has_user_code(model: nn.Module) -> bool:
    """Whether a model has modules, forward hooks or replaced forwards of the user, which may index rows."""
    return not all(map(is_library_code, [*model.modules(), *_forward_hooks(model)]))


def is_library_code(part: Any) -> bool:
    """Whether a function, or the class of another object, is defined in a known library."""
    part = part.func if isinstance(part, functools.partial) else part
    module = (part if inspect.isroutine(part) else type(part)).__module__
    return (module or "").partition(".")[0] in _LIBRARIES


def _forward_hooks(model: nn.Module) -> list[Callable]:
    """Return the forward hooks of all modules, the global ones, and forwards that replace a module's own."""
    hooks = [*_module._global_forward_pre_hooks.values(), *_module._global_forward_hooks.values()]
    for module in model.modules():
        hooks += [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
        hooks += [vars(module)["forward"]] if "forward" in vars(module) else []
    return hooks


def recording_view(model: PreTrainedModel) -> PreTrainedModel:
    """Return a view of a model for forwards with hidden states. Upstream installs hooks for them on the view only.

    On the model itself the hooks would remain after the call and prevent pickling. The model itself is returned if a
    forward is bound to an instance (torch.compile, accelerate), as a view would still run the original modules, and if
    it has hooks of the user, which may compare their module with those of the model.
    """
    is_bound = any("forward" in vars(module) for module in model.modules())
    if is_bound or not all(map(is_library_code, _forward_hooks(model))):
        return model
    return _view(model)


def cannot_compile(model: PreTrainedModel) -> str | None:
    """Return why a model's forward cannot be compiled as a function of tensors; None if it can."""
    if any("forward" in vars(module) for module in base_model(model).modules()):
        return "has a forward that was replaced (by torch.compile, or accelerate's device_map)"
    if model is not base_model(model):
        return f"is wrapped in a {type(model).__name__}"
    if not all(map(is_library_code, _forward_hooks(model))):
        return "has forward hooks of the user"
    quantizer = getattr(model, "hf_quantizer", None)
    return None if quantizer is None or quantizer.is_compileable else "is quantized in a way that cannot be compiled"


def model_name(model: PreTrainedModel) -> str:
    """Hub id of a loaded model, or the last part of its folder; empty for models created from a config."""
    name = base_model(model).name_or_path
    path = Path(name)
    is_folder = len(path.parts) > 2 or path.is_absolute() or name.startswith((".", "~")) or path.is_dir()
    return path.name if is_folder else name


def get_logger(name: str):
    """Return a logger below "hf_diversed", which prints its name and the message to standard error."""
    root = logging.getLogger("hf_diversed")
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[hf_diversed] %(message)s"))
        root.addHandler(handler)
        root.propagate = False
    return logging.getLogger(name)


def is_user_cache(cache) -> bool:
    """Whether the cache of a prepared call was passed by the caller. Otherwise `generate` creates an empty one.

    Before transformers 5.17 caches are not marked, so an empty cache counts as created by `generate`.
    """
    if cache is None or _MARKS_USER_CACHES:
        return bool(getattr(cache, "_is_user_defined", False))
    return bool(cache.get_seq_length() > 0)


def pad_token_id(config: GenerationConfig) -> int:
    """Return the pad id that `generate` prepared; 0 without pad and EOS ids, where padding is not needed."""
    return 0 if config._pad_token_tensor is None else int(config._pad_token_tensor)


class Criteria(NamedTuple):
    """Stopping criteria of a prepared call, split by kind.

    Attributes:
        max_lengths: of all `MaxLengthCriteria`. eos_ids: of all `EosTokenCriteria`. others: the remaining criteria.
        pads_stopped_rows: whether `generate` pads stopped rows, which it does if a criterion has an EOS id. Otherwise
            they continue.
    """

    max_lengths: list[int]
    eos_ids: list[int]
    others: StoppingCriteriaList
    pads_stopped_rows: bool


def split_criteria(criteria: StoppingCriteriaList) -> Criteria:
    tensors = [each.eos_token_id for each in criteria if type(each) is EosTokenCriteria]
    return Criteria(
        [each.max_length for each in criteria if type(each) is MaxLengthCriteria],
        [token for ids in tensors for token in ids.flatten().tolist()],
        StoppingCriteriaList([each for each in criteria if type(each) not in (MaxLengthCriteria, EosTokenCriteria)]),
        any(hasattr(each, "eos_token_id") for each in criteria),
    )


def entries(config: GenerationConfig | None) -> dict[str, Any]:
    """Return the entries of a generation config that are set, including those of this library."""
    return {} if config is None else {name: value for name, value in vars(config).items() if value is not None}


def explicit_entry(config: GenerationConfig, name: str):
    """Return an attribute of a prepared config; None if it equals upstream's default."""
    value = getattr(config, name)
    return None if value == GenerationConfig._get_default_generation_params()[name] else value


def first_set(name: str, sources: Iterable[Mapping[str, Any]]) -> Any:
    """Return a setting from the first source that contains it; None if no source does."""
    return next((source[name] for source in sources if name in source), None)
