"""Summaries of repeated timings, on invented times."""

import pytest

from hf_diversed.timing import TOO_NOISY, Spread, paired_ratio, show_ratio


def test_a_load_that_changes_between_repeats_cancels_in_the_ratio():
    """Catches a ratio of two medians taken at different loads: here the machine slows down to a third."""
    seconds, reference = [1.0, 2.0, 3.0], [2.0, 4.1, 6.0]
    assert show_ratio(paired_ratio(reference, seconds)) == "2.00x (2.00-2.05)"


@pytest.mark.parametrize("times", [[1.0, 1.16, 0.85], [59.0, 388.0, 508.0], [1.0], []])
def test_a_range_above_thirty_percent_gives_no_ratio(times):
    """Catches a figure such as "15.62x" printed from one measurement, or from measurements that differ."""
    assert show_ratio(Spread.of(times)) == TOO_NOISY


def test_a_range_of_thirty_percent_still_gives_a_ratio():
    assert show_ratio(Spread.of([1.0, 1.15, 0.86])) == "1.00x (0.86-1.15)"


def test_unequal_numbers_of_measurements_are_refused():
    with pytest.raises(ValueError, match="got 2 and 1"):
        paired_ratio([1.0, 2.0], [1.0])
