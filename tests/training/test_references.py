"""Stored rewards of the target's own completions."""

import json

import pytest
import torch

from hf_diversed.training.references import ReferenceRewards


SETTINGS = {"target": "org/target", "generations": 2, "stop_strings": ("\n",)}
CHAT = {"prompt": [{"role": "user", "content": "Why?"}]}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "reference_rewards.json"


def test_means_and_missing_rows(path):
    """Catches a value that overwrites others, None as 0 or as not measured, and another order of missing rows."""
    store = ReferenceRewards(path, SETTINGS)
    a, b, c, d, none = ({"prompt": name} for name in ("a", "b", "c", "d", "none"))
    store.add(list(zip([a, b, a, b, none, none], [1.0, None, 0.0, 0.5, None, None])))
    assert (store[a], store[b], store[none]) == (0.5, 0.5, None)
    assert store.missing([d, b, CHAT, c, none, d, CHAT]) == [d, CHAT, c]


def test_survives_the_process(path):
    """Catches settings that differ after they are read back (a tuple), and values that lose digits."""
    store = ReferenceRewards(path, SETTINGS)
    a, none = {"prompt": "a"}, {"prompt": "none"}
    store.add([(a, 1 / 3), (CHAT, 0.1 + 0.2), (none, None)])
    store.save()
    other = ReferenceRewards(path, SETTINGS)
    assert (other[a], other[CHAT], other[none]) == (1 / 3, 0.1 + 0.2, None)
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_chat_prompts_differ_by_content(path):
    """Catches keys that depend on the order of a message's fields, or on its role alone."""
    store = ReferenceRewards(path, SETTINGS)
    store.add([(CHAT, 0.0), ({"prompt": [{"role": "user", "content": "How?"}]}, 1.0)])
    assert store[{"prompt": [{"content": "Why?", "role": "user"}]}] == 0.0
    assert store.missing([{"prompt": "Why?"}]) == [{"prompt": "Why?"}]


def test_rows_with_other_answers_have_their_own_reward(path):
    """Catches a reward that is used for another row with the same prompt."""
    store = ReferenceRewards(path, SETTINGS)
    store.measure([{"prompt": "a", "answer": 0}], lambda rows, _: [(row, 0.0) for row in rows], 1, save=True)
    rows = [{"prompt": "a", "answer": 0}, {"answer": 1, "prompt": "a"}]
    assert store.missing(rows) == rows[1:]
    arrays = [{"prompt": "a", "answer": torch.arange(2000) == middle} for middle in (1000, 1001)]
    assert len(store.missing(arrays)) == 2  # text of such arrays is abbreviated
    store.measure(rows, lambda rows, _: [(row, 1.0) for row in rows], 2, save=True)
    assert [ReferenceRewards(path, SETTINGS)[row] for row in rows] == [0.0, 1.0]


def test_drafting_settings_are_ignored(path):
    """Catches an error for a run that is resumed with a smaller batch size, or with a file of an older release."""
    path.parent.mkdir()
    stored = {**SETTINGS, "batch_size": 128, "num_assistant_tokens": 5}
    path.write_text(json.dumps({"settings": stored, "rewards": {}}))
    store = ReferenceRewards(path, {**stored, "batch_size": 16, "num_assistant_tokens": 3})
    store.save()
    assert json.loads(path.read_text())["settings"].keys() == SETTINGS.keys()


def test_other_settings_are_refused_by_name(path):
    """Catches rewards of another target or reward, which would silently shift the constraint."""
    ReferenceRewards(path, SETTINGS).save()
    with pytest.raises(ValueError, match=r"other settings \(generations: 2 there, 4 here; target: .*\); use"):
        ReferenceRewards(path, {**SETTINGS, "target": "org/other", "generations": 4})
