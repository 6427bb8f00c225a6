"""What `hf-diversed train` and `tune-draft` take besides the settings of a run. Nothing here waits for torch."""

from dataclasses import dataclass, field

from hf_diversed.cli.evaluation_options import TASK_NAMES


_TASK = {"help": f"One of {TASK_NAMES}."}
_TARGET = {"help": "Hub id or folder; the embedded pair if left out."}
_DRAFT = {"help": "Hub id or folder of the draft."}
_DRAFT_OR_LOOKUP = {"help": "Hub id or folder of the draft, or lookup: from the text itself."}
_SHOTS = {"help": "Solved examples before every prompt."}
_CHAT = {"help": "Prompts in the tokenizer's chat template."}
_DTYPE = {"help": "Of the pair: auto (as saved), float32, bfloat16 or float16; auto by default."}
_OVERWRITE = {"help": "Remove what an earlier run wrote to --output-dir."}
# In the words of an earlier version, too.
_NUM_EXAMPLES = {
    "help": "Training prompts; all of a smaller data file.",
    "aliases": ["--num_prompts", "--num-prompts"],
}
_NUM_EVAL_EXAMPLES = {
    "help": "Held-out prompts that choose the best head.",
    "aliases": ["--num_eval_prompts", "--num-eval-prompts"],
}


@dataclass
class TrainArguments:
    """What to train on."""

    task: str = field(metadata=_TASK)
    target: str | None = field(default=None, metadata=_TARGET)
    draft: str | None = field(default=None, metadata=_DRAFT_OR_LOOKUP)
    dtype: str | None = field(default=None, metadata=_DTYPE)
    head: str | None = field(default=None, metadata={"help": "Hub id or folder of a head to go on from."})
    reward_funcs: list[str] | None = field(
        default=None, metadata={"help": '"task:NAME" or package.module.function; the score of the task by default.'}
    )
    data_file: str | None = field(default=None, metadata={"help": "JSON Lines in the task's columns, for training."})
    eval_data_file: str | None = field(default=None, metadata={"help": "The same for held-out prompts."})
    eval_split: str = field(default="validation", metadata={"help": "Split of the held-out prompts."})
    num_examples: int = field(default=1024, metadata=_NUM_EXAMPLES)
    num_eval_examples: int = field(default=1024, metadata=_NUM_EVAL_EXAMPLES)
    shots: int = field(default=0, metadata=_SHOTS)
    chat: bool = field(default=False, metadata=_CHAT)
    resume: bool = field(
        default=False, metadata={"help": "Go on from the newest complete checkpoint of --output-dir, if there is one."}
    )
    overwrite: bool = field(default=False, metadata=_OVERWRITE)
    allow_code_execution: bool = field(default=False, metadata={"help": "Let code tasks run completions, isolated."})
    unsafe_code_execution: bool = field(default=False, metadata={"help": "Also where nothing isolates them."})


@dataclass
class TuneDraftArguments:
    """What to tune on."""

    task: str = field(metadata=_TASK)
    target: str | None = field(default=None, metadata=_TARGET)
    draft: str | None = field(default=None, metadata=_DRAFT)
    dtype: str | None = field(default=None, metadata=_DTYPE)
    data_file: str | None = field(default=None, metadata={"help": "JSON Lines in the task's columns."})
    num_examples: int = field(default=1024, metadata=_NUM_EXAMPLES)
    num_eval_examples: int = field(
        default=0, metadata={"help": "Further prompts to hold out; --eval-strategy says how often they are looked at."}
    )
    shots: int = field(default=0, metadata=_SHOTS)
    chat: bool = field(default=False, metadata=_CHAT)
    overwrite: bool = field(default=False, metadata=_OVERWRITE)
