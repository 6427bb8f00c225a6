"""Options of commands: dataclasses whose fields become options of the command line, with defaults from a YAML file."""

import argparse
from collections.abc import Callable, Collection, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import yaml
from transformers import HfArgumentParser, TrainingArguments

from hf_diversed.formatting import did_you_mean
from hf_diversed.tasks import TASKS
from hf_diversed.zoo import packaged


# Options of transformers' trainer that `--help` also shows.
_USUAL = {"output_dir", "resume_from_checkpoint", "seed", "use_cpu", "push_to_hub"}
_LOWEST = {
    **dict.fromkeys(("num_examples", "repeats", "max_new_tokens", "num_assistant_tokens", "threads", "batch_size"), 1),
    **dict.fromkeys(("samples_per_prompt",), 1),
    **dict.fromkeys(("num_eval_examples", "shots"), 0),
}


def option(help: str, default: Any = None, also: str | None = None) -> Any:
    """Return a dataclass field for an option, or for a flag if its type is bool; `also` is a second name."""
    return field(default=default, metadata={"help": help, "also": [also] if also else []})


def required(help: str) -> Any:
    """Return a dataclass field for an option without a default."""
    return field(metadata={"help": help, "also": []})


def argument(help: str, default: Any = MISSING, kind: Callable[[str], Any] | None = None) -> Any:
    """Return a dataclass field for a positional argument, optional if it has a default; `kind` converts its text."""
    return field(default=default, metadata={"help": help, "kind": kind})


def existing_folder(text: str) -> Path:
    """Convert text to the path of an existing folder."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"the folder {text} does not exist.")
    return Path(text)


@dataclass(kw_only=True)
class LoadingOptions:
    """How models are loaded."""

    dtype: str | None = option("Data type of the models: auto (as saved, the default), float32, bfloat16 or float16.")
    yes: bool = option("Download packaged models without asking.", False)


@dataclass(kw_only=True)
class DeviceOptions(LoadingOptions):
    """Where models are loaded."""

    device: str | None = option("cuda, cuda:1, mps or cpu; by default the fastest available.")


@dataclass(kw_only=True)
class PairOptions(LoadingOptions):
    """The models of a command."""

    target: str | None = option(
        f"Hub id, folder or one of {', '.join(packaged.MODELS)}; the embedded pair by default."
    )
    draft: str | None = option("Hub id or folder of the draft model, or lookup to copy draft tokens from the text.")


@dataclass(kw_only=True)
class PromptOptions(PairOptions):
    """A task and its prompts."""

    task: str = required(f"One of {', '.join(TASKS)}.")
    data_file: str | None = option("JSON Lines file with the task's columns, used instead of the split.")
    shots: int = option("Solved examples before each prompt, from the training split.", 0)
    chat: bool = option("Apply the tokenizer's chat template, without stop strings.", False)
    overwrite: bool = option("Remove the files of an earlier run from the output folder.", False)


@dataclass(kw_only=True)
class ScoringOptions(PromptOptions):
    """A task whose completions are scored."""

    allow_code_execution: bool = option("Let code tasks run completions in a sandbox.", False)
    unsafe_code_execution: bool = option(
        "Let code tasks run completions without a sandbox, where none is available.", False
    )


@dataclass(kw_only=True)
class MeasuringOptions(ScoringOptions, DeviceOptions):
    """Options of commands that measure methods on a task; names are those of `EvaluationSettings`."""

    head: str | None = option("Hub id or folder of the head of diversed; by default the embedded head of the task.")
    num_examples: int = option("Number of prompts.", 500)
    samples_per_prompt: int = option("Number of completions of each prompt.", 1)
    split: str = option("Split of the task.", "test")
    shots_file: str | None = option("JSON Lines file whose first records are the solved examples.")
    seed: int = option("Seed of prompts, sampling and intervals.", 0)
    temperature: float = option("Sampling temperature; 0 decodes greedily.", 1.0)
    top_k: int = option("Sample from this many of the likeliest tokens; 0 keeps all.", 0)
    top_p: float = option("Sample from the likeliest tokens of this total probability; 1 keeps all.", 1.0)
    batch_size: int = option("Prompts decoded together.", 16)
    max_new_tokens: int | None = option("Longest answer, in tokens; by default the task's own.")
    output: Path | None = option("JSON file for the results; with it, an interrupted run can continue.")


@dataclass(kw_only=True)
class VerifierOptions:
    """One method, with a head and its settings."""

    head: str | None = option("Hub id or folder of a DiversedHead.")
    strictness: float | None = option(
        "Strictness of the head: 0 accepts every draft token, 0.5 is as trained, 1 is lossless."
    )
    max_bias: float | None = option("Bound on TV(v, p) at each token.")
    max_ratio: float | None = option("Bound v <= max_ratio p at each token; at least 1, where 1 is lossless.")
    num_assistant_tokens: int | None = option("Draft tokens per round; by default the head's own, or 5.")


@dataclass(kw_only=True)
class MethodOptions(VerifierOptions, PairOptions, DeviceOptions):
    """One method of `generate` and `compile`."""

    method: str | None = option(
        "target, lossless, lenience:0.3, diversed ...; by default diversed with a head, else lenience:0.3.",
        also="--verifier",
    )
    task: str = option("Task whose head of the embedded pair is used.", "math")
    temperature: float = option("Sampling temperature; 0 decodes greedily.", 1.0)


def classes_of(function: Callable[..., Any]) -> list[type]:
    """Return the dataclasses that a command's parameters are annotated with."""
    hints = get_type_hints(function)
    hints.pop("return", None)
    return [kind for kind in hints.values() if hasattr(kind, "__dataclass_fields__")]


