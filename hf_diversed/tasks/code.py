"""Small functions over lists, for the embedded pair."""

from hf_diversed.tasks.base import Record
from hf_diversed.tasks.code_extraction import extract_code
from hf_diversed.tasks.embedded import EmbeddedTask
from hf_diversed.tasks.execution import CodeTask, joined_tests


class Code(CodeTask, EmbeddedTask):
    """The answer has one `assert` statement per line; the tests import nothing."""

    name = "code"
    max_new_tokens = 128
    stop_strings = ("\nTask:",)

    def program(self, completion: str, record: Record) -> str:
        return extract_code(completion)

    def tests(self, record: Record) -> str:
        return joined_tests(self.name, [record["answer"]])
