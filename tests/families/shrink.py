"""Shrink the default config of any causal language model, by the names of its settings, to a few megabytes."""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.families.special import FIXED
from tests.tiny import BOS, EOS, PAD, VOCAB_SIZE


HIDDEN, HEADS, HEAD_DIM, MLP, WINDOW, POSITIONS = 64, 4, 16, 48, 8, 128
FEWEST_LAYERS, MOST_LAYERS = 2, 8
MARKER = 3  # id of image, audio and mask tokens: not in the prompts and never generated
MOST_PARAMETERS = 10_000_000

_ALWAYS = {
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "bos_token_id": BOS,
    "tie_word_embeddings": False,
    "is_decoder": True,
    "is_encoder_decoder": False,
}
# Patterns of setting names (the first full match applies) and the upper limit for their numbers.
_LIMITS = (
    (r".*(drop|jitter|mask_time_prob).*", 0.0),
    (r".*token_(id|index)", MARKER),
    (r".*vocab.*|codebook_size", VOCAB_SIZE),
    (r"original_max_position_embeddings", POSITIONS // 2),
    (r"max_position_embeddings|n_positions|n_ctx|max_seq_len|model_max_length", POSITIONS),
    (r"max_(source|target)_positions", POSITIONS),
    (r".*window(_size|_len)?|local_attention|attention_chunk_size|index_topk", WINDOW),
    (r"max_window_layers|num_dense_layers|first_k_dense_replace|.*(shared_layers|predict_layers)", 1),
    (r".*(key_value_heads|kv_heads|kv_n_heads|num_key_heads)", HEADS // 2),
    (r".*(heads|n_head|heads_per_ngram|o_groups|n_groups)", HEADS),
    (r".*(head_dim|head_size|d_head|dim_head|kv_channels|d_kv|headdim|rotary_dim|attn_scalar)", HEAD_DIM),
    (r".*experts?_per_tok(en)?|moe_k|moe_top_?k|n_group|num_expert_group", 2),
    (r".*shared_experts|topk_group", 1),
    (r".*experts|zero_expert_num", 4),
    (r".*(rank|state_size|d_state)", 16),
    (r".*(intermediate|ffn|mlp_dim|inner|feed_forward).*|d_ff|dff|dim_ff", MLP),
    (r".*(hidden|embed|width).*|d_model|n_embd|emb_dim|.*(_dim|channels|filters|_size)", HIDDEN),
)
_LAYERS = re.compile(r"n_layers?|num_layers|(num_)?(hidden|encoder|decoder)_layers|num_(en|de)coder_layers|depth")


def small_model(model_type: str) -> PreTrainedModel:
    """Return a random model of the class that transformers registers for `model_type`, in eval mode.

    Raises:
        MemoryError: if the shrunk model is still large; parameters are counted before any allocation.
    """
    config = shrunk(CONFIG_MAPPING[model_type], **FIXED.get(model_type, {}))
    with torch.device("meta"):
        count = AutoModelForCausalLM.from_config(config).num_parameters()
    if count > MOST_PARAMETERS:
        raise MemoryError(f"{model_type} has {count} parameters after shrinking; fix its sizes in special.py.")
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


def shrunk(config_class: type[PreTrainedConfig], **fixed: Any) -> PreTrainedConfig:
    """Return a small version of the class's default config, with a layer of every kind in it.

    `fixed` overrides settings; a dict under the name of a sub-config overrides settings of the sub-config.
    """
    default = config_class()
    settings = {**dict(_settings(default)), **fixed}
    for name, value in vars(default).items():
        if isinstance(value, PreTrainedConfig):
            settings[name] = shrunk(type(value), **fixed.get(name, {}))
    kinds = {name: set(map(str, fixed.get(name, values))) for name, values in _per_layer(default)}
    for count in range(FEWEST_LAYERS, MOST_LAYERS + 1):
        config = config_class(**{name: _cut(name, value, count, default) for name, value in settings.items()})
        found = {name: set(map(str, values)) for name, values in _per_layer(config)}
        if all(kinds.get(name, values) == values for name, values in found.items()):
            break
    return config


def _settings(default: PreTrainedConfig) -> Iterator[tuple[str, Any]]:
    """Yield the declared settings, reduced. The config class derives the rest from them."""
    one_key_each = vars(default).get("num_key_value_heads") == vars(default).get("num_attention_heads", 0)
    for item in dataclasses.fields(default):
        if not item.init:
            continue
        if item.name in _ALWAYS:
            yield item.name, _ALWAYS[item.name]
        elif item.name == "num_key_value_heads" and one_key_each:
            yield item.name, HEADS
        elif item.default not in (None, dataclasses.MISSING):
            yield item.name, _smaller(item.name, item.default)


def _smaller(name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    limits = (limit for pattern, limit in _LIMITS if re.fullmatch(pattern, name))
    return min(value, next(limits, value))


def _num_layers(config: PreTrainedConfig) -> int:
    return getattr(config, "num_hidden_layers", 0)


def _per_layer(config: PreTrainedConfig) -> Iterator[tuple[str, list]]:
    for name, value in vars(config).items():
        if isinstance(value, (list, tuple)) and len(value) == _num_layers(config) > 0:
            yield name, list(value)


def _cut(name: str, value: Any, count: int, default: PreTrainedConfig) -> Any:
    """Set a number of layers to `count`, and truncate a list by layer to it."""
    if isinstance(value, int) and _LAYERS.fullmatch(name):
        return count
    if isinstance(value, (list, tuple)) and len(value) == _num_layers(default) > count:
        return value[:count]
    return value
