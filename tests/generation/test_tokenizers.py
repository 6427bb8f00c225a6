"""Tokenizers are compared only if both are passed; a call reads no folder of a model."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from hf_diversed.generation.checks import check_tokenizers
from hf_diversed.support import model_name
from tests.tiny import EOS, PAD, tiny_draft, tiny_model


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


def decode(target, **call):
    ids = torch.tensor([[5, 6, 7, 8]])
    return target.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=PAD, eos_token_id=EOS, **call)


def test_models_whose_folder_is_gone(tmp_path, monkeypatch):
    """Catches a path that is taken for a Hub id: the folder was moved, or is relative to an earlier directory."""
    tiny_model().save_pretrained(tmp_path / "a/b/target")
    monkeypatch.chdir(tmp_path)
    given = {"./a/b/target": "target", "a/b/target": "target", str(tmp_path / "a/b/target"): "target"}
    targets = [AutoModelForCausalLM.from_pretrained(name).eval() for name in given]
    (tmp_path / "a").rename(tmp_path / "moved")
    for target, name in zip(targets, given.values()):
        ours = decode(target, assistant_model=tiny_draft(target), verifier="lossless")
        assert torch.equal(ours, decode(target))
        assert model_name(target) == name


def test_two_versions_of_one_tokenizer_are_accepted():
    """Catches a comparison of sizes or of renamed special tokens: a chat model may have more tokens."""
    first, second = trained(TEXTS[0], 60), trained(TEXTS[0], 60)
    first.add_special_tokens({"additional_special_tokens": ["<|user|>"]})
    second.add_special_tokens({"additional_special_tokens": ["<|person|>"]})
    check_tokenizers(first, second)
    with pytest.raises(ValueError, match=r"different tokenizers: id .* for the target"):
        check_tokenizers(first, trained(TEXTS[1], 60))


def test_tokenizers_without_a_table_of_added_tokens():
    """Catches an AttributeError: in `MistralCommonBackend`, `added_tokens_decoder` is a method that raises."""

    class Backend:
        all_special_ids = (0,)

        def added_tokens_decoder(self):
            raise NotImplementedError

        def __init__(self, *words):
            self.words = words

        def get_vocab(self):
            return {word: index for index, word in enumerate(self.words)}

    check_tokenizers(Backend("a", "b"), Backend("c", "b"))  # id 0 is special
    with pytest.raises(ValueError, match="id 1 is 'b' for the target and 'c' for the draft model"):
        check_tokenizers(Backend("a", "b"), Backend("a", "c"))
