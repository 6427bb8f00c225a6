"""The plot by the data of its artists, and files by their bytes."""

import matplotlib

from hf_diversed.evaluation.plot import draw, save_plot


def record(method: str, acceptance: float | None, quality: float) -> dict:
    bounds = None if acceptance is None else [acceptance - 0.02, acceptance + 0.01]
    return {
        **{"method": method, "task": "math", "metric": "accuracy", "n": 100},
        **{"temperature": 1.0, "num_assistant_tokens": 5},
        **{"quality": quality, "quality_ci": [quality - 0.05, quality + 0.03]},
        **{"acceptance_rate": acceptance, "acceptance_rate_ci": bounds, "seconds_per_sample": 2 - quality},
    }


RECORDS = [
    record("target", None, 0.86),
    record("lossless", 0.6, 0.85),
    record("static:0.2", 0.9, 0.4),
    record("static:0.7", 0.7, 0.6),
    record("diversed@0.7", 0.7, 0.84),
    record("diversed@0.3", 0.9, 0.41),
]


def test_quality_against_acceptance():
    """Catches swapped axes, fractions for percent, unsorted lines, and bars on the wrong side."""
    (axes,) = draw(RECORDS).axes
    lines = {line.get_label(): line.get_xydata().round(6).tolist() for line in axes.lines}
    assert lines["lossless"] == [[60, 85]]
    assert lines["static"] == [[90, 40], [70, 60]]
    assert lines["diversed"] == [[90, 41], [70, 84]]
    assert [y for _, y in lines["target alone"]] == [86, 86]
    assert [text.get_text() for text in axes.texts] == ["0.2", "0.7", "0.7", "0.3"]
    across, up = (collection.get_segments() for collection in axes.collections[:2])
    assert across[0].round(6).tolist() == [[58, 85], [61, 85]]
    assert up[0].round(6).tolist() == [[60, 80], [60, 88]]
    assert "target alone" not in [line.get_label() for line in draw(RECORDS[1:]).axes[0].lines]


def test_quality_against_time():
    """Catches percent of seconds, and the target as a line without a time."""
    (axes,) = draw(RECORDS, time=True).axes
    lines = {line.get_label(): line.get_xydata().round(6).tolist() for line in axes.lines}
    assert lines["target"] == [[1.14, 86]]
    assert lines["static"] == [[1.6, 40], [1.4, 60]]


def test_files_do_not_depend_on_the_users_settings(tmp_path):
    """Catches a style that the user's settings change, and metadata that is lost."""
    save_plot(RECORDS, tmp_path / "new" / "a.png", metadata={"Description": "digest"})
    with matplotlib.rc_context({"font.size": 30, "lines.linewidth": 9}):
        save_plot(RECORDS, tmp_path / "b.png", metadata={"Description": "digest"})
    content = (tmp_path / "new" / "a.png").read_bytes()
    assert content == (tmp_path / "b.png").read_bytes()
    assert b"digest" in content
