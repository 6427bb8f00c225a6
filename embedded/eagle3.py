"""Train an EAGLE-3 head (arXiv 2503.01840) for the embedded target: `python -m embedded.eagle3 --output DIR`.

The head is one decoder layer. It reads hidden states of three layers of the target at a position and the embedding of
the next token, and predicts the token after that one. It drafts a chain of tokens: from the second draft token on, it
reads its own output of the step before instead of the target's states. Training runs this chain along the text
and compares every step with the target's distribution. Writes `config.json` and `model.safetensors` as vLLM loads
them, and `training.json`: the probability under the target of the likeliest draft token on held-out text, by step.
"""

import argparse
import json
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRotaryEmbedding, apply_rotary_pos_emb

from embedded.recipe import Recipe
from embedded.stream import batches
from hf_diversed import load_demo_pair
from hf_diversed.provenance import provenance
from hf_diversed.zoo.loader import Pair


LAYERS = (1, 2, 3)  # of the target; layer n reads hidden state n
CHAIN = 3  # draft tokens in training
_LEARNING_RATE = 1e-3  # maximum of the schedule
_STEP_WEIGHT = 0.8  # of a step's loss, relative to that of the step before
_HELD_OUT, NUM_HELD_OUT = 10**6, 8  # first batch that is not used for training, and number of such batches


class Eagle3Layer(nn.Module):
    """Decoder layer over the embedding and the state of a position, both of width W."""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        width, inner = config.hidden_size, config.num_attention_heads * config.head_dim
        self.heads, self.rotary = config.num_attention_heads, LlamaRotaryEmbedding(config)
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (
            nn.RMSNorm(width, config.rms_norm_eps) for _ in range(3)
        )
        self.self_attn = nn.ModuleDict({f"{name}_proj": nn.Linear(2 * width, inner, bias=False) for name in "qkv"})
        self.self_attn["o_proj"] = nn.Linear(inner, width, bias=False)
        self.mlp = LlamaMLP(config)

    def forward(self, embeddings: Tensor, states: Tensor, past: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Return the layer's output `[B, S, W]` for one step of the chain, and append its keys and values to `past`.

        A position attends to the keys of the first step, computed from the target's states, up to its own, and to its
        own keys of later steps.
        """
        mixed = torch.cat([self.input_layernorm(embeddings), self.hidden_norm(states)], dim=-1)
        query, key, value = (
            self.self_attn[f"{name}_proj"](mixed).unflatten(-1, (self.heads, -1)).transpose(1, 2) for name in "qkv"
        )
        positions = torch.arange(mixed.shape[1])[None] + len(past)
        query, key = apply_rotary_pos_emb(query, key, *self.rotary(mixed, positions))
        past.append((key, value))
        (keys, values), *later = past
        scores = query @ keys.transpose(2, 3)
        scores = scores.masked_fill(torch.ones(scores.shape[2:], dtype=torch.bool).triu(1), -torch.inf)
        own = [(query * key).sum(-1, keepdim=True) for key, _ in later]
        shares = (torch.cat([scores, *own], dim=-1) * query.shape[-1] ** -0.5).softmax(-1)
        first, *others = shares.split([scores.shape[-1], *[1] * len(later)], dim=-1)
        attended = first @ values + sum(share * value for share, (_, value) in zip(others, later))
        states = states + self.self_attn["o_proj"](attended.transpose(1, 2).flatten(2))
        return states + self.mlp(self.post_attention_layernorm(states))


class Eagle3Head(nn.Module):
    """The head of a target; its output matrix starts as the target's."""

    def __init__(self, target: LlamaForCausalLM):
        super().__init__()
        width = target.config.hidden_size
        self.fc = nn.Linear(len(LAYERS) * width, width, bias=False)
        self.midlayer = Eagle3Layer(target.config)
        self.norm = nn.RMSNorm(width, target.config.rms_norm_eps)
        self.lm_head = nn.Linear(width, target.config.vocab_size, bias=False)
        self.lm_head.weight.data.copy_(target.lm_head.weight)

    def forward(self, states: Tensor, embeddings: Tensor) -> list[Tensor]:
        """Return the logits of each step of the chain along a text of S tokens.

        Args:
            states: `[B, S, 3 W]`, hidden states of the target.
            embeddings: `[B, S, W]`, of the tokens.

        Returns:
            `CHAIN` tensors `[B, S, V]`; that of step k, from 0, predicts token i + k + 2 at position i. The last
            k + 1 positions lack an input.
        """
        state, logits = self.fc(states), []
        past: list[tuple[Tensor, Tensor]] = []
        for step in range(CHAIN):
            following = F.pad(embeddings[:, step + 1 :], (0, 0, 0, step + 1))
            state = self.midlayer(following, state, past)
            logits.append(self.lm_head(self.norm(state)))
        return logits


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m embedded.eagle3", description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="folder for the head")
    parser.add_argument("--steps", type=int, default=600)
    arguments = parser.parse_args(argv)
    pair = load_demo_pair()
    head = train_head(pair, arguments.steps)
    save_head(head, pair.target.config, arguments.output)
    accepted = measure(head, pair)
    record = {"steps": arguments.steps, "accepted": accepted, "provenance": provenance(0)}
    (arguments.output / "training.json").write_text(json.dumps(record, indent=1) + "\n")
    print(f"probability of the likeliest draft token, by step: {', '.join(f'{share:.3f}' for share in accepted)}")


def train_head(pair: Pair, steps: int) -> Eagle3Head:
    """Train a head with AdamW and a learning rate that falls to 0."""
    torch.manual_seed(0)
    head = Eagle3Head(pair.target)
    optimizer = torch.optim.AdamW(head.parameters(), lr=_LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _LEARNING_RATE, total_steps=steps, pct_start=0.1)
    for step, batch in enumerate(islice(batches(Recipe(), "target", pair.tokenizer, 0), steps), start=1):
        losses = []
        for logits, goal, weight in _chain(head, pair.target, batch):
            loss = -(goal.softmax(-1) * logits.log_softmax(-1)).sum(-1)
            losses.append((loss * weight).sum() / weight.sum())
        sum(_STEP_WEIGHT**number * loss for number, loss in enumerate(losses)).backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step}/{steps} losses {', '.join(f'{loss.item():.3f}' for loss in losses)}", flush=True)
    return head.eval()


