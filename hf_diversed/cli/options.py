"""Options of the commands, as dataclasses: a field is an option, and the docstring of a command's class is its help.

This module imports neither torch nor transformers, so `--help` is fast.
"""

from collections.abc import Collection
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar


TASK_NAMES = (
    "gsm8k",
    "cnndm",
    "xsum",
    "mbpp",
    "mbpp_sanitized",
    "humaneval",
    "scitldr",
    "math",
    "summary",
    "code",
)
ENGINES = ("eager", "compiled", "both")
LOOKUP = "lookup"  # instead of a draft model: prompt lookup
_POSITIVE = (
    "num_examples",
    "repeats",
    "max_new_tokens",
    "num_assistant_tokens",
    "batch_size",
    "samples_per_prompt",
)
_LOWEST = {**dict.fromkeys(_POSITIVE, 1), **dict.fromkeys(("num_eval_examples", "shots"), 0)}


def option(help: str, default: Any = None, also: str | None = None) -> Any:
    """Return a dataclass field for an option, or for a flag if its type is bool; `also` is a second name."""
    return field(default=default, metadata={"help": help, **({"aliases": [also]} if also else {})})


def required(help: str) -> Any:
    """Return a dataclass field for an option without a default."""
    return field(metadata={"help": help})


def argument(help: str, default: Any = MISSING) -> Any:
    """Return a dataclass field for a positional argument, optional if it has a default."""
    return field(default=default, metadata={"help": help, "positional": True})


def flag(name: str) -> str:
    """Return the name of an option on the command line."""
    return f"--{name.replace('_', '-')}"


