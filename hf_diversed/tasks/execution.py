"""What the code tasks share: programs made of completions and their tests, run in the sandbox, a batch at a time.

The tests are not part of the program: they run beside it, where it cannot change or read them. What that proves, and
what a score may still be inflated by, stands in `hf_diversed.sandbox.runner`.
"""

from collections.abc import Sequence

from hf_diversed.sandbox import run_programs
from hf_diversed.tasks.base import Record, Task, check_lengths


# Ends a chat question: without it, chat models add explanations and examples several times as long as the code.
CODE_ONLY = "Answer with the code only, in one code block, without comments, explanations or examples."


class CodeTask(Task):
    """A task whose score is pass@1: 1.0 if the completion passes the record's tests, else 0.0. A subclass defines
    `program` and `tests` in place of `score`.

    Args:
        allow_code_execution: running what a model wrote is asked for, never assumed.
        unsafe_code_execution: run it even where the sandbox cannot isolate it.
    """

    metric = "pass@1"

    def __init__(self, allow_code_execution: bool = False, unsafe_code_execution: bool = False):
        if unsafe_code_execution and not allow_code_execution:
            raise ValueError(
                "`unsafe_code_execution` needs `allow_code_execution`; it says how code is run, not whether."
            )
        self.allow_code_execution = allow_code_execution
        self.unsafe_code_execution = unsafe_code_execution

    def program(self, completion: str, record: Record) -> str:
        """Return the program that a completion means, without tests."""
        raise NotImplementedError

    def tests(self, record: Record) -> str:
        """Return statements that fail unless the program is right; names that they do not define are the program's.

        Raises:
            ValueError: if the record has no tests.
        """
        raise NotImplementedError

    def check_scoring(self, records: Sequence[Record] = ()) -> None:
        """Raise ValueError if running code was not allowed, SandboxUnavailable where it cannot be isolated."""
        self._check_allowed()
        run_programs(["pass"], unsafe=self.unsafe_code_execution)

    def _check_allowed(self) -> None:
        if not self.allow_code_execution:
            raise ValueError(
                f"task {self.name!r} runs code that a model wrote, which must be allowed: pass "
                f"`--allow-code-execution`, or get_task({self.name!r}, allow_code_execution=True)."
            )

    def score(self, completion: str, record: Record) -> float:
        return self.score_batch([completion], [record])[0]

    def score_batch(self, completions: Sequence[str], records: Sequence[Record]) -> list[float]:
        """Run all completions in one call of the sandbox.

        Raises:
            ValueError: if running code was not allowed.
            SandboxUnavailable: where code cannot be isolated and `unsafe_code_execution` is not given.
        """
        check_lengths(completions, records)
        self._check_allowed()
        programs = [self.program(completion, record) for completion, record in zip(completions, records)]
        if not programs:
            return []
        tests = [self.tests(record) for record in records]
        return [float(result.passed) for result in run_programs(programs, tests, unsafe=self.unsafe_code_execution)]

    def chat_answer(self, record: Record) -> str:
        return fenced(self.reference(record))


def fenced(code: str) -> str:
    """Return code as a chat model writes it."""
    return f"```python\n{code.strip()}\n```"


def joined_tests(task: str, tests: Sequence[str]) -> str:
    """Join a record's tests, and refuse a record without: every completion would pass it."""
    if not any(test.strip() for test in tests):
        raise ValueError(f"a record of task {task!r} has no tests, so any completion would pass; drop the record.")
    return "\n".join(tests).replace("\r\n", "\n") + "\n"
