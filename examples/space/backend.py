"""The pair, the rule a visitor chose, and decoding that reports while it runs. Knows nothing of pages."""

import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._dynamo.callback import callback_handler
from torch._dynamo.exc import TorchDynamoException
from transformers import StoppingCriteriaList

from hf_diversed import (
    DiversedHead,
    DiversedVerifier,
    LenientVerifier,
    LosslessVerifier,
    SpeculativeStats,
    StaticEnsembleVerifier,
    Verifier,
)
from hf_diversed.engines.buffers import capacity_for
from hf_diversed.hub.metadata import hub_id
from hf_diversed.running.compiled import default_compile_config
from hf_diversed.running.decode import Decoder
from hf_diversed.running.methods import Method
from hf_diversed.running.pair import Pair
from hf_diversed.running.prompts import encode
from hf_diversed.running.sampling import Sampling
from hf_diversed.token_view import Piece, PieceStreamer


PLAIN, LOSSLESS, LENIENT, STATIC, DIVERSED = METHODS = ("Plain", "Lossless", "Lenience", "Static", "DIVERSED")
EAGER, COMPILED = ENGINES = ("Eager", "Compiled")
COMPILING, STOPPED = "compiling", "stopped"
# How the prompts of the embedded pair begin and end: it has seen no others.
KINDS = {"math": ("Question: ", "\nAnswer:"), "summary": ("Article: ", "\nSummary:"), "code": ("Task: ", "\nCode:")}
SECONDS_PER_FRAME, LONGEST_SILENCE = 0.05, 0.25
_one_at_a_time = threading.Lock()  # a run that was stopped may still be compiling
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
    engine: str
    temperature: float
    max_new_tokens: int
    seed: int | None
    head: str


@dataclass
class Run:
    """A decoding so far.

    Attributes:
        seconds: from its start to its latest token, less those that compiling took.
        waits_for: what keeps it from going on: `COMPILING`, `STOPPED` (another run, up to its next round), or nothing.
    """

    pieces: list[Piece] = field(default_factory=list)
    stats: SpeculativeStats = field(default_factory=SpeculativeStats)
    seconds: float = 0.0
    waits_for: str = ""

    @property
    def tokens_per_second(self) -> float:
        return self.stats.num_emitted / self.seconds if self.seconds else float("nan")


def choose_rule(pair: Pair, choice: Choice) -> Verifier | None:
    """The rule of a choice; None for the target alone. Raises ValueError, in words for visitors."""
    if choice.method == DIVERSED:
        max_bias = None if choice.max_bias >= 1 else choice.max_bias
        head = _find_head(pair, choice)
        if pair.draft is None and head.needs_hidden_states:
            raise ValueError(
                "This head reads what goes on inside a draft model, and here drafts are looked up in the prompt. Name "
                "a head that was trained for such drafts, or choose another method."
            )
        return DiversedVerifier(head, choice.quality, max_bias)
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
    room = _most_positions(pair) - choice.max_new_tokens
    if len(choice.prompt) > LONGEST_PROMPT:
        raise ValueError(f"The prompt is too long: {len(choice.prompt)} characters, of {LONGEST_PROMPT} at most.")
    templated = pair.tokenizer.chat_template is not None
    (ids,) = encode(pair.tokenizer, [[{"role": "user", "content": choice.prompt}] if templated else choice.prompt])
    if len(ids) > room:
        raise ValueError(f"The prompt is too long: {len(ids)} tokens, where {room} fit beside the answer.")
    return ids


def decode(pair: Pair, prompt: list[int], verifier: Verifier | None, choice: Choice) -> Iterator[Run]:
    """Decode in a thread and yield the same `Run` as it grows, and now and then while it does not, or it could not be
    closed. A visitor who leaves stops the thread at its next round, and nobody waits for that."""
    run, events, abandoned = Run(), queue.SimpleQueue(), threading.Event()

    def wait(what: str) -> None:
        events.put(([], SpeculativeStats(), run.seconds, what))

    def hear(pieces: list[Piece], stats: SpeculativeStats) -> None:
        if abandoned.is_set():
            raise InterruptedError
        events.put((pieces, stats, clock.seconds, ""))

    def work() -> None:
        try:
            streamer = PieceStreamer(pair.tokenizer, hear, plain=verifier is None)
            seed = choice.seed or 0  # an emptied field is None
            if _one_at_a_time.locked():
                wait(STOPPED)
            with _one_at_a_time, clock:
                decoder(method, [prompt], seed, streamer=streamer, **options)
            events.put(None)
        except TorchDynamoException as error:
            reason = str(error).splitlines()[0]
            events.put(ValueError(f"This could not be compiled here: {reason}. Choose the eager engine."))
        except Exception as error:  # raised again where the visitor is
            events.put(error)

    sampling = Sampling(choice.temperature, num_assistant_tokens=choice.gamma, max_new_tokens=choice.max_new_tokens)
    decoder, method, options = Decoder(pair, sampling), Method(choice.method, verifier), {}
    clock = Clock(lambda: wait(COMPILING))
    if choice.engine == COMPILED:
        method = replace(method, compile_config=default_compile_config(pair.target.device))
        options = _static_room(pair, len(prompt), choice.max_new_tokens) if method.is_plain else {}
    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    try:
        while (event := _next(events)) is not None:
            if isinstance(event, Exception):
                raise event
            if event:
                pieces, stats, run.seconds, run.waits_for = event
                run.pieces += pieces
                run.stats.add(stats)
            if events.empty():  # what is already there comes in one frame
                yield run
                time.sleep(SECONDS_PER_FRAME)
        yield run
    finally:
        abandoned.set()


def _next(events: queue.SimpleQueue):
    """What the thread has to say; nothing, an empty tuple, if it is silent for a while."""
    try:
        return events.get(timeout=LONGEST_SILENCE)
    except queue.Empty:
        return ()


class Clock:
    """Seconds since `with`, less those in which torch compiles, which upstream's plain decoding does not report.

    Args:
        on_compiling: called as compiling starts.
    """

    def __init__(self, on_compiling: Callable[[], None]):
        self._on_compiling = on_compiling

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    def __enter__(self) -> None:
        callback_handler.register_start_callback(self._halt)
        callback_handler.register_end_callback(self._go_on)
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        callback_handler.remove_start_callback(self._halt)
        callback_handler.remove_end_callback(self._go_on)

    def _halt(self, *_: object) -> None:
        self._halted = time.perf_counter()
        self._on_compiling()

    def _go_on(self, *_: object) -> None:
        self._began += time.perf_counter() - self._halted


def _static_room(pair: Pair, length: int, max_new_tokens: int) -> dict[str, Any]:
    """Arguments that give plain decoding a static cache as long as ours: upstream's is as long as the call, and so
    would be compiled anew for every longer prompt."""
    end = length + max_new_tokens
    room = min(capacity_for(end), _most_positions(pair)) - length
    stop = lambda ids, *_, **__: ids.new_full((len(ids),), ids.shape[1] >= end, dtype=torch.bool)  # noqa: E731
    return {"max_new_tokens": room, "stopping_criteria": StoppingCriteriaList([stop])}


def _most_positions(pair: Pair) -> int:
    return pair.target.config.get_text_config().max_position_embeddings


def _find_head(pair: Pair, choice: Choice) -> DiversedHead:
    name = choice.head.strip()
    if not name:
        if head := pair.heads.get(choice.task, pair.heads.get("")):
            return head
        if pair.draft is None:
            raise ValueError(
                "There is no head for drafts that are looked up in the prompt. Choose another method, or name a head "
                "that was trained for them."
            )
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
