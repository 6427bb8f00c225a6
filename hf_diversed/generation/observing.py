"""Who watches rounds: scores, records, statistics, streamers. None of them steers decoding."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from transformers.generation.streamers import BaseStreamer

from hf_diversed.engines.protocol import Engine
from hf_diversed.generation.committing import Tally
from hf_diversed.generation.judging import Round
from hf_diversed.generation.recording import RoundLog, describe_round
from hf_diversed.generation.rows import RaggedRows
from hf_diversed.outputs import GenerateDiversedOutput, SpeculativeStats, TokenRecords


class RoundStreamer(BaseStreamer):
    """A streamer that is told where tokens came from: `generate(..., streamer=...)`, batch size 1.

    Override `put_round`. Plain decoding has no rounds; it calls `put` as it does with any streamer: once with the
    prompt, then with every token.

    Example:
        ```python
        class Printer(hf_diversed.RoundStreamer):
            def put_round(self, records, stats):
                print(records.tokens.tolist(), f"{stats.num_accepted} of {stats.num_drafted} accepted")
        ```
    """

    def put_round(self, records: TokenRecords, stats: SpeculativeStats) -> None:
        """Receive one round as it ends: its tokens, `[1, N]`, and what it adds to the statistics of the call."""
        raise NotImplementedError

    def put(self, value: torch.Tensor) -> None:
        """Receive the prompt, then tokens; does nothing."""

    def end(self) -> None:
        """Hear that decoding ended; does nothing."""


class ScoreCollector:
    """Per generated column one `[B, V]` tensor, as `generate` returns scores; zeros where a row has nothing to say."""

    def __init__(self, prompt_length: int):
        self.prompt_length = prompt_length
        self.columns: list[torch.Tensor] = []

    def add(self, scores: torch.Tensor, starts: list[int], emitted: list[int]) -> None:
        """File scores `[B, N, V]`: position k of row i belongs to column `starts[i] + k`, for k < `emitted[i]`."""
        for row, (start, count) in enumerate(zip(starts, emitted)):
            for k in range(count):
                column = start + k - self.prompt_length
                while len(self.columns) <= column:
                    self.columns.append(torch.zeros_like(scores[:, 0]))
                self.columns[column][row] = scores[row, k]

    def before(self, column: int) -> tuple[torch.Tensor, ...]:
        """Scores of all generated tokens left of `column` of the id buffer."""
        return tuple(self.columns[: column - self.prompt_length])


class Watchers:
    """Everything that a call wants to know about its rounds.

    Args:
        prompt_length: S. streamer: hears of tokens as rounds end; None for silence.
        wants: what the call returns beside the ids: any of "records", "scores", "logits".
        strictnesses: the rows' dials, where the rule has one.
    """

    def __init__(
        self, prompt_length: int, streamer: BaseStreamer | None, wants: set[str], strictnesses: Sequence[float] = ()
    ):
        self.prompt_length, self.streamer, self.wants = prompt_length, streamer, wants
        self.log = RoundLog(strictnesses)
        self._scores, self._logits = ScoreCollector(prompt_length), ScoreCollector(prompt_length)

    @property
    def scores_before(self):
        """Maps a column to the processed scores of all tokens before it, for criteria; None if they are not kept."""
        return self._scores.before if "scores" in self.wants else None

    def saw(self, rows: RaggedRows, round: Round, tally: Tally) -> None:
        """File a round."""
        if "scores" in self.wants:
            self._scores.add(round.target.scores, tally.starts, tally.emitted)
        if "logits" in self.wants and round.target.raw_logits is not None:
            self._logits.add(round.target.raw_logits, tally.starts, tally.emitted)
        described = describe_round(round) if "records" in self.wants or self._streams_rounds else None
        verdict = round.verdict
        if verdict is None:
            self.log.append(rows.origins, tally, None, None, described)
            return
        trace = verdict.trace
        if described is not None:
            tv = described.tv[:, :-1] if trace.tv is None else trace.tv
            trace = replace(trace, tv=tv, bias=None if trace.bias is None else described.bias[:, :-1])
        self.log.append(rows.origins, tally, trace, verdict.accept_prob, described)

    @property
    def _streams_rounds(self) -> bool:
        return isinstance(self.streamer, RoundStreamer)

    def stream(self, rows: RaggedRows, tally: Tally, forwards: tuple[int, int]) -> None:
        """Hand the streamer what a round emitted, once the rows know their ends."""
        if self.streamer is None:
            return
        with plain_tensors():
            end = rows.ends[0] or rows.lengths.host[0]
            self.streamer.put(rows.ids[0, tally.starts[0] : end].cpu().clone())
            if isinstance(self.streamer, RoundStreamer):
                self.streamer.put_round(*self.log.latest(end, *forwards))

    def result(self, rows: RaggedRows, engine: Engine, as_dict: bool) -> GenerateDiversedOutput | torch.Tensor:
        """What the call returns, in tensors that may be trained on."""
        if self.streamer is not None:
            self.streamer.end()
        ends = rows.final_ends()
        stats = self.log.stats(ends, *engine.forwards, **engine.report())
        if not as_dict:
            return rows.finished()
        return GenerateDiversedOutput(
            sequences=rows.finished(),
            scores=self._columns("scores", self._scores, max(ends)),
            logits=self._columns("logits", self._logits, max(ends)),
            stats=stats,
            token_records=self.log.token_records(ends, self.prompt_length) if "records" in self.wants else None,
        )

    def _columns(self, name: str, collector: ScoreCollector, end: int) -> tuple[torch.Tensor, ...] | None:
        return tuple(column.clone() for column in collector.before(end)) if name in self.wants else None


@contextmanager
def plain_tensors() -> Iterator[None]:
    """Tensors made in the block are ordinary ones, though the loop runs in inference mode."""
    with torch.inference_mode(False), torch.no_grad():
        yield