@dataclass(kw_only=True)
class Options:
    """Base of all options. Raises ValueError if an integer is too small."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value, lowest = getattr(self, item.name), _LOWEST.get(item.name)
            if lowest is not None and isinstance(value, int) and value < lowest:
                raise ValueError(f"{flag(item.name)} must be >= {lowest}, got {value}.")


@dataclass(kw_only=True)
class LoadingOptions(Options):
    """How models are loaded."""

    dtype: str | None = option("Data type of the models: auto (as saved, the default), float32, bfloat16 or float16.")


@dataclass(kw_only=True)
class DeviceOptions(LoadingOptions):
    """Where models are loaded."""

    device: str | None = option("cuda, cuda:1, mps or cpu; by default the fastest available.")


@dataclass(kw_only=True)
class PairOptions(LoadingOptions):
    """The models of a command."""

    target: str | None = option("Hub id or folder of the target model; the embedded pair by default.")
    draft: str | None = option("Hub id or folder of the draft model, or lookup to copy draft tokens from the text.")


@dataclass(kw_only=True)
class ScoringOptions(PairOptions):
    """A task, its prompts and the scoring of completions."""

    task: str = required(f"One of {', '.join(TASK_NAMES)}.")
    data_file: str | None = option("JSON Lines file with the task's columns, used instead of the split.")
    shots: int = option("Solved examples before each prompt, from the training split.", 0)
    chat: bool = option("Apply the tokenizer's chat template, without stop strings.", False)
    overwrite: bool = option("Remove the results of an earlier run.", False)
    allow_code_execution: bool = option("Let code tasks run completions, isolated by bubblewrap.", False)
    allow_unsafe_code_execution: bool = option(
        "Let code tasks run completions without isolation, for use in a container.", False
    )


@dataclass(kw_only=True)
class MeasuringOptions(ScoringOptions, DeviceOptions):
    """Options of commands that measure methods on a task; names are those of `EvaluationSettings`."""

    head: str | None = option("Hub id or folder of the head of diversed; by default the embedded head of the task.")
    num_examples: int = option("Number of prompts.", 500)
    samples_per_prompt: int = option("Number of completions of each prompt.", 1)
    split: str = option("Split of the task.", "test")
    shots_file: str | None = option("JSON Lines file whose first records are the solved examples.")
    thinking: bool = option("With --chat, let the model think, where its template has enable_thinking.", False)
    seed: int = option("Seed of prompts, sampling and intervals.", 0)
    temperature: float = option("Sampling temperature; 0 decodes greedily.", 1.0)
    top_k: int = option("Sample from this many of the likeliest tokens; 0 keeps all.", 0)
    top_p: float = option("Sample from the likeliest tokens of this total probability; 1 keeps all.", 1.0)
    batch_size: int = option("Prompts decoded together.", 16)
    max_new_tokens: int | None = option("Longest answer, in tokens; by default the task's own.")
    output: Path | None = option("JSON file for the results; with it, an interrupted run can continue.")


@dataclass(kw_only=True)
class VerifierOptions(Options):
    """One method, with a head and its settings."""

    head: str | None = option("Hub id or folder of a DiversedHead.")
    strictness: float | None = option(
        "Strictness of the head: 0 accepts every draft token, 0.5 is as trained, 1 is lossless."
    )
    max_bias: float | None = option("Bound on TV(v, p) at each token.")
    max_ratio: float | None = option("Bound v <= max_ratio p at each token; at least 1, where 1 is lossless.")
    num_assistant_tokens: int | None = option("Draft tokens per round; by default the head's value, else 5.")


@dataclass(kw_only=True)
class DemoOptions(DeviceOptions):
    """Compare decoding methods on the embedded pair, offline.

    Methods alternate prompt by prompt. Speeds are medians of the repeats, with their range; a ratio whose range
    exceeds 30 percent of its median is shown as "too noisy to say".
    """

    num_examples: int = option("Held-out prompts to answer.", 8)
    repeats: int = option("Timed repeats of every prompt and method.", 3)
    seed: int = option("Seed of the prompts and of sampling.", 0)
    num_assistant_tokens: int = option("Draft tokens per round.", 5)
    max_new_tokens: int = option("Longest answer, in tokens.", 128)
    temperature: float = option("Sampling temperature; 0 decodes greedily.", 1.0)
    engine: str = option("eager, compiled (compilation takes minutes), or both.", "both")
    backend: str = option("Backend of torch.compile; eager only traces.", "inductor")
    model: str | None = option("Hub id or folder of a chat model, instead of the embedded pair.")
    draft: str = option("Draft model of --model: Hub id or folder, or lookup to copy from the prompt.", LOOKUP)


@dataclass(kw_only=True)
class TrainOptions(ScoringOptions):
    """Train a head for a pair and a task, and save it in --output-dir.

    Standard output receives only the folder's name.
    """

    DEFAULTS: ClassVar[dict[str, Any]] = {
        "eval_strategy": "steps",
        "load_best_model_at_end": True,
        "output_dir": "head",
    }
    head: str | None = option("Hub id or folder of a head to start from.")
    reward_funcs: list[str] | None = option(
        '"task:NAME" or package.module.function; by default the score of the task.'
    )
    eval_data_file: str | None = option("JSON Lines file of held-out prompts.")
    eval_split: str | None = option(
        "Split of the held-out prompts; by default validation if the task has it, else records of train that are not "
        "used for training."
    )
    num_examples: int = option("Number of training prompts; a smaller data file is used whole.", 1024)
    num_eval_examples: int = option("Number of held-out prompts that choose the best head.", 1024)
    resume: bool = option("Continue from the newest complete checkpoint of --output-dir, if there is one.", False)


@dataclass(kw_only=True)
class EvaluateOptions(MeasuringOptions):
    """Measure quality, acceptance and cost of methods on a task.

    All methods answer the same prompts under the same seeds. An interrupted run continues where it stopped.
    """

    methods: str = required("Methods, separated by commas: target, lossless, lenience:0.3, diversed, diversed@0.7 ...")
    temperature: str = option(  # type: ignore[assignment]
        "Sampling temperature, 0 for greedy decoding; or several: 0,0.1,1.", "1.0"
    )
    num_assistant_tokens: str = option("Draft tokens per round; or several: 3,5,7.", "5")
    records: bool = option("Also measure TV, bias and relaxed tokens (slower).", False)
    markdown: Path | None = option("Markdown file for a table of acceptance and quality.")
    plot: Path | None = option("PNG, SVG or PDF file for a figure of quality against acceptance.")


@dataclass(kw_only=True)
class CalibrateOptions(MeasuringOptions):
    """Find the strictness of a head for a tolerated quality drop.

    It becomes the head's default, in its configuration. An interrupted run continues where it stopped.
    """

    head: Path = argument(  # type: ignore[assignment]
        "Folder of the head; the strictness is written to its configuration."
    )
    max_quality_drop: float = option("Tolerated drop below the target alone, in units of the metric.", 0.01)
    confidence: float = option("Confidence, between 0 and 1, that the drop is at most --max-quality-drop.", 0.95)
    num_examples: int = option("Number of prompts.", 1000)
    samples_per_prompt: int | None = option(  # type: ignore[assignment]
        "Number of completions of each prompt; by default 2, or 1 at temperature 0."
    )
    num_assistant_tokens: int | None = option("Draft tokens per round; by default the head's own, or 5.")
    output: Path | None = option(
        "Folder for finished calls, so that a run can continue; by default one below HEAD/calibration."
    )


@dataclass(kw_only=True)
class ServeOptions(VerifierOptions):
    """Serve a pair with vLLM; unknown options are passed to vLLM. `--config` reads options of this command only.

    For example: hf-diversed serve TARGET --draft DRAFT --head HEAD --port 8000 --max-model-len 4096. The settings are
    the defaults of requests; each request may set the strictness.
    """

    target: str = argument("Hub id or folder of the target model.")
    draft: str | None = option("Hub id or folder of the draft model; or pass vLLM's --speculative-config instead.")
    verifier: str | None = option('For example "static:0.7"; by default the head.')
    choices: str | None = option('Verifiers that requests may choose, for example "static:0.5,lenience:0.3".')
    dry_run: bool = option("Print the command without running it.", False)


@dataclass(kw_only=True)
class PushOptions(Options):
    """Publish a head on the Hub with its card, results and provenance, in one commit.

    Other files of the folder are not uploaded. --card-only and --info publish nothing.
    """

    folder: str = argument("Folder of a head, as the trainer saves it; with --info also a Hub id.")
    repo: str | None = argument("Hub id: org/name, or a name under your account.", None)
    card_only: bool = option("Write the model card that a push would publish.", False)
    info: bool = option("Show the head's pair, sizes, task and results.", False)
    output: Path | None = option("File for the card of --card-only; by default FOLDER/README.md.")
    evaluation: Path | None = option("Results of `evaluate`; by default FOLDER/evaluation.json.")
    license: str = option("License in the card, as an identifier of the Hub.", "apache-2.0")
    tags: str = option("More tags for the card, separated by commas.", "")
    private: bool | None = option("Make a new repository private.")
    revision: str | None = option("Branch, created if it does not exist; with --info any branch, tag or commit.")
    create_pr: bool = option("Open a pull request.", False)
    commit_message: str | None = option("Title of the commit.")
    token: str | None = option("Access token; by default that of `hf auth login`.")


def read_config(path: Path, known: Collection[str]) -> dict[str, Any]:
    """Return the options in a YAML file, by name with underscores; entries without a value are left out. Raises
    ValueError if the file does not exist, is not YAML, contains no mapping, or an option that is not `known`."""
    import yaml

    if not path.is_file():
        raise ValueError(f"--config: the file {path} does not exist.")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"--config: {path} cannot be read as YAML in UTF-8 ({reason}); write one `option: value` per line."
        ) from error
    if not isinstance(values, dict):
        raise ValueError(f"--config: {path} must contain a mapping from option to value.")
    values = {str(name).replace("-", "_"): value for name, value in values.items() if value is not None}
    if unknown := sorted(set(values) - set(known)):
        raise ValueError(f"unknown options in the config: {', '.join(unknown)}; see --help.")
    return values
