"""Write a head as it is published, and publish it in one commit."""

import copy
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import CommitInfo, HfApi
from huggingface_hub.errors import HTTPError

from hf_diversed._version import __version__
from hf_diversed.head import DiversedHead
from hf_diversed.hub import custom_generate
from hf_diversed.hub.card import LICENSE, render_card
from hf_diversed.provenance import module_digest, publishable


CARD, EVALUATION, TRAINING = "README.md", "evaluation.json", "provenance.json"

Record = Mapping[str, Any] | str | Path | None


def write_folder(
    head: DiversedHead | str | Path,
    folder: str | Path,
    evaluation: Record = None,
    training: Record = None,
    *,
    repo_id: str | None = None,
    revision: str | None = None,
    source: str | None = None,
    tags: Sequence[str] = (),
    license: str = LICENSE,
) -> None:
    """Write a head as it is published: weights, configuration, card and records, without paths of this machine.

    Args:
        head: the head, or its folder.
        folder: where to write; created if it does not exist. Records of a head that was there before are removed.
        evaluation: output of `hf-diversed evaluate --output`, or its file; by default that in the head's folder.
        training: the provenance.json of the trainer, or its file; by default that in the head's folder.
        repo_id, revision: the repository and branch, for the card and for `custom_generate/`, which is written with a
            `repo_id` only.
        source: where the snippet of the card loads the head from, without a `repo_id`.
        tags, license: of the card, as on the Hub.

    Raises:
        ValueError: if the evaluation was made with other weights.
    """
    head, about, how = _read(head, evaluation, training)
    folder = Path(folder)
    published = copy.deepcopy(head)
    for name in ("base_model_name_or_path", "assistant_model_name_or_path"):
        setattr(published.config, name, publishable(getattr(head.config, name)))
    published.save_pretrained(folder)
    (folder / CARD).write_text(
        render_card(published.config, about, how, repo_id, source, tags, license), encoding="utf-8"
    )
    for name, record in ((EVALUATION, about), (TRAINING, how)):
        if record:
            (folder / name).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        else:
            (folder / name).unlink(missing_ok=True)  # of another head
    if repo_id is not None:
        scripts = folder / custom_generate.FOLDER
        scripts.mkdir(exist_ok=True)
        for name, text in custom_generate.script_files(repo_id, revision or "main").items():
            (scripts / name).write_text(text, encoding="utf-8")


def push(
    head: DiversedHead | str | Path,
    repo_id: str,
    evaluation: Record = None,
    training: Record = None,
    *,
    tags: Sequence[str] = (),
    license: str = LICENSE,
    private: bool | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    token: str | bool | None = None,
    commit_message: str | None = None,
    commit_description: str | None = None,
) -> CommitInfo:
    """Publish a head with its card, records and `custom_generate/` in one commit.

    The same commit removes records of an earlier push. The other arguments are those of `write_folder`, and of
    `push_to_hub` in transformers.

    Raises:
        ValueError: as `write_folder`; nothing was sent.
        OSError: if the Hub refuses or cannot be reached.
    """
    head, about, how = _read(head, evaluation, training)
    api = HfApi(library_name="hf_diversed", library_version=__version__, token=token)
    try:
        repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        if revision is not None and not create_pr and not revision.startswith("refs/"):
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        with TemporaryDirectory() as folder:
            write_folder(head, folder, about, how, repo_id=repo_id, revision=revision, tags=tags, license=license)
            return api.upload_folder(
                repo_id=repo_id,
                folder_path=folder,
                revision=revision,
                create_pr=create_pr,
                commit_message=commit_message or "Upload DiversedHead",
                commit_description=commit_description,
                delete_patterns=[EVALUATION, TRAINING],
            )
    except HTTPError as error:
        raise OSError(f"pushing to {repo_id} failed: {error}") from error


def _read(
    head: DiversedHead | str | Path, evaluation: Record, training: Record
) -> tuple[DiversedHead, dict[str, Any], dict[str, Any]]:
    """Return the head and its records, read from files where they are named."""
    if isinstance(head, DiversedHead):
        loaded = head
    else:
        folder, loaded = Path(head), DiversedHead.from_pretrained(head)
        evaluation = folder / EVALUATION if evaluation is None and (folder / EVALUATION).is_file() else evaluation
        training = folder / TRAINING if training is None and (folder / TRAINING).is_file() else training
    about, how = _record(evaluation), _record(training)
    digest = module_digest(loaded)
    for label, method in ((about.get("provenance") or {}).get("methods") or {}).items():
        found = re.findall(r"\w+:[0-9a-f]{16}", method)
        if label.partition("@")[0] == "diversed" and digest not in found:
            raise ValueError(
                f"the evaluation was made with other weights: those of this head are {digest}, got "
                f"{', '.join(found) or 'none'}; evaluate this head, or publish it without an evaluation."
            )
    return loaded, about, how


def _record(given: Record) -> dict[str, Any]:
    """Return a record, or read it from its file, as `publishable`; {} for None."""
    if isinstance(given, (str, Path)):
        given = json.loads(Path(given).read_text(encoding="utf-8"))
    return publishable(given or {})
