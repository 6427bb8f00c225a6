"""Options of `hf-diversed train` and `tune-draft` besides the settings of a run. Does not import torch."""

from dataclasses import dataclass, field

from hf_diversed.cli.evaluation_options import TASK_NAMES


_TASK = {"help": f"One of {TASK_NAMES}."}
_TARGET = {"help": "Hub id or folder; the embedded pair by default."}
_DRAFT = {"help": "Hub id or folder of the draft model."}
_DRAFT_OR_LOOKUP = {"help": "Hub id or folder of the draft model, or lookup: draft tokens are copied from the text."}
_SHOTS = {"help": "Solved examples before each prompt."}
_CHAT = {"help": "Apply the tokenizer's chat template."}
_DTYPE = {"help": "Data type of the models: auto (as saved, the default), float32, bfloat16 or float16."}
_OVERWRITE = {"help": "Remove the files of an earlier run from --output-dir."}
# In the words of an earlier version, too.
_NUM_EXAMPLES = {
    "help": "Number of training prompts; a smaller data file is used whole.",
    "aliases": ["--num_prompts", "--num-prompts"],
}
_NUM_EVAL_EXAMPLES = {
    "help": "Number of held-out prompts that choose the best head.",
    "aliases": ["--num_eval_prompts", "--num-eval-prompts"],
}


@dataclass
class TrainArguments:
    """What to train on."""

    task: str = field(metadata=_TASK)
    target: str | None = field(default=None, metadata=_TARGET)
    draft: str | None = field(default=None, metadata=_DRAFT_OR_LOOKUP)
    dtype: str | None = field(default=None, metadata=_DTYPE)
    head: str | None = field(default=None, metadata={"help": "Hub id or folder of a head to start from."})
    reward_funcs: list[str] | None = field(
        default=None, metadata={"help": '"task:NAME" or package.module.function; by default the score of the task.'}
    )
    data_file: str | None = field(
        default=None, metadata={"help": "JSON Lines file with the task's columns, for training."}
    )
    eval_data_file: str | None = field(default=None, metadata={"help": "JSON Lines file of held-out prompts."})
    eval_split: str = field(default="validation", metadata={"help": "Split of the held-out prompts."})
    num_examples: int = field(default=1024, metadata=_NUM_EXAMPLES)
    num_eval_examples: int = field(default=1024, metadata=_NUM_EVAL_EXAMPLES)
    shots: int = field(default=0, metadata=_SHOTS)
    chat: bool = field(default=False, metadata=_CHAT)
    resume: bool = field(
        default=False,
        metadata={"help": "Continue from the newest complete checkpoint of --output-dir, if there is one."},
    )
    overwrite: bool = field(default=False, metadata=_OVERWRITE)
    allow_code_execution: bool = field(
        default=False, metadata={"help": "Let code tasks run completions in a sandbox."}
    )
    unsafe_code_execution: bool = field(
        default=False, metadata={"help": "Let code tasks run completions without a sandbox, where none is available."}
    )


@dataclass
class TuneDraftArguments:
    """What to tune on."""

    task: str = field(metadata=_TASK)
    target: str | None = field(default=None, metadata=_TARGET)
    draft: str | None = field(default=None, metadata=_DRAFT)
    dtype: str | None = field(default=None, metadata=_DTYPE)
    data_file: str | None = field(default=None, metadata={"help": "JSON Lines file with the task's columns."})
    num_examples: int = field(default=1024, metadata=_NUM_EXAMPLES)
    num_eval_examples: int = field(
        default=0, metadata={"help": "Number of held-out prompts; --eval-strategy sets how often they are measured."}
    )
    shots: int = field(default=0, metadata=_SHOTS)
    chat: bool = field(default=False, metadata=_CHAT)
    overwrite: bool = field(default=False, metadata=_OVERWRITE)
