"""A local Hub: the HTTP endpoints with which huggingface_hub creates, fills, lists and reads model repositories.

It stores everything in memory, has one user, "org", and stores all files without LFS and Xet.
"""

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


_REPO = r"(?P<repo>[\w.-]+/[\w.-]+?)"
ROUTES = [
    ("create", "POST", r"/api/repos/create"),
    ("validate", "POST", r"/api/validate-yaml"),
    ("preupload", "POST", rf"/api/models/{_REPO}/preupload/(?P<revision>[^/]+)"),
    ("commit", "POST", rf"/api/models/{_REPO}/commit/(?P<revision>[^/]+)"),
    ("branch", "POST", rf"/api/models/{_REPO}/branch/(?P<branch>[^/]+)"),
    ("tree", "GET", rf"/api/models/{_REPO}/tree/(?P<revision>[^/]+)"),
    ("info", "GET", rf"/api/models/{_REPO}(/revision/(?P<revision>[^/]+))?"),
    ("resolve", "HEAD|GET", rf"/{_REPO}/resolve/(?P<revision>[^/]+)/(?P<path>.+)"),
]


class Refusal(Exception):
    """An answer of status 404; the message is the error code that the client converts to an exception."""


@dataclass
class Commit:
    sha: str
    files: dict[str, bytes]
    title: str


@dataclass
class Repository:
    private: bool = False
    commits: list[Commit] = field(default_factory=list)
    branches: dict[str, Commit] = field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, bytes], title: str) -> Commit:
        sha = hashlib.sha1(f"{len(self.commits)} {title}".encode()).hexdigest()
        self.branches[branch] = Commit(sha, files, title)
        self.commits.append(self.branches[branch])
        return self.branches[branch]

    def at(self, revision: str | None) -> Commit:
        found = self.branches.get(revision or "main")
        found = found or next((commit for commit in self.commits if commit.sha == revision), None)
        if found is None:
            raise Refusal("RevisionNotFound")
        return found


class LoopbackHub:
    """The server and its storage, running inside a `with` block.

    Attributes:
        repositories: by id.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "LoopbackHub":
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *exc_info) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add(self, repo_id: str, files: dict[str, bytes] | Path) -> Repository:
        """Add a repository without the client, from a mapping or a folder."""
        if isinstance(files, Path):
            folder = files
            files = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        repository = self.repositories[repo_id] = Repository()
        repository.commit("main", dict(files), "added")
        return repository

    def files(self, repo_id: str, revision: str = "main") -> dict[str, bytes]:
        return self.repositories[repo_id].at(revision).files


class _Handler(BaseHTTPRequestHandler):
    hub: LoopbackHub
    protocol_version = "HTTP/1.1"

    def _handle(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        routes = ((step, re.fullmatch(path, url.path)) for step, methods, path in ROUTES if self.command in methods)
        step, match = next(((step, match) for step, match in routes if match), ("", None))
        if match is None:
            return self._answer(404, {"error": f"no such endpoint: {self.command} {url.path}"})
        arguments = {name: unquote(text) for name, text in match.groupdict().items() if text is not None}
        try:
            answer = getattr(self, f"_{step}")(**arguments)
        except Refusal as refusal:
            return self._answer(404, {"error": str(refusal)}, {"X-Error-Code": str(refusal)})
        self._answer(*answer) if isinstance(answer, tuple) else self._answer(200, answer)

    do_GET = do_HEAD = do_POST = _handle

    def log_message(self, *args) -> None:
        pass

    def _answer(self, status: int, content, headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        kind = "application/octet-stream" if isinstance(content, bytes) else "application/json"
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body)), "Content-Type": kind} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _repository(self, repo_id: str) -> Repository:
        if repo_id not in self.hub.repositories:
            raise Refusal("RepoNotFound")
        return self.hub.repositories[repo_id]

    def _create(self):
        created = json.loads(self.body)
        repo_id = f"{created.get('organization') or 'org'}/{created['name']}"
        content = {"url": f"{self.hub.endpoint}/{repo_id}", "name": repo_id}
        if repo_id in self.hub.repositories:
            return 409, content | {"error": "You already created this model repo"}
        repository = self.hub.repositories[repo_id] = Repository(created.get("visibility") == "private")
        repository.commit("main", {}, "initial commit")
        return content

    def _validate(self):
        return {"errors": [], "warnings": []}

    def _preupload(self, repo: str, revision: str):
        paths = [file["path"] for file in json.loads(self.body)["files"]]
        return {"files": [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths]}

    def _commit(self, repo: str, revision: str):
        lines = [json.loads(line) for line in self.body.splitlines()]
        files = dict(self._repository(repo).at(revision).files)
        for line in lines[1:]:
            path = line["value"]["path"]
            if line["key"] == "deletedFile":
                del files[path]
            else:
                files[path] = base64.b64decode(line["value"]["content"])
        commit = self._repository(repo).commit(revision, files, lines[0]["value"]["summary"])
        return {
            "success": True,
            "commitOid": commit.sha,
            "commitUrl": f"{self.hub.endpoint}/{repo}/commit/{commit.sha}",
        }

    def _branch(self, repo: str, branch: str):
        self._repository(repo).branches.setdefault(branch, self._repository(repo).at(None))
        return {}

    def _info(self, repo: str, revision: str | None = None):
        commit = self._repository(repo).at(revision)
        siblings = [{"rfilename": path} for path in sorted(commit.files)]
        return {"id": repo, "sha": commit.sha, "private": False, "siblings": siblings, "tags": []}

    def _tree(self, repo: str, revision: str):
        files = self._repository(repo).at(revision).files
        return [{"type": "file", "path": path, "size": len(files[path]), "oid": _oid(files[path])} for path in files]

    def _resolve(self, repo: str, revision: str, path: str):
        commit = self._repository(repo).at(revision)
        if path not in commit.files:
            raise Refusal("EntryNotFound")
        content = commit.files[path]
        return 200, content, {"X-Repo-Commit": commit.sha, "ETag": f'"{_oid(content)}"'}


def _oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
