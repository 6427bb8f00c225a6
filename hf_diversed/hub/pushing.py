"""Publish a head in one commit. After a failure, the error states what is on the Hub; pushing again is safe."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HfHubHTTPError

from hf_diversed._version import __version__
from hf_diversed.head import DiversedHead
from hf_diversed.hub.files import is_outdated, publication
from hf_diversed.hub.records import HeadRecords


class PushError(OSError):
    """A push that failed; the message states what is on the Hub now, the cause is the client's error."""


@dataclass(frozen=True)
class Destination:
    """Where to push; the fields have the meaning of `push_to_hub` in transformers."""

    repo_id: str
    private: bool | None = None
    revision: str | None = None
    create_pr: bool = False
    token: str | bool | None = None
    commit_message: str | None = None
    commit_description: str | None = None


def push(head: DiversedHead, records: HeadRecords, to: Destination) -> CommitInfo:
    """Publish a head with its card, results, records and `custom_generate/` in one commit.

    The same commit removes results and records of an earlier push that do not apply any more.

    Raises:
        ValueError: if the card cannot be rendered; nothing was sent.
        PushError: if the Hub refuses or cannot be reached.
    """
    files = publication(head, records, to.repo_id, to.revision)
    api = HfApi(library_name="hf_diversed", library_version=__version__, token=to.token)
    with _step(to.repo_id, "creating the repository", "Nothing was uploaded."):
        repo_id = api.create_repo(to.repo_id, private=to.private, exist_ok=True).repo_id
    if repo_id != to.repo_id:  # a name without an organisation belongs to the user
        files = publication(head, records, repo_id, to.revision)
    nothing = f"The repository {repo_id} exists; nothing was uploaded to it."
    if to.revision is not None and not to.revision.startswith("refs/pr"):
        with _step(repo_id, f"creating the branch {to.revision}", nothing):
            _create_branch(api, repo_id, to)
    with _step(repo_id, "reading the repository", nothing):
        before = api.model_info(repo_id, revision=to.revision)
    old = [file.rfilename for file in before.siblings or []]
    operations: list[CommitOperationAdd | CommitOperationDelete]
    operations = [CommitOperationAdd(path, content) for path, content in files.items()]
    operations += [CommitOperationDelete(path) for path in old if is_outdated(path, files)]
    try:
        return api.create_commit(
            repo_id,
            operations,
            commit_message=to.commit_message or "Upload DiversedHead",
            commit_description=to.commit_description,
            revision=to.revision,
            create_pr=to.create_pr,
            parent_commit=before.sha,
        )
    except Exception as error:
        raise _failed(repo_id, "committing", _state(api, repo_id, to, before.sha), error) from error


@contextmanager
def _step(repo_id: str, doing: str, state: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise _failed(repo_id, doing, state, error) from error


def _failed(repo_id: str, doing: str, state: str, error: Exception) -> PushError:
    cause = f" ({error.__cause__})" if error.__cause__ else ""
    return PushError(f"pushing to {repo_id} failed while {doing}: {error}{cause}\n{state} Push again to finish.")


def _create_branch(api: HfApi, repo_id: str, to: Destination) -> None:
    try:
        api.create_branch(repo_id, branch=str(to.revision), exist_ok=True)
    except HfHubHTTPError as error:
        # A pull request needs no right to create branches; the next step fails if the branch does not exist.
        if not (to.create_pr and error.response.status_code == 403):
            raise


def _state(api: HfApi, repo_id: str, to: Destination, before: str | None) -> str:
    """Return what a failed commit left on the Hub; the commit may exist although its answer was lost."""
    if to.create_pr:
        return (
            f"{to.revision or 'main'} of {repo_id} is unchanged. {api.endpoint}/{repo_id}/discussions shows whether "
            "the pull request was opened."
        )
    try:
        now = api.model_info(repo_id, revision=to.revision).sha
    except Exception as error:
        return f"It is unknown whether the commit was made, because the Hub does not answer ({error})."
    if now == before:
        return "No commit was made: nothing of this push is visible, though weights may have been stored."
    return f"There is a new commit, {now}, most likely of this push; pushing again would then change nothing."
