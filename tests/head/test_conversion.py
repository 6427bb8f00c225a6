"""Heads in the authors' format, written by these tests: the softmax of their linear layer against our sigmoid."""

import json
import pickle

import pytest
import torch

import hf_diversed
from hf_diversed.head.conversion import convert_head
from tests.tiny import ragged_batch, tiny_draft, tiny_model


TARGET_WIDTH, DRAFT_WIDTH = 12, 7
WIDTH = TARGET_WIDTH + DRAFT_WIDTH


def original_state(dtype=torch.bfloat16, width=WIDTH, scale=0.5):
    generator = torch.Generator().manual_seed(0)
    weight, bias = (scale * torch.randn(shape, generator=generator) for shape in ((2, width), (2,)))
    return {"summary.weight": weight.to(dtype), "summary.bias": bias.to(dtype)}


@pytest.fixture
def folder(tmp_path):
    torch.save(original_state(), tmp_path / "ensemble_head.bin")
    return tmp_path


def write_config(folder, **entries):
    (folder / "ensemble_config.json").write_text(json.dumps(entries))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_weight_is_the_originals_softmax(dtype, tmp_path):
    """Catches a wrong order of concatenation, the wrong class, a lost bias, and normalised inputs."""
    state = original_state(dtype)
    torch.save(state, tmp_path / "ensemble_head.bin")
    head = convert_head(tmp_path / "ensemble_head.bin", target_hidden_size=TARGET_WIDTH)
    generator = torch.Generator().manual_seed(1)
    target, draft = (3.0 * torch.randn(50, width, generator=generator) + 1.0 for width in (TARGET_WIDTH, DRAFT_WIDTH))
    logits = torch.cat([draft, target], dim=-1) @ state["summary.weight"].float().T + state["summary.bias"].float()
    expected = logits.softmax(-1)[:, 1]
    assert expected.min() < 0.1
    assert expected.max() > 0.9
    torch.testing.assert_close(torch.sigmoid(head(target, draft)), expected, atol=1e-5, rtol=0)
    head.save_pretrained(tmp_path / "converted")
    again = hf_diversed.DiversedHead.from_pretrained(tmp_path / "converted")
    assert torch.equal(again(target, draft), head(target, draft))


@pytest.mark.parametrize("known", [{"target_hidden_size": 12}, {"draft_hidden_size": 7}, {}])
def test_sizes_come_from_arguments_or_config(folder, known):
    """Catches a config that is not read, and one that overrides arguments."""
    write_config(folder, target_hidden_size=12, target_model_path="org/target", draft_model_path="org/draft")
    config = convert_head(folder, **known, task="cnndm", base_model_name_or_path="org/other" if known else None).config
    assert (config.target_hidden_size, config.draft_hidden_size, config.task) == (12, 7, "cnndm")
    assert config.base_model_name_or_path == ("org/other" if known else "org/target")
    assert config.assistant_model_name_or_path == "org/draft"


def test_converted_head_generates(tmp_path):
    """Catches a converted head that loads but is not used: its weights must determine the emitted tokens."""
    torch.save(original_state(width=64, scale=1.0), tmp_path / "ensemble_head.bin")
    head = convert_head(tmp_path, target_hidden_size=32)
    target = tiny_model("llama")
    kwargs = {"max_new_tokens": 12, "do_sample": False, "return_dict_in_generate": True}
    out = target.generate(**ragged_batch(), assistant_model=tiny_draft(target), diversed_head=head, **kwargs)
    assert 0.0 < out.stats.mean_weight < 1.0
    assert out.stats.num_accepted > 0


class RunsCode:
    ran = False

    def __reduce__(self):
        return (RunsCode._run, ())

    @staticmethod
    def _run():
        RunsCode.ran = True
        return {}


def saved(content):
    return lambda path: torch.save(content, path)


