"""The verbosity setting of transformers controls our warnings."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from transformers.utils import logging as upstream

import hf_diversed
from hf_diversed import _compat
from hf_diversed.cli.loading import quiet_transformers


@pytest.fixture
def logger():
    """Return one of our loggers; restores all changed levels."""
    ours, before = _compat.get_logger("hf_diversed"), upstream.get_verbosity()
    ours.setLevel(logging.NOTSET)
    yield _compat.get_logger("hf_diversed.generation.planning")
    ours.setLevel(logging.NOTSET)
    upstream.set_verbosity(before)


def recorded(logger: logging.Logger, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    for level in (logging.INFO, logging.WARNING, logging.ERROR):
        logger.log(level, logging.getLevelName(level))
    return [record.message for record in caplog.records]


def test_verbosity_of_transformers_is_ours(logger, caplog):
    """Catches warnings that `transformers.logging.set_verbosity_error()` does not silence."""
    upstream.set_verbosity_error()
    assert recorded(logger, caplog) == ["ERROR"]
    upstream.set_verbosity_warning()
    assert recorded(logger, caplog) == ["WARNING", "ERROR"]
    upstream.set_verbosity_info()
    assert recorded(logger, caplog) == ["INFO", "WARNING", "ERROR"]


def test_commands_keep_their_own_warnings(logger, caplog):
    """Catches a command that silences its own warnings together with those of transformers."""
    quiet_transformers()
    assert recorded(logger, caplog) == ["WARNING", "ERROR"]
    assert recorded(upstream.get_logger("transformers.generation.utils"), caplog) == ["ERROR"]


def test_environment_variable(tmp_path):
    """Catches a TRANSFORMERS_VERBOSITY that applies to upstream only."""
    code = "from hf_diversed import _compat\n_compat.get_logger('hf_diversed.x').warning('told')"
    environment = {"PYTHONPATH": str(Path(hf_diversed.__file__).parents[1]), "TRANSFORMERS_VERBOSITY": "error"}
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert "told" not in run.stderr
