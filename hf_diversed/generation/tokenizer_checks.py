"""Comparison of the tokenizers of target and draft model, without requests to the Hub."""

import filecmp
from collections.abc import MutableMapping
from functools import lru_cache
from pathlib import Path
from weakref import WeakKeyDictionary

from huggingface_hub import constants
from huggingface_hub.file_download import repo_folder_name
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from hf_diversed import _compat, model_facts


logger = _compat.get_logger(__name__)
_VOCABULARY_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
_Compared = MutableMapping[PreTrainedTokenizerBase, tuple[tuple[int, int], str | None]]
_compared: MutableMapping[PreTrainedTokenizerBase, _Compared] = WeakKeyDictionary()


def check_tokenizers(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None = None,
    assistant_tokenizer: PreTrainedTokenizerBase | None = None,
) -> None:
    """Raise ValueError if an id is a different token in target and draft model. Ids of only one model are allowed.

    Args:
        tokenizer, assistant_tokenizer: of target and draft model. None to load it from the model's folder or the local
            Hub cache. If one is missing, only a difference of vocabulary sizes is reported, by a warning.
    """
    target_file, draft_file = (_vocabulary_file(*model_facts.model_origin(model)) for model in (target, draft))
    if tokenizer is None and assistant_tokenizer is None and _same_content(target_file, draft_file):
        return
    first = tokenizer if tokenizer is not None else _load(target_file)
    second = assistant_tokenizer if assistant_tokenizer is not None else _load(draft_file)
    sizes = model_facts.vocab_size(target), model_facts.vocab_size(draft)
    if first is None or second is None:
        if sizes[0] != sizes[1]:
            logger.warning_once(
                f"target and draft model have vocabularies of {sizes[0]} and {sizes[1]} ids, and no tokenizers were "
                "found to compare them: pass tokenizer= and assistant_tokenizer=. With different tokenizers the "
                "output is meaningless."
            )
        return
    if (found := difference(first, second)) is not None:
        raise ValueError(
            f"target and draft model have different tokenizers ({found}), but a verifier compares their distributions "
            "token by token. Use a draft model from the same family, or pass both tokenizer= and assistant_tokenizer= "
            "to convert the draft tokens."
        )


def _vocabulary_file(name: str, revision: str | None) -> Path | None:
    """Return a model's vocabulary file, from its folder or the local Hub cache; None if it is missing or ambiguous.

    transformers does not record the commit of a model since 5.20. If it is unknown, all commits in the cache must have
    the same file.
    """
    if not name:
        return None
    folders = [Path(name)]
    if not folders[0].is_dir():
        cached = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=name, repo_type="model"), "snapshots")
        folders = [cached / revision] if revision else sorted(cached.glob("*"))
    for file in _VOCABULARY_FILES:
        if found := [folder / file for folder in folders if (folder / file).is_file()]:
            return found[0] if all(_same_content(found[0], other) for other in found[1:]) else None
    return None


def _same_content(first: Path | None, second: Path | None) -> bool:
    if first is None or second is None or first.name != second.name:
        return False
    return filecmp.cmp(first, second, shallow=False)  # cached until a file changes


def _load(file: Path | None) -> PreTrainedTokenizerBase | None:
    return None if file is None else _load_folder(file.parent, file.stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _load_folder(folder: Path, changed: int) -> PreTrainedTokenizerBase | None:
    """Load the tokenizer in a folder; None if it cannot be loaded. `changed`: time of its vocabulary file."""
    try:
        # Load from the folder: with a Hub id, transformers may send requests even with local_files_only.
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:
        logger.info(f"the tokenizer in {folder} was not loaded for comparison: {error}")
        return None


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
