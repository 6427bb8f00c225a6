"""Heads on the Hub: model cards, the files of a repository, pushing, and the `custom_generate` script."""

from hf_diversed.hub.card import render_card
from hf_diversed.hub.custom_generate import generate_with
from hf_diversed.hub.publishing import push, write_folder


__all__ = ["generate_with", "push", "render_card", "write_folder"]
