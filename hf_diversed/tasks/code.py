"""Code tasks with data on the Hub, MBPP and HumanEval, and the program in a completion."""

import re
from collections.abc import Sequence

from hf_diversed.tasks.base import HubSource, Record
from hf_diversed.tasks.execution import CODE_ONLY, CodeTask, checked_tests, fenced


_FENCE = re.compile(r"^[ \t]*```[^\n]*\n?", re.MULTILINE)
_COMMENTS = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\n)*")
_UNINDENTED = re.compile(r"^[^\s)\]}]", re.MULTILINE)
_STARTS_AS_CODE = re.compile(
    r"\t| {2,}|@|\"\"\"|(?:async def|def|class|import)\s|from\s+[\w.]+\s+import\b|\w+\s*=[^=]"
)
_MAIN = "if __name__"
STOP_POINTS = ("Question:", "Task:", "Problem:", "Explanation:", "Write a Python", _MAIN, "print(", "assert ")


def extract_code(completion: str) -> str:
    """Return the code of a completion: the first fenced block, or everything before the first line that starts with a
    stop point or a fence.

    A completion whose first line is code, after comments, is treated as not fenced: a later fence closes a block that
    the prompt opened, or follows the answer. A fenced block loses only its `if __name__` part, since the program runs
    as the main module, and without a closing fence a last line that starts with a stop point, where decoding stopped.
    Line ends become `\\n`.
    """
    text = completion.replace("\r\n", "\n").replace("\r", "\n")
    fence = _FENCE.search(text)
    if fence is None or _STARTS_AS_CODE.match(_COMMENTS.sub("", text, count=1)):
        return _cut(text, ["```", *STOP_POINTS])
    closing = _FENCE.search(text, fence.end())
    if closing is None:
        return _cut(_cut(text[fence.end() :], STOP_POINTS, then=r".*\Z"), [_MAIN])
    return _cut(text[fence.end() : closing.start()], [_MAIN])


def _cut(text: str, stop_points: Sequence[str], then: str = "") -> str:
    """Return the text before the first line that starts with a stop point, and continues with the pattern `then`."""
    stop = re.search("^(?:" + "|".join(map(re.escape, stop_points)) + ")" + then, text, re.MULTILINE)
    return text[: stop.start()] if stop else text


class Mbpp(CodeTask):
    """The full set: columns `text`, `code`, `test_list` and optionally `test_setup_code`. `test_list` has `assert`
    statements, as a list or as one text."""

    name = "mbpp"
    source = HubSource("google-research-datasets/mbpp", "full")
    splits = ("train", "validation", "test", "prompt")
    columns = ("text", "code", "test_list")
    score_columns = ("test_list",)
    max_new_tokens = 256
    stop_strings = ("\nWrite a Python function to solve", "\nif __name__", "\nprint(", "\nassert ")

    def prompt(self, record: Record) -> str:
        """Return the prompt of the paper's code plus a final cue; without it, models continue the tests."""
        return f"{self._problem(record)}\n\nSolution:\n"

    def chat_question(self, record: Record) -> str:
        return f"{self._problem(record)}\n\n{CODE_ONLY}"

    def _problem(self, record: Record) -> str:
        return (
            f"Write a Python function to solve the following problem:\n\n{record['text']}\n\n"
            f"Your solution should pass these tests:\n{self._asserts(record)}"
        )

    def _asserts(self, record: Record) -> str:
        tests = record["test_list"]
        return tests if isinstance(tests, str) else "\n".join(tests)

    def reference(self, record: Record) -> str:
        return record["code"].replace("\r\n", "\n").strip() + "\n"

    def program(self, completion: str, record: Record) -> str:
        return extract_code(completion)

    def tests(self, record: Record) -> str:
        """Return the setup, which may use classes of the program, and the tests."""
        tests = checked_tests(self.name, self._asserts(record))
        return f"{record.get('test_setup_code') or ''}\n{tests}".replace("\r\n", "\n")


_NEXT_DEFINITIONS = ("def ", "class ", "@", "import ", "from ", "if ", "#", '"""', "print(", "assert ")


class HumanEval(CodeTask):
    """Columns `prompt`, `canonical_solution`, `test` (defines `check`) and `entry_point`.

    A completion is a body, which ends at the next line without indentation, or a complete function, which overrides
    the signature in the prompt. If the `prompt` of a training row includes shots or chat turns, `task_prompt` contains
    the record's original prompt.
    """

    name = "humaneval"
    source = HubSource("openai/openai_humaneval")
    splits = ("test",)
    columns = ("prompt", "canonical_solution", "test", "entry_point")
    score_columns = ("test", "entry_point")
    max_new_tokens = 384
    stop_strings = tuple(f"\n{start}" for start in _NEXT_DEFINITIONS)

    def prompt(self, record: Record) -> str:
        return (record.get("task_prompt") or record["prompt"]).replace("\r\n", "\n")

    def reference(self, record: Record) -> str:
        return record["canonical_solution"].replace("\r\n", "\n")

    def program(self, completion: str, record: Record) -> str:
        if not completion.lstrip("\r\n").startswith((" ", "\t")):
            return self.prompt(record) + extract_code(completion)
        body = completion.replace("\r\n", "\n").replace("\r", "\n")
        end = _UNINDENTED.search(body)
        return self.prompt(record) + (body[: end.start()] if end else body)

    def tests(self, record: Record) -> str:
        """Return the tests, after the definitions that precede the function in the prompt: some tests use these
        definitions (`poly`, `encode_cyclic`), which the program could have changed."""
        test, function = checked_tests(self.name, record["test"]), record["entry_point"]
        above = self.prompt(record).rpartition(f"def {function}(")[0]
        return f"{above}\n{test}\ncheck({function})\n"

    def chat_question(self, record: Record) -> str:
        return f"Complete this Python function, and repeat its signature. {CODE_ONLY}\n\n{fenced(self.prompt(record))}"

    def chat_answer(self, record: Record) -> str:
        return fenced(self.prompt(record) + self.reference(record))
