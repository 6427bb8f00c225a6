"""What runs in the launcher's own process: a package without parents, started by `python -I -S`.

Its modules import one another relatively and nothing of `hf_diversed`, whose import costs seconds per program. They
also avoid typing, contextlib, enum (and thus signal) and re, because their import time is added to every program.
"""
