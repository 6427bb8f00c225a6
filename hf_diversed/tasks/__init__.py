"""Tasks by name. To add one, write a module here and list it in `TASKS`. `hf_diversed.training.rewards` uses them."""

from hf_diversed.tasks.base import HubSource, Record, Task, choose_shots
from hf_diversed.tasks.code import HumanEval, Mbpp
from hf_diversed.tasks.embedded import Code, Math, Summary
from hf_diversed.tasks.execution import CodeTask
from hf_diversed.tasks.gsm8k import Gsm8k
from hf_diversed.tasks.loading import load_records
from hf_diversed.tasks.prompted import PromptedTask, prompt_rows
from hf_diversed.tasks.summaries import CnnDailyMail, SciTldr, XSum


TASKS: dict[str, type[Task]] = {
    "gsm8k": Gsm8k,
    "cnndm": CnnDailyMail,
    "xsum": XSum,
    "mbpp": Mbpp,
    "humaneval": HumanEval,
    "scitldr": SciTldr,
    "math": Math,
    "summary": Summary,
    "code": Code,
}


def get_task(name: str, *, allow_code_execution: bool = False, allow_unsafe_code_execution: bool = False) -> Task:
    """Return a task by its name. The flags apply to tasks that run code, see `CodeTask`; others ignore them.

    Raises:
        ValueError: for an unknown name.
    """
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}; known tasks: {', '.join(TASKS)}.")
    task = TASKS[name]
    return task(allow_code_execution, allow_unsafe_code_execution) if issubclass(task, CodeTask) else task()


__all__ = [
    "TASKS",
    "CodeTask",
    "HubSource",
    "PromptedTask",
    "Record",
    "Task",
    "choose_shots",
    "get_task",
    "load_records",
    "prompt_rows",
]
