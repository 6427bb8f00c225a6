"""Comparison of the tokenizers of target and draft model."""

from collections.abc import MutableMapping
from weakref import WeakKeyDictionary

from transformers import PreTrainedTokenizerBase


_Compared = MutableMapping[PreTrainedTokenizerBase, tuple[tuple[int, int], str | None]]
_compared: MutableMapping[PreTrainedTokenizerBase, _Compared] = WeakKeyDictionary()


def difference(first: PreTrainedTokenizerBase, second: PreTrainedTokenizerBase) -> str | None:
    """Describe the first id that differs; None if all are equal. Cached until a tokenizer changes its size."""
    if first is second:
        return None
    known, sizes = _compared.setdefault(first, WeakKeyDictionary()), (len(first), len(second))
    if second not in known or known[second][0] != sizes:
        known[second] = sizes, _first_difference(first, second)
    return known[second][1]


def _first_difference(first: PreTrainedTokenizerBase, second: PreTrainedTokenizerBase) -> str | None:
    """Describe the first id that differs; None if all are equal."""
    by_id = {index: token for token, index in second.get_vocab().items()}
    special = _special_ids(first) | _special_ids(second)  # chat models often rename them
    for token, index in first.get_vocab().items():
        other = by_id.get(index, token)
        if other != token and index not in special:
            return f"id {index} is {token!r} for the target and {other!r} for the draft model"
    return None


def _special_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    added = getattr(tokenizer, "added_tokens_decoder", None)
    if not isinstance(added, dict):  # a method in MistralCommonBackend
        return set(tokenizer.all_special_ids)
    return {index for index, token in added.items() if token.special}.union(tokenizer.all_special_ids)
