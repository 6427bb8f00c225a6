"""The recipe: a killed run ends like an uninterrupted one."""

import dataclasses
import json
from itertools import islice

import pytest
import torch

from embedded import train
from embedded.recipe import ModelRecipe, Recipe
from embedded.stream import CHUNK, batches, chunk_examples
from embedded.tokenizer import train_tokenizer
from hf_diversed.zoo.loader import WEIGHTS


STEPS = CHUNK + 4  # so that the stream crosses into its second chunk


def recipe_of(steps: int, **changes) -> Recipe:
    target = ModelRecipe("target", 16, 32, layers=1, heads=2, steps=steps, learning_rate=1e-2, batch=2, warmup=3)
    return Recipe(save_every=5, models={"target": target}, **changes)


TINY = recipe_of(STEPS)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([example.prompt for example in chunk_examples(TINY, "target", 0)], vocab_size=300)


def test_a_killed_run_ends_in_the_same_weights(tokenizer, tmp_path, monkeypatch):
    """Catches state that is missing in the checkpoint: optimizer, step of the schedule, position in the data."""
    unbroken, figures = train.train_model(TINY, "target", tokenizer, tmp_path / "unbroken", compiled=False)
    take_step = train.train_step

    def killed_at_18(model, optimizers, batch, settings, step):
        if step == 18:
            raise KeyboardInterrupt
        return take_step(model, optimizers, batch, settings, step)

    monkeypatch.setattr(train, "train_step", killed_at_18)
    with pytest.raises(KeyboardInterrupt):
        train.train_model(TINY, "target", tokenizer, tmp_path / "killed", compiled=False)
    monkeypatch.setattr(train, "train_step", take_step)
    resumed, resumed_figures = train.train_model(TINY, "target", tokenizer, tmp_path / "killed", compiled=False)

    assert resumed.state_dict().keys() == unbroken.state_dict().keys()
    for name, weight in unbroken.state_dict().items():
        assert torch.equal(weight, resumed.state_dict()[name]), name
    for field in ("steps", "tokens", "final_loss", "schedules"):
        assert resumed_figures[field] == figures[field]
    assert figures["schedules"] == [{"from_step": 0, "steps": STEPS}]


def test_loss_weights(tokenizer):
    """Padding has weight 0, prompts have a low weight, and digits of a completion the highest."""
    stream = batches(dataclasses.replace(TINY, families={"math": 1.0}), "target", tokenizer, 0)
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
