"""IFEval: instructions that a program can check (arXiv 2311.07911)."""

from collections.abc import Sequence

from hf_diversed.tasks import instructions
from hf_diversed.tasks.base import HubSource, Record, Task


class IFEval(Task):
    """Columns `prompt`, `instruction_id_list` and `kwargs`; the score is the share of a prompt's instructions that are
    followed, by the strict checks of lm-eval's task. There are no references, and therefore no solved examples."""

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
        """Raise: the dataset has no references.

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

    def check_scoring(self, records: Sequence[Record] = ()) -> None:
        """Raise ImportError without the checkers, ValueError for records that they cannot check."""
        instructions.checkers()
        for record in records:
            instructions.check_record(record)
