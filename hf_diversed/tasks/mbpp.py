"""MBPP: short Python functions, three assertions each."""

from hf_diversed.tasks.base import HubSource, Record, lookup
from hf_diversed.tasks.code_extraction import extract_code
from hf_diversed.tasks.execution import CODE_ONLY, CodeTask, joined_tests


class Mbpp(CodeTask):
    """The full set: columns `text`, `code`, `test_list` and optionally `test_setup_code`. A test is an `assert`
    statement. The columns of the sanitized set are read as well."""

    name = "mbpp"
    source = HubSource("google-research-datasets/mbpp", "full")
    splits = ("train", "validation", "test", "prompt")
    columns = ("text|prompt", "code", "test_list")
    score_columns = ("test_list",)
    max_new_tokens = 256
    stop_strings = ("\nWrite a Python function to solve", "\nif __name__", "\nprint(", "\nassert ")

    def prompt(self, record: Record) -> str:
        """Return the prompt of the paper's code plus a final cue; without it, models continue the tests."""
        return f"{self._problem(record)}\n\nSolution:\n"

    def chat_question(self, record: Record) -> str:
        return f"{self._problem(record)}\n\n{CODE_ONLY}"

    def _problem(self, record: Record) -> str:
        text, tests = lookup(record, "text|prompt"), "\n".join(record["test_list"])
        return (
            f"Write a Python function to solve the following problem:\n\n{text}\n\n"
            f"Your solution should pass these tests:\n{tests}"
        )

    def reference(self, record: Record) -> str:
        return record["code"].replace("\r\n", "\n").strip() + "\n"

    def program(self, completion: str, record: Record) -> str:
        return extract_code(completion)

    def tests(self, record: Record) -> str:
        """Return the setup, which may use classes of the program, and the tests."""
        tests = joined_tests(self.name, record["test_list"])
        setup = lookup(record, "test_setup_code|test_imports") or ""
        lines = [setup] if isinstance(setup, str) else setup
        return "\n".join([*lines, tests]).replace("\r\n", "\n")


class MbppSanitized(Mbpp):
    """The verified subset: columns `prompt`, `code`, `test_list` and optionally `test_imports`."""

    name = "mbpp_sanitized"
    source = HubSource("google-research-datasets/mbpp", "sanitized")
