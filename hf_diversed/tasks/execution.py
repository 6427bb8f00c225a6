"""The base of code tasks: programs made from completions run with their tests in the sandbox, one batch at a time.

Tests run in another process than the program, which cannot change or read them. `hf_diversed.sandbox.runner` describes
the limits of this.
"""

from collections.abc import Sequence

from hf_diversed.sandbox import run_programs
from hf_diversed.tasks.base import Record, Task, check_lengths


# Appended to chat questions, because chat models add explanations and examples several times as long as the code.
CODE_ONLY = "Answer with the code only, in one code block, without comments, explanations or examples."


class CodeTask(Task):
    """A task whose score is pass@1: 1.0 if the completion passes the record's tests, else 0.0. A subclass defines
    `program` and `tests` in place of `score`.

    Args:
        allow_code_execution: allow running code that a model wrote.
        unsafe_code_execution: also run it where no isolation works; where some works, it is used.
    """

    metric = "pass@1"

    def __init__(self, allow_code_execution: bool = False, unsafe_code_execution: bool = False):
        if unsafe_code_execution and not allow_code_execution:
            raise ValueError("unsafe_code_execution=True also requires allow_code_execution=True, got False.")
        self.allow_code_execution = allow_code_execution
        self.unsafe_code_execution = unsafe_code_execution

    def program(self, completion: str, record: Record) -> str:
        """Return the program of a completion, without tests."""
        raise NotImplementedError

    def tests(self, record: Record) -> str:
        """Return statements that fail unless the program is correct; they may use names that the program defines.
        Raises ValueError if the record has no tests."""
        raise NotImplementedError

    def check_scoring(self) -> None:
        """Raise ValueError if running code is not allowed, SandboxUnavailable if it cannot be isolated and must be."""
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
            SandboxUnavailable: if code cannot be isolated and `unsafe_code_execution` is False.
        """
        check_lengths(completions, records)
        self._check_allowed()
        programs = [self.program(completion, record) for completion, record in zip(completions, records)]
        if not programs:
            return []
        tests = [self.tests(record) for record in records]
        return [float(result.passed) for result in run_programs(programs, tests, unsafe=self.unsafe_code_execution)]

    def agreement_batch(
        self, completions: Sequence[str], answers: Sequence[str], records: Sequence[Record]
    ) -> list[float]:
        """Return 1.0 where both programs pass the record's tests, or both fail, else 0.0."""
        scores = self.score_batch([*completions, *answers], [*records, *records])
        return [float(first == second) for first, second in zip(scores, scores[len(completions) :])]

    def chat_answer(self, record: Record) -> str:
        return fenced(self.reference(record))


def fenced(code: str) -> str:
    """Return code in a Markdown code block."""
    return f"```python\n{code.strip()}\n```"


def joined_tests(task: str, tests: Sequence[str]) -> str:
    """Join a record's tests. Raises ValueError without tests, because every completion would pass."""
    if not any(test.strip() for test in tests):
        raise ValueError(f"a record of task {task!r} has no tests, so any completion would pass; drop the record.")
    return "\n".join(tests).replace("\r\n", "\n") + "\n"
