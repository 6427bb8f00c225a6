"""HumanEval: function bodies for a given signature and docstring."""

from hf_diversed.tasks.base import HubSource, Record, lookup
from hf_diversed.tasks.code_extraction import extract_code
from hf_diversed.tasks.execution import CODE_ONLY, CodeTask, fenced, joined_tests


_NEXT_DEFINITIONS = ("def ", "class ", "@", "import ", "from ", "if ", "#", '"""', "print(", "assert ")


class HumanEval(CodeTask):
    """Columns `prompt`, `canonical_solution`, `test` (defines `check`) and `entry_point`.

    A completion is a body, which ends at the next line without indentation, or a complete function, which overrides
    the signature in the prompt. If a training row's `prompt` is rendered, with shots or chat turns, `task_prompt`
    contains the record's own.
    """

    name = "humaneval"
    source = HubSource("openai/openai_humaneval")
    splits = ("test",)
    columns = ("prompt", "canonical_solution", "test", "entry_point")
    score_columns = ("task_prompt|prompt", "test", "entry_point")
    max_new_tokens = 384
    stop_strings = tuple(f"\n{start}" for start in _NEXT_DEFINITIONS)

    def prompt(self, record: Record) -> str:
        return lookup(record, "task_prompt|prompt").replace("\r\n", "\n")

    def reference(self, record: Record) -> str:
        return record["canonical_solution"].replace("\r\n", "\n")

    def program(self, completion: str, record: Record) -> str:
        body = completion.lstrip("\r\n").startswith((" ", "\t"))
        code = extract_code(completion, _NEXT_DEFINITIONS) if body else extract_code(completion)
        return self.prompt(record) + code

    def tests(self, record: Record) -> str:
        """Return the definitions before the function in the prompt, and the tests: some tests use these (`poly`,
        `encode_cyclic`), and the program could have redefined them."""
        test, function = joined_tests(self.name, [record["test"]]), record["entry_point"]
        above = self.prompt(record).rpartition(f"def {function}(")[0]
        return f"{above}\n{test}\ncheck({function})\n"

    def chat_question(self, record: Record) -> str:
        return f"Complete this Python function, and repeat its signature. {CODE_ONLY}\n\n{fenced(self.prompt(record))}"

    def chat_answer(self, record: Record) -> str:
        return fenced(self.prompt(record) + self.reference(record))
