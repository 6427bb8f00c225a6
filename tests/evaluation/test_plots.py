"""Figures by the data of their artists, and files by their bytes."""

import sys

import matplotlib
import pytest

from hf_diversed.evaluation.curves import to_curves
from hf_diversed.evaluation.plots import quality_acceptance, save, save_quality
from tests.evaluation.measured import record, sweep


@pytest.fixture
def curve():
    return to_curves(sweep(), "file")[0]


def lines(figure) -> dict[str, list]:
    """Return the named lines of a figure: their points, rounded."""
    (axes,) = figure.axes
    points = {line.get_label(): line.get_xydata().round(6).tolist() for line in axes.lines}
    return {label: found for label, found in points.items() if not label.startswith("_")}


def words(figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_quality_against_acceptance(curve):
    """Catches swapped axes, fractions for percent, a static curve without lossless, and bars on the wrong side."""
    figure = quality_acceptance(curve)
    found = lines(figure)
    assert found["static (w, 1: lossless)"] == [[60, 85], [70, 60], [90, 40]]
    assert found["DIVERSED (strictness)"] == [[90, 41], [70, 84]]
    assert found["lenience"] == [[75, 55]]
    assert [y for _, y in found["target alone"]] == [86, 86]
    assert words(figure) == ["1", "0.7", "0.2", "0.3", "0.7", "0.5"]
    (axes,) = figure.axes
    across, up = (collection.get_segments() for collection in axes.collections[:2])
    assert across[0].round(6).tolist() == [[58, 85], [61, 85]]
    assert up[0].round(6).tolist() == [[60, 80], [60, 88]]
    assert axes.get_xlabel() == "acceptance rate, accepted / drafted (%)"
    assert axes.get_ylabel() == "accuracy (%)"
    assert "math, 100 prompts, temperature 1, 5 draft tokens" in axes.get_title(loc="left")


def test_the_target_may_be_missing():
    """Catches a line of the target alone that was not measured."""
    (curve,) = to_curves([row for row in sweep() if row["method"] != "target"], "bare")
    assert "target alone" not in lines(quality_acceptance(curve))


def test_points_without_bounds_are_drawn(curve):
    """Catches None used as a bound."""
    rows = [{**row, "quality_ci": None, "acceptance_rate_ci": None} for row in sweep()]
    assert lines(quality_acceptance(to_curves(rows, "file")[0])) == lines(quality_acceptance(curve))


def test_long_names_fit_into_the_figure():
    """Catches a legend that ends outside the figure, as with the paths of several heads."""
    heads = [record(f"diversed:org/a-trained-head-with-a-long-name-{number}", 0.6, 0.5) for number in range(3)]
    figure = quality_acceptance(to_curves([*sweep(), *heads], "file")[0])
    assert figure.legends[0].get_window_extent().width <= figure.bbox.width


def test_a_method_twice_is_no_curve():
    """Catches the results of several draft models, which differ in "draft" only, joined to one curve."""
    rows = [{"draft": draft, **row} for draft in ("untuned", "distill") for row in sweep()]
    with pytest.raises(ValueError, match=r"drafts-math holds diversed@0\.3.* more than once for math.*5 draft tokens"):
        to_curves(rows, "drafts-math")
    assert len(to_curves(rows[:7], "drafts-math")) == 1


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_files_are_the_same_bytes(curve, tmp_path, kind):
    """Catches timestamps, random ids, and a style that the user's settings change."""
    save(quality_acceptance(curve), tmp_path / f"a.{kind}")
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"font.size": 30, "lines.linewidth": 9}):
        save(quality_acceptance(curve), tmp_path / f"b.{kind}")
    assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()
    assert dict(matplotlib.rcParams) == before
    assert "matplotlib.pyplot" not in sys.modules or not matplotlib.pyplot.get_fignums()
    with pytest.raises(ValueError, match=r"png, svg, pdf.*a\.gif"):
        save(quality_acceptance(curve), tmp_path / "a.gif")


def test_quality_of_every_setting_is_saved(tmp_path):
    """Catches settings drawn into one file, and a target alone that gives an empty figure."""
    assert save_quality(sweep(), tmp_path / "new" / "plot.svg") == [tmp_path / "new" / "plot.svg"]
    assert "DIVERSED" in (tmp_path / "new" / "plot.svg").read_text()
    two = save_quality(sweep() + sweep(temperature=0.0), tmp_path / "plot.png")
    assert [path.name for path in two] == ["plot-math-t1-g5.png", "plot-math-t0-g5.png"]
    assert all(path.stat().st_size > 1000 for path in two)
    assert not (tmp_path / "plot.png").exists()
    with pytest.raises(ValueError, match="no method verified draft tokens"):
        save_quality([record("target", None, 0.9)], tmp_path / "plot.png")
    with pytest.raises(ValueError, match=r"png, svg, pdf.*plot\.gif"):
        save_quality(sweep(), tmp_path / "plot.gif")
