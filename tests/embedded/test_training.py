"""The recipe: a run learns, and is that of the packaged pair."""

import dataclasses
import json
import math
from itertools import islice

import pytest
import torch

from embedded import train
from embedded.recipe import ModelRecipe, Recipe
from embedded.stream import CHUNK, batches, chunk_examples
from embedded.tokenizer import train_tokenizer
from hf_diversed.zoo.loader import WEIGHTS


STEPS = CHUNK + 4  # so that the stream crosses into its second chunk


MODEL = ModelRecipe("target", 16, 32, layers=1, heads=2, steps=STEPS, learning_rate=1e-2, batch=2, warmup=3)
TINY = Recipe(models={"target": MODEL})


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([example.prompt for example in chunk_examples(TINY, "target", 0)], vocab_size=300)


def test_a_run_is_repeatable_and_learns(tokenizer):
    """Catches weights that depend on earlier draws, a schedule of the wrong sign, and text that repeats."""
    one, figures = train.train_model(TINY, "target", tokenizer, compiled=False)
    torch.manual_seed(7)
    two, _ = train.train_model(TINY, "target", tokenizer, compiled=False)
    assert all(map(torch.equal, one.parameters(), two.parameters()))
    assert figures["steps"] == STEPS
    assert figures["final_loss"] < 0.95 * math.log(len(tokenizer))


def test_loss_weights(tokenizer):
    """Padding has weight 0, prompts have a low weight, and digits of a completion the highest."""
    stream = batches(dataclasses.replace(TINY, families={"math": 1.0}), "target", tokenizer)
    found = list(islice(stream, CHUNK))
    weights = {0.0, TINY.prompt_weight, 1.0, TINY.number_weight}
    seen = torch.cat([batch["weights"].flatten() for batch in found]).unique()
    assert seen.tolist() == pytest.approx(sorted(weights))
    for batch in found:
        assert torch.equal(batch["labels"] == -100, batch["weights"] == 0)
        assert torch.equal(batch["input_ids"] == tokenizer.pad_token_id, batch["weights"] == 0)


def test_provenance_records_the_checked_in_recipe():
    recorded = json.loads((WEIGHTS / "training.json").read_text())["recipe"]
    assert recorded == dataclasses.asdict(Recipe())
