"""What a head shows on the Hub."""

from hf_diversed.hub.card import render_card


__all__ = ["render_card"]
