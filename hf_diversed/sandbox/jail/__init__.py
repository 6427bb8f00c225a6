"""What runs in the launcher's own process: a package without parents, started by `python -I -S`.

Its modules import one another relatively and nothing of `hf_diversed`, whose import costs seconds per program. They
also do without typing, contextlib, enum (so signal), re and the like: every millisecond here is paid per program.
"""
