"""Whether bubblewrap works on the tests' machine."""

import pytest

from hf_diversed.tasks.execution import check_isolation


def isolation_error() -> str:
    """Return why programs cannot be isolated here, or "" if they can."""
    try:
        check_isolation()
    except OSError as error:
        return str(error)
    return ""


needs_isolation = pytest.mark.skipif(bool(isolation_error()), reason=isolation_error())
