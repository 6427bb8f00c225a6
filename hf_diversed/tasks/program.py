"""The process that runs one program with its tests. `execution` passes the text of this file to a new interpreter, so
it imports the standard library only."""

import json
import os
import resource
import sys


def main() -> None:
    """Read a job from standard input, and write its token to standard output if program and tests run to their end."""
    job = json.load(sys.stdin)
    verdict, null = os.dup(1), os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    os.close(null)
    if job["user"] is not None:  # the kernel does not limit the processes of root
        os.setgroups([])
        os.setgid(job["user"])
        os.setuid(job["user"])
    for name, limit in job["limits"].items():
        kind = getattr(resource, name)
        highest = resource.getrlimit(kind)[1]
        limit = limit if highest == resource.RLIM_INFINITY else min(limit, highest)
        resource.setrlimit(kind, (limit, limit))
    token, process = job["token"].encode(), os.getpid()
    write, current_process = os.write, os.getpid
    write(verdict, job["started"].encode())
    module = sys.modules["__main__"] = type(sys)("__main__")
    exec(compile(job["program"], "<program>", "exec", dont_inherit=True), module.__dict__)
    # In a copy: names that the tests define must not replace those that the program's functions use.
    exec(compile(job["tests"], "<tests>", "exec", dont_inherit=True), dict(module.__dict__))
    if current_process() == process:  # not in a child process
        write(verdict, token)


if __name__ == "__main__":
    main()
