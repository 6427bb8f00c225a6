"""Code that made the embedded pair: its corpus, recipe, training and measurement.

Run from a checkout: `python -m embedded.train --output DIR`. The package `hf_diversed` does not import this folder. It
contains the resulting weights and records of the task families.
"""
