"""Settings of families that cannot be shrunk by name, and expected results of families with partial support."""

from tests import versions


_QSA = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 8,
    "indexer_compress_ratio": 2,
}
_DOTS3 = {
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 4,
    "swa_q_lora_rank": 16,
    "swa_kv_lora_rank": 16,
    "swa_head_dim": 16,
    "swa_qk_nope_head_dim": 8,
    "swa_v_head_dim": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "sliding_window": 8,
}
_HYBRID = {"layers_block_type": ["linear_attention", "hybrid"]}
_ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}

# Settings by model type, mostly those that are only in the files on the Hub.
FIXED = {
    "bamba": {"attn_layer_indices": [1]},
    "cohere_compass_text": {"layer_types": ["full_attention"] * 2, "rope_parameters": {"full_attention": _ROPE}},
    "dbrx": {"attn_config": {"rope_theta": 1e4, "clip_qkv": 8.0, "kv_n_heads": 2}},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    # Equal tokens are ties in key selection: beyond the window, upstream's cached and full forwards differ.
    "doge": {"keep_window_size": 128},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "dots3_note": {"text_config": _DOTS3, "vision_config": {"mlp_layer_types": ["dense", "sparse"]}},
    "dots3_note_text": _DOTS3,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"full_attn_idxs": [1]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 0},
    "mamba2": {"head_dim": 32},
    "ministral": {"head_dim": 16},
    # Upstream's prefill reads beyond the window to which its cache is later cropped; ours does not.
    "moshi": {"sliding_window": 128},
    "nemotron": {"head_dim": 16, "num_key_value_heads": 2},
    "qwen4_exp": {"text_config": _QSA},
    "qwen4_exp_text": _QSA,
    "reformer": {"axial_pos_embds_dim": (16, 48), "axial_pos_shape": (16, 8)},
    "xmod": {"default_language": "en_XX"},
    "zamba": _HYBRID,
    "zamba2": _HYBRID,
}

# Not testable: the class cannot be built from its own config, or plain `generate` fails.
UNTESTABLE = {
    "blt": "plain generate asks its config for layers that only its parts have",
    "gemma3n": "its vision tower needs timm; gemma3n_text stands for it",
    "gemma4_assistant": "reads the keys of its target: no model by itself",
    "gemma4_unified_assistant": "reads the keys of its target: no model by itself",
    "musicgen": "the class is its decoder's, the config that of three models; emits audio",
    "musicgen_melody": "the class is its decoder's, the config that of three models; emits audio",
}

# Correct for a single row, rejected for several: the forward accepts no positions or ignores them (two pass them on
# without declaring it), or a window is counted from the end of the cache.
SINGLE_ROW = {
    "bart",
    "bigbird_pegasus",
    "blenderbot",
    "blenderbot-small",
    "gpt_neo",
    *(() if versions.is_before("5.23") else ("inkling2_text", "inkling_text")),
    "marian",
    "mbart",
    "moss_transcribe_diarize",
    "mvp",
    "pegasus",
    "plbart",
    "roformer",
    "trocr",
    "whisper",
}
_RECURRENT = {
    *("bailing_hybrid", "bamba", "falcon_h1", "granitemoehybrid", "inkling2_text", "inkling_text", "kimi_linear"),
    *("lfm2", "lfm2_moe", "lfm3", "nemotron_h", "olmo_hybrid", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text"),
    *("qwen3_5_text", "qwen3_next", "zamba2", "zaya"),
}

# Rejected for any batch, by a word of the error message; most have layers that cannot be rolled back.
_REFUSED = {
    "ALiBi": ("bloom", "mpt"),
    "recurrent state": ("rwkv", "xlstm"),
    "ignores its state": ("falcon_mamba", "jamba", "mamba", "zamba"),
    "adds": ("cpmant", "dory", "xlm"),
    "hybrid": ("inkling2_loop_text",),
    "linear_attention": ("lara_mini", "mamba2", "minimax", "qwen4_exp", "qwen4_exp_text", "recurrent_gemma"),
    "chunked_attention": ("llama4", "llama4_text"),
    "indexed_attention": (*("axk2", "deepseek_v32", "dots3_note", "dots3_note_text", "glm_moe_dsa", "hy_v4"),),
    "compressed_sparse_attention": ("deepseek_v4",),
    "": ("openai-gpt", "prophetnet", "reformer", "xlnet"),
}
if versions.is_before("5.23"):
    _REFUSED["cannot be rolled back"] = tuple(_RECURRENT)
if versions.is_before("5.18"):
    _REFUSED["deepseek_sparse_attention"] = ("deepseek_v32",)
if versions.is_before("5.19"):
    _REFUSED["before 5.19"] = ("big_bird", "doge", "git", "megatron-bert", "rembert", "roformer")
REFUSED = {name: word for word, names in _REFUSED.items() for name in names}
