"""Warnings of this library have a logger of their own."""

import subprocess
import sys

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


def test_warnings_are_printed_once_with_our_name():
    """Catches warnings under the name of transformers, and those that other handlers print again."""
    code = "import logging\nlogging.basicConfig()\nfrom hf_diversed.support import get_logger\n"
    code += "for _ in range(2): get_logger('hf_diversed.x').warning_once('told')\n"
    code += "logging.getLogger('hf_diversed').setLevel(logging.ERROR)\nget_logger('hf_diversed.y').warning('quiet')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [line for line in done.stderr.splitlines() if "hf_diversed" in line] == ["[hf_diversed] told"]
    assert "quiet" not in done.stderr
