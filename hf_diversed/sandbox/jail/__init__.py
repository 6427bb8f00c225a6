"""The launcher's process: a package without parents, started by `python -I -S`.

Its modules import one another relatively and nothing of `hf_diversed`, whose import costs seconds per program. They
avoid most other modules (typing, contextlib, socket) too, because their import time is added to every program.
"""
