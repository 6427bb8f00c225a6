"""Heads on the Hub: model cards, the files of a repository, pushing, and the `custom_generate` script."""

from hf_diversed.hub.card import render_card
from hf_diversed.hub.custom_generate import generate_with
from hf_diversed.hub.files import publication
from hf_diversed.hub.pushing import PushError, push
from hf_diversed.hub.records import HeadRecords, read_json, read_records


__all__ = [
    "HeadRecords",
    "PushError",
    "generate_with",
    "publication",
    "push",
    "read_json",
    "read_records",
    "render_card",
]
