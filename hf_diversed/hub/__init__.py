"""Heads on the Hub: their cards, the files of their repositories, publishing them, and the script they bring along."""

from hf_diversed.hub.card import render_card
from hf_diversed.hub.door import PublishedHead, generate_with
from hf_diversed.hub.files import publication
from hf_diversed.hub.pushing import Destination, PushError, push
from hf_diversed.hub.records import HeadRecords, read_json, read_records


__all__ = [
    "Destination",
    "HeadRecords",
    "PublishedHead",
    "PushError",
    "generate_with",
    "publication",
    "push",
    "read_json",
    "read_records",
    "render_card",
]
