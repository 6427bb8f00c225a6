"""A local Hub: the HTTP endpoints with which huggingface_hub creates, fills, lists and reads model repositories.

It stores everything in memory and can fail at any step. Xet storage is missing, because its protocol is in a compiled
client; the client then uses LFS.
"""

import base64
import hashlib
import json
import re
import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import yaml


WRITER, READER = "hf_writer", "hf_reader"
USERS = {WRITER: "org", READER: "visitor"}
LFS_SUFFIXES = (".safetensors", ".bin", ".msgpack", ".h5")
DROP, LOSE_ANSWER = "drop", "lose answer"  # drop the connection before or after the request takes effect

_REPO = r"(?P<repo>[\w.-]+/[\w.-]+?)"
ROUTES = [
    ("create", "POST", r"/api/repos/create"),
    ("validate", "POST", r"/api/validate-yaml"),
    ("preupload", "POST", rf"/api/models/{_REPO}/preupload/(?P<revision>[^/]+)"),
    ("batch", "POST", rf"/{_REPO}\.git/info/lfs/objects/batch"),
    ("upload", "PUT", r"/lfs/(?P<oid>\w+)"),
    ("verify", "POST", r"/lfs/verify"),
    ("commit", "POST", rf"/api/models/{_REPO}/commit/(?P<revision>[^/]+)"),
    ("branch", "POST", rf"/api/models/{_REPO}/branch/(?P<branch>[^/]+)"),
    ("tree", "GET", rf"/api/models/{_REPO}/tree/(?P<revision>[^/]+)"),
    ("info", "GET", rf"/api/models/{_REPO}(/revision/(?P<revision>[^/]+))?"),
    ("resolve", "HEAD|GET", rf"/{_REPO}/resolve/(?P<revision>[^/]+)/(?P<path>.+)"),
    ("download", "GET", r"/cdn/(?P<oid>\w+)"),
]


class Refusal(Exception):
    """An answer other than 2xx, with the error code that the client converts to an exception."""

    def __init__(self, status: int, message: str, code: str | None = None):
        super().__init__(message)
        self.status, self.code = status, code


@dataclass
class Commit:
    sha: str
    files: dict[str, bytes]
    title: str


@dataclass
class Repository:
    """A repository; `branches` includes pull requests (`refs/pr/N`)."""

    private: bool = False
    gated: bool = False
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
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return found


