"""Everything that depends on how transformers (and peft) are built inside. Nothing else probes their objects.

Serves transformers 5.16.1 to 5.23; `tests/test_compat.py` names what breaks when a release moves one of these.
"""

import copy
import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from packaging.version import Version
from torch import nn
from transformers import GenerationConfig, PreTrainedModel
from transformers.distributed.fsdp import is_fsdp_managed_module
from transformers.dynamic_module_utils import TRANSFORMERS_DYNAMIC_MODULE_NAME, _sanitize_module_name
from transformers.generation import logits_process as lp
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.utils import logging


_RELEASE = Version(transformers.__version__).release
_MARKS_USER_CACHES = _RELEASE >= (5, 17)

MASKED_ATTENTION = ("sdpa", "eager")
LAYER_TYPES = {"full_attention", "sliding_attention"}

# Reshape a law and never mean to forbid a token; what they cut depends on scores, not on the prefix.
WARPERS = frozenset(
    {
        lp.TemperatureLogitsWarper,
        lp.TopKLogitsWarper,
        lp.TopPLogitsWarper,
        lp.MinPLogitsWarper,
        lp.TypicalLogitsWarper,
        lp.EpsilonLogitsWarper,
        lp.EtaLogitsWarper,
    }
)

# Each position by itself: these see neither the prefix nor the row, so a whole block goes through in one call.
POINTWISE_PROCESSORS = WARPERS | {
    lp.SuppressTokensLogitsProcessor,
    lp.InfNanRemoveLogitsProcessor,
    lp.LogitNormalization,
}

# Call a model, count their calls, or belong to other modalities: wrong on rows of different lengths.
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

# What `generate` keeps on a model from call to call, and its settings: no forward reads them.
KEPT_BY_GENERATE = ("generation_config", "_previous_max_cache_length", "_compiled_call", "_last_compile_config")

# Bias added per attention head from absolute key positions; a ragged 4D mask cannot carry it.
_ALIBI_MODEL_TYPES = {"bloom", "mpt"}


_ODD_CACHES = {
    "cpmant": "puts tokens of its own before the prompt",
    "prophetnet": "reads one token at a time behind its cache",
}
if _RELEASE < (5, 19):
    _MISREAD = "misreads masks of several tokens in transformers before 5.19"
    _ODD_CACHES |= dict.fromkeys(("big_bird", "doge", "git", "megatron-bert", "rembert", "roformer"), _MISREAD)


def get_logger(name: str):
    """A module's logger, below transformers' own: its verbosity, its handlers and its format hold for ours, too."""
    return logging.get_logger(f"transformers.{name}")


def text_config(model: PreTrainedModel):
    return model.config.get_text_config(decoder=True)


def num_layers(model: PreTrainedModel) -> int:
    """Layers of the decoder; where a config describes an encoder as well, `num_hidden_layers` may be the encoder's."""
    config = text_config(model)
    return getattr(config, "decoder_layers", None) or config.num_hidden_layers


def max_positions(model: PreTrainedModel) -> int | None:
    """Positions the model was made for; None where its config does not say."""
    return getattr(text_config(model), "max_position_embeddings", None)


def rotary_limit(model: PreTrainedModel) -> tuple[int, str] | None:
    """Length beyond which the longest position of a forward decides how all its keys are rotated, and the rope type.

    Longrope then takes its long factors, dynamic NTK a base that grows with every further position. None for models
    whose rotation does not depend on the length.
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


def rereads_at_rotary_limit(model: PreTrainedModel) -> bool:
    """Whether upstream's `generate` drops the cache where the long factors begin, and reads all of the text again."""
    return text_config(model).model_type in ("phi3", "phimoe", "phi4_multimodal")


def layer_types(model: PreTrainedModel) -> list[str]:
    """Attention kinds the config lists; empty for models that have one kind only."""
    return list(getattr(text_config(model), "layer_types", None) or [])


def mask_windows(model: PreTrainedModel) -> dict[str, int | None] | int | None:
    """Sliding window of each mask the model takes, in the form `RaggedCache` wants it.

    Mirrors `create_masks_for_generate`: a config that lists layer types means a model that takes a dict of masks.
    """
    window = getattr(text_config(model), "sliding_window", None)
    types = layer_types(model)
    if types:
        return {kind: window if kind == "sliding_attention" else None for kind in sorted(set(types))}
    return window