def own_names(classes: Sequence[type]) -> set[str]:
    """Return the names of options that this library declares, without those of transformers' trainer."""
    bases = [base for kind in classes for base in kind.__mro__ if base not in TrainingArguments.__mro__]
    declared = {name for base in bases for name in vars(base).get("__annotations__", {})}
    return declared & {item.name for kind in classes for item in fields(kind)}


def spelled(word: str) -> str:
    """Return an option with hyphens in place of underscores."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}"


def without_debug(argv: list[str], classes: Sequence[type]) -> tuple[list[str], bool]:
    """Remove `--debug`, which shows tracebacks. With a value, `--debug` is an option of transformers' trainer."""
    trains = any(issubclass(kind, TrainingArguments) for kind in classes)
    following = [*argv[1:], "--"]
    ours = [word == "--debug" and (not trains or after.startswith("-")) for word, after in zip(argv, following)]
    return [word for word, removed in zip(argv, ours) if not removed], any(ours)


class _Formatter(argparse.HelpFormatter):
    def _get_help_string(self, action: argparse.Action) -> str:
        shown = action.option_strings and not any(
            action.default is value for value in (None, False, argparse.SUPPRESS)
        )
        return (action.help or "") + (" (default: %(default)s)" if shown else "")

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, argparse.BooleanOptionalAction):
            return action.option_strings[0]  # without its negation
        return super()._format_action_invocation(action)


class Parser:
    """Reads dataclasses from the command line, which takes precedence over `--config run.yaml`.

    Args:
        classes: `TrainingArguments` or subclasses of it, and dataclasses with fields of `option`, `required` and
            `argument`. An attribute `DEFAULTS` of a class overrides the defaults of all classes.
        name: the command.
        description: shown above its options.
    """

    def __init__(self, classes: Sequence[type], name: str, description: str = ""):
        self.classes, self.name = classes, name
        trained = [kind for kind in classes if issubclass(kind, TrainingArguments)]
        self._parser = HfArgumentParser(
            trained,
            prog=f"hf-diversed {name}",
            usage=argparse.SUPPRESS,
            add_help=False,
            allow_abbrev=False,
            formatter_class=_Formatter,
            description=" ".join(description.split()),
        )
        for action in self._parser._actions:  # show hyphens only
            hyphens = [text for text in action.option_strings if "_" not in text]
            action.option_strings = hyphens[:1] or action.option_strings
        self._own = [kind for kind in classes if kind not in trained]
        for kind in self._own:
            hints = get_type_hints(kind)
            for item in fields(kind):
                _add(self._parser, item, hints[item.name])
        shown = self._parser._optionals._group_actions  # in the order of help
        shown.sort(
            key=lambda action: (not action.required, action.dest in {item.name for item in fields(DeviceOptions)})
        )
        self._parser.add_argument("--config", metavar="FILE", help="YAML file with any of these options.")
        if "debug" not in {action.dest for action in self._parser._actions}:
            self._parser.add_argument("--debug", action="store_true", help="Show the traceback of an error.")
        for kind in classes:
            self._parser.set_defaults(**getattr(kind, "DEFAULTS", {}))

    @property
    def names(self) -> list[str]:
        """Every option of the command."""
        return [text for action in self._parser._actions for text in action.option_strings]

    def parse(self, argv: Sequence[str]) -> tuple[list[Any], list[str]]:
        """Return an instance of each class, and the words that are not options of any of them.

        Raises:
            ValueError: if options are missing, values have a wrong type, or the `--config` file is missing or invalid.
        """
        first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        first.add_argument("--config")
        if (path := first.parse_known_args(argv)[0].config) is not None:
            self._set_defaults(path)
        self._parser.error = _raise
        trained = [kind for kind in self.classes if kind not in self._own]
        *configs, namespace, more = self._parser.parse_args_into_dataclasses(
            self._without_values(argv), look_for_args_file=False, return_remaining_strings=True
        )
        values = iter(configs)
        return [next(values) if kind in trained else _build(kind, namespace) for kind in self.classes], more

    def _without_values(self, argv: Sequence[str]) -> list[str]:
        """Replace `--chat true` and `--chat=false` by `--chat` and `--no-chat`, as `HfArgumentParser` accepts both."""
        actions = [action for action in self._parser._actions if isinstance(action, argparse.BooleanOptionalAction)]
        flags = {action.option_strings[0] for action in actions}
        parts = [part for word in argv for part in (word.split("=", 1) if word.partition("=")[0] in flags else [word])]
        words: list[str] = []
        for before, word in zip(["", *parts], parts):
            if before not in flags or word.lower() not in ("true", "false"):
                words.append(word)
            elif word.lower() == "false":
                words[-1] = f"--no-{before[2:]}"
        return words

    def help(self, everything: bool = False) -> str:
        """Return the help of our options and, if `everything`, of those of transformers' trainer."""
        first = {item.name for kind in self._own for item in fields(kind)} | {"config"}
        first |= {"debug"} if len(self._own) == len(self.classes) else set()
        sections = {"options:": first}
        if len(self._own) < len(self.classes):
            sections["options of training:"] = (own_names(self.classes) | _USUAL) - first
            sections["options of transformers' trainer:"] = {
                action.dest for action in self._parser._actions
            }.difference(*sections.values())
        parts = [self._section(title, names) for title, names in sections.items()]
        if len(parts) > 1 and not everything:
            parts[2] = "--help-all also shows the options of transformers' trainer; --debug the traceback of an error."
        positional = " ".join(action.dest.upper() for action in self._parser._actions if not action.option_strings)
        return "\n\n".join([" ".join(f"usage: {self._parser.prog} {positional} [options]".split()), *parts])

    def _section(self, title: str, names: Collection[str]) -> str:
        texts = {action: action.help for action in self._parser._actions}
        for action in texts:
            action.help = texts[action] if action.dest in names else argparse.SUPPRESS
        formatted = self._parser.format_help().strip().replace("options:", title, 1)
        for action, text in texts.items():
            action.help = text
        self._parser.description = None
        return formatted

    def _set_defaults(self, path: str) -> None:
        known = {option: action for action in self._parser._actions for option in action.option_strings}
        known |= {f"--{action.dest}": action for action in self._parser._actions if not action.option_strings}
        values = _read(path)
        flags = {name: spelled(f"--{name}") for name in values}
        if unknown := sorted(name for name, flag in flags.items() if flag not in known):
            raise ValueError(f"unknown options in the config: {', '.join(unknown)}; see --help.")
        own = {item.name for kind in self._own for item in fields(kind)}
        for name, value in values.items():
            action = known[flags[name]]
            if action.dest in own and action.nargs is None:
                value = _as_text(value)
            action.required = False
            if not action.option_strings:
                action.nargs = "?"
            self._parser.set_defaults(**{action.dest: value})


