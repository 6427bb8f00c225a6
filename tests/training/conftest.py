"""Runs that several tests look at."""

import copy
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tests.tiny import BOS, EOS, PAD, VOCAB_SIZE
from tests.training import runs, short_runs


@pytest.fixture(scope="session")
def done(tmp_path_factory):
    """A constrained run with evaluation that came to its end."""
    models = runs.pair()
    before = [copy.deepcopy(model.state_dict()) for model in models]
    trainer = runs.trainer(
        tmp_path_factory.mktemp("run"),
        [runs.letters, runs.zero],
        models=models,
        eval_dataset=runs.rows()[:3],
        acceptance_coef=None,
        reward_weights=[1.0, 2.0],
        eval_strategy="steps",
        load_best_model_at_end=True,
        learning_rate=0.3,
        max_steps=6,
    )
    trainer.train()
    return trainer, before


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken")
    short_runs.trainer(folder).train()
    return folder


@pytest.fixture(scope="session")
def unbroken_best(tmp_path_factory) -> Path:
    """The same with evaluations; the best head is saved in "final"."""
    folder = tmp_path_factory.mktemp("best")
    done = short_runs.trainer(folder, evaluated=True)
    done.train()
    assert done.state.best_global_step == 2
    done.save_model(str(folder / "final"))
    return folder


@pytest.fixture(scope="session")
def tokenizer():
    """One word per id, with a BOS before every text."""
    words = {f"w{i}": i for i in range(VOCAB_SIZE)}
    backend = Tokenizer(models.WordLevel(words, unk_token="w3"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(single="w2 $A", special_tokens=[("w2", BOS)])
    tokens = {"pad_token": f"w{PAD}", "eos_token": f"w{EOS}", "bos_token": f"w{BOS}"}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, padding_side="left", model_input_names=["input_ids", "attention_mask"], **tokens
    )
