"""Spec-Bench: questions of 13 categories (arXiv 2401.07851)."""

from collections.abc import Callable, Mapping, Sequence

from hf_diversed.tasks.base import Record, Task
from hf_diversed.tasks.gsm8k import Gsm8k
from hf_diversed.tasks.rouge import rouge2
from hf_diversed.tasks.wmt import Wmt


class SpecBench(Task):
    """Columns `category`, `turns` and, in categories with a score, `reference`. Records are read from a `data_file`.

    The prompt is a record's first turn; second turns are not used. The score depends on the category: sentence BLEU of
    translations, ROUGE-2 of summaries, 1.0 for the correct number in `math_reasoning` and for an accepted answer in
    the text in `rag`. The other categories have no automatic score; their questions score 0.
    """

    name = "specbench"
    metric = "reference score"
    scorer_modules = ("rouge_score", "sacrebleu")
    splits = ("test",)
    columns = ("turns", "category")
    score_columns = ("category",)
    text_columns, list_columns = ("category",), ("turns",)
    max_new_tokens = 512
    stop_strings = ("\nUser:",)

    def prompt(self, record: Record) -> str:
        return f"User: {record['turns'][0]}\n\nAssistant:"

    def chat_question(self, record: Record) -> str:
        return record["turns"][0]

    def reference(self, record: Record) -> str:
        raise ValueError("task 'specbench' has no references: remove --shots.")

    def score(self, completion: str, record: Record) -> float:
        scored = SCORES.get(record["category"])
        return 0.0 if scored is None else scored(self.trim(completion), record["reference"][0])

    def check_types(self, record: Record, where: str) -> None:
        super().check_types(record, where)
        category, reference = record.get("category"), record.get("reference")
        if "category" in self.columns and category in SCORES and not (isinstance(reference, list) and reference):
            raise ValueError(
                f"{where}: category {category!r} needs a column 'reference' with a list, got {repr(reference)[:60]}."
            )


def _contains(completion: str, accepted: Sequence[str]) -> float:
    text = completion.lower()
    return float(any(answer.strip(" ,.").lower() in text for answer in accepted))


# Functions of completion and reference that return a score in [0, 1], by category.
SCORES: Mapping[str, Callable[..., float]] = {
    "translation": lambda text, english: Wmt().score(text, {"translation": {"en": english}}),
    "summarization": rouge2,
    "math_reasoning": lambda text, answer: Gsm8k().score(text, {"answer": answer}),
    "rag": _contains,
}
