"""What a round changes: tokens written, rows lengthened and closed. Holds the one host transfer of a round."""

from dataclasses import dataclass

from hf_diversed.blocks import VerifyOutput
from hf_diversed.generation.judging import FAULTS, NO_DISTRIBUTION
from hf_diversed.generation.rows import PerRow, RaggedRows
from hf_diversed.verifiers.base import Verifier


@dataclass(frozen=True)
class Tally:
    """One round in numbers, per row: where it began, drafts that counted, drafts kept, tokens emitted."""

    starts: list[int]
    drafted: list[int]
    accepted: list[int]
    emitted: list[int]


def commit(rows: RaggedRows, outcome: VerifyOutput, rule: Verifier) -> Tally:
    """Write a round's tokens, lengthen the rows and close those that have ended.

    Raises:
        FloatingPointError: if a value that the emitted tokens depend on is NaN or infinite. Nothing is emitted then.
        ValueError: if a caller's verifier returns values that are no distribution.
    """
    rows.write(outcome.num_accepted, outcome.next_token)
    drafted, accepted, emitted, ended, faults = outcome.to_host()  # the one host transfer
    running = [end is None for end in rows.ends]
    if any(found := [fault for fault, runs in zip(faults, running) if runs and fault]):
        error = ValueError if min(found) == NO_DISTRIBUTION else FloatingPointError
        raise error(FAULTS[min(found)].format(rule=type(rule).__name__))
    tally = Tally(rows.lengths.host, drafted, accepted, [count * runs for count, runs in zip(emitted, running)])
    done = rows.done
    rows.advance(PerRow(tally.emitted, outcome.num_emitted.masked_fill(done, 0)))
    rows.finish(PerRow(ended, outcome.ended.long()))
    return tally
