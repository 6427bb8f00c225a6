"""Models with recurrent or convolution states, which cannot be cropped: rollback, text, distributions and limits."""

import copy
import functools
import itertools

import pytest
import torch

from hf_diversed import support
from hf_diversed.generation import loop, recurrent
from hf_diversed.generation.call import open_model
from hf_diversed.generation.rows import PerRow, RaggedRows
from hf_diversed.generation.runner import RaggedModel
from hf_diversed.generation.static import why_not_static
from tests import versions
from tests.families.compare import prepare
from tests.families.shrink import small_model
from tests.tiny import PAD, VOCAB_SIZE, ragged_batch, tiny_draft, tiny_model


pytestmark = [
    pytest.mark.skipif(versions.is_before("5.23"), reason="models with recurrent states are refused"),
    pytest.mark.filterwarnings("ignore:.*falling back.*"),
]
NEW = 20


@functools.cache
def hybrid(model_type: str):
    model = small_model(model_type)
    prepare(model)
    return model


# Linear attention and convolutions, convolutions only, and Mamba beside attention.
KINDS = ("qwen3_5_text", "lfm2", "falcon_h1")


def prompt(length: int = 7, seed: int = 0) -> torch.Tensor:
    return torch.randint(4, VOCAB_SIZE, (1, length), generator=torch.Generator().manual_seed(seed))


def decode(target, draft, ids=None, **kwargs):
    settings = {"max_new_tokens": NEW, "do_sample": False, "verifier": "lossless", "num_assistant_tokens": 4}
    ids = prompt() if ids is None else ids
    settings |= {"attention_mask": torch.ones_like(ids), "return_dict_in_generate": True} | kwargs
    return target.generate(ids, assistant_model=draft, **settings)


def batch(batch_size: int, length: int = 9) -> dict[str, torch.Tensor]:
    """Left-padded prompts of different lengths, as keyword arguments. The embedding of the padding is not zero."""
    ids, mask = ragged_batch(batch_size, length).values()
    return {"ids": ids.where(mask == 1, 5), "attention_mask": mask}


def plain(target, ids, **kwargs):
    return target.generate(ids, **{"attention_mask": torch.ones_like(ids), "max_new_tokens": NEW, **kwargs})


@torch.no_grad()
@pytest.mark.parametrize(("kind", "batch_size"), [*((kind, 3) for kind in KINDS), ("qwen3_5_text", 1)])
def test_logits_after_rollback_are_fresh_logits(kind, batch_size, monkeypatch):
    """Catches states that contain rejected tokens or padding, or lack accepted tokens, in rows of any length."""
    target = hybrid(kind)
    ids = torch.cat([prompt(60, seed=row) for row in range(batch_size)])
    rows = RaggedRows(ids[:, :8], 60, 8, [], PAD)
    model = open_model(target, rows, None, torch.arange(8).expand(batch_size, -1), keep_hidden=False)
    model.prefill(ids[:, :7], chunk_size=3)
    fresh, index = target(ids, use_cache=False).logits, torch.arange(batch_size)[:, None]
    monkeypatch.setattr(recurrent, "LONGEST_REPLAY", 4)  # so that all ways of reading tokens again are run
    for step, accepted in enumerate((0, 4, 1, 2, 3, 1, 4, 4, 0, 2)):
        starts, width = rows.lengths + (-1), 1 if step in (3, 8) else 5
        kept = torch.tensor([accepted, 4, (accepted + step) % 5][:batch_size]).clamp_max(width - 1)
        columns = starts.device[:, None] + torch.arange(width)
        is_kept = torch.arange(width) <= kept[:, None]
        rows.ids[index, columns] = block = torch.where(is_kept, ids[index, columns], prompt(width, seed=step))
        logits, _ = model(block, starts, keep=width)
        torch.testing.assert_close(logits[is_kept], fresh[index, columns][is_kept], atol=5e-4, rtol=1e-3)
        rows.advance(PerRow((kept + 1).tolist(), kept + 1), PerRow([0] * batch_size, torch.zeros_like(kept).bool()))
        model.rewind()
    assert model.num_forwards > 3 + 10  # some replays had a forward of their own


@pytest.mark.parametrize(
    ("kind", "gamma", "length", "batch_size"),
    [("qwen3_5_text", 1, 7, 3), ("lfm2", 4, 1, 1), ("qwen3_5_text", 9, 7, 1)],
)
def test_lossless_greedy_is_plain_generate(kind, gamma, length, batch_size):
    """Catches states that are not restored, of target or draft model, also to those before any token was read."""
    target, ids = hybrid(kind), torch.cat([prompt(length, seed=row) for row in range(batch_size)])
    out = decode(target, tiny_draft(target, noise=0.15), ids, num_assistant_tokens=gamma)
    assert torch.equal(out.sequences, plain(target, ids))
    assert out.stats.num_accepted > 0
    assert out.stats.num_rejected > 0


