"""The attack table against every kind of jail, as root and as an ordinary user. No torch in these processes."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import hf_diversed.sandbox
from tests.sandbox.attacks import (
    AGAINST_TESTS,
    ATTACKS,
    ORDINARY,
    OWNERS,
    PROCESSES,
    TESTED,
    owner_was_refused,
    process_was_refused,
)


NOBODY = 65534
JAILS = [("self", "namespaces"), ("nobody", "namespaces"), ("nobody", "landlock")]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces and Landlock are Linux's")


def interpreter_for_nobody() -> str | None:
    """Return an interpreter for the user nobody, who cannot enter /root, where root's own often is."""
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        command = [python, "-I", "-c", "import sys, ctypes; sys.exit(sys.version_info < (3, 10))"]
        try:
            if (
                subprocess.run(
                    command, user=NOBODY, group=NOBODY, extra_groups=[], stderr=subprocess.DEVNULL
                ).returncode
                == 0
            ):
                return python
        except OSError:
            continue
    return None


def attack(user: str, mode: str) -> dict:
    """Run the whole table once. The host script sees a copy of the package, so an ordinary user can read it too."""
    python, identity = sys.executable, {}
    if user == "nobody" and os.geteuid() == 0:
        python = interpreter_for_nobody()
        identity = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        if python is None:
            pytest.skip("no Python >= 3.10 that uid 65534 may execute")
    elif user == "nobody" and mode == "namespaces":
        pytest.skip("not root: the same as the run as oneself")
    folder = Path(tempfile.mkdtemp(prefix="attacked-"))
    try:
        folder.chmod(0o755)
        sources = Path(hf_diversed.sandbox.__file__).parent
        shutil.copytree(sources, folder / "hf_diversed" / "sandbox", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("attacks.py", "attack_host.py"):
            shutil.copy(Path(__file__).parent / name, folder / name)
        ground = folder / "ground"
        ground.mkdir()
        if identity:
            for path in [folder, *folder.rglob("*")]:
                os.chown(path, NOBODY, NOBODY)
        command = [python, "-B", "attack_host.py", str(folder / "hf_diversed"), mode, str(ground)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, **identity)
        if "SandboxUnavailable" in done.stderr:
            pytest.skip(f"this machine gives no {mode} jail: {done.stderr.splitlines()[-1]}")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def no_attack_passes(outcome: dict) -> None:
    assert outcome["attacks"].keys() == ATTACKS.keys()
    assert [name for name, (passed, *_) in outcome["attacks"].items() if passed] == []


def host_is_untouched(outcome: dict) -> None:
    assert outcome["touched"] == []


def ordinary_programs_pass(outcome: dict) -> None:
    failed = {name: result for name, result in outcome["ordinary"].items() if not result[0]}
    assert failed == {}
    assert outcome["ordinary"].keys() == ORDINARY.keys()


def attacks_end_for_the_right_reason(outcome: dict) -> None:
    """No attack would pass in a jail in which nothing runs, so the reasons are checked too."""
    reasons = {name: reason for name, (_, reason, _) in outcome["attacks"].items()}
    for name in ("endless_loop", "endless_sleep", "fork_bomb", "flood", "thread_without_a_leader"):
        assert reasons[name] == "timeout"
    for name in ("exec_true", "exec_by_a_thread"):
        assert reasons[name] == "did not run to its end (exit 0)"
    assert {name: reasons[name] for name in PROCESSES if not process_was_refused(name, reasons[name])} == {}
    assert {name: reasons[name] for name in OWNERS if not owner_was_refused(name, reasons[name])} == {}
    refused = ("lock_a_file", "lease", "notification", "delegation", "watch", "old_watch", "watch_by_fanotify")
    refused += (
        "io_uring",
        "memory_in_a_pipe",
        "memory_in_a_larger_buffer",
        "descriptor_in_a_message",
        "several_messages",
    )
    refused += ("memory_behind_a_page", "memory_behind_a_sent_page")
    refused += ("thread_with_its_own_descriptors", "own_descriptors_by_close_range")
    refused += ("unix_datagram", "unix_datagram_of_a_raw_socket", "socket_pair_of_a_network")
    for name in refused:
        assert "Operation not permitted" in reasons[name], name
    assert "Invalid argument" in reasons["thread_in_a_user_namespace"]
    assert reasons["sys_exit"] == "did not run to its end (SystemExit: 0)"
    for name in ("giant_allocation", "growing_list"):
        assert "MemoryError" in reasons[name]
    for name in ("read_secret", "overwrite", "delete", "connect", "new_user_namespace", "kill_victim"):
        assert reasons[name].startswith("exit 1: "), name
        assert not reasons[name].startswith("exit 1: SyntaxError"), name


def no_cheat_passes_its_tests(outcome: dict) -> None:
    assert outcome["against_tests"].keys() == AGAINST_TESTS.keys()
    assert [name for name, (passed, *_) in outcome["against_tests"].items() if passed] == []


def right_programs_pass_their_tests(outcome: dict) -> None:
    assert outcome["tested"].keys() == TESTED.keys()
    assert {name: result for name, result in outcome["tested"].items() if not result[0]} == {}


def privileges_are_given_up(outcome: dict) -> None:
    uid, seccomp = outcome["confined"]
    assert uid != "0"
    assert seccomp == "2"


@pytest.mark.parametrize(("user", "mode"), JAILS)
def test_jail(user, mode):
    """One test per jail: under pytest-xdist the table then runs once, wherever that is."""
    outcome = attack(user, mode)
    no_attack_passes(outcome)
    host_is_untouched(outcome)
    ordinary_programs_pass(outcome)
    no_cheat_passes_its_tests(outcome)
    right_programs_pass_their_tests(outcome)
    attacks_end_for_the_right_reason(outcome)
    privileges_are_given_up(outcome)
