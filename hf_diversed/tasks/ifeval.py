"""IFEval: instructions whose following a program can check (arXiv 2311.07911)."""

from collections.abc import Sequence

from hf_diversed.tasks import instructions
from hf_diversed.tasks.base import HubSource, Record, Task, check_lengths


class IFEval(Task):
    """Columns `prompt`, `instruction_id_list` and `kwargs`; scored by the share of a prompt's instructions that are
    followed to the letter, as lm-eval's own task checks them ("strict"). There is no reference, so there are no solved
    examples."""

    name = "ifeval"
    metric = "instructions"
    source = HubSource("google/IFEval")
    splits = ("train",)
    columns = ("prompt", "instruction_id_list", "kwargs")
    score_columns = ("instruction_id_list", "kwargs")
    max_new_tokens = 512

    def prompt(self, record: Record) -> str:
        return record["prompt"]

    def reference(self, record: Record) -> str:
        """Refuse: what follows the instructions is not written anywhere.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "task 'ifeval' has no references: leave out solved examples (--shots), and tune a draft on the target's "
            "own completions (--mode distill)."
        )

    def score(self, completion: str, record: Record) -> float:
        followed = instructions.followed(completion, record)
        return sum(followed) / len(followed)

    def corpus_score(self, completions: Sequence[str], records: Sequence[Record]) -> float:
        """Return the share of all instructions that are followed, lm-eval's `inst_level_strict_acc`."""
        check_lengths(completions, records)
        if not completions:
            raise ValueError(f"task {self.name!r} needs at least one completion for a corpus score, got none.")
        found = [instructions.followed(completion, record) for completion, record in zip(completions, records)]
        return sum(map(sum, found)) / sum(map(len, found))

    def check_scoring(self, records: Sequence[Record] = ()) -> None:
        """Raise ImportError without the checkers, ValueError for records that they cannot check here."""
        instructions.checkers()
        for record in records:
            instructions.check_record(record)
