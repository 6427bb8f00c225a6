"""Drafting, verifying and the hook that plugs both into `generate`."""
