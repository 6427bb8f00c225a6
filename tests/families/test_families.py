"""Every causal class registered in transformers, in small: decoded like plain `generate`, or rejected by name.

A sample runs with the other tests; `make families` runs all of them and prints the table.
"""

import pytest
import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from hf_diversed.generation.call import open_model
from hf_diversed.generation.rows import PerRow, RaggedRows
from tests import versions
from tests.families.compare import examine
from tests.families.shrink import small_model
from tests.families.special import FIXED, REFUSED, SINGLE_ROW, UNTESTABLE
from tests.tiny import PAD, VOCAB_SIZE


# Families with learned or tabulated positions, encoders or attention sinks, and families that are refused always or in
# batches. tests/generation covers other kinds in test_architectures.py, test_recurrent.py and test_refusals.py.
SAMPLE = {
    *("bart", "bert", "biogpt", "ctrl", "granite_swa", "gpt_neo", "whisper"),
    *("deepseek_v32", "openai-gpt", "rwkv", "zamba"),
}
CASES = [
    pytest.param(name, marks=() if name in SAMPLE else pytest.mark.slow) for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
]


def expected(model_type: str) -> str:
    if model_type in REFUSED:
        return "refused"
    return "equal, refused, refused" if model_type in SINGLE_ROW else "equal"


@pytest.mark.filterwarnings("ignore")  # warnings of upstream's models
@pytest.mark.parametrize("model_type", CASES)
def test_family_is_plain_generate_or_refused(model_type: str, record_property):
    """Catches a class that is silently decoded wrongly, or that fails during decoding instead of being rejected."""
    if model_type in UNTESTABLE:
        record_property("family", (model_type, f"not testable: {UNTESTABLE[model_type]}"))
        pytest.skip(UNTESTABLE[model_type])
    family = examine(small_model(model_type))
    record_property("family", (model_type, family.kind))
    assert family.kind == expected(model_type), f"{model_type} is {family.kind}: {family.detail}"
    assert REFUSED.get(model_type, "") in family.detail
    if family.kind != "refused":
        assert bool(family.eager_reason) == (model_type in SINGLE_ROW or "recurrent" in family.eager_reason)
    assert family.kind == "refused" or family.is_tested, f"acceptance {family.acceptance}, ragged {family.is_ragged}"
    assert not any(outcome.undecided for outcome in family.outcomes), "plain generate returns two different texts"


@torch.no_grad()
@pytest.mark.parametrize(
    "model_type", [pytest.param("git", marks=versions.since("5.19", "misreads several tokens")), "gemma3_text", "gpt2"]
)
def test_padded_prefill_in_parts_is_exact(model_type):
    """Catches masks of later forwards that shift or lack the padding; git creates such masks itself.

    Runs in float64, because a mask that leaves some padding visible changes the logits by only 1e-4.
    """
    model = small_model(model_type).eval().double()
    lengths, width = torch.tensor([9, 4, 2, 6]), 9
    ids = torch.randint(4, VOCAB_SIZE, (4, width), generator=torch.Generator().manual_seed(2))
    mask = (torch.arange(width) >= width - lengths[:, None]).long()
    ids = ids.where(mask == 1, PAD)
    rows = RaggedRows(ids, width + 1, 1, [], PAD)
    ours = open_model(model, rows, mask, (mask.cumsum(-1) - 1).clamp_min(0), keep_hidden=False)
    ours.prefill(ids[:, :-1], chunk_size=3)
    last = [width - 1] * 4
    logits, _ = ours(ids[:, -1:], PerRow(last, torch.tensor(last)), keep=1)
    for row, length in enumerate(lengths.tolist()):
        alone = model(ids[row : row + 1, width - length :], use_cache=False).logits[0, -1]
        torch.testing.assert_close(logits[row, 0].double(), alone, atol=1e-6, rtol=1e-6)


@versions.since("5.24", "lacks newer classes")
def test_tables_name_what_exists():
    """Catches entries for classes that transformers has renamed or removed."""
    assert {*FIXED, *REFUSED, *SINGLE_ROW, *UNTESTABLE, *SAMPLE} <= set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    assert not set(REFUSED) & (SINGLE_ROW | set(UNTESTABLE))
