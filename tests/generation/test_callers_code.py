"""Models, processors, criteria and verifiers of callers are treated as in plain `generate`."""

import contextlib
import copy
from functools import partial

import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils.parametrizations import weight_norm
from torch.utils._python_dispatch import return_and_correct_aliasing
from transformers import LogitsProcessor, LogitsProcessorList, MaxLengthCriteria, StoppingCriteria

from hf_diversed import LosslessVerifier, PhaseVerifier, StaticEnsembleVerifier, diversed_decoding
from tests.reference import Recorder
from tests.tiny import PAD, VOCAB_SIZE, ragged_batch, tiny_head


GREEDY = {"max_new_tokens": 12, "do_sample": False}


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
# Each pair of an installer, a model and a batch size; over static shapes, three rows would be padded to four.
ROW_CODE = [
    (install, is_draft, 3 + (number + is_draft) % 2)
    for number, install in enumerate(INSTALLERS)
    for is_draft in (False, True)
]


@pytest.mark.parametrize(("install", "is_draft", "batch_size"), ROW_CODE)
def test_code_in_models_that_indexes_rows(pair, install, is_draft, batch_size, monkeypatch):
    """Catches equal prompts that share a row, and rows that are removed or added as padding."""
    target, draft = map(copy.deepcopy, pair)
    steering = 3.0 * torch.randn(batch_size, 1, 32, generator=torch.Generator().manual_seed(0))
    sizes = set()

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
    assert out.stats.engine == ("static" if batch_size == 4 and install is not replace_forward else "eager")


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


class NothingAfterEos(LogitsProcessor):
    """A grammar that forbids every token after EOS."""

    def __call__(self, input_ids, scores):
        return scores.masked_fill((input_ids[:, -1] == 9)[:, None], -torch.inf)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_tokens_after_eos_may_be_forbidden(pair, batch_size):
    """Catches a check of the bonus position after an accepted EOS, where no bonus token is drawn."""
    target = pair[0]
    call = {**ragged_batch(batch_size), **GREEDY, "max_new_tokens": 40, "eos_token_id": [9, *range(10, 24)]}
    call["logits_processor"] = LogitsProcessorList([NothingAfterEos()])
    ours = target.generate(**call, assistant_model=copy.deepcopy(target), verifier="lossless")
    assert torch.equal(ours, target.generate(**call))


class EndsAtEos(LogitsProcessor):
    """A grammar matcher, which must not be called after the end of its text."""

    def __call__(self, input_ids, scores):
        assert not torch.isin(input_ids[:, 9:], torch.arange(9, 24)).any()
        return scores


@pytest.mark.parametrize("gamma", range(1, 9))
def test_a_processor_is_not_called_after_a_drafted_eos(pair, gamma):
    """Catches positions that are scored after a drafted EOS, although no row uses them."""
    target = pair[0]
    call = {**ragged_batch(1), **GREEDY, "max_new_tokens": 40, "eos_token_id": [9, *range(10, 24)]}
    call["logits_processor"] = LogitsProcessorList([EndsAtEos()])
    expected = target.generate(**call)
    assert expected.shape[1] < 49
    call |= {"assistant_model": copy.deepcopy(target), "verifier": "lossless"}
    assert torch.equal(target.generate(**call, num_assistant_tokens=gamma), expected)


class Guided(LogitsProcessor):
    """Uses gradients and stores tensors for a later loss."""

    def __init__(self):
        self.kept = []

    def __call__(self, input_ids, scores):
        self.kept.append(scores)
        with torch.enable_grad():
            shift = torch.zeros_like(scores, requires_grad=True)
            (scores + shift).logsumexp(-1).sum().backward()
        return scores + 0.1 * shift.grad


def test_processors_may_use_gradients(pair):
    """Catches tensors that cannot be used in autograd, then or later."""
    target, draft = pair
    call, guided = {**ragged_batch(), **GREEDY}, Guided()
    ours = target.generate(
        **call, logits_processor=LogitsProcessorList([guided]), assistant_model=draft, verifier="lossless"
    )
    assert torch.equal(ours, target.generate(**call, logits_processor=LogitsProcessorList([Guided()])))
    weight = torch.ones(VOCAB_SIZE, requires_grad=True)
    (guided.kept[-1] * weight).sum().backward()
    assert weight.grad is not None


class Learning(LosslessVerifier):
    """A verifier that updates parameters when it is called."""

    def __call__(self, input_ids, draft, target):
        with torch.enable_grad():
            gain = torch.ones(VOCAB_SIZE, requires_grad=True)
            (target.scores * gain).sum().backward()
        return super().__call__(input_ids, draft, target)


@pytest.mark.parametrize("wrap", [lambda inner: inner, lambda inner: PhaseVerifier(inner, inner, begin=3, end=4)])
def test_verifiers_may_use_gradients(pair, wrap):
    """Catches tensors that cannot be used in autograd, in a verifier alone or as a part of one of ours."""
    target, draft = pair
    call = {**ragged_batch(), **GREEDY}
    ours = target.generate(**call, assistant_model=draft, verifier=wrap(Learning()))
    assert torch.equal(ours, target.generate(**call))


class Watching(StoppingCriteria):
    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores, **kwargs):
        self.seen.append(input_ids.clone())
        return input_ids[:, -1] % 7 == 3


def test_criteria_receive_what_plain_generate_passes(pair):
    """Catches a row that a criterion has stopped and that is shown with EOS instead of padding a column later."""
    target, draft = pair
    plain, ours = Watching(), Watching()
    call = {**ragged_batch(6), **GREEDY, "max_new_tokens": 24}
    expected = target.generate(**call, stopping_criteria=[plain])
    found = target.generate(**call, stopping_criteria=[ours], assistant_model=draft, verifier="lossless")
    assert torch.equal(found, expected)
    assert len(ours.seen) == len(plain.seen)
    for mine, theirs in zip(ours.seen, plain.seen):
        assert torch.equal(mine, theirs)


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default `max_length`:UserWarning")
@pytest.mark.parametrize("length", [4, 8, 9])
def test_maximum_lengths_within_the_prompt(pair, length):
    """Catches a user's criterion that ends within the prompt: plain `generate` emits one token."""
    target, draft = pair
    call = {**ragged_batch(), "do_sample": False, "stopping_criteria": [MaxLengthCriteria(length)]}
    expected = target.generate(**call)
    assert torch.equal(target.generate(**call, assistant_model=draft, verifier="lossless"), expected)


class Falsy(Recorder):
    def __len__(self):
        return 0


def test_a_falsy_random_source_is_used(pair):
    """Catches `random_source or RandomSource()`."""
    target, draft = pair
    given = {"assistant_model": draft, "verifier": StaticEnsembleVerifier(0.5), "random_source": Falsy()}
    loop = partial(diversed_decoding, **given)
    target.generate(**ragged_batch(), custom_generate=loop, do_sample=True, top_k=0, max_new_tokens=8)
    assert given["random_source"].events
