"""IFEval: instructions that a program can check (arXiv 2311.07911), by the checkers of lm-eval's ifeval task."""

from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType

from hf_diversed.tasks.base import HubSource, Record, Task


# Instructions whose checkers split sentences or words with nltk, which needs data for this.
WITH_SENTENCES = {"length_constraints:number_sentences", "change_case:capital_word_frequency"}


@lru_cache(maxsize=1)
def checkers() -> ModuleType:
    """Return lm-eval's module of checkers, with seeded language detection, so that scores are deterministic.

    Raises:
        ImportError: if lm-eval or a dependency of its checkers is not installed.
    """
    try:
        import langdetect
        from lm_eval.tasks.ifeval import utils
    except ImportError as error:
        raise ImportError(
            f"instructions are checked by lm-eval's ifeval task ({error}); install hf-diversed[eval]."
        ) from error
    langdetect.DetectorFactory.seed = 0
    return utils


def followed(completion: str, record: Record) -> list[bool]:
    """Return for each of a record's instructions whether a completion follows it (strict checks).

    Raises:
        ImportError: without the checkers.
        ValueError: as `check_record`.
    """
    check_record(record)
    utils = checkers()
    names = list(record["instruction_id_list"])
    example = utils.InputExample(0, names, record.get("prompt", ""), list(record["kwargs"]))
    return [
        bool(kept) for kept in utils.test_instruction_following_strict(example, completion).follow_instruction_list
    ]


def check_record(record: Record) -> None:
    """Raise if a record's instructions cannot be checked here.

    Raises:
        ValueError: if the list is empty, or if one has no arguments, no checker, or needs missing data of nltk.
    """
    names, arguments = record["instruction_id_list"], record["kwargs"]
    if not 0 < len(names) == len(arguments):
        raise ValueError(
            "a record of task 'ifeval' must hold at least one instruction and `kwargs` for each, got "
            f"{len(names)} and {len(arguments)}; drop the record."
        )
    known = checkers().instructions_registry.INSTRUCTION_DICT
    if unknown := [name for name in names if name not in known]:
        raise ValueError(
            f"lm-eval has no checker for {', '.join(map(repr, unknown))}; it has {', '.join(sorted(known))}."
        )
    if (missing := sorted(WITH_SENTENCES.intersection(names))) and not _has_sentences():
        raise ValueError(
            f"checking {', '.join(map(repr, missing))} needs nltk's data punkt_tab, which is missing: run "
            "`python -m nltk.downloader punkt_tab`, or drop the records with these instructions."
        )


def _has_sentences() -> bool:
    import nltk  # the checkers have imported it

    try:
        nltk.data.find("tokenizers/punkt_tab")
    except LookupError:
        return False
    return True


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
        kept = followed(completion, record)
        return sum(kept) / len(kept)

    def check_scoring(self, records: Sequence[Record] = ()) -> None:
        """Raise ImportError without the checkers, ValueError for records that they cannot check."""
        checkers()
        for record in records:
            check_record(record)
