"""Make a draft model from some of a target model's layers, optionally with output rows for frequent tokens only.

Before training its acceptance rate is low; train it with `tune_draft` and `all_weights`.
"""

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_diversed import _compat
from hf_diversed.cut_vocabulary import CUT, CutOutput
from hf_diversed.generation.checks import check_architecture
from hf_diversed.running.pair import eos_ids


_OF_THE_CLASS = {"model_type", "architectures"}  # entries of a configuration
_CHARACTERS = 2**20  # of a text, tokenized in one call


def make_draft(
    target: PreTrainedModel, layers: Sequence[int], kept_ids: Sequence[int] | None = None
) -> PreTrainedModel:
    """Return a draft model with copies of a target's embeddings, chosen layers, final norm and output embedding.

    Args:
        target: a decoder-only model whose layers are in one `ModuleList`.
        layers: indices of the layers to copy, ascending.
        kept_ids: ids with a row in the output embedding, ascending; all others have probability 0. None keeps all ids
            and the target's class.

    Returns:
        A model in eval mode, with the target's dtype and device. It shares no memory with the target.

    Raises:
        ValueError: if layers or ids do not exist or are not ascending, the target has no `ModuleList` of layers, or
            `kept_ids` is not supported for its architecture.
    """
    check_architecture(target, "target")
    target = _compat.base_model(target)
    stack, name = _compat.layer_stack(target), type(target).__name__
    if stack is None:
        raise ValueError(f"a draft model cannot be made from {name}: its layers are not in one `ModuleList`.")
    _check_ascending("layers", layers, len(stack))
    config, kind = _compat.config_of_layers(target, layers), type(target)
    state = _state_of_layers(target, stack, layers)
    if kept_ids is not None:
        _check_ascending("kept_ids", kept_ids, _compat.vocab_size(target))
        if kind not in CUT or target.lm_head.bias is not None:
            served = ", ".join(sorted(known.__name__ for known in CUT))
            raise ValueError(f"`kept_ids` is supported for {served}, got {name}; keep the whole vocabulary.")
        kind = CUT[kind]
        settings = config.to_dict() | {"num_kept_ids": len(kept_ids), "tie_word_embeddings": False}
        config = kind.config_class(**{name: value for name, value in settings.items() if name not in _OF_THE_CLASS})
        kept = torch.tensor(list(kept_ids), device=state["lm_head.weight"].device)
        state |= {"lm_head.weight": state["lm_head.weight"][kept], "lm_head.kept_ids": kept}
    draft: PreTrainedModel = kind._from_config(config, dtype=target.dtype).to(target.device)
    draft.set_attn_implementation(_compat.attention_implementation(target))
    draft.load_state_dict(state)
    draft.generation_config = type(target.generation_config)(**target.generation_config.to_dict())
    draft.name_or_path = draft.config._name_or_path = ""
    return draft.eval()


def count_ids(path: Path, tokenizer: PreTrainedTokenizerBase) -> Counter[int]:
    """Count the token ids in a file.

    In a JSON Lines file, the "completion_ids" of each object are counted, as in `target_samples.jsonl` of
    `tune_draft`; objects without them contribute all their strings. Any other file is read as text.

    Raises:
        ValueError: if the file does not exist or contains no text.
    """
    if not path.is_file():
        raise ValueError(f"the text must be an existing file, got {str(path)!r}.")
    counts: Counter[int] = Counter()
    with path.open(encoding="utf-8") as file:
        while texts := file.readlines(_CHARACTERS):
            if path.suffix == ".jsonl":
                records = [json.loads(line) for line in texts if line.strip()]
                counts.update(itertools.chain(*(ids for row in records for ids in row.get("completion_ids", ()))))
                texts = [text for row in records if "completion_ids" not in row for text in _texts(row)]
            if texts:
                counts.update(itertools.chain(*tokenizer(texts, add_special_tokens=False).input_ids))
    if not counts:
        raise ValueError(f"{path.name} contains no text.")
    return counts


def frequent_ids(
    counts: Counter[int], size: int, target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> list[int]:
    """Return the `size` ids to keep, ascending.

    Special and EOS ids come first, then ids by frequency, then the lowest remaining ids, which byte-pair encoding
    merged first.

    Raises:
        ValueError: if `size` does not exceed the number of special and EOS ids, or exceeds the vocabulary size.
    """
    total = _compat.vocab_size(target)
    always = sorted({*tokenizer.all_special_ids, *eos_ids(target)})
    if not len(always) < size <= total:
        raise ValueError(
            f"`vocabulary` must be above {len(always)}, the special tokens, and at most {total}, got {size}."
        )
    ranked = dict.fromkeys([*always, *(token for token, _ in counts.most_common()), *range(total)])
    return sorted(list(ranked)[:size])


def save_draft(
    draft: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, record: Mapping[str, Any]
) -> None:
    """Save a draft model with its tokenizer, `provenance.json` and a model card that explains how to load it."""
    draft.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "provenance.json").write_text(json.dumps(record, indent=2, default=str) + "\n")
    card = [
        f"# A draft model of {len(record['layers'])} layers for {record['target']}",
        f"Layers {', '.join(map(str, record['layers']))} of the target, with its embeddings, final norm and output "
        "embedding, as `hf-diversed make-draft` copies them. Train it with `hf-diversed tune-draft --all-weights "
        "true`.",
    ]
    output = draft.get_output_embeddings()
    if isinstance(output, CutOutput):
        card.append(
            f"It has output rows for {len(output.kept_ids):,} of {output.num_ids:,} ids; all others have "
            "probability 0. Speculative decoding remains correct, because residual tokens come from the target. "
            f"The class is `{type(draft).__name__}`, which is not part of transformers: load it with `import "
            "hf_diversed.cut_vocabulary`, or without hf_diversed by `trust_remote_code=True`, which executes "
            "`cut_vocabulary.py` in this folder."
        )
    (folder / "README.md").write_text("\n\n".join(card) + "\n")


def _state_of_layers(target: PreTrainedModel, stack: torch.nn.ModuleList, layers: Sequence[int]) -> dict[str, Any]:
    """Return the target's state dict with only the chosen layers, renumbered from 0."""
    prefix = next(name for name, module in target.named_modules() if module is stack) + "."
    places = {str(layer): str(place) for place, layer in enumerate(layers)}
    state = {}
    for name, value in target.state_dict().items():
        if name.startswith(prefix):
            layer, _, rest = name.removeprefix(prefix).partition(".")
            if layer not in places:
                continue
            name = f"{prefix}{places[layer]}.{rest}"
        state[name] = value
    return state


def _check_ascending(name: str, values: Sequence[int], total: int) -> None:
    rising = all(below < above for below, above in itertools.pairwise(values))
    if not values or not rising or not 0 <= values[0] <= values[-1] < total:
        shown = values if len(values) <= 12 else f"{len(values)} of them"
        raise ValueError(f"`{name}` must be ascending numbers from 0 to {total - 1}, at least one, got {shown}.")


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in items for text in _texts(item)]
