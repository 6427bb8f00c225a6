"""Test replicas under load: simultaneous requests through a router, some invalid or cancelled, and one killed worker.

For `benchmarks/serving.py` and `tests/vllm/test_load.py`.
"""

import http.client
import json
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from benchmarks.served import MODEL, STOP, Server, free_port, running


ROUTER = Path(__file__).parents[1] / "examples" / "serving" / "nginx.conf"
STRICTNESSES = (0.0, 0.5, 1.0)
# How a request can end. "error": the client receives an error. "lost": a timeout, or no finish reason.
OUTCOMES = ("answered", "refused", "cancelled", "error", "lost")
_PATIENCE = 300.0
_BAD = (
    {"diversed_strictness": 7},
    {"diversed_strictness": "high"},
    {"diversed_strictnes": 0.5},
)


@dataclass(frozen=True)
class Request:
    """One request of a kind: "whole", "stream", "bad" or "cancel"."""

    prompt: str
    strictness: float
    kind: str
    bad: int = 0

    @property
    def streams(self) -> bool:
        return self.kind in ("stream", "cancel")

    def body(self) -> str:
        xargs = _BAD[self.bad] if self.kind == "bad" else {"diversed_strictness": self.strictness}
        body = {"model": MODEL, "prompt": self.prompt, "max_tokens": 128, "temperature": 1.0, "stop": STOP}
        return json.dumps({**body, "vllm_xargs": xargs, "stream": self.streams})


@dataclass(frozen=True)
class Outcome:
    """How a request ended, and its numbers of draft tokens and accepted tokens."""

    request: Request
    status: str
    drafted: int = 0
    accepted: int = 0
    detail: str = ""


def plan(prompts: Sequence[str], count: int, seed: int, bad: float = 0.05, cancelled: float = 0.05) -> list[Request]:
    """Return `count` requests that cycle through `STRICTNESSES`.

    `bad`, `cancelled`: shares of invalid and of cancelled requests. Half of the others are streamed.
    """
    draws = random.Random(seed)
    kinds = ["bad"] * round(bad * count) + ["cancel"] * round(cancelled * count)
    kinds += ["whole", "stream"] * count
    kinds = kinds[:count]
    draws.shuffle(kinds)
    return [
        Request(prompts[index % len(prompts)], STRICTNESSES[index % 3], kind, index % len(_BAD))
        for index, kind in enumerate(kinds)
    ]


def send_all(
    address: str, requests: Sequence[Request], after: Callable[[int], None] | None = None
) -> tuple[list[Outcome], float]:
    """Send all requests at once and return their outcomes and the seconds until the last one.

    Args:
        after: called with the number of finished requests whenever one finishes.
    """
    began, outcomes = time.monotonic(), list[Outcome]()
    with ThreadPoolExecutor(len(requests)) as pool:
        jobs: list[Future[Outcome]] = [pool.submit(send, address, request) for request in requests]
        for job in as_completed(jobs):
            outcomes.append(job.result())
            if after is not None:
                after(len(outcomes))
    return outcomes, time.monotonic() - began


