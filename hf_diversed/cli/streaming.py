"""One prompt, decoded with a rule by name and printed as it comes."""

import time
from typing import Any

import torch

from hf_diversed.cli.comparison import Pair, Settings
from hf_diversed.cli.preparing import naming
from hf_diversed.cli.rendering import pieces_text
from hf_diversed.cli.terminal import console
from hf_diversed.formatting import LOSSLESS, PLAIN
from hf_diversed.generation.hook import resolve_verifier
from hf_diversed.head import load_head
from hf_diversed.outputs import SpeculativeStats
from hf_diversed.token_view import Piece, PieceStreamer
from hf_diversed.verifiers import Verifier
from hf_diversed.zoo.loader import WEIGHTS


def named_rule(method: str | None, head: str | None, task: str, target: str | None, dials: dict[str, Any]) -> None:
    """Refuse a rule that could not be built, before models load.

    Raises:
        ValueError: on unknown methods, "diversed" without a head, or a dial without one.
    """
    embedded = sorted(path.name for path in (WEIGHTS / "heads").glob("*")) if target is None else []
    method = method or ("diversed" if head is not None or task in embedded else "static:0.7")
    if method != "diversed":
        with naming("--method", method):
            _without_head(method, dials)
    elif head is not None:
        resolve_verifier(load_head(head), None, **dials)
    elif task not in embedded:
        others = f", or name a --task that has one: {', '.join(embedded)}" if embedded else ""
        raise ValueError(f"--method diversed needs a head: pass --head FOLDER_OR_HUB_ID{others}.")


def rule_for(pair: Pair, method: str | None, head: Any, dials: dict[str, Any]) -> tuple[str, Verifier | None]:
    """The rule of a method that `named_rule` let through and what to call it; None decodes with the target alone."""
    method = method or ("static:0.7" if head is None else "diversed")
    if method != "diversed":
        return method, _without_head(method, dials)
    label = method if dials["quality"] is None else f"{method}@{dials['quality']:g}"
    return label, resolve_verifier(head, None, pair.target.device, **dials)


def _without_head(method: str, dials: dict[str, Any]) -> Verifier | None:
    rule = {PLAIN: None, LOSSLESS: "lossless"}.get(method, method)
    return resolve_verifier(None, rule, **dials)


def encode(pair: Pair, prompt: str, chat: bool) -> dict[str, torch.Tensor]:
    """Ids and mask of a prompt, `[1, S]` each."""
    if chat:
        messages = [{"role": "user", "content": prompt}]
        prompt = str(pair.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    inputs = pair.tokenizer(prompt, return_tensors="pt", add_special_tokens=pair.add_special_tokens)
    return {name: inputs[name].to(pair.target.device) for name in ("input_ids", "attention_mask")}


def stream(
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
