"""The kind of isolation that the tests' machine provides."""

from hf_diversed.sandbox import SandboxUnavailable
from hf_diversed.sandbox.runner import usable_mode


def jail_mode() -> str | None:
    """Return "namespaces", "landlock", or None if neither works here."""
    try:
        return usable_mode(unsafe=False)
    except SandboxUnavailable:
        return None
