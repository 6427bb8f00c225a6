"""Tiny pairs for each candidate generator of transformers: a target, and the arguments that select the generator."""

import pytest
import torch
import transformers as tf
from transformers.generation.candidate_generator import CandidateGenerator
from transformers.modeling_layers import MtpModel

from tests import tiny
from tests.versions import since


MTP_TYPES = {
    "mellum": lambda: tf.MellumForCausalLM(
        tf.MellumConfig(
            **tiny.BASE,
            **tiny.MIXED,
            num_mtp_layers=1,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            head_dim=8,
        )
    ),
    "deepseek_v3": lambda: tf.DeepseekV3ForCausalLM(
        tf.DeepseekV3Config(**{**tiny.BASE, **tiny.LATENT, "num_mtp_layers": 2})
    ),
    "glm4_moe": lambda: tf.Glm4MoeForCausalLM(
        tf.Glm4MoeConfig(
            **tiny.BASE,
            num_mtp_layers=3,
            n_routed_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            n_group=1,
            topk_group=1,
            head_dim=8,
        )
    ),
}


class Copies(CandidateGenerator):
    """Drafts the last three tokens again; keeps what it receives after each round."""

    def __init__(self):
        self.received = []

    def get_candidates(self, input_ids, **kwargs):
        return torch.cat([input_ids, input_ids[:, -3:]], dim=1), None

    def update_candidate_strategy(self, input_ids, scores, num_matches):
        self.received.append((input_ids[0].tolist(), tuple(scores.shape), num_matches))


class FromStates(CandidateGenerator):
    """Draws tokens from the target's output embedding of its last hidden state, with the logits of each."""

    requires_model_outputs = True

    def __init__(self, target):
        self.model_kwargs_overrides = {"output_hidden_states": True}
        self.head = target.get_output_embeddings()

    def get_candidates(self, input_ids, model_outputs=None, is_first_iteration=False, n_last_matches=0, **kwargs):
        if is_first_iteration:
            return input_ids, None
        width = model_outputs.hidden_states[-1].shape[1]
        # The first outputs are those of the whole prompt.
        last = width - 1 if width == input_ids.shape[1] - 1 else n_last_matches
        logits = self.head(model_outputs.hidden_states[-1][:, last : last + 1]).float().repeat(1, 2, 1) / 2
        drawn = torch.multinomial(logits[0].softmax(dim=-1), 1).T
        return torch.cat([input_ids, drawn], dim=1), logits

    def update_candidate_strategy(self, input_ids, scores, num_matches):
        pass


def mtp(kind: str):
    return tiny.tiny_model(MTP_TYPES[kind]), {"use_mtp": True}


def random_mtp_model(target, **_) -> MtpModel:
    """Return what `MtpModel.from_pretrained` would read from a checkpoint, with random weights."""
    generator = torch.Generator().manual_seed(3)
    model = MtpModel(target, target.config.num_mtp_layers).eval()
    with torch.no_grad():
        for parameter in model.layers.parameters():
            scale = parameter.shape[-1] ** -0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale if parameter.ndim > 1 else 1.0)
    return model


def dflash():
    target = tiny.tiny_model("llama")
    config = tf.MuseGlimmerAssistantConfig(
        **{**tiny.BASE, "max_position_embeddings": 128},
        head_dim=8,
        block_size=5,
        mask_token_id=3,
        target_layer_ids=[0, 1],
        sliding_window=64,
    )
    torch.manual_seed(1)
    return target, {"assistant_model": tf.MuseGlimmerAssistantModel(config).eval(), "speculation_type": "dflash"}


def gemma4():
    text = {**tiny.BASE, **tiny.MIXED, "head_dim": 8, "global_head_dim": 8, "hidden_size_per_layer_input": 0}
    # The window is longer than the text: upstream's generator does not cut rejected tokens from a shorter one.
    text |= {"vocab_size_per_layer_input": 0, "num_kv_shared_layers": 0, "sliding_window": 64}
    target = tiny.tiny_model(lambda: tf.Gemma4ForCausalLM(tf.Gemma4TextConfig(**text)))
    own = tf.Gemma4TextConfig(**text | {"num_kv_shared_layers": 2})
    torch.manual_seed(1)
    config = tf.Gemma4AssistantConfig(text_config=own, backbone_hidden_size=32, tie_word_embeddings=False)
    draft = tf.Gemma4AssistantForCausalLM(config).eval()
    draft.generation_config = tf.GenerationConfig(num_assistant_tokens=3, pad_token_id=0, eos_token_id=1)
    return target, {"assistant_model": draft}


def own():
    return tiny.tiny_model("llama"), {"candidate_generator": Copies()}


def own_from_states():
    target = tiny.tiny_model("llama")
    return target, {"candidate_generator": FromStates(target)}


SOURCES = {
    **{f"mtp:{kind}": (lambda kind=kind: mtp(kind)) for kind in MTP_TYPES},
    "dflash": dflash,
    "gemma4": gemma4,
    "own": own,
    "own_from_states": own_from_states,
}


def parameters(names=SOURCES) -> list:
    """Return the names for `parametrize`, with a mark for those that need a newer transformers."""
    newer = since("5.23", "returns other logits than those that were sampled from")
    newest = since("5.24", "refuses an assistant of two layer types")
    marks = {"mtp": newer, "dflash": newer, "gemma4": newest}
    return [pytest.param(name, marks=marks.get(name.partition(":")[0], ())) for name in names]
