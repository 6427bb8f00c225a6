"""Tiny random models of real architectures, built from configs. `sharpen` makes greedy decoding unambiguous."""

import copy

import torch
import transformers as tf


VOCAB_SIZE = 64
PAD, EOS, BOS = 0, 1, 2

_BASE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "bos_token_id": BOS,
}
_GEMMA = {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 8}
_VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


def _gemma3_vision():
    text = {**_BASE, **_GEMMA, "layer_types": ["sliding_attention", "full_attention"], "model_type": "gemma3_text"}
    config = tf.Gemma3Config(text_config=text, vision_config=_VISION, mm_tokens_per_image=4, image_token_index=3)
    return tf.Gemma3ForConditionalGeneration(config)


ARCHITECTURES = {
    "llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**_BASE)),
    "qwen2": lambda: tf.Qwen2ForCausalLM(tf.Qwen2Config(**_BASE)),
    "qwen3": lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**_BASE, head_dim=8)),
    "qwen3_moe": lambda: tf.Qwen3MoeForCausalLM(
        tf.Qwen3MoeConfig(**_BASE, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
    ),
    "gemma2": lambda: tf.Gemma2ForCausalLM(tf.Gemma2Config(**_BASE, **_GEMMA)),
    "gemma3_text": lambda: tf.Gemma3ForCausalLM(
        tf.Gemma3TextConfig(**_BASE, **_GEMMA, layer_types=["sliding_attention", "full_attention"])
    ),
    "gemma3_multimodal": _gemma3_vision,
    "mistral": lambda: tf.MistralForCausalLM(tf.MistralConfig(**_BASE, sliding_window=8)),
    "phi3": lambda: tf.Phi3ForCausalLM(tf.Phi3Config(**_BASE, sliding_window=8)),
    "granite": lambda: tf.GraniteForCausalLM(tf.GraniteConfig(**_BASE)),
    "olmo2": lambda: tf.Olmo2ForCausalLM(tf.Olmo2Config(**_BASE)),
    "cohere": lambda: tf.CohereForCausalLM(tf.CohereConfig(**_BASE)),
    "glm": lambda: tf.GlmForCausalLM(tf.GlmConfig(**_BASE, head_dim=8)),
    "stablelm": lambda: tf.StableLmForCausalLM(tf.StableLmConfig(**_BASE)),
    "starcoder2": lambda: tf.Starcoder2ForCausalLM(tf.Starcoder2Config(**_BASE, sliding_window=8)),
    "smollm3": lambda: tf.SmolLM3ForCausalLM(tf.SmolLM3Config(**_BASE)),
    "gpt2": lambda: tf.GPT2LMHeadModel(
        tf.GPT2Config(
            vocab_size=VOCAB_SIZE,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=128,
            pad_token_id=PAD,
            eos_token_id=EOS,
            bos_token_id=BOS,
        )
    ),
    "gpt_neox": lambda: tf.GPTNeoXForCausalLM(tf.GPTNeoXConfig(**_without("num_key_value_heads"))),
    "opt": lambda: tf.OPTForCausalLM(
        tf.OPTConfig(
            **_without("num_key_value_heads", "intermediate_size"),
            ffn_dim=48,
            word_embed_proj_dim=16,
            dropout=0.0,
        )
    ),
    "falcon": lambda: tf.FalconForCausalLM(
        tf.FalconConfig(**_without("num_key_value_heads", "intermediate_size"), alibi=False, new_decoder_architecture=True)
    ),
}


def _without(*names: str) -> dict:
    return {name: value for name, value in _BASE.items() if name not in names}


def tiny_model(architecture: str = "llama", seed: int = 0, attention: str = "sdpa"):
    """A random model in eval mode whose laws are peaked enough that greedy decoding has no near ties."""
    torch.manual_seed(seed)
    model = ARCHITECTURES[architecture]().eval()
    model.set_attn_implementation(attention)
    sharpen(model)
    model.generation_config = tf.GenerationConfig(pad_token_id=PAD, eos_token_id=EOS, bos_token_id=BOS)
    return model


def sharpen(model, factor: float = 8.0) -> None:
    """Scale matrices up from the library's small initialisation; random models otherwise predict almost uniformly."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(factor)


def tiny_draft(model, noise: float = 0.05, seed: int = 1):
    """A copy of `model` with perturbed weights: agrees with it often, but not always."""
    draft = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in draft.parameters():
            scale = noise * parameter.std() if parameter.numel() > 1 else 0.0
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return draft


def ragged_batch(batch_size: int = 4, length: int = 9, seed: int = 0) -> dict[str, torch.Tensor]:
    """Left-padded prompts of different lengths: `input_ids` and `attention_mask`, `[B, length]`."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, VOCAB_SIZE, (batch_size, length), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(1, batch_size):
        padding = (2 * row) % (length - 1)
        ids[row, :padding], mask[row, :padding] = PAD, 0
    return {"input_ids": ids, "attention_mask": mask}