def uses_alibi(model: PreTrainedModel) -> bool:
    config = text_config(model)
    return config.model_type in _ALIBI_MODEL_TYPES or bool(getattr(config, "alibi", False))


def is_chunked(model: PreTrainedModel) -> bool:
    return getattr(text_config(model), "attention_chunk_size", None) is not None


def is_stateful(model: PreTrainedModel) -> bool:
    """Recurrent or convolutional state that cannot be rolled back."""
    return bool(getattr(base_model(model), "_is_stateful", False))


def takes_position_ids(model: PreTrainedModel) -> bool:
    """Whether positions can be given row by row; the others (Bart's kin) count them from the cache, alike for all."""
    return "position_ids" in _forward_parameters(model)


def cannot_verify(model: PreTrainedModel) -> str | None:
    """Why the model cannot read a drafted block behind a cached prefix; None if it can."""
    if "past_key_values" not in _forward_parameters(model):  # the first GPT reads the whole text every time
        return "takes no past_key_values"
    return _ODD_CACHES.get(text_config(model).model_type)


def counts_from_last_key(model: PreTrainedModel) -> bool:
    """Local attention that places every query at the end of the keys, wherever its row stands."""
    config = text_config(model)
    return config.model_type == "gpt_neo" and "local" in config.attention_layers


def recomputes_activations(model: PreTrainedModel) -> bool:
    """Gradient checkpointing in training mode, under which the layers drop the cache."""
    return any(m.training and getattr(m, "gradient_checkpointing", False) for m in base_model(model).modules())


def reads_token_types(model: PreTrainedModel) -> bool:
    """Whether token types of all zeros differ from none: where they are looked up among the tokens (GPT-2's kin)."""
    if "token_type_ids" not in _forward_parameters(model):
        return False
    return not (is_multimodal(model) or hasattr(text_config(model), "type_vocab_size"))


def device(model: PreTrainedModel) -> torch.device | None:
    """Where the model takes its inputs; None for a model without weights, which lie on "meta" and cannot run.

    An offloaded model is on "meta" as well; accelerate's hooks bring each layer to where it is executed.
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
    """The transformers model inside a wrapper of torch.compile or PEFT, or the model itself."""
    model = getattr(model, "_orig_mod", model)
    return model if isinstance(model, PreTrainedModel) else getattr(model, "get_base_model", lambda: model)()


def prompt_learning_adapter(model: PreTrainedModel) -> str | None:
    """Name of the active PEFT method if it adds virtual tokens (prompt, prefix, p-tuning), else None.

    `PeftModel.generate` calls the inner model's `generate` and leaves its own `prepare_inputs_for_generation` there:
    that bound method is how the inner model knows it is wrapped.
    """
    wrapper = getattr(vars(model).get("prepare_inputs_for_generation"), "__self__", model)
    config = getattr(wrapper, "active_peft_config", None)
    return str(config.peft_type) if config is not None and config.is_prompt_learning else None


def hidden_width(model: PreTrainedModel) -> int:
    """Input width of the output embedding; `config.hidden_size` differs from it where a model projects out."""
    return _matrix_shape(model.get_output_embeddings())[1]


def vocab_size(model: PreTrainedModel) -> int:
    """Width of the logits; a resized embedding may differ from the config, and a cut one has fewer rows."""
    output = model.get_output_embeddings()
    return getattr(output, "num_ids", None) or _matrix_shape(output)[0]


def known_ids(model: PreTrainedModel) -> int:
    """Number of ids the model can embed."""
    return _matrix_shape(model.get_input_embeddings())[0]


def _matrix_shape(module: Any) -> tuple[int, int]:
    """Rows and columns of an embedding's matrix.

    Quantized modules pack their weights, return them from a method, or store them under other names, but keep the
    sizes as attributes. Those of an ordinary layer can be out of date after its weight was replaced.
    """
    weight = getattr(module, "weight", None)
    if isinstance(weight, torch.Tensor) and weight.is_floating_point() and weight.ndim == 2:
        return weight.shape[0], weight.shape[1]
    if hasattr(module, "out_features"):
        return module.out_features, module.in_features
    return module.num_embeddings, module.embedding_dim


def _forward_parameters(model: PreTrainedModel):
    """By the class: what is bound to an instance from outside takes anything and hands it on."""
    return inspect.signature(type(base_model(model)).forward).parameters


def is_multimodal(model: PreTrainedModel) -> bool:
    return text_config(model) is not model.config


def supports_logits_to_keep(model: PreTrainedModel) -> bool:
    return "logits_to_keep" in _forward_parameters(model)


def forward_inputs(model: PreTrainedModel) -> set[str]:
    """What the model's forward takes besides ids and generation settings: masks, positions, pixels, audio."""
    return set(_forward_parameters(model)) - {"self", "input_ids", "kwargs", *vars(GenerationConfig())}


