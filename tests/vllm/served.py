"""Start `hf-diversed serve` in a separate process and send it requests over HTTP."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


STOP = ["\nQuestion:"]
MODEL = "demo"
_COUNTED = r"vllm:(?:spec_decode_)?num_(draft_tokens|accepted_tokens|requests_\w+ing)(?:_total)?\{[^}]*\} ([\d.e+]+)"
# A small engine in float32; otherwise the options of a deployment.
_OPTIONS = (
    *("--served-model-name", MODEL, "--dtype", "float32", "--max-model-len", "512", "--max-num-seqs", "32"),
    *("--enforce-eager", "--kv-cache-memory-bytes", str(2**28), "--no-enable-prefix-caching"),
    *("--per-request-spec-decode-metrics", "summary", "--generation-config", "vllm"),
    *("--chat-template", "{% for message in messages %}{{ message.content }}{% endfor %}"),
)
_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


@dataclass(frozen=True)
class Server:
    """A server's address, process and log."""

    address: str
    process: subprocess.Popen
    log: Path

    def post(
        self, prompt: str, xargs: Mapping[str, Any], path: str = "completions", **options: Any
    ) -> tuple[int, dict]:
        """Return the HTTP status and the answer to a completion request."""
        body = {"model": MODEL, "max_tokens": 128, "temperature": 1.0, "stop": STOP, "vllm_xargs": dict(xargs)}
        body |= {"prompt": prompt} if path == "completions" else {"messages": [{"role": "user", "content": prompt}]}
        data = json.dumps(body | options).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.address}/v1/{path}", data, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"{}")

    def answers(self) -> bool:
        """Return whether the server is up."""
        try:
            with urllib.request.urlopen(f"{self.address}/health", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def counted(self) -> dict[str, float]:
        """Return Prometheus counts over all engines: draft and accepted tokens, running and waiting requests."""
        with urllib.request.urlopen(f"{self.address}/metrics", timeout=60) as answer:
            counts = re.findall(_COUNTED, answer.read().decode())
        return {name: sum(float(value) for other, value in counts if other == name) for name, _ in counts}


def acceptance(answers: Sequence[dict]) -> float:
    """Return accepted / draft tokens of answers, from their metrics."""
    metrics = [answer["metrics"]["speculative_decoding"] for answer in answers]
    drafted, accepted = (
        sum(one[name] for one in metrics) for name in ("num_draft_tokens", "num_accepted_draft_tokens")
    )
    return accepted / drafted


def start(pair: Path, folder: Path, *more: str) -> Server:
    """Start `hf-diversed serve` with further options, without waiting until it answers. The pair's draft model is used
    unless `more` has a --speculative-config."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = folder / f"server-{port}.log"
    draft = () if "--speculative-config" in more else ("--draft", str(pair / "draft"))
    command = [
        *(sys.executable, "-m", "hf_diversed", "serve", str(pair / "target"), *draft),
        *(*more, *_OPTIONS, "--port", str(port)),
    ]
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **_ENVIRONMENT},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Server(f"http://127.0.0.1:{port}", process, log)


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Wait until a server answers, and stop it after the block."""
    try:
        deadline = time.monotonic() + 1800.0
        while not server.answers():
            assert server.process.poll() is None, server.log.read_text()[-4000:]
            assert time.monotonic() < deadline, f"no answer yet:\n{server.log.read_text()[-4000:]}"
            time.sleep(1.0)
        yield server
    finally:
        stop(server)


def stop(server: Server) -> None:
    server.process.terminate()
    try:
        server.process.wait(60)
    except subprocess.TimeoutExpired:
        os.killpg(server.process.pid, 9)
        server.process.wait(60)
