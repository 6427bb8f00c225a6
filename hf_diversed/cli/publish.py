"""`hf-diversed push`: publish or describe a head."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from hf_diversed import hub
from hf_diversed.cli import preparing
from hf_diversed.cli.options import PushOptions, flag
from hf_diversed.cli.rendering import results_by_setting
from hf_diversed.cli.terminal import console, notes
from hf_diversed.head import DiversedHead
from hf_diversed.hub.files import CARD
from hf_diversed.hub.markdown import one_line
from hf_diversed.hub.records import EVALUATION, HeadRecords


# Options that each mode does not use.
_UNUSED = {
    "with --info": ("repo", "output", "license", "tags", "private", "create_pr", "commit_message"),
    "with --card-only": ("private", "revision", "create_pr", "commit_message", "token"),
    "without --card-only": ("output",),
}


def push(options: PushOptions) -> None:
    """Publish a head; or write its card, or show what it is."""
    if options.card_only and options.info:
        raise ValueError("--card-only and --info are mutually exclusive; pass only one of them.")
    _check_unused(options)
    if options.info:
        _info(options)
        return
    preparing.check_folder("FOLDER", Path(options.folder))
    if options.card_only:
        _card(options)
        return
    if options.repo is None:
        raise ValueError("REPO is missing: name a repository, as in org/name, or pass --card-only or --info.")
    head, records = _read(options)
    names = ("private", "revision", "create_pr", "token", "commit_message")
    commit = hub.push(head, records, options.repo, **{name: getattr(options, name) for name in names})
    console.print(Text(commit.pr_url or commit.commit_url), soft_wrap=True)


def _check_unused(options: PushOptions) -> None:
    """Raise ValueError if an option is set that has no effect."""
    mode = "with --info" if options.info else "with --card-only" if options.card_only else "without --card-only"
    default = PushOptions(folder=options.folder)
    given = [name for name in _UNUSED[mode] if getattr(options, name) != getattr(default, name)]
    if given:
        names = ", ".join("REPO" if name == "repo" else flag(name) for name in given)
        raise ValueError(f"not used {mode}: {names}. Leave them out.")


def _card(options: PushOptions) -> None:
    preparing.check_output("--output", options.output)
    head, records = _read(options)
    path = options.output or Path(options.folder) / CARD
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(hub.publication(head, records, options.repo, folder=options.folder)[CARD])
    console.print(Text(str(path)), soft_wrap=True)


def _info(options: PushOptions) -> None:
    named = {name: value for name in ("revision", "token") if (value := getattr(options, name)) is not None}
    head = DiversedHead.from_pretrained(options.folder, **named)
    records = hub.read_records(options.folder, options.evaluation, **named)
    try:
        properties = about_table(head, records)
        results = results_by_setting(records.evaluation.get("records") or [])
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # a file of the Hub may contain anything
        raise ValueError(f"{EVALUATION} is not a result of `hf-diversed evaluate`: {error!r}") from error
    console.print(properties, results)
    if not results.renderables:
        notes.print(f"No results: the head has no {EVALUATION}.")


def about_table(head: DiversedHead, records: HeadRecords) -> Table:
    """Return a table of a head's properties; missing ones are left out."""
    config = head.config
    measured = (records.evaluation.get("provenance") or {}).get("evaluation") or {}
    parameters = sum(parameter.numel() for parameter in head.parameters())
    inputs = config.features + (" and the draft token" if config.token_features else "")
    properties = {
        "task": config.task,
        "target": _model(config.base_model_name_or_path, config.base_model_revision, measured.get("target")),
        "draft": _model(config.assistant_model_name_or_path, config.assistant_model_revision, measured.get("draft")),
        "hidden sizes": f"{config.target_hidden_size} (target), {config.draft_hidden_size} (draft)",
        "head": f"{config.head_type} on {inputs}, {parameters:,} parameters",
        "draft tokens per round": config.num_assistant_tokens,
        "temperature": config.training_temperature,
        "trained with": " ".join(records.training.get("argv") or []) or None,
    }
    table = Table(box=box.SIMPLE, show_header=False)
    for name, value in properties.items():
        if value is not None:
            table.add_row(Text(name, style="bold"), Text(one_line(value)))
    return table


def _model(name: str | None, revision: str | None, measured: Mapping[str, Any] | None) -> str | None:
    count = (measured or {}).get("parameters")
    size = None if count is None else f"{count / 1e6:,.2f} M parameters"
    parts = [name and (f"{name}@{revision}" if revision else name), size]
    return ", ".join(part for part in parts if part) or None


def _read(options: PushOptions) -> tuple[DiversedHead, HeadRecords]:
    records = hub.read_records(Path(options.folder), options.evaluation)
    tags = tuple(tag.strip() for tag in options.tags.split(",") if tag.strip())
    return DiversedHead.from_pretrained(options.folder), replace(records, license=options.license, tags=tags)