def first_layers(model: PreTrainedModel, count: int) -> PreTrainedModel:
    """A view of a model that goes from its first layers straight to the final norm and the output embedding.

    It shares every parameter and buffer, and nothing else: configs and modules are its own, so that the model's layer
    count, attributes and hooks stay as they are. (Upstream's early exit rewrites `config.num_hidden_layers` of the
    model during a call, which other threads see, and which models that do not read it while running ignore.)

    Raises:
        ValueError: if the model's forward is bound to it from outside, or its layers cannot be told.
    """
    model = base_model(model)
    decoder, name, stack = model.get_decoder(), type(model).__name__, layer_stack(model)
    if stack is None or any("forward" in vars(module) for module in (model, model.base_model, decoder)):
        raise ValueError(
            f"{name} cannot be left early: its layers are no plain list, or its forward is bound to it from outside "
            "(torch.compile, or accelerate's device_map). Pass an assistant_model."
        )
    view = _view(model, stack, count)
    view.config = copy.deepcopy(model.config)
    config = text_config(view)
    if layer_types(model):
        config.layer_types = layer_types(model)[:count]
    config.num_hidden_layers = count
    view.get_decoder().config = config
    return view


def layer_stack(model: PreTrainedModel) -> nn.ModuleList | None:
    """The decoder's layers; None where they are no plain list."""
    children = model.get_decoder().children()
    stacks = [child for child in children if isinstance(child, nn.ModuleList) and len(child) == num_layers(model)]
    return stacks[0] if len(stacks) == 1 else None


def config_of_layers(model: PreTrainedModel, layers: Sequence[int]):
    """A copy of a model's config for these of its layers only: what it lists layer by layer is shortened as well."""
    config = copy.deepcopy(model.config)
    text, count = config.get_text_config(decoder=True), num_layers(model)
    for name, value in list(vars(text).items()):
        if isinstance(value, list) and len(value) == count:
            setattr(text, name, [value[layer] for layer in layers])
    text.num_hidden_layers = len(layers)
    return config


def _view(module: nn.Module, stack: nn.Module | None = None, count: int | None = None):
    """The module tree again over the same parameters and buffers, with the first `count` layers of `stack`."""
    twin = module.__class__.__new__(module.__class__)  # `copy` asks for a state, which some modules refuse to give
    twin.__dict__ = module.__dict__.copy()
    twin._buffers = module._buffers.copy()  # what a forward registers anew goes with the attributes that describe it
    children = list(module._modules.items())[: count if module is stack else None]
    twin._modules = {name: child and _view(child, stack, count) for name, child in children}
    twin._forward_hooks, twin._forward_pre_hooks = module._forward_hooks.copy(), module._forward_pre_hooks.copy()
    return twin


def is_library_code(thing: object) -> bool:
    """Whether an object's class is upstream's or ours: known to leave its tensors alone."""
    return type(thing).__module__.partition(".")[0] in ("transformers", "peft", __package__)


def recording_view(model: PreTrainedModel) -> PreTrainedModel:
    """A view of a model to ask for hidden states: the hooks that upstream installs to record them stay on the view.

    On the model they would outlive the call, and cannot be pickled. Where the forward is bound to the model from
    outside (torch.compile, accelerate), a view of it would run the model all the same, so it is used as it is.
    """
    if any("forward" in vars(module) for module in model.modules()):
        return model
    return _view(model)


