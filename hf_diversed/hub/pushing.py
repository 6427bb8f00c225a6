"""Publish a head in one commit. What a failure left behind is said, and pushing again makes up for it."""

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
    """A push that failed; its message says what is on the Hub now, its cause is the client's own error."""


@dataclass(frozen=True)
class Destination:
    """Where to push, with the meaning that `push_to_hub` of transformers gives to each."""

    repo_id: str
    private: bool | None = None
    revision: str | None = None
    create_pr: bool = False
    token: str | bool | None = None
    commit_message: str | None = None
    commit_description: str | None = None


def push(head: DiversedHead, records: HeadRecords, to: Destination) -> CommitInfo:
    """Publish a head with its card, results, records and `custom_generate/`, and nothing else, in one commit.

    Results and records of an earlier push that have nothing to stand for any more are removed in the same commit.

    Raises:
        ValueError: if a card cannot be rendered; nothing was sent then.
        PushError: if the Hub refuses or cannot be reached.
    """
    files = publication(head, records, to.repo_id, to.revision)
    api = HfApi(library_name="hf_diversed", library_version=__version__, token=to.token)
    with _step(to.repo_id, "creating the repository", "Nothing was uploaded."):
        repo_id = api.create_repo(to.repo_id, private=to.private, exist_ok=True).repo_id
    if repo_id != to.repo_id:  # a bare name goes to the user's own account
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
        # A pull request asks for no right to create branches; whether this one exists, the next step will tell.
        if not (to.create_pr and error.response.status_code == 403):
            raise


def _state(api: HfApi, repo_id: str, to: Destination, before: str | None) -> str:
    """What a failed commit left on the Hub, as the Hub says: an answer may get lost when all else went well."""
    if to.create_pr:
        return (
            f"{to.revision or 'main'} of {repo_id} is as it was. See {api.endpoint}/{repo_id}/discussions for whether "
            "the pull request was opened all the same."
        )
    try:
        now = api.model_info(repo_id, revision=to.revision).sha
    except Exception as error:
        return f"Whether the commit was made is not known, as the Hub does not answer any more ({error})."
    if now == before:
        return "No commit was made: nothing of this push can be seen, though weights may have been stored."
    return f"There is a new commit, {now}, most likely this push: then pushing again will find nothing to change."