@torch.no_grad()
def measure(head: Eagle3Head, pair: Pair) -> list[float]:
    """Return the mean probability under the target of the likeliest draft token, by step, on held-out text."""
    found = torch.zeros(CHAIN, 2)
    for batch in islice(batches(Recipe(), "target", pair.tokenizer, _HELD_OUT), NUM_HELD_OUT):
        for step, (logits, goal, weight) in enumerate(_chain(head, pair.target, batch)):
            accepted = goal.softmax(-1).gather(-1, logits.argmax(-1, keepdim=True)).squeeze(-1)
            is_answer = (weight >= 1.0).float()
            found[step] += torch.stack([(accepted * is_answer).sum(), is_answer.sum()])
    return (found[:, 0] / found[:, 1]).tolist()


def _chain(head: Eagle3Head, target: LlamaForCausalLM, batch: dict[str, Tensor]):
    """Yield logits of the head, those of the target for the same token, and the weight of that token, by step."""
    ids = batch["input_ids"]
    with torch.no_grad():
        read = target(ids, use_cache=False, output_hidden_states=True)
        states = torch.cat([read.hidden_states[layer] for layer in LAYERS], dim=-1)
        embeddings = target.get_input_embeddings()(ids)
    for step, logits in enumerate(head(states, embeddings)):
        yield logits[:, : -step - 2], read.logits[:, step + 1 : -1], batch["weights"][:, step + 2 :]


def save_head(head: Eagle3Head, config: LlamaConfig, folder: Path) -> None:
    """Write a head in the format of vLLM, which takes the embeddings from the target."""
    sizes = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    others = ("vocab_size", "rms_norm_eps", "max_position_embeddings", "rope_parameters")
    about = {name: getattr(config, name) for name in (*sizes, *others)} | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "draft_vocab_size": config.vocab_size,
        "eagle_aux_hidden_state_layer_ids": list(LAYERS),
        "tie_word_embeddings": False,
        "dtype": "float32",
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(about, indent=2))
    save_file({name: weight.contiguous() for name, weight in head.state_dict().items()}, folder / "model.safetensors")


if __name__ == "__main__":
    main()
