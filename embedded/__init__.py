"""How the embedded pair was made: its training text, its recipe, its training and what it was measured by.

Run from a checkout: `python -m embedded.train --output DIR`. The package `hf_diversed` knows nothing of this folder;
it carries what came of it, the weights, and the task families that prompts are drawn from.
"""
