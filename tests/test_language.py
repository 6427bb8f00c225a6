"""Tests of the check of banned phrases."""

import pytest

from tools import check_language


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("the draft's law", ["law"]),
        ("a streamer is told\nwhoever asks", ["is told", "whoever"]),
        ("it Hangs on the seed by the clock", ["Hangs on", "by the clock"]),
        ("lawful flaws, alone, a nonempty list; it changes on each call", []),
    ],
)
def test_phrases_are_found(text, found):
    """Catches a banned phrase that is not found, and matches inside other words."""
    assert [phrase for _, phrase, _ in check_language.problems(text)] == found


def test_paths_exist():
    """Catches a path that was renamed and is therefore no longer checked."""
    for name in (*check_language.PATHS, *check_language.EXCEPT):
        assert (check_language.ROOT / name).exists(), name
    assert len(check_language.files()) > 20
