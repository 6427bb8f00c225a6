"""Decoding of prompts with a pair, shared by the command line, evaluation, benchmark, training and the Space."""
