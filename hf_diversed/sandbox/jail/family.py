"""All processes of a program, read through /proc: which are alive, and how much memory they use together.

The limit on address space applies to each process, so 32 children of one program could use 32 times as much. The
launcher therefore adds up their memory every 20 ms. In between, a program can exceed the limit by what the cores can
fill in that time (about 40 MB each). Memory that no process maps is not counted: the scratch directory (at most 64
MiB) and pipe buffers. The system call filter refuses other unmapped memory (memfd, System V segments and queues).

cgroups count exactly, but can rarely be created and limited: containers mount the tree read-only, the group of a login
session accepts no new controllers, and older machines use version 1 for memory. The sum is therefore needed anyway.
"""

import os

from . import kernel


_BECOME_SUBREAPER = 36


class Family:
    """The descendants of this process. A process is named by a living thread of it: "pid/task/tid"."""

    def __init__(self):
        """Open /proc, which is not visible later. Raises OSError if it does not list this process's children."""
        self.proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.own = os.readlink("/proc/self")
        if self.own != str(os.getpid()) or not os.path.exists(f"/proc/self/task/{self.own}/children"):
            raise OSError("/proc does not list this process's children, so a program's memory cannot be added up")
        # Orphans become children of this process, in any session.
        kernel.libc("prctl", _BECOME_SUBREAPER, 1, 0, 0, 0)

    def alive(self, apart_from: int | None) -> list[str]:
        """Return the running descendants, without the child `apart_from` and its descendants."""
        found, waiting = [], [self.own]
        while waiting:
            process = waiting.pop()
            threads = [f"{process}/task/{thread}" for thread in self._threads(process)]
            # A process whose first thread has ended looks like a zombie while another one runs.
            found += [thread for thread in threads if self._kilobytes(f"{thread}/status", "VmRSS") is not None][:1]
            children = [child for thread in threads for child in self._read(f"{thread}/children").split()]
            waiting += [child for child in children if child != str(apart_from)]
        return [thread for thread in found if not thread.startswith(f"{self.own}/")]

    def held_bytes(self, processes: list[str], limit: int) -> int:
        """Return the memory and swap of processes. Shared pages count once if the sum exceeds the limit."""

        def resident(process: str) -> int:
            return self._kilobytes(f"{process}/status", "VmRSS", "VmSwap") or 0

        held = [resident(process) for process in processes]
        if 1024 * sum(held) > limit:
            # Proportional shares are slow: the kernel walks the pages. Where they are missing, the process has ended
            # since, or they cannot be read.
            shares = [self._kilobytes(f"{process}/smaps_rollup", "Pss", "SwapPss") for process in processes]
            held = [resident(process) if share is None else share for process, share in zip(processes, shares)]
        return 1024 * sum(held)

    def _kilobytes(self, path: str, *names: str) -> int | None:
        """Return the sum of the named lines; None if the process has no memory any more, or it is not visible."""
        pairs = (line.split(":", 1) for line in self._read(path).splitlines() if line.startswith(names))
        sizes = [int(rest.split()[0]) for name, rest in pairs if name in names]
        return sum(sizes) if sizes else None

    def _threads(self, process: str) -> list[str]:
        try:
            folder = os.open(f"{process}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.proc)
            try:
                return os.listdir(folder)
            finally:
                os.close(folder)
        except OSError:
            return []  # ended

    def _read(self, path: str) -> str:
        try:
            with open(path, "rb", opener=lambda name, flags: os.open(name, flags, dir_fd=self.proc)) as file:
                return file.read().decode(errors="replace")
        except OSError:
            return ""  # ended