class LoopbackHub:
    """The server and its storage, running inside a `with` block.

    Attributes:
        repositories: by id.
        blobs: uploaded LFS content by SHA-256.
        log: the steps of all requests, in order.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.blobs: dict[str, bytes] = {}
        self.log: list[str] = []
        self.lock = threading.Lock()
        self._faults: dict[str, list] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self.storage = f"http://localhost:{self._server.server_port}"  # another host, which must not receive a token

    def __enter__(self) -> "LoopbackHub":
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *exc_info) -> None:
        self._server.shutdown()
        self._server.server_close()

    def fail(self, step: str, fault: int | str, times: int = 1000) -> None:
        """Let the next requests of a step fail with a status, or with a dropped connection (DROP, LOSE_ANSWER)."""
        self._faults[step] = [fault] * times

    def recover(self) -> None:
        self._faults.clear()

    def next_fault(self, step: str) -> int | str | None:
        with self.lock:
            self.log.append(step)
            return self._faults[step].pop() if self._faults.get(step) else None

    def add(self, repo_id: str, files: dict[str, bytes] | Path, **kwargs) -> Repository:
        """Add a repository without the client, from a mapping or a folder."""
        if isinstance(files, Path):
            folder = files
            files = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        repository = self.repositories[repo_id] = Repository(**kwargs)
        repository.commit("main", dict(files), "added")
        return repository

    def files(self, repo_id: str, revision: str = "main") -> dict[str, bytes]:
        return self.repositories[repo_id].at(revision).files


class _Handler(BaseHTTPRequestHandler):
    hub: LoopbackHub
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet per answer

    def _handle(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        self.query = parse_qs(url.query)
        routes = ((step, re.fullmatch(path, url.path)) for step, methods, path in ROUTES if self.command in methods)
        step, match = next(((step, match) for step, match in routes if match), ("", None))
        if match is None:
            return self._answer(404, {"error": f"no such endpoint: {self.command} {url.path}"})
        fault = self.hub.next_fault(step)
        if fault == DROP:
            return self._drop()
        if isinstance(fault, int):
            return self._answer(fault, {"error": f"injected: {fault}"})
        try:
            arguments = {name: unquote(text) for name, text in match.groupdict().items() if text is not None}
            with self.hub.lock:
                answer = getattr(self, f"_{step}")(**arguments)
        except Refusal as refusal:
            headers = {"X-Error-Message": str(refusal)} | ({"X-Error-Code": refusal.code} if refusal.code else {})
            return self._answer(refusal.status, {"error": str(refusal)}, headers)
        if fault == LOSE_ANSWER:
            return self._drop()
        self._answer(*answer) if isinstance(answer, tuple) else self._answer(200, answer)

    do_GET = do_HEAD = do_POST = do_PUT = _handle

    def log_message(self, *args) -> None:
        pass

    def _drop(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, status: int, content, headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        kind = "application/octet-stream" if isinstance(content, bytes) else "application/json"
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body)), "Content-Type": kind} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    # Permissions

    def _user(self) -> str | None:
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token and token not in USERS:
            raise Refusal(401, "Invalid credentials in Authorization header")
        return USERS.get(token)

    def _repository(self, repo_id: str, write: bool = False) -> Repository:
        user, repository = self._user(), self.hub.repositories.get(repo_id)
        owner = user == repo_id.split("/")[0]
        if repository is None or (repository.private and not owner):
            raise Refusal(404 if user else 401, "Repository not found", "RepoNotFound")
        if write and not owner:
            raise Refusal(403, "You don't have the rights to write to this repository")
        return repository

    # The endpoints

    def _create(self):
        created = json.loads(self.body)
        user = self._user()
        repo_id = f"{created['organization'] or user}/{created['name']}"
        if user != repo_id.split("/")[0]:
            raise Refusal(403 if user else 401, f"You don't have the rights to create a model under {repo_id}")
        content = {"url": f"{self.hub.endpoint}/{repo_id}", "name": repo_id}
        if repo_id in self.hub.repositories:
            return 409, content | {"error": "You already created this model repo"}
        repository = self.hub.repositories[repo_id] = Repository(private=created.get("visibility") == "private")
        repository.commit("main", {".gitattributes": b"*.safetensors filter=lfs\n"}, "initial commit")
        return content

    def _validate(self):
        assert yaml.safe_load(json.loads(self.body)["content"].split("---\n", 2)[1])
        return {"errors": [], "warnings": []}

    def _preupload(self, repo: str, revision: str):
        files = self._repository(repo, write="create_pr" not in self.query).at(revision).files
        modes = []
        for file in json.loads(self.body)["files"]:
            path = file["path"]
            mode, oid = "lfs" if path.endswith(LFS_SUFFIXES) else "regular", None
            if path in files:
                oid = hashlib.sha256(files[path]).hexdigest() if mode == "lfs" else _git_oid(files[path])
            modes.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return {"files": modes}

    def _batch(self, repo: str):
        self._repository(repo)
        objects = json.loads(self.body)["objects"]
        hrefs = {"upload": f"{self.hub.endpoint}/lfs/{{oid}}", "verify": f"{self.hub.endpoint}/lfs/verify"}
        for one in objects:
            if one["oid"] not in self.hub.blobs:
                one["actions"] = {kind: {"href": href.format(**one)} for kind, href in hrefs.items()}
        return {"transfer": "basic", "objects": objects}

    def _upload(self, oid: str):
        assert hashlib.sha256(self.body).hexdigest() == oid
        self.hub.blobs[oid] = self.body
        return {}

    def _verify(self):
        uploaded = json.loads(self.body)
        assert len(self.hub.blobs[uploaded["oid"]]) == uploaded["size"]
        return {}

    def _commit(self, repo: str, revision: str):
        pull_request = "create_pr" in self.query
        repository = self._repository(repo, write=not pull_request)
        parent, lines = repository.at(revision), [json.loads(line) for line in self.body.splitlines()]
        header, files = lines[0]["value"], dict(parent.files)
        if header.get("parentCommit") not in (None, parent.sha):
            raise Refusal(412, "A commit has happened since. Please refresh and try again.")
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "deletedFile":
                del files[value["path"]]
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.blobs[value["oid"]]
            else:
                files[value["path"]] = base64.b64decode(value["content"])
        branch = f"refs/pr/{sum(name.startswith('refs/') for name in repository.branches) + 1}"
        commit = repository.commit(branch if pull_request else revision, files, header["summary"])
        url = f"{self.hub.endpoint}/{repo}"
        answer = {"success": True, "commitOid": commit.sha, "commitUrl": f"{url}/commit/{commit.sha}"}
        return answer | ({"pullRequestUrl": f"{url}/discussions/{branch[8:]}"} if pull_request else {})

    def _branch(self, repo: str, branch: str):
        repository = self._repository(repo, write=True)
        if branch in repository.branches:
            raise Refusal(409, "Reference already exists")
        repository.branches[branch] = repository.at(None)
        return {}

    def _info(self, repo: str, revision: str | None = None):
        repository = self._repository(repo)
        commit = repository.at(revision)
        siblings = [{"rfilename": path} for path in sorted(commit.files)]
        return {"id": repo, "sha": commit.sha, "private": repository.private, "siblings": siblings, "tags": []}

    def _tree(self, repo: str, revision: str):
        entries = []
        for path, content in sorted(self._repository(repo).at(revision).files.items()):
            entry = {"type": "file", "path": path, "size": len(content), "oid": _git_oid(content)}
            if path.endswith(LFS_SUFFIXES):
                entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
            entries.append(entry)
        return entries

    def _resolve(self, repo: str, revision: str, path: str):
        repository = self._repository(repo)
        if repository.gated and self._user() != repo.split("/")[0]:
            raise Refusal(403, f"Access to model {repo} is restricted", "GatedRepo")
        commit = repository.at(revision)
        headers = {"X-Repo-Commit": commit.sha}
        if path not in commit.files:
            message = {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}
            return 404, {"error": "Entry not found"}, headers | message
        content = commit.files[path]
        if not path.endswith(LFS_SUFFIXES):
            return 200, content, headers | {"ETag": f'"{_git_oid(content)}"'}
        oid = hashlib.sha256(content).hexdigest()
        self.hub.blobs[oid] = content
        linked = {"X-Linked-Etag": f'"{oid}"', "X-Linked-Size": str(len(content))}
        return 302, b"", headers | linked | {"Location": f"{self.hub.storage}/cdn/{oid}"}

    def _download(self, oid: str):
        content = self.hub.blobs[oid]
        return 200, content, {"ETag": f'"{oid}"'}


def _git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
