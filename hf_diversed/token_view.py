"""Generated tokens as people read them: text, origin and colour. The one place that says how an origin looks."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from hf_diversed.generation.recording import RoundStreamer
from hf_diversed.outputs import SOURCES, SpeculativeStats, TokenRecords


@dataclass(frozen=True)
class Origin:
    """How tokens of one origin are named and shown: a `rich` style in terminals, a colour of Okabe and Ito's palette,
    which colour-blind people can tell apart, on pages."""

    meaning: str
    style: str
    color: str


RELAXED, TARGET = "relaxed", "target"
ORIGINS = {
    "draft": Origin("accepted draft", "green", "#009E73"),
    RELAXED: Origin("relaxed: a draft that the target alone would have rejected", "black on yellow", "#E69F00"),
    "residual": Origin("residual: the target's correction", "magenta", "#CC79A7"),
    "bonus": Origin("bonus: the target's next token", "cyan", "#56B4E9"),
    TARGET: Origin("decoded by the target alone", "default", "#8A94A6"),
}


@dataclass(frozen=True)
class Piece:
    """The text that one token adds, its key in `ORIGINS`, the weight on the target and both models' probabilities.

    Numbers are None where there are none: a bonus token has no weight, plain decoding nothing at all.
    """

    text: str
    origin: str
    weight: float | None = None
    p: float | None = None
    q: float | None = None


_MOST_IDS, _FEWEST_IDS = 64, 16  # of the tokens before the next one, that are decoded with it


class TokenReader:
    """Spells tokens one after the other: alone, a token may lose its space or be half a character."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self._tokenizer = tokenizer
        self._special = set(tokenizer.all_special_ids)
        self._ids: list[int] = []
        self._shown = ""

    def read(self, records: TokenRecords) -> list[Piece]:
        """Pieces of the first row's next tokens, special tokens left out."""
        pieces = []
        columns = (records.tokens, records.source, records.relaxed, records.weight, records.p, records.q)
        for token, source, relaxed, *numbers in zip(*(column[0].tolist() for column in columns)):
            if source >= 0 and (text := self._spell(token)):
                shown = (None if number != number else number for number in numbers)
                pieces.append(Piece(text, RELAXED if relaxed else SOURCES[source], *shown))
        return pieces

    def read_plain(self, tokens: torch.Tensor) -> list[Piece]:
        """The same for tokens that the target decoded alone: long, any shape."""
        return [Piece(text, TARGET) for token in tokens.flatten().tolist() if (text := self._spell(token))]

    def _spell(self, token: int) -> str:
        """What a token adds to the text; nothing until its character is whole."""
        if token in self._special:
            return ""
        self._ids.append(token)
        spelled = str(self._tokenizer.decode(self._ids))
        if spelled.endswith("\ufffd"):
            return ""
        added, self._shown = spelled[len(self._shown) :], spelled
        if len(self._ids) >= _MOST_IDS:  # what lies far behind changes nothing, and decoding it takes time
            self._ids = self._ids[-_FEWEST_IDS:]
            self._shown = str(self._tokenizer.decode(self._ids))
        return added


class PieceStreamer(RoundStreamer):
    """Hands every round on as pieces, with what it adds to the statistics.

    Args:
        plain: the call decodes with the target alone; every token then counts as a round of one.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        on_pieces: Callable[[list[Piece], SpeculativeStats], None],
        plain: bool = False,
    ):
        self._reader = TokenReader(tokenizer)
        self._on_pieces, self._plain = on_pieces, plain
        self._prompt_is_next = True

    def put_round(self, records: TokenRecords, stats: SpeculativeStats) -> None:
        self._on_pieces(self._reader.read(records), stats)

    def put(self, value: torch.Tensor) -> None:
        if self._plain and not self._prompt_is_next:
            stats = SpeculativeStats(num_rounds=1, num_emitted=value.numel(), target_forwards=1)
            self._on_pieces(self._reader.read_plain(value), stats)
        self._prompt_is_next = False
