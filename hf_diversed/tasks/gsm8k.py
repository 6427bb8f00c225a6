"""GSM8K: grade-school word problems, scored by the final number."""

import re

from hf_diversed.tasks.base import HubSource, Record, Task
from hf_diversed.tasks.number_extraction import extract_number, parse_number


_CALCULATOR_NOTE = re.compile(r"<<[^<>]*>>")


class Gsm8k(Task):
    """Columns `question` and `answer`; an answer ends in `#### N`."""

    name = "gsm8k"
    metric = "accuracy"
    source = HubSource("openai/gsm8k", "main")
    splits = ("train", "test")
    columns = ("question", "answer")
    text_columns = columns
    score_columns = ("answer",)
    max_new_tokens = 256
    stop_strings = ("\nQuestion:",)

    def prompt(self, record: Record) -> str:
        return f"Question: {record['question']}\n\nAnswer:"

    def reference(self, record: Record) -> str:
        """Return the written-out answer without its calculator notes, such as `<<48/2=24>>`."""
        return " " + _CALCULATOR_NOTE.sub("", record["answer"]).strip()

    def chat_question(self, record: Record) -> str:
        """Return the question with instructions; without them, code models write programs or long derivations."""
        return f"{record['question']}\n\nThink briefly, in plain text without code. End with: The answer is N."

    def chat_answer(self, record: Record) -> str:
        worked, _, number = self.reference(record).rpartition("####")
        return f"{worked.strip()}\nThe answer is {number.strip()}."

    def score(self, completion: str, record: Record) -> float:
        """Return 1.0 if the completion's number (see `extract_number`) equals the reference, else 0.0."""
        marker, gold = record["answer"].rpartition("####")[1:]
        expected = parse_number(gold)
        if not marker or expected is None:
            raise ValueError(f"`answer` of task 'gsm8k' must end in '#### N', got {record['answer'][-60:]!r}.")
        return float(extract_number(self.trim(completion)) == expected)
