"""The `hf-diversed` command."""

from hf_diversed.cli.main import app


__all__ = ["app"]
