"""One prompt, decoded with a rule by name and printed as it comes."""

from typing import Any

from hf_diversed.cli.preparing import naming
from hf_diversed.cli.rendering import pieces_text
from hf_diversed.cli.terminal import console
from hf_diversed.formatting import LOSSLESS, PLAIN
from hf_diversed.generation.hook import resolve_verifier
from hf_diversed.head import load_head
from hf_diversed.outputs import SpeculativeStats
from hf_diversed.running.decode import Decoder
from hf_diversed.running.methods import Method
from hf_diversed.running.pair import Pair
from hf_diversed.running.prompts import Prompt, encode
from hf_diversed.running.sampling import Sampling
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
    label = method if dials["strictness"] is None else f"{method}@{dials['strictness']:g}"
    return label, resolve_verifier(head, None, pair.target.device, **dials)


def _without_head(method: str, dials: dict[str, Any]) -> Verifier | None:
    rule = {PLAIN: None, LOSSLESS: "lossless"}.get(method, method)
    return resolve_verifier(None, rule, **dials)


def stream(
    pair: Pair, prompt: Prompt, verifier: Verifier | None, sampling: Sampling, seed: int
) -> tuple[SpeculativeStats, float]:
    """Print tokens as they come; returns statistics and seconds."""
    total = SpeculativeStats()

    def show(pieces: list[Piece], stats: SpeculativeStats) -> None:
        total.add(stats)
        console.print(pieces_text(pieces), end="", soft_wrap=True)

    streamer = PieceStreamer(pair.tokenizer, show, plain=verifier is None)
    method, ids = Method("stream", verifier), encode(pair.tokenizer, [prompt])
    decoded = Decoder(pair, sampling)(method, ids, seed, streamer=streamer)
    console.print()
    return total, decoded.seconds
