"""Tiny random models of real architectures, built from configs. `sharpen` makes greedy decoding unambiguous."""

import copy
import re

import torch
import transformers as tf
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from hf_diversed import DiversedHead, DiversedHeadConfig, RoundStreamer
from hf_diversed.generation.confidence import ConfidenceRule


VOCAB_SIZE = 64
PAD, EOS, BOS = 0, 1, 2
EAGER_ONLY = {"gemma2", "gpt_oss"}  # architectures for which upstream recommends eager attention
SAMPLED = {"max_new_tokens": 12, "do_sample": True, "top_k": 0}

# With tied weights a random model repeats its input token.
_TOKENS = {"vocab_size": VOCAB_SIZE, "pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": BOS}
_TOKENS["tie_word_embeddings"] = False
BASE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "max_position_embeddings": 128}
BASE |= {"num_attention_heads": 4, "num_key_value_heads": 2, **_TOKENS}
_GEMMA = {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 8}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, **_TOKENS}
_VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
_VISION |= {"image_size": 28, "patch_size": 14}
_EXPERTS = {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2}
MIXED = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
LATENT = {"moe_intermediate_size": 16, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2}
LATENT |= {"n_shared_experts": 1, "first_k_dense_replace": 1, "kv_lora_rank": 16, "q_lora_rank": 16}
LATENT |= {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12, "num_key_value_heads": 4}


_QUERIES_OR_KEYS = re.compile("q_proj|k_proj|qkv|query_key_value|c_attn|q_a_proj|q_b_proj|kv_a_proj|kv_b_proj")


def _gemma3_vision():
    text = {**BASE, **_GEMMA, **MIXED, "model_type": "gemma3_text"}
    config = tf.Gemma3Config(
        text_config=text, vision_config=_VISION, mm_tokens_per_image=4, image_token_index=3, tie_word_embeddings=False
    )
    return tf.Gemma3ForConditionalGeneration(config)


