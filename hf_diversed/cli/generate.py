"""`hf-diversed generate`: continue a prompt, with every token coloured by its origin."""

import torch
from rich.text import Text

from hf_diversed.cli.models import load_pair
from hf_diversed.cli.options import GenerateOptions, MethodOptions, flag
from hf_diversed.cli.preparing import naming
from hf_diversed.cli.rendering import pieces_text, source_legend, stats_line
from hf_diversed.cli.terminal import console, notes, show_own_warnings_only
from hf_diversed.formatting import LOSSLESS, PLAIN
from hf_diversed.generation.request import resolve_verifier
from hf_diversed.harness.decode import Decoder
from hf_diversed.harness.methods import Method
from hf_diversed.harness.pair import Pair
from hf_diversed.harness.prompts import Prompt, encode
from hf_diversed.harness.sampling import Sampling
from hf_diversed.head_settings import SETTINGS
from hf_diversed.method_names import DIVERSED, MethodName
from hf_diversed.outputs import SpeculativeStats
from hf_diversed.token_view import Piece, PieceStreamer
from hf_diversed.verifiers import Verifier, build_verifier
from hf_diversed.zoo.loader import HEADS, WEIGHTS


def generate(options: GenerateOptions) -> None:
    """Continue a prompt. Standard output receives only the text, standard error everything else."""
    if not options.prompt.strip():
        raise ValueError("the prompt is empty; pass a text to continue.")
    sampling = Sampling(
        options.temperature,
        num_assistant_tokens=options.num_assistant_tokens,
        max_new_tokens=options.max_new_tokens,
    )
    show_own_warnings_only()
    _, verifier = build_method(options)
    if verifier is not None and verifier.greedy_only and options.temperature > 0:
        raise ValueError(f"--method {options.method} is defined for greedy decoding only; pass --temperature 0.")
    pair = load_pair(options.target, options.draft, options.device, options.chat, options.dtype)
    label, verifier = build_method(options, pair.target.device)
    notes.print(Text(options.prompt, style="bold"), end="", soft_wrap=True)
    prompt = [{"role": "user", "content": options.prompt}] if options.chat else options.prompt
    stats, seconds = _stream(pair, prompt, verifier, sampling, options.seed)
    notes.print(Text("\n").append_text(Text() if verifier is None else source_legend()))
    notes.print(Text(stats_line(label, stats, seconds), style="bold"), soft_wrap=True)


def build_method(options: MethodOptions, device: torch.device | None = None) -> tuple[str, Verifier | None]:
    """Return label and verifier of a method; None decodes with the target alone.

    Commands also call this before models are loaded, so that errors appear early.

    Args:
        device: of the head.

    Raises:
        ValueError: if the method is unknown, or needs a head or has settings of a head without one, or if the embedded
            pair has no head for the task.
    """
    embedded = {path.name: path for path in sorted((WEIGHTS / HEADS).glob("*"))} if options.target is None else {}
    head = options.head or embedded.get(options.task)
    if head is None and embedded and options.method is None:
        raise ValueError(
            f"--task {options.task}: the embedded pair has heads for {', '.join(embedded)}; name one of them, or pass "
            "--method."
        )
    method = options.method or (LOSSLESS if head is None else DIVERSED)
    settings = {name: getattr(options, name, None) for name in SETTINGS}
    if method != DIVERSED:
        if MethodName.parse(method).name == DIVERSED:
            raise ValueError(
                f"--method {method}: this command needs --method diversed, with --head FOLDER_OR_HUB_ID and "
                "--strictness."
            )
        if used := [name for name, value in ({"head": options.head} | settings).items() if value is not None]:
            raise ValueError(f"{', '.join(map(flag, used))} needs --method diversed, which uses a head, got {method}.")
        with naming("--method", method):
            return method, None if method == PLAIN else build_verifier(method)
    if head is None:
        alternative = f", or name a --task that has one: {', '.join(embedded)}" if embedded else ""
        raise ValueError(f"--method diversed needs a head: pass --head FOLDER_OR_HUB_ID{alternative}.")
    label = str(MethodName(DIVERSED, strictness=options.strictness))
    return label, resolve_verifier(head, None, device, **settings)


def _stream(
    pair: Pair, prompt: Prompt, verifier: Verifier | None, sampling: Sampling, seed: int
) -> tuple[SpeculativeStats, float]:
    """Print tokens as they are generated; return statistics and seconds."""
    total = SpeculativeStats()

    def show(pieces: list[Piece], stats: SpeculativeStats) -> None:
        total.add(stats)
        if console.is_terminal:
            console.print(pieces_text(pieces), end="", soft_wrap=True)
        else:  # rich expands tabs and removes control characters
            print("".join(piece.text for piece in pieces), end="", flush=True)

    streamer = PieceStreamer(pair.tokenizer, show, target_alone=verifier is None)
    method, ids = Method("stream", verifier), encode(pair.tokenizer, [prompt])
    decoded = Decoder(pair, sampling)(method, ids, seed, streamer=streamer)
    console.print()
    return total, decoded.seconds