def written(content: bytes):
    return lambda path: path.write_bytes(content)


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (saved({"summary.weight": torch.zeros(2, WIDTH)}), ["summary.bias", "got summary.weight"]),
        (saved({"weight": torch.zeros(2, WIDTH), "bias": torch.zeros(2)}), ["summary.weight", "got weight (Tensor)"]),
        (saved(torch.zeros(2, WIDTH)), ["summary.weight", "Tensor"]),
        (saved({"summary.weight": torch.zeros(3, WIDTH), "summary.bias": torch.zeros(3)}), ["[3, 19]", "[2]"]),
        (saved({"summary.weight": torch.zeros(2, WIDTH), "summary.bias": torch.zeros(1)}), ["[1]", "[2]"]),
        (saved({"summary.weight": torch.zeros(2 * WIDTH), "summary.bias": torch.zeros(2)}), ["[38]", "[2, width]"]),
        (saved({"summary.weight": [[0.0]], "summary.bias": torch.zeros(2)}), ["summary.weight", "list"]),
        (saved({"summary.weight": torch.full((2, WIDTH), torch.nan), "summary.bias": torch.zeros(2)}), ["finite"]),
        (saved({"summary.weight": torch.zeros(2, WIDTH), "summary.bias": torch.tensor([0, 1])}), ["finite floats"]),
        (saved(RunsCode()), ["objects other than tensors", "can execute code"]),
        (written(pickle.dumps(RunsCode(), protocol=2)), ["objects other than tensors", "can execute code"]),
        (written(b""), ["damaged"]),
        (written(b"PK\x03\x04 half a zip"), ["damaged"]),
    ],
)
def test_refuses_other_files(write, words, tmp_path):
    """Catches code that runs from a pickle, and tracebacks about shapes during conversion."""
    write(tmp_path / "ensemble_head.bin")
    with pytest.raises(ValueError, match=r"ensemble_head\.bin|summary\.weight") as raised:
        convert_head(tmp_path, target_hidden_size=TARGET_WIDTH)
    assert not RunsCode.ran
    assert all(word in str(raised.value) for word in words), raised.value


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({}, ["width, 19,", "pass target_hidden_size"]),
        ({"target_hidden_size": 12, "draft_hidden_size": 8}, ["add up to 19", "12 and 8"]),
        ({"target_hidden_size": 19}, ["add up to 19", "19 and 0"]),
        ({"draft_hidden_size": 25}, ["add up to 19", "-6 and 25"]),
    ],
)
def test_refuses_sizes_that_do_not_fit(folder, sizes, words):
    """Catches a head whose columns are split at the wrong index: it would run with wrong results."""
    with pytest.raises(ValueError, match="hidden_size") as raised:
        convert_head(folder, **sizes)
    assert all(word in str(raised.value) for word in words), raised.value


@pytest.mark.parametrize("content", ["{", "[]", "[" * 10**5, '{"target_hidden_size": "12"}'])
def test_refuses_broken_config(folder, content):
    """Catches a config that is ignored because it cannot be read."""
    (folder / "ensemble_config.json").write_text(content)
    with pytest.raises(ValueError, match=r"ensemble_config\.json|target_hidden_size must be an integer, got '12'"):
        convert_head(folder, draft_hidden_size=DRAFT_WIDTH)


def test_missing_file_is_named(tmp_path):
    """Catches an untrained head created for a missing file."""
    with pytest.raises(FileNotFoundError, match=r"ensemble_head\.bin"):
        convert_head(tmp_path)


@pytest.mark.parametrize("shape", [{"token_features": True}, {"features": "both"}, {"head_type": "mlp"}])
def test_refuses_another_shape(folder, shape):
    """Catches weights of the authors' layer copied into a head with more inputs."""
    write_config(folder, target_hidden_size=12)
    (name,) = shape
    with pytest.raises(ValueError, match=f"{name} of a converted head must be "):
        convert_head(folder, **shape)
