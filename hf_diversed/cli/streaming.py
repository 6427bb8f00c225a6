"""Decode one prompt with a named method and print tokens as they are generated."""

from typing import Any

from hf_diversed.cli.preparing import naming
from hf_diversed.cli.rendering import pieces_text
from hf_diversed.cli.terminal import console
from hf_diversed.formatting import PLAIN
from hf_diversed.generation.hook import resolve_verifier
from hf_diversed.head import load_head
from hf_diversed.outputs import SpeculativeStats
from hf_diversed.running.decode import Decoder
from hf_diversed.running.methods import Method
from hf_diversed.running.pair import Pair
from hf_diversed.running.prompts import Prompt, encode
from hf_diversed.running.sampling import Sampling
from hf_diversed.token_view import Piece, PieceStreamer
from hf_diversed.verifiers import Verifier, build_verifier
from hf_diversed.zoo.loader import WEIGHTS


DEFAULT = "lenience:0.3"  # the verifier without a head


def check_method(method: str | None, head: str | None, task: str, target: str | None, dials: dict[str, Any]) -> None:
    """Raise for a method that cannot be built, before models are loaded.

    Raises:
        ValueError: for unknown methods, "diversed" without a head, and dials without a head.
    """
    embedded = sorted(path.name for path in (WEIGHTS / "heads").glob("*")) if target is None else []
    method = method or ("diversed" if head is not None or task in embedded else DEFAULT)
    if method != "diversed":
        if given := [name for name, value in dials.items() if value is not None]:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise ValueError(f"{flags} needs --method diversed, which uses a head, and cannot act on {method}.")
        with naming("--method", method):
            _without_head(method)
    elif head is not None:
        resolve_verifier(load_head(head), None, **dials)
    elif task not in embedded:
        others = f", or name a --task that has one: {', '.join(embedded)}" if embedded else ""
        raise ValueError(f"--method diversed needs a head: pass --head FOLDER_OR_HUB_ID{others}.")


def build_method(pair: Pair, method: str | None, head: Any, dials: dict[str, Any]) -> tuple[str, Verifier | None]:
    """Return label and verifier of a method that `check_method` accepted; None decodes with the target alone."""
    method = method or (DEFAULT if head is None else "diversed")
    if method != "diversed":
        return method, _without_head(method)
    label = method if dials["strictness"] is None else f"{method}@{dials['strictness']:g}"
    return label, resolve_verifier(head, None, pair.target.device, **dials)


def _without_head(method: str) -> Verifier | None:
    return None if method == PLAIN else build_verifier(method)


def stream(
    pair: Pair, prompt: Prompt, verifier: Verifier | None, sampling: Sampling, seed: int
) -> tuple[SpeculativeStats, float]:
    """Print tokens as they are generated; return statistics and seconds."""
    total = SpeculativeStats()

    def show(pieces: list[Piece], stats: SpeculativeStats) -> None:
        total.add(stats)
        console.print(pieces_text(pieces), end="", soft_wrap=True)

    streamer = PieceStreamer(pair.tokenizer, show, target_alone=verifier is None)
    method, ids = Method("stream", verifier), encode(pair.tokenizer, [prompt])
    decoded = Decoder(pair, sampling)(method, ids, seed, streamer=streamer)
    console.print()
    return total, decoded.seconds