ARCHITECTURES = {
    "llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**BASE)),
    "qwen2": lambda: tf.Qwen2ForCausalLM(tf.Qwen2Config(**BASE)),
    "qwen3": lambda: tf.Qwen3ForCausalLM(
        tf.Qwen3Config(**BASE, head_dim=8, use_sliding_window=True, sliding_window=8, max_window_layers=1)
    ),
    "qwen3_moe": lambda: tf.Qwen3MoeForCausalLM(
        tf.Qwen3MoeConfig(**BASE, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
    ),
    "gemma2": lambda: tf.Gemma2ForCausalLM(tf.Gemma2Config(**BASE, **_GEMMA)),
    "gemma3_text": lambda: tf.Gemma3ForCausalLM(tf.Gemma3TextConfig(**{**BASE, **_GEMMA, **MIXED})),
    "gemma3_multimodal": _gemma3_vision,
    "mistral": lambda: tf.MistralForCausalLM(tf.MistralConfig(**BASE, sliding_window=8)),
    "cohere2": lambda: tf.Cohere2ForCausalLM(tf.Cohere2Config(**BASE, **MIXED, logit_scale=1.0)),
    "gpt_oss": lambda: tf.GptOssForCausalLM(
        tf.GptOssConfig(**BASE, **MIXED, **_EXPERTS, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    ),
    "deepseek_v3": lambda: tf.DeepseekV3ForCausalLM(tf.DeepseekV3Config(**{**BASE, **LATENT})),
    "gpt_bigcode": lambda: tf.GPTBigCodeForCausalLM(tf.GPTBigCodeConfig(**_GPT2)),
    "smollm3": lambda: tf.SmolLM3ForCausalLM(tf.SmolLM3Config(**BASE)),
    "gpt2": lambda: tf.GPT2LMHeadModel(tf.GPT2Config(**_GPT2)),
    "gpt_neox": lambda: tf.GPTNeoXForCausalLM(tf.GPTNeoXConfig(**_without("num_key_value_heads"))),
    "opt": lambda: tf.OPTForCausalLM(
        tf.OPTConfig(
            **_without("num_key_value_heads", "intermediate_size"), ffn_dim=48, word_embed_proj_dim=16, dropout=0.0
        )
    ),
    "falcon": lambda: tf.FalconForCausalLM(
        tf.FalconConfig(
            **_without("num_key_value_heads", "intermediate_size"), alibi=False, new_decoder_architecture=True
        )
    ),
}


def _without(*names: str) -> dict:
    return {name: value for name, value in BASE.items() if name not in names}


def tiny_model(architecture="llama", seed: int = 0, attention: str = "sdpa"):
    """Return a random model in eval mode whose greedy text varies and has no near ties.

    Args:
        architecture: a name in `ARCHITECTURES`, or a function that creates the model.
    """
    torch.manual_seed(seed)
    model = ARCHITECTURES.get(architecture, architecture)().eval()
    model.set_attn_implementation(attention)
    sharpen(model)
    model.generation_config = tf.GenerationConfig(pad_token_id=PAD, eos_token_id=EOS, bos_token_id=BOS)
    return model


def sharpen(model, gain: float = 3.0) -> None:
    """Scale every matrix to keep its input's scale; queries and keys to double it, the output embedding `gain`-fold.

    With the library's own initialisation a random model predicts almost uniformly and repeats one token forever.
    """
    output = model.get_output_embeddings().weight
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2:
                continue
            scale = parameter.shape[-1] ** -0.5
            if parameter is output:
                scale *= gain
            elif parameter is model.get_input_embeddings().weight:
                scale = 1.0
            elif _QUERIES_OR_KEYS.search(name):
                scale *= 2.0
            parameter.mul_(scale / parameter.std().clamp_min(1e-6))


def tiny_draft(model, noise: float = 0.06, seed: int = 1):
    """Return a copy of `model` with perturbed weights, which agrees with it often but not always."""
    draft = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in draft.parameters():
            scale = noise * parameter.std() if parameter.numel() > 1 else 0.0
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return draft


_rule_for_models = ConfidenceRule.for_models


def rule_of_a_cheap_draft_model(draft, target) -> ConfidenceRule:
    """Return the rule of a call. As `tiny_draft` has the size of its target, blocks would end after one token."""
    rule = _rule_for_models(draft, target)
    rule.cost = min(rule.cost, 0.3)
    return rule


def first_layers(model, count: int):
    """Return a copy of `model` with its first `count` layers."""
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = count
    smaller = type(model)(config).eval()
    smaller.load_state_dict(model.state_dict(), strict=False)
    return smaller


def num_hooks(model) -> int:
    """Return the number of forward hooks of a model and its modules."""
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def ragged_batch(batch_size: int = 4, length: int = 9, seed: int = 0) -> dict[str, torch.Tensor]:
    """Left-padded prompts of different lengths: `input_ids` and `attention_mask`, `[B, length]`."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, VOCAB_SIZE, (batch_size, length), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(1, batch_size):
        padding = (2 * row) % (length - 1)
        ids[row, :padding], mask[row, :padding] = PAD, 0
    return {"input_ids": ids, "attention_mask": mask}


def generate(pair, **call):
    """Generate with a pair on a ragged batch, under `SAMPLED`; settings in `call` take precedence."""
    settings = {**ragged_batch(), **SAMPLED, "assistant_model": pair[1], "return_dict_in_generate": True}
    return pair[0].generate(**settings | call)


def tiny_head(seed: int = 0, **config) -> DiversedHead:
    """Return a head for `tiny_model` and `tiny_draft` with weights across (0, 1)."""
    torch.manual_seed(seed)
    widths = {"target_hidden_size": 32, "draft_hidden_size": 32}
    head = DiversedHead(DiversedHeadConfig(**widths | config))
    torch.nn.init.normal_(head.out.weight, std=0.3)
    return head


def word_tokenizer(prefix: str = "", words: list[str] | None = None) -> tf.PreTrainedTokenizerFast:
    """One word per id, "w5" for 5 unless `words` are given, padded on the left; `prefix` is put before every text."""
    words = [f"w{i}" for i in range(VOCAB_SIZE)] if words is None else words
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="w3"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if prefix:
        special = [(prefix, int(prefix[1:]))]
        backend.post_processor = processors.TemplateProcessing(single=f"{prefix} $A", special_tokens=special)
    tokens = {"pad_token": f"w{PAD}", "eos_token": f"w{EOS}", "bos_token": f"w{BOS}"}
    names = ["input_ids", "attention_mask"]
    return tf.PreTrainedTokenizerFast(tokenizer_object=backend, padding_side="left", model_input_names=names, **tokens)


def calibration(**changes) -> dict:
    """Return the `calibration` of a head's config."""
    found = {"strictness": 0.35, "max_quality_drop": 0.01, "confidence": 0.95, "drop": -0.002, "acceptance_rate": 0.9}
    found |= {"task": "math", "metric": "accuracy", "num_prompts": 500, "samples_per_prompt": 2}
    found |= {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "num_assistant_tokens": 5, "max_new_tokens": 12}
    return found | changes


class Listener(RoundStreamer):
    """Stores the rounds and the tokens that are streamed to it."""

    def __init__(self):
        self.rounds, self.tokens, self.ended = [], [], 0

    def put_round(self, records, stats):
        self.rounds.append((records, stats))

    def put(self, value):
        self.tokens += value.flatten().tolist()

    def end(self):
        self.ended += 1
