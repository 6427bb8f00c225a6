"""Loading of pairs: the embedded one from package data, others by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hf_diversed.generation.checks import check_tokenizers
from hf_diversed.head import DiversedHead


WEIGHTS = Path(__file__).parent / "weights"
HEADS, MIXTURE = "heads", "mixture-heads"
LOOKUP = "lookup"  # in place of a draft model: prompt lookup


@dataclass(frozen=True)
class Pair:
    """A target and a draft model with the same vocabulary, their tokenizer, and their heads by task.

    Without a draft model, draft tokens come from prompt lookup.
    """

    target: PreTrainedModel
    draft: PreTrainedModel | None
    tokenizer: PreTrainedTokenizerBase
    heads: Mapping[str, DiversedHead] = field(default_factory=dict)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Pair":
        """Move all modules in place, as `torch.nn.Module.to` does, and return the pair. Heads keep their dtype."""
        for model in (self.target, self.draft):
            if model is not None:
                model.to(device=device, dtype=dtype)
        for head in self.heads.values():
            head.to(device)
        return self


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model by Hub id or folder, with left padding."""
    return AutoTokenizer.from_pretrained(name, padding_side="left")


def load_model(name: str, device: torch.device | str, dtype: torch.dtype | str = "auto") -> PreTrainedModel:
    """Load a model by Hub id or folder, in eval mode."""
    return AutoModelForCausalLM.from_pretrained(name, dtype=dtype, device_map=device).eval()


def load_demo_pair(folder: Path = WEIGHTS, heads: str = HEADS) -> Pair:
    """Load the pair included in the package, in float32 and eval mode, without network access.

    The tokenizer pads on the left and adds one BOS token to every encoding. The heads are keyed by task: "math",
    "summary" and "code".

    Args:
        folder: folder of another pair, as written by `python -m embedded.train` in a checkout of the repository.
        heads: "heads", with token features, or "mixture-heads", with one weight for all tokens of a position (arXiv
            2604.07622).

    Example:

    ```python
    pair = load_demo_pair()
    prompt = "Question: Mia has 74 dollars and buys 9 pens at 7 dollars each. How much money is left?\\nAnswer:"
    inputs = pair.tokenizer(prompt, return_tensors="pt")
    output = pair.target.generate(**inputs, assistant_model=pair.draft, do_sample=True, max_new_tokens=120)
    ```
    """
    return Pair(
        tokenizer=AutoTokenizer.from_pretrained(folder / "tokenizer"),
        target=_load_model(folder / "target"),
        draft=_load_model(folder / "draft"),
        heads={path.name: DiversedHead.from_pretrained(path).eval() for path in sorted((folder / heads).glob("*"))},
    )


def load_pair(
    target: str | None = None,
    draft: str | None = None,
    device: torch.device | str | None = None,
    dtype: str | None = None,
) -> Pair:
    """Load a pair by name, or the embedded pair with its heads.

    Args:
        target, draft: Hub ids or folders; the draft may be "lookup". None for both loads the embedded pair.
        device: None for the best available device.
        dtype: None or "auto" for the dtype of the saved weights.

    Raises:
        ValueError: if only one model is named, or the tokenizers differ; before the models are loaded.
    """
    if (target is None) != (draft is None):
        raise ValueError(
            "target and draft go together: name both, for example Qwen/Qwen3-8B and Qwen/Qwen3-0.6B, or neither for "
            'the embedded pair. The draft "lookup" needs no second model.'
        )
    device = device or best_device()
    if target is None or draft is None:
        return load_demo_pair().to(device, None if dtype in (None, "auto") else getattr(torch, dtype))
    tokenizer = load_tokenizer(target)
    if draft != LOOKUP:
        _check_tokenizer(tokenizer, draft)
    loaded = load_model(target, device, dtype or "auto")
    return Pair(loaded, None if draft == LOOKUP else load_model(draft, device, dtype or "auto"), tokenizer)


def _check_tokenizer(tokenizer: PreTrainedTokenizerBase, draft: str) -> None:
    try:
        other = load_tokenizer(draft)
    except (OSError, ValueError):
        return  # a draft model may have no tokenizer; the target's is used
    check_tokenizers(tokenizer, other)


def best_device() -> str:
    """Return the accelerator, or "cpu"."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def embedded_head(task: str) -> Path | None:
    """Return the folder of the embedded pair's head for a task, or None if it has none."""
    folder = WEIGHTS / HEADS / task
    return folder if folder.is_dir() else None


def _load_model(folder: Path) -> LlamaForCausalLM:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.name_or_path = model.config._name_or_path = ""  # not on the Hub, and a path is not a Hub id
    return model
