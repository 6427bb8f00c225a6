"""`hf-diversed generate`: continue a prompt, every token in the colour of where it came from."""

import time
from typing import Annotated, Any

import torch
import typer
from rich.text import Text
from transformers.utils import logging

from hf_diversed.cli.comparison import Pair, Settings
from hf_diversed.cli.models import load_pair
from hf_diversed.cli.rendering import pieces_text, source_legend, stats_line
from hf_diversed.cli.terminal import console, errors_in_words, notes
from hf_diversed.evaluation.methods import LOSSLESS, PLAIN
from hf_diversed.generation.hook import install_hook, resolve_verifier
from hf_diversed.outputs import SpeculativeStats
from hf_diversed.token_view import Piece, PieceStreamer
from hf_diversed.verifiers import Verifier


def generate(
    prompt: Annotated[str, typer.Argument(help="What to continue.", show_default=False)],
    task: Annotated[str, typer.Option(help="Which head of the embedded pair.")] = "math",
    target: Annotated[str | None, typer.Option(help="Hub id or folder; the embedded pair if left out.")] = None,
    draft: Annotated[str | None, typer.Option(help="Hub id or folder of the draft.")] = None,
    head: Annotated[str | None, typer.Option(help="Hub id or folder of a DiversedHead.")] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help='"ar" (the target alone), "sd" (lossless), "static:0.7", "diversed"; the last if there is a head.'
        ),
    ] = None,
    quality: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="0 accepts all, 1 is lossless.")] = None,
    max_bias: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Cap on TV(v, p) per token.")] = None,
    bias_budget: Annotated[float | None, typer.Option(min=0.0, help="Most TV(v, p), summed over the answer.")] = None,
    gamma: Annotated[
        int | None,
        typer.Option("--gamma", "--num-assistant-tokens", min=1, help="Drafts per round; the head's own, or 5."),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 decodes greedily.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of sampling.")] = 0,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 128,
    chat: Annotated[bool, typer.Option(help="Wrap the prompt in the tokenizer's chat template.")] = False,
    device: Annotated[str | None, typer.Option(help="cuda, mps or cpu; the best one by default.")] = None,
) -> None:
    """Continue a prompt with any pair and rule. Standard output gets the text alone, standard error the rest."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with errors_in_words():
        if not prompt.strip():
            raise ValueError("the prompt is empty; say what to continue.")
        install_hook()
        pair = load_pair(target, draft, device, chat)
        dials = {"quality": quality, "max_bias": max_bias, "bias_budget": bias_budget}
        label, verifier = _choose_rule(pair, method, head or pair.heads.get(task), dials)
        notes.print(Text(prompt, style="bold"), end="", soft_wrap=True)
        stats, seconds = _stream(
            pair, _prompt_ids(pair, prompt, chat), verifier, Settings(max_new_tokens, gamma, temperature, seed)
        )
        notes.print(Text("\n").append_text(Text() if verifier is None else source_legend()))
        notes.print(Text(stats_line(label, stats, seconds), style="bold"), soft_wrap=True)


def _choose_rule(pair: Pair, method: str | None, head: Any, dials: dict[str, Any]) -> tuple[str, Verifier | None]:
    """The rule of a method and what to call it; None decodes with the target alone.

    Raises:
        ValueError: on unknown methods, "diversed" without a head, or a dial without one.
    """
    method = method or ("static:0.7" if head is None else "diversed")
    if method != "diversed":
        rule = {PLAIN: None, LOSSLESS: "lossless"}.get(method, method)
        return method, resolve_verifier(None, rule, **dials)
    if head is None:
        embedded = f", or name a --task that has one: {', '.join(pair.heads)}" if pair.heads else ""
        raise ValueError(f"--method diversed needs a head: pass --head{embedded}.")
    label = method if dials["quality"] is None else f"{method}@{dials['quality']:g}"
    return label, resolve_verifier(head, None, pair.target.device, **dials)


def _prompt_ids(pair: Pair, prompt: str, chat: bool) -> dict[str, torch.Tensor]:
    if chat:
        messages = [{"role": "user", "content": prompt}]
        prompt = str(pair.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    inputs = pair.tokenizer(prompt, return_tensors="pt", add_special_tokens=pair.add_special_tokens)
    return {name: inputs[name].to(pair.target.device) for name in ("input_ids", "attention_mask")}


def _stream(
    pair: Pair, inputs: dict[str, torch.Tensor], verifier: Verifier | None, settings: Settings
) -> tuple[SpeculativeStats, float]:
    """Print tokens as they come; returns statistics and seconds."""
    total = SpeculativeStats()

    def show(pieces: list[Piece], stats: SpeculativeStats) -> None:
        total.add(stats)
        console.print(pieces_text(pieces), end="", soft_wrap=True)

    kwargs = inputs | settings.generation_kwargs()
    if verifier is not None:
        kwargs |= {"assistant_model": pair.draft, "verifier": verifier}
        if settings.gamma is not None:
            kwargs["num_assistant_tokens"] = settings.gamma
    torch.manual_seed(settings.seed)
    began = time.perf_counter()
    pair.target.generate(**kwargs, streamer=PieceStreamer(pair.tokenizer, show, plain=verifier is None))
    seconds = time.perf_counter() - began
    console.print()
    return total, seconds
