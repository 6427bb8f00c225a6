"""`hf-diversed tune-draft`: a task and a pair to a LoRA adapter of the draft in a folder."""

from dataclasses import dataclass, field

from peft import PeftModel

from hf_diversed.cli.models import load_pair
from hf_diversed.cli.options import check_pair, parse_options, read_records, supervised_rows
from hf_diversed.tasks import TASKS, get_task
from hf_diversed.training.draft_tuning import DraftTuningConfig, tune_draft
from hf_diversed.training.loading import load_tokenizer


@dataclass
class TuneDraftArguments:
    """What to tune on."""

    task: str = field(metadata={"help": f"One of {', '.join(TASKS)}."})
    target: str | None = field(default=None, metadata={"help": "Hub id or folder; the embedded pair if left out."})
    draft: str | None = field(default=None, metadata={"help": "Hub id or folder of the draft."})
    data_file: str | None = field(default=None, metadata={"help": "JSON Lines in the task's columns."})
    num_prompts: int = field(default=1024, metadata={"help": "Training prompts; all of a smaller data file."})
    shots: int = field(default=0, metadata={"help": "Solved examples before every prompt."})
    chat: bool = field(default=False, metadata={"help": "Prompts in the tokenizer's chat template."})


def tune(argv: list[str]) -> PeftModel:
    """Parse, tune, and leave the adapter in `output_dir`."""
    arguments, config = parse_options(
        (TuneDraftArguments, DraftTuningConfig), argv, "hf-diversed tune-draft", output_dir="tuned-draft"
    )
    check_pair(arguments.target, arguments.draft)
    task = get_task(arguments.task)
    records = read_records(task, "train", arguments.num_prompts, config.seed, arguments.data_file)
    rows = supervised_rows(task, records, arguments.shots, arguments.chat)
    if arguments.target is None:
        pair = load_pair(None, None, config.device)
        target, draft, tokenizer = pair.target, pair.draft, pair.tokenizer
    else:
        target, draft, tokenizer = arguments.target, arguments.draft, load_tokenizer(arguments.target)
    stop_strings = () if arguments.chat else task.stop_strings
    return tune_draft(target, draft, tokenizer, rows, config, stop_strings)
