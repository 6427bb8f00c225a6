"""Runs the command line in this process."""

import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

import pytest

from hf_diversed.cli import app


@dataclass
class Result:
    """Exit code and text of a command."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def run(*arguments: object, **environment: str) -> Result:
    """Run `hf-diversed` with arguments, on a terminal of 200 columns."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name, value in {"COLUMNS": "200", **environment}.items():
            patch.setenv(name, value)
        try:
            app(list(map(str, arguments)), prog_name="hf-diversed")
            code = 0
        except SystemExit as ended:
            code = ended.code
    return Result(code, out.getvalue(), err.getvalue())


def succeed(*arguments: object, **environment: str) -> Result:
    """Run a command that must end without an error."""
    result = run(*arguments, **environment)
    assert result.exit_code == 0, result.output
    return result


def refused(words: str, *arguments: object, code: int = 2, **environment: str) -> None:
    """Run a command that must print nothing but an error message with these words, on standard error."""
    result = run(*arguments, **environment)
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert words in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