def send(address: str, request: Request) -> Outcome:
    """Send a request and return its outcome."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=_PATIENCE)
    try:
        connection.request("POST", "/v1/completions", request.body(), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            status = "refused" if answer.status == 400 else "error"
            return Outcome(request, status, detail=f"{answer.status} {answer.read(300)!r}")
        return streamed(request, answer) if request.streams else _answered(request, json.loads(answer.read()))
    except TimeoutError:
        return Outcome(request, "lost", detail=f"no answer in {_PATIENCE:g} s")
    except (OSError, http.client.HTTPException) as error:
        return Outcome(request, "error", detail=repr(error))
    finally:
        connection.close()


def streamed(request: Request, answer: http.client.HTTPResponse) -> Outcome:
    events = 0
    finished: dict[str, Any] = {}
    for line in answer:
        if not line.startswith(b"data: "):
            continue
        data = line[len(b"data: ") :].strip()
        if data == b"[DONE]":
            return _answered(request, finished)
        event = json.loads(data)
        if "error" in event:
            return Outcome(request, "error", detail=str(event["error"])[:300])
        events += 1
        if request.kind == "cancel" and events == 3:
            return Outcome(request, "cancelled")
        if any(choice["finish_reason"] for choice in event["choices"]) or event.get("metrics"):
            finished |= {name: value for name, value in event.items() if value}
    return Outcome(request, "error", detail="the stream ended early")


def _answered(request: Request, answer: dict[str, Any]) -> Outcome:
    if not any(choice["finish_reason"] in ("stop", "length") for choice in answer.get("choices", ())):
        return Outcome(request, "lost", detail=str(answer)[:300])
    metrics = (answer.get("metrics") or {}).get("speculative_decoding") or {}
    counts = (metrics.get(name, 0) for name in ("num_draft_tokens", "num_accepted_draft_tokens"))
    return Outcome(request, "answered", *counts)


@dataclass(frozen=True)
class Phase:
    """Outcomes of requests that were sent at once."""

    name: str
    outcomes: list[Outcome]
    seconds: float

    def counts(self) -> dict[str, int]:
        numbers = Counter(outcome.status for outcome in self.outcomes)
        return {status: numbers[status] for status in OUTCOMES}

    def acceptance(self, strictness: float) -> float:
        """Return the acceptance rate of the answered requests at a strictness."""
        answered = [one for one in self.outcomes if one.status == "answered" and one.request.strictness == strictness]
        return sum(one.accepted for one in answered) / sum(one.drafted for one in answered)


def run_load_test(
    serve: Callable[[], Server], prompts: Sequence[str], requests: int, nginx: str, folder: Path, seed: int = 0
) -> Iterator[Phase]:
    """Yield four phases: one replica, two replicas, two while a worker is killed, and the remaining one.

    Args:
        serve: starts a replica.
        nginx: path of the program.
        requests: number of simultaneous requests in each phase.
    """

    def phase(name: str, address: str, *disturbance: float, after: Callable[[int], None] | None = None) -> Phase:
        return Phase(name, *send_all(address, plan(prompts, requests, seed, *disturbance), after))

    def kill_at_a_third(ended: int) -> None:
        if ended == requests // 3:
            kill_worker(other)

    with running(serve()) as one, running(serve()) as other, router(nginx, (one, other), folder) as address:
        yield phase("one replica", one.address, 0.0, 0.0)
        yield phase("two replicas", address)
        for replica in (one, other):
            wait_until_idle(replica)
        yield phase("a worker killed", address, after=kill_at_a_third)
        yield phase("the remaining replica", address, 0.0, 0.0)
        wait_until_idle(one)


def wait_until_idle(server: Server) -> None:
    """Wait until no request runs; raise TimeoutError if one, for example a cancelled one, runs for a minute."""
    deadline = time.monotonic() + 60
    while any(server.counted()[f"requests_{state}"] for state in ("running", "waiting")):
        if time.monotonic() > deadline:
            raise TimeoutError(f"still running: {server.counted()}")
        time.sleep(0.5)


@contextmanager
def router(program: str, replicas: Sequence[Server], folder: Path) -> Iterator[str]:
    """Run nginx in front of the replicas with the example's configuration and their ports, and yield its address."""
    port = free_port()
    text = ROUTER.read_text().replace("listen 8000", f"listen 127.0.0.1:{port}")
    for replica, example in zip(replicas, ("127.0.0.1:8001", "127.0.0.1:8002"), strict=True):
        assert example in text
        text = text.replace(example, urlsplit(replica.address).netloc)
    (folder / "nginx.conf").write_text(text)
    log = str(folder / "nginx.log")
    command = [program, "-p", str(folder), "-c", "nginx.conf", "-e", log, "-g", "daemon off;"]
    process = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + 30
        while not Server(f"http://127.0.0.1:{port}", None, None).answers():
            assert process.poll() is None, Path(log).read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def kill_worker(server: Server) -> None:
    """Kill the worker process of a replica, as the kernel does when memory runs out."""
    assert server.process is not None
    children = psutil.Process(server.process.pid).children(recursive=True)
    (worker,) = [process for process in children if "VLLM::Worker" in " ".join(process.cmdline())]
    worker.kill()
