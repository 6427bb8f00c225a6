"""Verifiers inside serving engines, which keep their own decoding loops."""