@pytest.mark.parametrize(
    ("kind", "order", "prefill_chunk_size"),
    [("qwen3_5_text", [0, 1, 2, 3, 4, 5, 6], None), ("falcon_h1", [0, 1, 2], 1), ("lfm2", [2, 0, 2, 1, 0], 1)],
)
def test_batches_are_plain_generate(kind, order, prefill_chunk_size):
    """Catches padding in a state, states of other rows, rows that keep the states of rows removed before them, and
    states that are not copied to the other completions of a prompt."""
    target, inputs = hybrid(kind), {name: values[order] for name, values in batch(len(set(order))).items()}
    text = plain(target, **inputs)
    ends = {"eos_token_id": text[: len(order) // 2, 14].tolist(), "pad_token_id": PAD}  # after six tokens
    out = decode(target, tiny_draft(target, noise=0.15), **inputs, **ends, prefill_chunk_size=prefill_chunk_size)
    assert torch.equal(out.sequences, plain(target, **inputs, **ends))
    assert len({row.num_rejected for row in out.stats.per_row}) > 1


@pytest.mark.parametrize(("kind", "settings"), [("qwen3_5_text", {}), ("lfm2", {"prefill_chunk_size": 1})])
def test_masked_tokens_at_the_end_and_inside_of_prompts(kind, settings):
    """Catches masked tokens in a state: the last prompt token, in every block that reads it, and those before it."""
    target = hybrid(kind)
    ids, mask = torch.cat([prompt(9, seed=row) for row in range(5)]), torch.ones(5, 9, dtype=torch.long)
    mask[0, 6:] = mask[1, -1:] = mask[2, 4] = mask[3, :2] = mask[3, -1:] = 0
    out = decode(target, tiny_draft(target, noise=0.15), ids, attention_mask=mask, **settings)
    assert torch.equal(out.sequences, plain(target, ids, attention_mask=mask))


@pytest.mark.parametrize("is_draft_hybrid", [True, False])
def test_one_of_the_models_is_hybrid(is_draft_hybrid):
    """Catches a rollback that depends on the other model."""
    models = tiny_model("llama"), hybrid("qwen3_5_text")
    target, draft = models if is_draft_hybrid else reversed(models)
    inputs = batch(3)
    assert torch.equal(decode(target, draft, **inputs).sequences, plain(target, **inputs))


def test_prompt_lookup():
    """Catches a target that upstream or this library refuses for prompt lookup, and rounds in which no row drafts."""
    target = hybrid("qwen3_5_text")
    few = batch(3) | {"suppress_tokens": [token for token in range(VOCAB_SIZE) if token not in (5, 6, 7)]}
    out = decode(target, None, **few, num_assistant_tokens=None, prompt_lookup_num_tokens=3)
    assert torch.equal(out.sequences, plain(target, **few))
    assert 0 < out.stats.num_accepted < out.stats.num_drafted


def test_rounds_without_draft_tokens(monkeypatch):
    """Catches states that miss the token of a round without draft tokens, after which nothing is removed."""
    target = hybrid("qwen3_5_text")
    run, inputs = loop.run_round, batch(4)
    for pattern in ([0, 3, 0, 0, 2], [3, 3, 0, 0, 0, 0, 4]):
        lengths = itertools.cycle(pattern)
        monkeypatch.setattr(loop, "run_round", lambda call, _, lengths=lengths: run(call, next(lengths)))
        assert torch.equal(decode(target, tiny_draft(target), **inputs).sequences, plain(target, **inputs))


def test_finished_rows_that_stay_in_the_batch(monkeypatch):
    """Catches finished rows that widen blocks or are read beyond the last column."""
    target = hybrid("qwen3_5_text")
    monkeypatch.setattr(RaggedModel, "is_worth_compacting", lambda model, running, rows: False)
    lengths, run, inputs = itertools.cycle([6] * 3 + [0] * 12), loop.run_round, batch(4)
    monkeypatch.setattr(loop, "run_round", lambda call, _: run(call, next(lengths)))
    ends = {"eos_token_id": plain(target, **inputs)[:2, 11].tolist(), "pad_token_id": PAD}
    out = decode(target, tiny_draft(target, noise=0.02), **inputs, **ends)
    assert torch.equal(out.sequences, plain(target, **inputs, **ends))


def test_static_engine_falls_back():
    """Catches buffers without the states."""
    target = hybrid("qwen3_5_text")
    out = decode(target, tiny_draft(target), cache_implementation="static")
    assert out.stats.engine == "eager"
    assert "recurrent states" in out.stats.engine_reason
    assert why_not_static(tiny_model("llama"), target, prompt_length=9) is not None


def test_logits_narrower_than_the_output_embedding():
    """Catches a q that is wider than p, for checkpoints whose matrices are padded."""
    target = copy.deepcopy(hybrid("inkling_text"))
    target.config.unpadded_vocab_size = VOCAB_SIZE - 5
    with torch.no_grad():
        assert target(prompt()).logits.shape[-1] == support.vocab_size(target) == VOCAB_SIZE - 5
