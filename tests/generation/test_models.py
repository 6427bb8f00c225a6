"""Models with unusual layers, devices, weights or hooks: the text is that of plain `generate`."""

import contextlib
import copy

import accelerate
import pytest
import torch
import transformers as tf
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils.parametrizations import weight_norm
from torch.utils._python_dispatch import return_and_correct_aliasing

from tests import versions
from tests.tiny import BOS, EOS, PAD, VOCAB_SIZE, ragged_batch, sharpen, tiny_draft, tiny_head, tiny_model


GREEDY = {"max_new_tokens": 12, "do_sample": False}


def on_cpu(target, folder):
    return accelerate.cpu_offload(copy.deepcopy(target), execution_device=torch.device("cpu"))


def on_disk(target, folder):
    target.save_pretrained(folder / "model")
    places = {"model": "disk", "lm_head": "cpu"}
    return type(target).from_pretrained(folder / "model", device_map=places, offload_folder=folder / "layers")


@versions.MAY_WARN_OF_OFFLOADING
@pytest.mark.parametrize("offload", [on_cpu, on_disk])
@pytest.mark.parametrize("offloaded", ["target", "draft"])
def test_offloaded_models(pair, offload, offloaded, tmp_path):
    """Catches inputs sent to "meta", the apparent device of an offloaded model's parameters."""
    models = dict(zip(("target", "draft"), pair))
    expected = models["target"].generate(**ragged_batch(), **GREEDY)
    models[offloaded] = offload(models[offloaded], tmp_path)
    models[offloaded].generation_config = pair[0].generation_config
    assert models[offloaded].device.type == "meta"
    ours = models["target"].generate(**ragged_batch(), **GREEDY, assistant_model=models["draft"], verifier="lossless")
    assert torch.equal(ours, expected)


@versions.MAY_WARN_OF_OFFLOADING
def test_a_head_by_name_is_on_the_device_of_an_offloaded_target(pair, tmp_path):
    """Catches a head on "meta", where it has no weights."""
    tiny_head().save_pretrained(tmp_path / "head")
    call = {**ragged_batch(), **GREEDY, "assistant_model": pair[1], "diversed_head": str(tmp_path / "head")}
    target = on_cpu(pair[0], tmp_path)
    target.generation_config = pair[0].generation_config
    assert torch.equal(target.generate(**call), pair[0].generate(**call))


def test_a_decoder_is_counted_by_its_own_layers():
    """Catches `num_hidden_layers`, which in Bart's configuration is the number of encoder layers."""
    torch.manual_seed(0)
    sizes = {"d_model": 32, "decoder_attention_heads": 4, "decoder_ffn_dim": 48, "max_position_embeddings": 128}
    ids = {"pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": BOS, "vocab_size": VOCAB_SIZE}
    layers = {"encoder_layers": 1, "decoder_layers": 2, "is_decoder": True, "is_encoder_decoder": False}
    target = tf.BartForCausalLM(tf.BartConfig(**sizes, **ids, **layers, tie_word_embeddings=False)).eval()
    target.generation_config = tiny_model().generation_config
    sharpen(target)
    for row in ragged_batch(3)["input_ids"]:
        plain = target.generate(row[None], **GREEDY, use_cache=False)  # upstream's own cache trips over it, too
        ours = target.generate(row[None], **GREEDY, assistant_model=tiny_draft(target), verifier="lossless")
        assert torch.equal(ours, plain)


def test_compiled_drafts_are_recognised(pair):
    """Catches a check by class that refuses the wrapper of torch.compile."""
    target, draft = pair
    compiled, call = (
        torch.compile(draft, backend="eager"),
        {**ragged_batch(1), "max_new_tokens": 3, "do_sample": False},
    )
    ours = target.generate(**call, assistant_model=compiled, verifier="lossless")
    assert torch.equal(ours, target.generate(**call))


def test_parametrized_layers(pair):
    """Catches a view made by `copy`, which such modules do not support."""
    target = copy.deepcopy(pair[0])
    weight_norm(target.model.layers[0].mlp.up_proj)
    call = {**ragged_batch(), **GREEDY, "assistant_model": pair[1]}
    ours = target.generate(**call, diversed_head=tiny_head(), diversed_strictness=1.0)
    assert torch.equal(ours, target.generate(**ragged_batch(), **GREEDY))


