"""Drafting, verification and the hook in `generate`."""
