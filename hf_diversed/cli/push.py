"""`hf-diversed push`."""

from pathlib import Path
from typing import Annotated

import typer

from hf_diversed.cli.options import Debug


def push(
    head: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="Folder of a head, as `hf-diversed train` saves it.")
    ],
    destination: Annotated[
        str, typer.Argument(help="Repository on the Hub, as in org/name; or a folder, starting with . or / or ~")
    ],
    private: Annotated[bool | None, typer.Option(help="Make a new repository private.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, created if it does not exist.")] = None,
    create_pr: Annotated[bool, typer.Option("--create-pr", help="Open a pull request.")] = False,
    commit_message: Annotated[str | None, typer.Option(help="Title of the commit.")] = None,
    token: Annotated[str | None, typer.Option(help="Access token; by default that of `hf auth login`.")] = None,
    license: Annotated[str, typer.Option(help="License in the card, as an identifier of the Hub.")] = "apache-2.0",
    tags: Annotated[str, typer.Option(help="More tags for the card, separated by commas.")] = "",
    debug: Debug = False,
) -> None:
    """Publish a head with its card, results and provenance: on the Hub, or in a folder without the Hub.

    Results are those of `hf-diversed evaluate --output HEAD`.
    """
    from hf_diversed import hub
    from hf_diversed.cli.loading import quiet_transformers

    quiet_transformers()
    chosen = [tag.strip() for tag in tags.split(",") if tag.strip()]
    if destination.startswith((".", "/", "~")):
        folder = Path(destination).expanduser()
        source = folder.name if folder.is_absolute() else destination
        hub.write_folder(head, folder, source=source, tags=chosen, license=license)
        print(folder)
        return
    commit = hub.push(
        head,
        destination,
        tags=chosen,
        license=license,
        private=private,
        revision=revision,
        create_pr=create_pr,
        token=token,
        commit_message=commit_message,
    )
    print(commit.pr_url or commit.commit_url)
