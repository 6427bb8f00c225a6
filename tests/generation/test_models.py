"""Models with unusual layers, devices, weights or hooks: the text is that of plain `generate`."""

import contextlib
import copy

import accelerate
import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook

from tests import versions
from tests.generation.modes import shallow
from tests.tiny import PAD, ragged_batch, tiny_head


GREEDY = {"max_new_tokens": 12, "do_sample": False}


def on_cpu(target, folder):
    return accelerate.cpu_offload(copy.deepcopy(target), execution_device=torch.device("cpu"))


def on_disk(target, folder):
    target.save_pretrained(folder / "model")
    places = {"model": "disk", "lm_head": "cpu"}
    return type(target).from_pretrained(folder / "model", device_map=places, offload_folder=folder / "layers")


@versions.MAY_WARN_OF_OFFLOADING
@pytest.mark.parametrize(("offload", "offloaded"), [(on_cpu, "target"), (on_disk, "draft")])
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


def test_compiled_drafts_are_recognised(pair):
    """Catches a check by class that refuses the wrapper of torch.compile."""
    target, draft = shallow(pair)
    target.generation_config = pair[0].generation_config
    call = {**ragged_batch(1), "max_new_tokens": 3, "do_sample": False}
    compiled = torch.compile(draft, backend="eager")
    ours = target.generate(**call, assistant_model=compiled, verifier="lossless")
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


@pytest.mark.parametrize(
    ("install", "is_draft"), [(install_hook, True), (install_global_hook, False), (replace_forward, False)]
)
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
