"""Train the embedded pair from scratch: `python -m embedded.train --output DIR`.

Writes `DIR/{tokenizer,target,draft}/` and `DIR/training.json`, in half an hour on two cores. Steps are compiled; use
`--no-compile` on machines without a C++ compiler. Measure the pair afterwards with `hf-diversed evaluate`.
"""

import argparse
import dataclasses
import hashlib
import json
import platform
import time
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from embedded.corpus import STYLES, training_examples
from embedded.recipe import ModelRecipe, Recipe, build_model
from embedded.stream import IGNORED, batches
from embedded.tokenizer import train_tokenizer


def train_pair(recipe: Recipe, output: Path, compiled: bool = True) -> None:
    """Train tokenizer and models, and save them with their provenance; the models sharpened, in half precision."""
    stream = training_examples(recipe.families, STYLES["target"], f"{recipe.seed}/tokenizer")
    texts = (example.prompt + example.completion for example in islice(stream, recipe.tokenizer_examples))
    tokenizer = train_tokenizer(texts, recipe.vocab_size)
    tokenizer.save_pretrained(output / "tokenizer")
    figures: dict[str, dict[str, Any]] = {}
    for role in ("draft", "target"):
        model, figures[role] = train_model(recipe, role, tokenizer, compiled)
        with torch.no_grad():
            model.model.norm.weight.mul_(recipe.models[role].sharpness)
        model.half().save_pretrained(output / role)
        figures[role]["parameters"] = model.num_parameters()
        figures[role]["sha256"] = hashlib.sha256((output / role / "model.safetensors").read_bytes()).hexdigest()
    provenance = {
        "recipe": dataclasses.asdict(recipe),
        "training": figures,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "threads": torch.get_num_threads(),
        "compiled": compiled,
    }
    (output / "training.json").write_text(json.dumps(provenance, indent=2) + "\n")


def train_model(
    recipe: Recipe, role: str, tokenizer: PreTrainedTokenizerFast, compiled: bool = True
) -> tuple[LlamaForCausalLM, dict]:
    """Train one model of the pair.

    Returns:
        The model in float32 and its statistics: steps, tokens, seconds, and mean of the last 100 losses.
    """
    settings = recipe.models[role]
    torch.manual_seed(recipe.seed)
    model = build_model(settings, tokenizer).train()
    model.set_attn_implementation("eager")  # faster for short rows than fused attention's backward
    forward: Any = torch.compile(model, dynamic=True) if compiled else model
    optimizers = _make_optimizers(model, settings)
    started, tokens, losses = time.perf_counter(), 0, list[float]()
    for step, batch in enumerate(islice(batches(recipe, role, tokenizer), settings.steps)):
        losses.append(train_step(forward, optimizers, batch, settings, step))
        tokens += int((batch["input_ids"] != tokenizer.pad_token_id).sum())
        if (step + 1) % recipe.save_every == 0:
            print(f"{role} step {step + 1}/{settings.steps} loss {fmean(losses[-100:]):.4f}", flush=True)
    figures = {"steps": settings.steps, "tokens": tokens, "seconds": time.perf_counter() - started}
    return model.eval(), figures | {"final_loss": fmean(losses[-100:])}


def train_step(
    model: torch.nn.Module, optimizers: list, batch: dict[str, Tensor], settings: ModelRecipe, step: int
) -> float:
    """Take one optimizer step with matrix products in bfloat16 and return the loss per completion token."""
    scale = min(1.0, (step + 1) / settings.warmup, (settings.steps - step) / (settings.decay * settings.steps))
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=batch["input_ids"][:, :-1], use_cache=False).logits
    losses = cross_entropy(
        logits.float().flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="none", ignore_index=IGNORED
    )
    weights = batch["weights"][:, 1:].flatten()
    (losses @ weights / weights.sum()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * scale
        optimizer.step()
        optimizer.zero_grad()
    completion = weights >= 1.0
    return losses.detach()[completion].mean().item()


def _make_optimizers(model: LlamaForCausalLM, settings: ModelRecipe) -> list[torch.optim.Optimizer]:
    """Return Muon for the weight matrices of the layers, and Adam for the embedding and the norms."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "layers" in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "layers" not in name]
    return [
        torch.optim.Muon(matrices, lr=settings.learning_rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=settings.learning_rate, weight_decay=0.0, betas=(0.9, 0.98), fused=True),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m embedded.train", description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="folder for the pair")
    parser.add_argument("--no-compile", action="store_true", help="run steps as they come, without a C++ compiler")
    arguments = parser.parse_args()
    train_pair(Recipe(), arguments.output, compiled=not arguments.no_compile)
