"""Generated tokens as text with origin and colour; defines the style of each origin."""

from collections.abc import Callable
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from hf_diversed.generation.recording import RoundStreamer
from hf_diversed.outputs import SOURCES, SpeculativeStats, TokenRecords


@dataclass(frozen=True)
class Origin:
    """Description and HTML colour of an origin. Colours are from Okabe and Ito's colour-blind safe palette."""

    meaning: str
    color: str


RELAXED = "relaxed"
ORIGINS = {
    "draft": Origin("accepted draft token", "#009E73"),
    RELAXED: Origin("relaxed: lossless verification would have rejected it", "#E69F00"),
    "residual": Origin("residual token: replaces a rejected draft token", "#CC79A7"),
    "bonus": Origin("bonus token: follows a fully accepted block", "#56B4E9"),
}


@dataclass(frozen=True)
class Piece:
    """Text of one token, its key in `ORIGINS`, the weight on the target, and its probabilities under both models.

    Undefined values are None, such as the weight of a bonus token.
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
    """Passes the pieces and statistics of each round to `on_pieces`."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, on_pieces: Callable[[list[Piece], SpeculativeStats], None]):
        self._reader, self._on_pieces = TokenReader(tokenizer), on_pieces

    def put_round(self, records: TokenRecords, stats: SpeculativeStats) -> None:
        self._on_pieces(self._reader.read(records), stats)
