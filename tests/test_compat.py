"""The releases of transformers that are tested, and an assumption about them that no decoded text shows."""

from pathlib import Path

from transformers.cache_utils import LinearAttentionLayer

from hf_diversed import support
from tests import versions


ROOT = Path(__file__).parents[1]


@versions.since("5.23", "has no layer with recurrent states")
def test_states_to_restore_are_all_that_a_recurrent_layer_has():
    """Breaks `RaggedCache.copy_recurrent_states`, which would not restore a new kind of state."""
    constants = {"number_of_states", "device", "dtype", "record_past", "conv_kernel_size"}
    flags = {"is_conv_states_initialized", "is_recurrent_states_initialized", "has_previous_state"}
    assert set(vars(LinearAttentionLayer(1))) == {"conv_states", "recurrent_states", *flags, *constants}


def test_requirement_covers_exactly_the_tested_releases():
    """Catches a cap that was raised without the tests' version, so that users get a release that was not tested."""
    oldest, newest = support.TESTED_TRANSFORMERS.split(" to 5.")
    assert f'"transformers>={oldest},<5.{int(newest) + 1}",' in (ROOT / "pyproject.toml").read_text()
    assert f"transformers==5.{newest}." in (ROOT / "constraints.txt").read_text()
    assert f"transformers=={oldest}\n" in (ROOT / "constraints-oldest.txt").read_text()
