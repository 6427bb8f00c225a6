"""Instructions of IFEval, checked by the checkers of lm-eval's own ifeval task."""

from functools import lru_cache
from types import ModuleType

from hf_diversed.tasks.base import Record


# Those that take sentences or words apart, for which nltk wants data of its own.
WITH_SENTENCES = {"length_constraints:number_sentences", "change_case:capital_word_frequency"}


@lru_cache(maxsize=1)
def checkers() -> ModuleType:
    """Return lm-eval's module of checks. Its guesses of languages are seeded, so that a text has one score.

    Raises:
        ImportError: where lm-eval, or what its checkers are made of, is not installed.
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
    """Return for each of a record's instructions whether a completion follows it to the letter.

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
    """Refuse a record whose instructions cannot be checked here.

    Raises:
        ValueError: if there are none, if one has no arguments or no checker, or wants data of nltk's that is not here.
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
            f"checking {', '.join(map(repr, missing))} takes nltk's data punkt_tab, which is not here: run "
            "`python -m nltk.downloader punkt_tab`, or drop the records with these instructions."
        )


def _has_sentences() -> bool:
    import nltk  # the checkers have imported it

    try:
        nltk.data.find("tokenizers/punkt_tab")
    except LookupError:
        return False
    return True