def cannot_compile(model: PreTrainedModel) -> str | None:
    """Why a model's forward cannot be a function of tensors alone; None if it can."""
    if any("forward" in vars(module) for module in base_model(model).modules()):
        return "has a forward bound to it from outside (torch.compile, or accelerate's device_map)"
    if model is not base_model(model):
        return f"is wrapped in a {type(model).__name__}"
    quantizer = getattr(model, "hf_quantizer", None)
    return None if quantizer is None or quantizer.is_compileable else "is quantised in a way that cannot be compiled"


def is_sharded(model: PreTrainedModel) -> bool:
    """Parameters spread over processes (ZeRO-3, FSDP): every forward would need all of them in step."""
    return is_deepspeed_zero3_enabled() or is_fsdp_managed_module(model)


def is_user_cache(cache) -> bool:
    """Whether the cache of a prepared call is the caller's; where there is none, `generate` makes an empty one.

    Before transformers 5.17 nothing marks the caller's, so it is known by the tokens it holds: an empty one passes
    for one of `generate`.
    """
    if cache is None or _MARKS_USER_CACHES:
        return bool(getattr(cache, "_is_user_defined", False))
    return bool(cache.get_seq_length() > 0)


def pad_token_id(config: GenerationConfig) -> int:
    """The pad id as `generate` prepared it; 0 where neither pad nor EOS is known and nothing ever needs padding."""
    return 0 if config._pad_token_tensor is None else int(config._pad_token_tensor)


def model_name(model: PreTrainedModel) -> str:
    """Hub id or folder the model was loaded from; empty for models built from a config."""
    return base_model(model).name_or_path


def model_origin(model: PreTrainedModel) -> tuple[str, str | None]:
    """`model_name`, and the commit of the Hub that the configuration was loaded from, if any."""
    return model_name(model), getattr(base_model(model).config, "_commit_hash", None)


def public_name(model: PreTrainedModel) -> str:
    """Hub id, or the last part of a folder on this machine."""
    name = model_name(model)
    return Path(name).name if Path(name).is_dir() else name


def script_origin(script: str) -> tuple[str, str | None] | None:
    """Where a custom_generate script was read from, by its place in the cache of modules, all that it is told.

    Returns:
        The repository as `module_name` spells it, and the commit; a folder's name and None; None for a script that
        lies somewhere else.
    """
    parts = Path(script).parts
    if TRANSFORMERS_DYNAMIC_MODULE_NAME not in parts:
        return None
    start = len(parts) - parts[::-1].index(TRANSFORMERS_DYNAMIC_MODULE_NAME)
    *name, version = parts[start : len(parts) - len(("custom_generate", "generate.py"))]
    return "/".join(name), version if re.fullmatch("[0-9a-f]{40}", version) else None


def module_name(repo_id: str) -> str:
    """A Hub id as the cache of modules spells it: every part a Python name."""
    return "/".join(_sanitize_module_name(part) for part in repo_id.split("/"))


def max_lengths(criteria: StoppingCriteriaList) -> list[int]:
    return [criterion.max_length for criterion in criteria if type(criterion) is MaxLengthCriteria]


def eos_ids(criteria: StoppingCriteriaList) -> list[int]:
    tensors = [criterion.eos_token_id for criterion in criteria if type(criterion) is EosTokenCriteria]
    return [token for ids in tensors for token in ids.flatten().tolist()]


def pads_stopped_rows(criteria: StoppingCriteriaList) -> bool:
    """Whether `generate` pads rows that have stopped: if any criterion knows an EOS. Else they run on to the end."""
    return any(hasattr(criterion, "eos_token_id") for criterion in criteria)


def prefix_criteria(criteria: StoppingCriteriaList) -> StoppingCriteriaList:
    """The criteria that have to be called: all but length and EOS."""
    return StoppingCriteriaList([c for c in criteria if type(c) not in (MaxLengthCriteria, EosTokenCriteria)])


def config_entry(config: GenerationConfig | None, name: str):
    """An attribute of a generation config as its author set it (entries of ours travel there too); None if unset."""
    return vars(config).get(name) if config is not None else None


def silent_default(name: str):
    """What upstream fills in for an entry of a generation config that nobody chose."""
    return GenerationConfig._get_default_generation_params()[name]


def explicit_draft_length(config: GenerationConfig) -> int | None:
    """`num_assistant_tokens` if somebody set it, in a config that `generate` has prepared."""
    length = config.num_assistant_tokens
    return None if length == silent_default("num_assistant_tokens") else length
