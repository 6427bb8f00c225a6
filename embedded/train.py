"""Train the embedded pair from scratch: `python -m embedded.train --output DIR [--seed N]`.

Writes `DIR/{tokenizer,target,draft}/` and `DIR/training.json`. An interrupted run continues from its last checkpoint
in `DIR/checkpoints/` and ends in the same weights, because the batch of each step is fixed. Steps are compiled; use
`--no-compile` on machines without a C++ compiler. Measure the pair afterwards with `python -m embedded.measure DIR`.
"""

import argparse
import dataclasses
import hashlib
import json
import platform
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from embedded.corpus import STYLES, training_examples
from embedded.recipe import ModelRecipe, Recipe, build_model
from embedded.stream import IGNORED, batches
from embedded.tokenizer import train_tokenizer


def main(argv: list[str] | None = None) -> None:
    recipe, output, compiled = _parse_arguments(argv)
    train_pair(recipe, output, compiled)


def train_pair(recipe: Recipe, output: Path, compiled: bool = True) -> dict:
    """Train tokenizer and models, save them in half precision, and return the provenance."""
    tokenizer = _make_tokenizer(recipe, output / "tokenizer")
    figures: dict[str, dict[str, Any]] = {}
    for role in ("draft", "target"):
        model, figures[role] = train_model(recipe, role, tokenizer, output / "checkpoints", compiled)
        save_model(model, recipe.models[role], output / role)
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
    return provenance


def save_model(model: LlamaForCausalLM, settings: ModelRecipe, folder: Path) -> None:
    """Apply the recipe's sharpness to a trained model and save it in half precision."""
    with torch.no_grad():
        model.model.norm.weight.mul_(settings.sharpness)
    model.half().save_pretrained(folder)


def train_model(
    recipe: Recipe, role: str, tokenizer: PreTrainedTokenizerFast, checkpoints: Path, compiled: bool = True
) -> tuple[LlamaForCausalLM, dict]:
    """Train one model of the pair, from its checkpoint if there is one.

    Returns:
        The model in float32 and its statistics: steps, tokens, seconds (over all runs), mean of the last 100 losses,
            and schedules. More than one schedule means that training was extended, which a single run cannot
            reproduce.

    Raises:
        ValueError: if the checkpoint belongs to another recipe, or is beyond this one's last step.
    """
    settings = recipe.models[role]
    torch.manual_seed(recipe.seed)
    model = build_model(settings, tokenizer).train()
    model.set_attn_implementation("eager")  # faster for short rows than fused attention's backward
    forward: Any = torch.compile(model, dynamic=True) if compiled else model
    optimizers = _make_optimizers(model, settings)
    figures: dict[str, Any] = dict.fromkeys(("steps", "tokens", "seconds", "cpu_seconds"), 0)
    figures |= {"schedules": [], "losses": []}
    path = checkpoints / f"{role}.pt"
    if path.exists():
        figures = _load(path, model, optimizers, recipe, role)
    if not figures["schedules"] or figures["schedules"][-1]["steps"] != settings.steps:
        figures["schedules"].append({"from_step": figures["steps"], "steps": settings.steps})
    started, started_cpu = time.perf_counter(), time.process_time()
    for batch in islice(batches(recipe, role, tokenizer, figures["steps"]), settings.steps - figures["steps"]):
        loss = train_step(forward, optimizers, batch, settings, figures["steps"])
        figures["steps"] += 1
        figures["tokens"] += int((batch["input_ids"] != tokenizer.pad_token_id).sum())
        figures["losses"] = [*figures["losses"][-99:], loss]
        if figures["steps"] % recipe.save_every == 0 or figures["steps"] == settings.steps:
            now, now_cpu = time.perf_counter(), time.process_time()
            figures["seconds"] += now - started
            figures["cpu_seconds"] += now_cpu - started_cpu
            started, started_cpu = now, now_cpu
            _save(path, model, optimizers, figures, _identity(recipe, role))
            mean = sum(figures["losses"]) / len(figures["losses"])
            print(
                f"{role} step {figures['steps']}/{settings.steps} loss {mean:.4f} {figures['seconds']:.0f} s",
                flush=True,
            )
    losses = figures.pop("losses")
    return model.eval(), figures | {"final_loss": sum(losses) / len(losses)}


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


def _identity(recipe: Recipe, role: str) -> dict:
    """Return the settings that a checkpoint depends on: the recipe without the number of steps and the other model."""
    own = dataclasses.asdict(recipe)
    own["models"] = {name: value for name, value in own["models"][role].items() if name != "steps"}
    return {name: value for name, value in own.items() if name != "save_every"}


def _save(path: Path, model: LlamaForCausalLM, optimizers: list, figures: dict, identity: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    states = [optimizer.state_dict() for optimizer in optimizers]
    checkpoint = {"model": model.state_dict(), "optimizers": states, "figures": figures, "recipe": identity}
    torch.save(checkpoint, unfinished)
    unfinished.replace(path)  # atomic: an interruption leaves the old checkpoint or the new one


def _load(path: Path, model: LlamaForCausalLM, optimizers: list, recipe: Recipe, role: str) -> dict:
    checkpoint = torch.load(path, weights_only=True)
    if checkpoint.get("recipe") != _identity(recipe, role):
        raise ValueError(f"{path} was trained by another recipe; use another --output, or remove it to begin anew.")
    done, steps = checkpoint["figures"]["steps"], recipe.models[role].steps
    if done > steps:
        raise ValueError(f"--{role}-steps must be at least {done}, the steps of {path}, got {steps}.")
    model.load_state_dict(checkpoint["model"])
    for optimizer, state in zip(optimizers, checkpoint["optimizers"], strict=True):
        optimizer.load_state_dict(state)
    return checkpoint["figures"]


def _make_tokenizer(recipe: Recipe, folder: Path) -> PreTrainedTokenizerFast:
    """Train the tokenizer on text in the target's style, or load the one in `folder`."""
    if not folder.exists():
        stream = training_examples(recipe.families, STYLES["target"], f"{recipe.seed}/tokenizer")
        texts = (example.prompt + example.completion for example in islice(stream, recipe.tokenizer_examples))
        train_tokenizer(texts, recipe.vocab_size).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def _parse_arguments(argv: list[str] | None) -> tuple[Recipe, Path, bool]:
    default = Recipe()
    parser = argparse.ArgumentParser(prog="python -m embedded.train", description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="folder for the pair and its checkpoints")
    parser.add_argument("--seed", type=int, default=default.seed)
    for role, model in default.models.items():
        parser.add_argument(f"--{role}-steps", type=int, default=model.steps)
    parser.add_argument("--no-compile", action="store_true", help="run steps as they come, without a C++ compiler")
    arguments = vars(parser.parse_args(argv))
    models = {
        role: dataclasses.replace(model, steps=arguments[f"{role}_steps"]) for role, model in default.models.items()
    }
    recipe = dataclasses.replace(default, seed=arguments["seed"], models=models)
    return recipe, arguments["output"], not arguments["no_compile"]


if __name__ == "__main__":
    main()
