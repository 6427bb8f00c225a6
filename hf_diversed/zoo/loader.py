"""Loading of the embedded pair from package data."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from hf_diversed.harness.pair import Pair
from hf_diversed.head import DiversedHead


WEIGHTS = Path(__file__).parent / "weights"
HEADS, MIXTURE = "heads", "mixture-heads"


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


def _load_model(folder: Path) -> LlamaForCausalLM:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.name_or_path = model.config._name_or_path = ""  # not on the Hub, and a path is not a Hub id
    return model
