"""All processes of a program, seen from outside through /proc: which are alive, and what they hold together.

The limit on address space is each process's own, so 32 children of one program could hold 32 times as much. So the
launcher adds up, every 20 ms. Between two looks a program can exceed the limit by what the machine's cores can fill in
that time (some 40 MB each). What no process maps is not counted: the scratch directory (64 MiB at most) and buffers of
pipes. The filter refuses what would hold memory without a mapping (memfd, System V segments and queues).

Why no cgroup, which would count exactly: a group that one may create and limit is the exception (containers mount the
tree read-only, a login session's own group takes no new controllers, older machines keep memory in version 1), so this
sum has to be there anyway, and has to hold.
"""

import os

from . import kernel


_BECOME_SUBREAPER = 36
_MOST_TEXT = 65536


class Family:
    """The descendants of this process. A process is named by a living thread of it: "pid/task/tid"."""

    def __init__(self):
        """Open /proc, which will be out of sight later. Raises OSError where it does not show this process's own."""
        self.proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.own = os.readlink("self", dir_fd=self.proc)
        if self.own != str(os.getpid()) or not os.path.exists(f"/proc/self/task/{self.own}/children"):
            raise OSError("/proc does not list this process's children, so a program's memory cannot be added up")
        # An orphan becomes this process's child, whatever session it has fled to.
        kernel.libc("prctl", _BECOME_SUBREAPER, 1, 0, 0, 0)

    def offer_to_the_oom_killer(self, score: int) -> None:
        """How gladly this process and its next children are killed where memory runs out: 0 as others, 1000 first."""
        try:
            file = os.open("self/oom_score_adj", os.O_WRONLY, dir_fd=self.proc)
        except OSError:
            return  # a courtesy: a container may have hidden it
        try:
            os.write(file, b"%d" % score)
        except OSError:
            pass
        finally:
            os.close(file)

    def alive(self, apart_from: int | None) -> list[str]:
        """The running descendants, without that child and its own."""
        found, waiting = [], [self.own]
        while waiting:
            threads = self._threads(waiting.pop())
            # A process whose first thread has left looks like a zombie while another one runs.
            found += [thread for thread in threads if self._kilobytes(f"{thread}/status", "VmRSS") is not None][:1]
            children = [child for thread in threads for child in self._read(f"{thread}/children").split()]
            waiting += [child for child in children if child != str(apart_from)]
        return [thread for thread in found if not thread.startswith(f"{self.own}/")]

    def held_bytes(self, processes: list[str], limit: int) -> int:
        """What these hold, in memory and swap. Shared pages count once, where it matters for the limit."""
        held = sum(self._plainly_held(process) for process in processes)
        if 1024 * held > limit:
            # A proportional share costs the kernel a walk over the pages. Whoever shows none may just have ended.
            shares = ((process, self._kilobytes(f"{process}/smaps_rollup", "Pss", "SwapPss")) for process in processes)
            held = sum(self._plainly_held(process) if share is None else share for process, share in shares)
        return 1024 * held

    def _plainly_held(self, process: str) -> int:
        return self._kilobytes(f"{process}/status", "VmRSS", "VmSwap") or 0

    def _threads(self, pid: str) -> list[str]:
        try:
            folder = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.proc)
        except OSError:
            return []  # gone
        try:
            return [f"{pid}/task/{thread}" for thread in os.listdir(folder)]
        except OSError:
            return []
        finally:
            os.close(folder)

    def _kilobytes(self, path: str, *names: str) -> int | None:
        """The sum of these lines. None where the process has no memory any more, or does not show it."""
        pairs = (line.split(":", 1) for line in self._read(path).splitlines() if line.startswith(names))
        values = [int(rest.split()[0]) for name, rest in pairs if name in names]
        return sum(values) if values else None

    def _read(self, path: str) -> str:
        try:
            file = os.open(path, os.O_RDONLY, dir_fd=self.proc)
        except OSError:
            return ""  # gone
        try:
            return os.read(file, _MOST_TEXT).decode(errors="replace")
        except OSError:
            return ""
        finally:
            os.close(file)
