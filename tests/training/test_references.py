"""Rewards of the target's own completions, by row."""

import torch

from hf_diversed.training.references import ReferenceRewards


CHAT = {"prompt": [{"role": "user", "content": "Why?"}]}


def test_means_and_missing_rows():
    """Catches a value that overwrites others, None as 0 or as not measured, and another order of missing rows."""
    store = ReferenceRewards()
    a, b, c, d, none = ({"prompt": name} for name in ("a", "b", "c", "d", "none"))
    store.add(list(zip([a, b, a, b, none, none], [1.0, None, 0.0, 0.5, None, None])))
    assert (store[a], store[b], store[none]) == (0.5, 0.5, None)
    assert store.missing([d, b, CHAT, c, none, d, CHAT]) == [d, CHAT, c]


def test_chat_prompts_differ_by_content():
    """Catches keys that depend on the order of a message's fields, or on its role alone."""
    store = ReferenceRewards()
    store.add([(CHAT, 0.0), ({"prompt": [{"role": "user", "content": "How?"}]}, 1.0)])
    assert store[{"prompt": [{"content": "Why?", "role": "user"}]}] == 0.0
    assert store.missing([{"prompt": "Why?"}]) == [{"prompt": "Why?"}]


def test_rows_with_other_answers_have_their_own_reward():
    """Catches a reward that is used for another row with the same prompt."""
    store = ReferenceRewards()
    store.add([({"prompt": "a", "answer": 0}, 0.0)])
    rows = [{"prompt": "a", "answer": 0}, {"answer": 1, "prompt": "a"}]
    assert store.missing(rows) == rows[1:]
    arrays = [{"prompt": "a", "answer": torch.arange(2000) == middle} for middle in (1000, 1001)]
    assert len(store.missing(arrays)) == 2  # text of such arrays is abbreviated
