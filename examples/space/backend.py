"""The pair, the rule a visitor chose, and decoding that reports while it runs. Knows nothing of pages."""

import os
import queue
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch

from hf_diversed import (
    DiversedHead,
    DiversedVerifier,
    LenientVerifier,
    LosslessVerifier,
    SpeculativeStats,
    StaticEnsembleVerifier,
    Verifier,
    load_demo_pair,
)
from hf_diversed.hub.metadata import hub_id
from hf_diversed.running.decode import Decoder
from hf_diversed.running.methods import Method
from hf_diversed.running.pair import Pair, load_model, load_tokenizer
from hf_diversed.running.prompts import encode
from hf_diversed.running.sampling import Sampling
from hf_diversed.token_view import Piece, PieceStreamer


PLAIN, LOSSLESS, LENIENT, STATIC, DIVERSED = METHODS = ("Plain", "Lossless", "Lenience", "Static", "DIVERSED")
# How the prompts of the embedded pair begin and end: it has seen no others.
KINDS = {"math": ("Question: ", "\nAnswer:"), "summary": ("Article: ", "\nSummary:"), "code": ("Task: ", "\nCode:")}
SECONDS_PER_FRAME = 0.05
LONGEST_PROMPT = 20_000  # characters; longer ones are not even tokenized


@dataclass(frozen=True)
class Choice:
    """What a visitor asked for."""

    prompt: str
    task: str
    method: str
    quality: float
    lenience: float
    weight: float
    max_bias: float
    gamma: int
    temperature: float
    max_new_tokens: int
    seed: int | None
    head: str


@dataclass
class Run:
    """A decoding so far; seconds count from its start to its latest token."""

    pieces: list[Piece] = field(default_factory=list)
    stats: SpeculativeStats = field(default_factory=SpeculativeStats)
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.stats.num_emitted / self.seconds if self.seconds else float("nan")


def load_pair() -> tuple[Pair, bool]:
    """The pair of HF_DIVERSED_TARGET, _DRAFT and _HEAD, or the embedded one, and whether it is that; a head by the key
    "" serves every task."""
    target, draft, head = (os.environ.get(f"HF_DIVERSED_{name}") for name in ("TARGET", "DRAFT", "HEAD"))
    if (target is None) != (draft is None):
        raise ValueError("HF_DIVERSED_TARGET and HF_DIVERSED_DRAFT go together: set both, or neither.")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    named = {} if head is None else {"": DiversedHead.from_pretrained(head).to(device).eval()}
    if target is None or draft is None:
        pair = load_demo_pair().to(device)
        return replace(pair, heads={**pair.heads, **named}), True
    return Pair(load_model(target, device), load_model(draft, device), load_tokenizer(target), named), False


def choose_rule(pair: Pair, choice: Choice) -> Verifier | None:
    """The rule of a choice; None for the target alone. Raises ValueError, in words for visitors."""
    if choice.method == DIVERSED:
        max_bias = None if choice.max_bias >= 1 else choice.max_bias
        return DiversedVerifier(_find_head(pair, choice), choice.quality, max_bias)
    if choice.method == LENIENT:
        return LenientVerifier(choice.lenience)
    rules = {PLAIN: None, LOSSLESS: LosslessVerifier(), STATIC: StaticEnsembleVerifier(choice.weight)}
    return rules[choice.method]


def check_kind(prompt: str) -> None:
    """Decline what the embedded pair was not made for. Raises ValueError, in words for visitors."""
    text = prompt.strip()
    if text and not any(text.startswith(begin) and text.endswith(end) for begin, end in KINDS.values()):
        kinds = ", ".join(f'"{begin}... {end.strip()}"' for begin, end in KINDS.values())
        raise ValueError(
            "This small pair knows three kinds of prompt: word problems, news items and tasks for a function. To "
            "anything else it would answer nonsense. Take an example and change its words or numbers, or write "
            f"{kinds}."
        )


def tokenize(pair: Pair, choice: Choice) -> list[int]:
    """The prompt as ids, in the chat template where there is one. Raises ValueError where it is empty or too long."""
    if not choice.prompt.strip():
        raise ValueError("The prompt is empty. Write one, or take an example.")
    room = pair.target.config.get_text_config().max_position_embeddings - choice.max_new_tokens
    if len(choice.prompt) > LONGEST_PROMPT:
        raise ValueError(f"The prompt is too long: {len(choice.prompt)} characters, of {LONGEST_PROMPT} at most.")
    templated = pair.tokenizer.chat_template is not None
    (ids,) = encode(pair.tokenizer, [[{"role": "user", "content": choice.prompt}] if templated else choice.prompt])
    if len(ids) > room:
        raise ValueError(f"The prompt is too long: {len(ids)} tokens, where {room} fit beside the answer.")
    return ids


def decode(pair: Pair, prompt: list[int], verifier: Verifier | None, choice: Choice) -> Iterator[Run]:
    """Decode in a thread and yield the same `Run` as it grows; a visitor who leaves stops it."""
    run, events, abandoned = Run(), queue.SimpleQueue(), threading.Event()

    def hear(pieces: list[Piece], stats: SpeculativeStats) -> None:
        if abandoned.is_set():
            raise InterruptedError
        events.put((pieces, stats, time.perf_counter() - began))

    def work() -> None:
        try:
            streamer = PieceStreamer(pair.tokenizer, hear, plain=verifier is None)
            seed = choice.seed or 0  # an emptied field is None
            decoder(Method(choice.method, verifier), [prompt], seed, streamer=streamer)
            events.put(None)
        except Exception as error:  # raised again where the visitor is
            events.put(error)

    sampling = Sampling(choice.temperature, num_assistant_tokens=choice.gamma, max_new_tokens=choice.max_new_tokens)
    decoder = Decoder(pair, sampling)
    began = time.perf_counter()
    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    try:
        while (event := events.get()) is not None:
            if isinstance(event, Exception):
                raise event
            pieces, stats, run.seconds = event
            run.pieces += pieces
            run.stats.add(stats)
            if events.empty():  # what is already there comes in one frame
                yield run
                time.sleep(SECONDS_PER_FRAME)
        yield run
    finally:
        abandoned.set()
        worker.join()


def _find_head(pair: Pair, choice: Choice) -> DiversedHead:
    name = choice.head.strip()
    if not name:
        if head := pair.heads.get(choice.task, pair.heads.get("")):
            return head
        known = f"; there is one for {', '.join(pair.heads)}" if pair.heads else ""
        raise ValueError(f"There is no head for {choice.task!r} yet{known}. Name one, or choose another method.")
    repo_id, _, revision = name.partition("@")
    if hub_id(repo_id) is None:
        raise ValueError(
            f"The head {name!r} could not be loaded. Name one of the Hub, as org/name or org/name@revision."
        )
    try:
        # Neither the folders of this machine nor its owner's private heads are a visitor's, and no download stays.
        with tempfile.TemporaryDirectory() as cache:
            head = DiversedHead.from_pretrained(repo_id, revision=revision or "main", token=False, cache_dir=cache)
        return head.to(pair.target.device).eval()
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"The head {name!r} could not be loaded. {reason}") from error
