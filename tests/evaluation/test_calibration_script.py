"""`benchmarks/calibration.py`: its calibrations on data with known drops."""

from argparse import Namespace

import numpy as np

from benchmarks.calibration import STRICTNESSES, simulate


ARGUMENTS = Namespace(calibrations=200, prompts_per_calibration=300, confidence=0.95, seed=0)


def pool(*drops: float) -> np.ndarray:
    """Drops of 1,000 prompts, 0 or 1 each, for each strictness of the script."""
    generator = np.random.default_rng(1)
    means = [*drops, *[drops[-1]] * (len(STRICTNESSES) - len(drops))]
    return np.stack([generator.permutation(np.arange(1000) < 1000 * mean) for mean in means]).astype(float)


def test_counts_what_was_found_and_what_was_wrong():
    """Catches a failure decided by the calibration's own prompts, and strictness values shifted by one."""
    (safe, tight) = simulate(pool(0.0, 0.1, 0.3), [0.25, 0.1 - 1e-6], ARGUMENTS)
    assert safe["kept"] == safe["found"] == 1.0
    assert safe["strictnesses"] == {"0.9": 200}
    assert tight["found"] == 1.0
    assert 0.9 < tight["kept"] <= 1.0
    assert tight["strictnesses"].get("0.9", 0) == round(200 * (1 - tight["kept"]))


def test_detects_a_loose_test():
    """Catches a simulation that cannot fail: at a confidence of 0.3, wrong strictness values are found."""
    loose = Namespace(**vars(ARGUMENTS) | {"confidence": 0.3})
    (found,) = simulate(pool(0.0, 0.1, 0.3), [0.1 - 1e-6], loose)
    assert found["kept"] < 0.9
