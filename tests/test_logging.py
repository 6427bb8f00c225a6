"""Warnings of this library have a logger of their own."""

from transformers.utils import logging as upstream

from hf_diversed import support
from hf_diversed.cli.loading import quiet_transformers


def test_commands_keep_their_own_warnings(caplog):
    """Catches a command that silences its own warnings together with those of transformers."""
    quiet_transformers()
    for logger in (support.get_logger("hf_diversed.x"), upstream.get_logger("transformers.x")):
        logger.info("info")
        logger.warning("warning")
        logger.error("error")
    found = [(record.name, record.message) for record in caplog.records]
    assert found == [("hf_diversed.x", "warning"), ("hf_diversed.x", "error"), ("transformers.x", "error")]
