"""A host to attack, as a script: `attack_host.py PACKAGE MODE SCRATCH`. Prints one JSON object. Standard library only.

It has a secret in a file, in an open descriptor and in its environment; a victim process of the same user; listening
sockets. Everything that was touched afterwards is listed under "touched".
"""

import importlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
import types
from pathlib import Path

from attacks import AGAINST_TESTS, ATTACKS, ENDLESS, ORDINARY, TESTED, TESTS


# Prints the user id and the seccomp mode: 2 with a filter.
CONFINED = "import ctypes, os; print(os.getuid(), ctypes.CDLL(None).prctl(21))"


def main(package: str, mode: str, scratch: str) -> None:
    sandbox = load(package, mode)
    secret = secrets.token_hex(16)
    outside = Path(scratch) / "outside"
    temporary = Path(scratch) / "temporary"
    outside.mkdir()
    temporary.mkdir()
    os.environ.update(SECRET=secret, TMPDIR=str(temporary))
    canary = outside / "canary"
    canary.write_text(secret)
    canary.chmod(0o644)
    inherited = os.open(canary, os.O_RDONLY)
    os.set_inheritable(inherited, True)
    tcp, udp, unix = listen(socket.SOCK_STREAM), listen(socket.SOCK_DGRAM), socket.socket(socket.AF_UNIX)
    unix.bind("\0" + secret)
    unix.listen()
    datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    datagrams.bind(str(outside / "socket"))
    # An execed process of the same user, whose environment holds the secret from the start.
    victim = subprocess.Popen([sys.executable, "-I", "-c", "input()"], stdin=subprocess.PIPE)
    words = {
        "CANARY": canary, "SECRET": secret, "OUTSIDE": outside, "PACKAGE": f"{package}/sandbox", "VICTIM": victim.pid,
        "HOST": victim.pid, "TCP": tcp.getsockname()[1], "UDP": udp.getsockname()[1], "PATH": datagrams.getsockname(),
    }  # fmt: skip
    attacks = {name: filled(source, words) for name, source in ATTACKS.items()}
    (confined,) = sandbox.run_programs([CONFINED])  # also compiles the launcher's modules, which is not an attack
    before = snapshot(outside, Path(package))
    started = time.monotonic()
    quick = [name for name in attacks if name not in ENDLESS]
    broken = dict(zip(quick, sandbox.run_programs([attacks[name] for name in quick], timeout=20.0)))
    broken |= zip(ENDLESS, sandbox.run_programs([attacks[name] for name in ENDLESS], timeout=0.7))
    fine = sandbox.run_programs(list(ORDINARY.values()), timeout=20.0)
    cheats = list(AGAINST_TESTS.values())
    cheated = sandbox.run_programs(cheats, [TESTS] * len(cheats), timeout=5.0)
    tested = sandbox.run_programs(*map(list, zip(*TESTED.values())), timeout=20.0)
    seconds = time.monotonic() - started
    touched = [f"file {name}" for name, *_ in before ^ snapshot(outside, Path(package))]
    touched += [f"left behind: {path.name}" for path in temporary.iterdir()]
    touched += [f"process {pid}" for pid in processes_of(str(temporary))]
    touched += ["victim"] if victim.poll() is not None else []
    servers = {"tcp": tcp, "udp": udp, "unix": unix, "datagrams": datagrams}
    touched += [name for name, server in servers.items() if reached(server)]
    victim.communicate(b"\n")
    result = {
        "attacks": shown(broken, broken.values()),
        "ordinary": shown(ORDINARY, fine),
        "against_tests": shown(AGAINST_TESTS, cheated),
        "tested": shown(TESTED, tested),
        "touched": touched,
        "confined": confined.output.split(),
        "seconds": seconds,
    }
    print(json.dumps(result))


def load(package: str, mode: str) -> types.ModuleType:
    """`hf_diversed.sandbox` without `hf_diversed`, which would need torch; with one kind of jail only."""
    stub = types.ModuleType("hf_diversed")
    stub.__path__ = [package]
    sys.modules["hf_diversed"] = stub
    importlib.import_module("hf_diversed.sandbox.runner").MODES = (mode,)
    return importlib.import_module("hf_diversed.sandbox")


def shown(names, results) -> dict:
    return {name: [result.passed, result.reason, result.output[:300]] for name, result in zip(names, results)}


def filled(source: str, words: dict) -> str:
    for word, value in words.items():
        source = source.replace(f"@{word}@", str(value))
    return source


def listen(kind: int) -> socket.socket:
    server = socket.socket(socket.AF_INET, kind)
    server.bind(("127.0.0.1", 0))
    if kind == socket.SOCK_STREAM:
        server.listen()
    return server


def reached(server: socket.socket) -> bool:
    server.setblocking(False)
    try:
        server.recv(1) if server.type == socket.SOCK_DGRAM else server.accept()
    except BlockingIOError:
        return False
    return True


def snapshot(*folders: Path) -> set:
    files = [path for folder in folders for path in [folder, *folder.rglob("*")] if "__pycache__" not in str(path)]
    facts = ((path, path.lstat()) for path in files)
    return {(str(path), s.st_mode, s.st_uid, s.st_size, s.st_nlink, s.st_mtime_ns) for path, s in facts}


def processes_of(marker: str) -> list[str]:
    """Launchers and everything forked from them still carry the scratch directory in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            pass
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
