"""Records of the embedded tasks."""

import hashlib
import json

import pytest

from hf_diversed.tasks import get_task, load_records
from hf_diversed.tasks.embedded import SEEDS


NAMES = ["math", "summary", "code"]
DIGESTS = {
    "math": ["76f1abdc33ef9bcf", "4abe65bf428d484c", "ecc3e921926740ac"],
    "summary": ["62e94fc5038f0b43", "f23b27cdc2e197e8", "edd3a44b28b80cdf"],
    "code": ["7e3efc7d10756f24", "e2718a839cd60b2f", "0b105e0694293de0"],
}


@pytest.mark.parametrize("name", NAMES)
def test_packaged_records_stay_the_same(name: str):
    """Catches records other than those that committed results and packaged heads were made with."""
    task = get_task(name)
    splits = {split: load_records(task, split, seed=seed) for split, seed in SEEDS.items()}
    digests = [hashlib.sha256(json.dumps(records).encode()).hexdigest()[:16] for records in splits.values()]
    assert digests == DIGESTS[name]
    prompts = [record["prompt"] for records in splits.values() for record in records]
    assert len(set(prompts)) == len(prompts) == 3 * 1024
    assert not task.missing_columns(splits["test"][0])


def test_a_seed_chooses_records():
    """Catches a seed or a split without effect, and a smaller `n` that is no prefix of a larger one."""
    task = get_task("math")
    records = load_records(task, "test", 40, seed=4)
    assert load_records(task, "test", 10, seed=4) == records[:10]
    assert load_records(task, "test", 40, seed=5) != records
    assert load_records(task, "validation", 40, seed=4) != records
