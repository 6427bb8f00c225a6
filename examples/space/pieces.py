"""Generated tokens as text with origin and colour; defines the style of each origin."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from hf_diversed.generation.recording import RoundStreamer
from hf_diversed.outputs import SOURCES, SpeculativeStats, TokenRecords


@dataclass(frozen=True)
class Origin:
    """Description, `rich` style and HTML colour of an origin. Colours are from Okabe and Ito's colour-blind safe
    palette."""

    meaning: str
    style: str
    color: str


RELAXED, TARGET = "relaxed", "target"
ORIGINS = {
    "draft": Origin("accepted draft", "green", "#009E73"),
    RELAXED: Origin(
        "relaxed: a draft token that lossless verification would have rejected", "black on yellow", "#E69F00"
    ),
    "residual": Origin("residual: the target's correction", "magenta", "#CC79A7"),
    "bonus": Origin("bonus: the target's next token", "cyan", "#56B4E9"),
    TARGET: Origin("decoded by the target alone", "default", "#8A94A6"),
}


@dataclass(frozen=True)
class Piece:
    """Text of one token, its key in `ORIGINS`, the weight on the target, and its probabilities under both models.

    Undefined values are None: the weight of a bonus token, and all three values if the target decodes alone.
    """

    text: str
    origin: str
    weight: float | None = None
    p: float | None = None
    q: float | None = None


_MOST_IDS, _FEWEST_IDS = 64, 16  # previous tokens that are decoded with the next one


class TokenReader:
    """Decodes tokens in context, because the text of a single token may lack its space or be part of a character."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self._tokenizer = tokenizer
        self._special = set(tokenizer.all_special_ids)
        self._ids: list[int] = []
        self._shown = ""

    def read(self, records: TokenRecords) -> list[Piece]:
        """Return pieces of the first row's next tokens, without special tokens."""
        pieces = []
        columns = (records.tokens, records.source, records.relaxed, records.weight, records.p, records.q)
        for token, source, relaxed, *numbers in zip(*(column[0].tolist() for column in columns)):
            if source >= 0 and (text := self._spell(token)):
                values = (None if number != number else number for number in numbers)  # NaN is undefined
                pieces.append(Piece(text, RELAXED if relaxed else SOURCES[source], *values))
        return pieces

    def read_target(self, tokens: torch.Tensor) -> list[Piece]:
        """Return pieces of tokens that the target decoded alone: long, any shape."""
        return [Piece(text, TARGET) for token in tokens.flatten().tolist() if (text := self._spell(token))]

    def _spell(self, token: int) -> str:
        """Return the text that a token adds; empty until its character is complete."""
        if token in self._special:
            return ""
        self._ids.append(token)
        spelled = str(self._tokenizer.decode(self._ids))
        if spelled.endswith("\ufffd"):
            return ""
        added, self._shown = spelled[len(self._shown) :], spelled
        if len(self._ids) >= _MOST_IDS:  # much earlier tokens do not affect the text, and decoding them takes time
            self._ids = self._ids[-_FEWEST_IDS:]
            self._shown = str(self._tokenizer.decode(self._ids))
        return added


class PieceStreamer(RoundStreamer):
    """Passes the pieces and statistics of each round to `on_pieces`.

    Args:
        target_alone: whether the target decodes without a draft model; every token then counts as a round.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        on_pieces: Callable[[list[Piece], SpeculativeStats], None],
        target_alone: bool = False,
    ):
        self._reader = TokenReader(tokenizer)
        self._on_pieces, self._target_alone = on_pieces, target_alone
        self._prompt_is_next = True

    def put_round(self, records: TokenRecords, stats: SpeculativeStats) -> None:
        self._on_pieces(self._reader.read(records), stats)

    def put(self, value: torch.Tensor) -> None:
        if self._target_alone and not self._prompt_is_next:
            stats = SpeculativeStats(num_rounds=1, num_emitted=value.numel(), target_forwards=1)
            self._on_pieces(self._reader.read_target(value), stats)
        self._prompt_is_next = False
