"""Draft models with another tokenizer raise an error, without a request to the Hub and with one comparison only."""

import logging
import shutil

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from hf_diversed.generation import tokenizer_checks as checking
from tests.tiny import EOS, PAD, tiny_model


TEXTS = (
    ["the quick brown fox jumps over the lazy dog", "pack my box with five dozen liquor jugs"],
    ["numbers like twelve and seventy", "how vexingly quick daft zebras jump"],
)


def trained(text: list[str], size: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer trained on a text, with at most `size` ids."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(
        text, trainers.BpeTrainer(vocab_size=size, special_tokens=["<pad>", "<eos>", "<unk>"])
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def saved(folder, tokenizer, size: int = 64):
    """Return a model of `size` ids that was saved with a tokenizer, and loaded."""
    model = tiny_model()
    model.resize_token_embeddings(size)
    model.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def decode(target, draft, **call):
    ids = torch.tensor([[5, 6, 7, 8]])
    call = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": PAD, "eos_token_id": EOS, **call}
    return target.generate(ids, assistant_model=draft, verifier="static:0.1", **call)


@pytest.mark.parametrize("draft_size", [64, 60])
def test_another_tokenizer_beside_the_draft_is_refused(tmp_path, draft_size, monkeypatch):
    """Catches a draft model whose ids are other tokens: at a low weight every draft token was accepted."""
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("asked the network"))
    first, second = (trained(text, 60) for text in TEXTS)
    target = saved(tmp_path / "target", first)
    draft = saved(tmp_path / "draft", second, draft_size)
    with pytest.raises(ValueError, match=r"different tokenizers \(id \d+ is '.*' for the target"):
        decode(target, draft)
    same = saved(tmp_path / "same", first, draft_size)
    assert decode(target, same).shape == (1, 10)


@pytest.mark.parametrize("commits", [["v1"], ["v1", "v2"]])
def test_tokenizers_of_commits_in_the_cache_are_compared(tmp_path, commits, monkeypatch):
    """Catches models that were loaded by `revision=`: transformers does not record the commit."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    models = [saved(tmp_path / name, None) for name in ("a", "b")]
    for name, model, text in zip(("a", "b"), models, TEXTS):
        model.name_or_path = f"org/{name}"
        for commit in commits:
            trained(text, 60).save_pretrained(tmp_path / "cache" / f"models--org--{name}" / "snapshots" / commit)
    with pytest.raises(ValueError, match="different tokenizers"):
        decode(*models)
    changed = tmp_path / "cache" / "models--org--b" / "snapshots" / "v0"
    trained(TEXTS[0], 60).save_pretrained(changed)  # now the tokenizer of the loaded commit is unknown
    assert decode(*models).shape == (1, 10)


def test_a_tokenizer_saved_after_the_first_call_is_compared(tmp_path):
    """Catches a cache of missing vocabulary files."""
    target, draft = saved(tmp_path / "target", trained(TEXTS[0], 60)), saved(tmp_path / "draft", None)
    assert decode(target, draft).shape == (1, 10)
    trained(TEXTS[1], 60).save_pretrained(tmp_path / "draft")
    with pytest.raises(ValueError, match="different tokenizers"):
        decode(target, draft)


def test_tokenizers_without_a_table_of_added_tokens():
    """Catches an AttributeError: in `MistralCommonBackend`, `added_tokens_decoder` is a method that raises."""

    class Backend:
        all_special_ids = (0, 2)

        def added_tokens_decoder(self):
            raise NotImplementedError

    assert checking._special_ids(Backend()) == {0, 2}


def test_two_versions_of_one_tokenizer_are_accepted(tmp_path):
    """Catches a comparison of sizes or of renamed special tokens: a chat model may have more tokens."""
    tuned = trained(TEXTS[0], 60)
    target, draft = saved(tmp_path / "target", tuned), saved(tmp_path / "draft", trained(TEXTS[0], 60), 62)
    tuned.add_special_tokens({"additional_special_tokens": ["<|user|>"]})
    tuned.save_pretrained(tmp_path / "tuned")
    shutil.copy(tmp_path / "tuned" / "tokenizer.json", tmp_path / "target" / "tokenizer.json")
    assert decode(target, draft).shape == (1, 10)


def test_a_passed_tokenizer_is_compared_with_a_saved_one(tmp_path):
    """Catches a check that needs both arguments: stop strings need `tokenizer=` only."""
    first, second = (trained(text, 60) for text in TEXTS)
    draft = saved(tmp_path / "draft", second)
    with pytest.raises(ValueError, match="different tokenizers"):
        decode(tiny_model(), draft, tokenizer=first)


def test_vocabularies_of_two_sizes_without_tokenizers_warn_once(caplog):
    """Catches no warning where tokenizers cannot be compared, a warning at every call, and one for equal sizes."""
    target, draft = tiny_model(), tiny_model(seed=1)
    with caplog.at_level(logging.WARNING):
        decode(target, draft)
        assert not caplog.records
        draft.resize_token_embeddings(60)
        for _ in range(2):
            decode(target, draft)
    assert [record.message.startswith("target and draft model have vocabularies") for record in caplog.records] == [
        True
    ]


def test_tokenizers_that_grow_are_compared_again():
    """Catches a stored result that is kept after a tokenizer has grown."""
    first, second = trained(TEXTS[0], 60), trained(TEXTS[0], 60)
    assert checking.difference(first, second) is None
    second.add_tokens(["new"])
    first.add_tokens(["other"])
    assert "is 'other' for the target and 'new'" in checking.difference(first, second)