class Packed(torch.Tensor):
    """A weight that wraps another tensor, as quantized ones do; its linear is a product with its transpose."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return args[0] @ args[1].t() if func is torch.nn.functional.linear else func(*args, **kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        plain = [each.inner if isinstance(each, Packed) else each for each in args]
        out = func(*plain, **kwargs or {})
        if func not in (torch.ops.aten.t.default, torch.ops.aten.detach.default):
            return out
        return return_and_correct_aliasing(func, args, kwargs or {}, Packed(out))


def test_weights_that_are_tensor_subclasses(pair):
    """Catches inference mode, in which views of such weights cannot be created."""
    target = copy.deepcopy(pair[0])
    for module in target.model.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight = torch.nn.Parameter(Packed(module.weight.detach()), requires_grad=False)
    call = {**ragged_batch(), **GREEDY}
    ours = target.generate(**call, assistant_model=pair[1], verifier="lossless")
    assert torch.equal(ours, target.generate(**call))


def install_hook(model, hook, monkeypatch):
    return model.model.layers[0].mlp.register_forward_hook(hook)


def install_global_hook(model, hook, monkeypatch):
    layer = model.model.layers[0].mlp
    return register_module_forward_hook(lambda module, args, out: hook(module, args, out) if module is layer else None)


def replace_forward(model, hook, monkeypatch):
    layer = model.model.layers[0].mlp
    plain = layer.forward
    monkeypatch.setattr(layer, "forward", lambda x: hook(layer, (x,), plain(x)))
    return contextlib.nullcontext()


INSTALLERS = [install_hook, install_global_hook, replace_forward]


@pytest.mark.parametrize("is_draft", [False, True], ids=["target", "draft"])
@pytest.mark.parametrize("install", INSTALLERS)
def test_code_in_models_that_indexes_rows(pair, install, is_draft, monkeypatch):
    """Catches equal prompts that share a row, and rows that are removed or added as padding."""
    target, draft = map(copy.deepcopy, pair)
    batch_size, sizes = 3, set()
    steering = 3.0 * torch.randn(batch_size, 1, 32, generator=torch.Generator().manual_seed(0))

    def steer(module, args, output):
        sizes.add(len(output))
        return output + steering

    ids = ragged_batch(1)["input_ids"].repeat(batch_size, 1)
    mask = torch.ones_like(ids)
    mask[-1, :4] = 0
    call = {"input_ids": ids, "attention_mask": mask, **GREEDY, "disable_compile": True}
    with install(draft if is_draft else target, steer, monkeypatch):
        text = target.generate(**call)[:, ids.shape[1] :]
        call["eos_token_id"] = text[0, 2:4].tolist()
        expected = target.generate(**call)
        options = {"cache_implementation": "static", "return_dict_in_generate": True}
        out = target.generate(**call, **options, assistant_model=draft, verifier="lossless")
    assert torch.equal(out.sequences, expected)
    assert sizes == {batch_size}
    assert len(expected[:, ids.shape[1] :].ne(PAD).sum(dim=1).unique()) > 1  # rows end at different lengths
    assert out.stats.engine == "eager"


@pytest.mark.parametrize("install", [install_hook, install_global_hook])
def test_hooks_that_compare_modules(pair, install, monkeypatch):
    """Catches a copy of the module tree, whose modules a hook does not recognise, where hidden states are kept."""
    target, draft = map(copy.deepcopy, pair)
    steering = {target.model.layers[0].mlp: 3.0 * torch.randn(32, generator=torch.Generator().manual_seed(0))}
    call = {**ragged_batch(1), **GREEDY}
    plain = target.generate(**call)
    with install(target, lambda module, args, output: output + steering.get(module, 0.0), monkeypatch):
        expected = target.generate(**call)
        ours = target.generate(**call, assistant_model=draft, diversed_head=tiny_head(), diversed_strictness=1.0)
    assert not torch.equal(expected, plain)
    assert torch.equal(ours, expected)
