"""Publish a head in one commit."""

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HfHubHTTPError

from hf_diversed._version import __version__
from hf_diversed.head import DiversedHead
from hf_diversed.hub.files import is_outdated, publication
from hf_diversed.hub.records import HeadRecords


class PushError(OSError):
    """A push that failed; the cause is the client's error. All files are in one commit, so pushing again is safe."""


def push(
    head: DiversedHead,
    records: HeadRecords,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    token: str | bool | None = None,
    commit_message: str | None = None,
    commit_description: str | None = None,
) -> CommitInfo:
    """Publish a head with its card, results, records and `custom_generate/` in one commit.

    The same commit removes results and records of an earlier push that do not apply any more. The arguments have the
    meaning of `push_to_hub` in transformers.

    Raises:
        ValueError: if the card cannot be rendered; nothing was sent.
        PushError: if the Hub refuses or cannot be reached.
    """
    files = publication(head, records, repo_id, revision)
    api = HfApi(library_name="hf_diversed", library_version=__version__, token=token)
    try:
        full_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        if full_id != repo_id:  # a name without an organisation belongs to the user
            files = publication(head, records, full_id, revision)
        if revision is not None and not revision.startswith("refs/pr"):
            _create_branch(api, full_id, revision, create_pr)
        before = api.model_info(full_id, revision=revision)
        old = [file.rfilename for file in before.siblings or []]
        added = [CommitOperationAdd(path, content) for path, content in files.items()]
        return api.create_commit(
            full_id,
            [*added, *(CommitOperationDelete(path) for path in old if is_outdated(path, files))],
            commit_message=commit_message or "Upload DiversedHead",
            commit_description=commit_description,
            revision=revision,
            create_pr=create_pr,
            parent_commit=before.sha,
        )
    except Exception as error:
        cause = f" ({error.__cause__})" if error.__cause__ else ""
        raise PushError(
            f"pushing to {repo_id} failed: {error}{cause}\nAll files are in one commit, so either all or none of them "
            "are on the Hub. Push again to finish."
        ) from error


def _create_branch(api: HfApi, repo_id: str, branch: str, create_pr: bool) -> None:
    try:
        api.create_branch(repo_id, branch=branch, exist_ok=True)
    except HfHubHTTPError as error:
        # A pull request needs no right to create branches; the next step fails if the branch does not exist.
        if not (create_pr and error.response.status_code == 403):
            raise
