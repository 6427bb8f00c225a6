"""`hf-diversed push`, `card` and `info`: publish or describe a head."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from hf_diversed.cli.terminal import console, notes


if TYPE_CHECKING:
    from hf_diversed.head import DiversedHead
    from hf_diversed.hub import HeadRecords


Folder = Annotated[
    Path, typer.Argument(exists=True, file_okay=False, help="Folder of a head, as the trainer saves it.")
]
Evaluation = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, help="Results of `evaluate`; by default FOLDER/evaluation.json."),
]
LICENSE = "apache-2.0"  # also of `hub.records.HeadRecords`
License = Annotated[str, typer.Option(help="License of the card, as the Hub spells it.")]
Tags = Annotated[str, typer.Option(help="More tags for the card, separated by commas.")]


def push(
    folder: Folder,
    repo: Annotated[str, typer.Argument(help="Hub id: org/name, or a name under your account.")],
    evaluation: Evaluation = None,
    license: License = LICENSE,
    tags: Tags = "",
    private: Annotated[bool | None, typer.Option(help="Make a new repository private.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch; created if it does not exist.")] = None,
    create_pr: Annotated[bool, typer.Option(help="Open a pull request.")] = False,
    commit_message: Annotated[str | None, typer.Option(help="Title of the commit.")] = None,
    token: Annotated[str | None, typer.Option(help="Access token; by default that of `hf auth login`.")] = None,
) -> None:
    """Publish a head with its card, results and provenance, in one commit; nothing else of the folder is sent."""
    from hf_diversed.hub import Destination
    from hf_diversed.hub import push as publish

    head, records = _read(folder, evaluation, license, tags)
    commit = publish(head, records, Destination(repo, private, revision, create_pr, token, commit_message))
    console.print(Text(commit.pr_url or commit.commit_url), soft_wrap=True)


def card(
    folder: Folder,
    evaluation: Evaluation = None,
    repo: Annotated[str | None, typer.Option(help="Future Hub id of the head.")] = None,
    license: License = LICENSE,
    tags: Tags = "",
    output: Annotated[Path | None, typer.Option(help="File for the card; by default FOLDER/README.md.")] = None,
) -> None:
    """Render the model card that a push would publish."""
    from hf_diversed.cli.preparing import check_output
    from hf_diversed.hub import publication
    from hf_diversed.hub.files import CARD

    check_output("--output", output)
    head, records = _read(folder, evaluation, license, tags)
    path = output or folder / CARD
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(publication(head, records, repo, folder=str(folder))[CARD])
    console.print(Text(str(path)), soft_wrap=True)


def info(
    head: Annotated[str, typer.Argument(help="Folder or Hub id.")],
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit.")] = None,
    evaluation: Evaluation = None,
    token: Annotated[str | None, typer.Option(help="Access token; by default that of `hf auth login`.")] = None,
) -> None:
    """Show a head's pair, sizes, task and results."""
    from hf_diversed.cli.tables import results_table
    from hf_diversed.head import DiversedHead
    from hf_diversed.hub import read_records
    from hf_diversed.hub.records import EVALUATION

    hub = {name: value for name, value in (("revision", revision), ("token", token)) if value is not None}
    loaded, records = DiversedHead.from_pretrained(head, **hub), read_records(head, evaluation, **hub)
    console.print(about_table(loaded, records))
    rows = records.evaluation.get("records") or []
    if rows:
        console.print(results_table(rows))
    else:
        notes.print(f"No results: there is no {EVALUATION} beside it.")


def about_table(head: "DiversedHead", records: "HeadRecords") -> Table:
    """Return a table of a head's properties; missing ones are left out."""
    config = head.config
    measured = (records.evaluation.get("provenance") or {}).get("evaluation") or {}
    parameters = sum(parameter.numel() for parameter in head.parameters())
    seen = config.features + (" and the drafted token" if config.token_features else "")
    seen += (f", {config.lookahead} draft tokens ahead" if config.lookahead else "") + (
        ", target after the token" if config.target_after else ""
    )
    shown = {
        "task": config.task,
        "target": _model(config.base_model_name_or_path, config.base_model_revision, measured.get("target")),
        "draft": _model(config.assistant_model_name_or_path, config.assistant_model_revision, measured.get("draft")),
        "hidden sizes": f"{config.target_hidden_size} (target), {config.draft_hidden_size} (draft)",
        "head": f"{config.head_type} on {seen}, {parameters:,} parameters",
        "drafts per round": config.num_assistant_tokens,
        "temperature": config.training_temperature,
        "trained with": " ".join(records.training.get("argv") or []) or None,
    }
    table = Table(box=box.SIMPLE, show_header=False)
    for name, value in shown.items():
        if value is not None:
            table.add_row(Text(name, style="bold"), Text(str(value)))
    return table


def _model(name: str | None, revision: str | None, measured: Mapping[str, Any] | None) -> str | None:
    count = (measured or {}).get("parameters")
    size = None if count is None else f"{count / 1e6:,.2f} M parameters"
    parts = [name and (f"{name}@{revision}" if revision else name), size]
    return ", ".join(part for part in parts if part) or None


def _read(folder: Path, evaluation: Path | None, license: str, tags: str) -> "tuple[DiversedHead, HeadRecords]":
    from hf_diversed.head import DiversedHead
    from hf_diversed.hub import read_records

    records = read_records(folder, evaluation)
    chosen = tuple(tag.strip() for tag in tags.split(",") if tag.strip())
    return DiversedHead.from_pretrained(folder), replace(records, license=license, tags=chosen)