def _as_text(value: Any) -> Any:
    """Return a value of a YAML file as command-line text: lists joined by commas; flags and None unchanged."""
    if value is None or isinstance(value, bool):
        return value
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def refuse_unknown(more: Sequence[str], parser: Parser) -> None:
    """Raise ValueError if there are words that are not options of a command."""
    if more:
        kind = "option" if more[0].startswith("-") else "argument"
        close = did_you_mean(more[0].partition("=")[0], parser.names)
        raise ValueError(f"no such {kind}: {more[0]}{close}; --help lists all.")


def _add(parser: argparse.ArgumentParser, item: Any, hint: Any) -> None:
    """Add a dataclass field made by `option`, `required` or `argument` to the parser."""
    kind = hint if get_origin(hint) is list else next((part for part in get_args(hint) if part is not NoneType), hint)
    many, needed, flag = get_origin(kind) is list, item.default is MISSING, f"--{item.name.replace('_', '-')}"
    kind = get_args(kind)[0] if many else kind
    common = {"help": item.metadata["help"], "default": None if needed else item.default}
    if "kind" in item.metadata:
        count = "+" if many else None if needed else "?"
        kind = item.metadata["kind"] or kind
        parser.add_argument(item.name, nargs=count, type=kind, metavar=item.name.upper(), **common)
    elif kind is bool:
        action = parser.add_argument(flag, action=argparse.BooleanOptionalAction, **common)
        action.help = common["help"]  # without the default that argparse appends
    else:
        name = {int: "N", float: "X"}.get(kind, item.name.rpartition("_")[2].upper())
        count = "+" if many else None
        flags = (flag, *item.metadata["also"])
        parser.add_argument(*flags, type=kind, required=needed, nargs=count, metavar=name, **common)


def _build(kind: type, namespace: argparse.Namespace) -> Any:
    values = {item.name: getattr(namespace, item.name) for item in fields(kind)}
    for name, value in values.items():
        if isinstance(value, int) and name in _LOWEST and value < _LOWEST[name]:
            raise ValueError(f"--{name.replace('_', '-')} must be >= {_LOWEST[name]}, got {value}.")
    return kind(**values)


def _raise(message: str) -> None:
    raise ValueError(message)


def _read(path: str) -> dict[str, Any]:
    if not Path(path).is_file():
        raise ValueError(f"--config: the file {path} does not exist.")
    values = yaml.safe_load(Path(path).read_text())
    if not isinstance(values, dict):
        raise ValueError(f"{path} must contain a mapping from option to value.")
    return values
