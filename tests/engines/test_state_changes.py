"""Random changes of state between compiled calls; each call must return the eager engine's result.

Autocast, strides and the number of threads change results by rounding only; `test_compiling.py` covers them.
"""

import copy
import functools
import os
import random
from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from transformers import SuppressTokensLogitsProcessor
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

from hf_diversed import DiversedHead, DiversedVerifier, StaticEnsembleVerifier
from hf_diversed.verifiers import DistributionVerifier
from hf_diversed.verifiers.mixture import Weights
from tests.engines.modes import TRACED, decode, run_new_code_untraced
from tests.tiny import PAD, ragged_batch, tiny_draft, tiny_head, tiny_model


STEPS_PER_WALK = 25
NUM_WALKS = -(-int(os.environ.get("FUZZ_CASES", "500")) // STEPS_PER_WALK)
WEIGHTS = (0.0, 0.6, 1.0)
SHORT = {"num_assistant_tokens": 1, "max_new_tokens": 8}


def mix(p, q, w):
    return w * p + (1 - w) * q


class Mixing(DistributionVerifier):
    """Mixes the two distributions with a weight that subclasses store in different places."""

    def weight_now(self):
        return self.weight

    def emitted_probs(self, draft, target):
        return mix(target.probs()[:, :-1], draft.probs(), self.weight_now())


class InAttribute(Mixing):
    def __init__(self, weight):
        self.weight = weight


class InPartial(Mixing):
    def __init__(self, weight):
        self.mix = functools.partial(mix, w=weight)

    def emitted_probs(self, draft, target):
        return self.mix(target.probs()[:, :-1], draft.probs())


class InClosure(Mixing):
    def __init__(self, weight):
        self.weight_now = lambda: weight


@dataclass(slots=True)
class Slots:
    weight: float


class InSlots(Mixing):
    slots = Slots(0.0)

    def __init__(self, weight):
        self.slots.weight = weight

    def weight_now(self):
        return self.slots.weight


class OnClass(Mixing):
    def __init__(self, weight):
        type(self).weight = weight


GLOBAL_WEIGHT = 0.0


class InGlobal(Mixing):
    def __init__(self, weight):
        globals()["GLOBAL_WEIGHT"] = weight

    def weight_now(self):
        return GLOBAL_WEIGHT


def without_first(self, input_ids, scores):
    return scores.masked_fill(torch.arange(scores.shape[-1], device=scores.device) < 20, -torch.inf)


def negated(forward):
    return lambda self, *args, **kwargs: -forward(self, *args, **kwargs)


def unscaled(self, hidden_states):
    return hidden_states * self.weight


def equal_weights(self, draft, target, row_values):
    return Weights(torch.full(draft.tokens.shape, 0.5, dtype=torch.float32))


def relaxed(self, draft, target):
    return draft.probs()


def swapped_mix(p, q, w):
    return w * q + (1 - w) * p


# Attributes of classes, with their values: functions that are replaced. The first value is the original one.
REPLACED = [
    (LlamaMLP, "forward", [LlamaMLP.forward, negated(LlamaMLP.forward)]),
    (nn.Linear, "forward", [nn.Linear.forward, negated(nn.Linear.forward)]),
    (DiversedHead, "forward", [DiversedHead.forward, negated(DiversedHead.forward)]),
    (DiversedVerifier, "weights", [DiversedVerifier.weights, equal_weights]),
    (Mixing, "emitted_probs", [Mixing.emitted_probs, relaxed]),
    (Mixing, "weight_now", [Mixing.weight_now, lambda self: 0.8, lambda self: 0.0]),
    (SuppressTokensLogitsProcessor, "__call__", [SuppressTokensLogitsProcessor.__call__, without_first]),
]
# Functions whose code object is replaced in place, as `%autoreload` does.
EDITED = [
    (LlamaRMSNorm.forward, unscaled),
    (Mixing.emitted_probs, relaxed),
    (InPartial.emitted_probs, relaxed),
    (Mixing.weight_now, lambda self: 0.8),
    (mix, swapped_mix),
]
CODES = [(function, [function.__code__, other.__code__]) for function, other in EDITED]


class Walk:
    """A pair, a verifier and global settings; every method below `__init__` changes one of them at random."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        torch.manual_seed(seed)
        self.target = tiny_model("llama")
        self.target.model.layers = self.target.model.layers[:1]  # halves the tracing time
        self.target.config.num_hidden_layers = 1
        self.draft = tiny_draft(self.target)
        self.own_head = self.draft.lm_head.weight
        inject_adapter_in_model(LoraConfig(target_modules=["q_proj"], init_lora_weights=False), self.target)
        self._adapters = [each for each in self.target.modules() if isinstance(each, BaseTunerLayer)]
        self._adapters[0].enable_adapters(False)
        self.head = tiny_head()
        self.verifier = StaticEnsembleVerifier(0.6)
        self.context, self.handles, self.global_handles = nullcontext, [], []
        self.default_dtype = torch.float32
        self._patches = pytest.MonkeyPatch()

    def undo(self):
        """Restore everything that other tests share."""
        self._patches.undo()
        for handle in self.global_handles:
            handle.remove()

    def class_function(self):
        owner, name, values = self.random.choice(REPLACED)
        self._patches.setattr(owner, name, self.random.choice(values))

    def code_in_place(self):
        function, codes = self.random.choice(CODES)
        self._patches.setattr(function, "__code__", self.random.choice(codes))

    def free_function(self):
        self._patches.setitem(globals(), "mix", self.random.choice([mix, swapped_mix]))

    def bound_to_instance(self):
        weight = self.random.choice(WEIGHTS)
        self.verifier.weight_now = lambda: weight

    def global_hook(self):
        if self.global_handles:
            self.global_handles.pop().remove()
            return
        kind = self.random.choice(["pre", "forward"])
        if kind == "pre":
            hook = register_module_forward_pre_hook(
                lambda module, inputs: (-inputs[0],) if isinstance(module, LlamaMLP) else None
            )
        else:
            hook = register_module_forward_hook(
                lambda module, inputs, output: output.roll(1, -1) if isinstance(module, LlamaRMSNorm) else None
            )
        self.global_handles.append(hook)

    def changed_default_dtype(self):
        self.default_dtype = self.random.choice([torch.float32, torch.float64, torch.bfloat16])

    def weights_in_place(self):
        with torch.no_grad():
            weight = self.random.choice([self.target, self.draft]).lm_head.weight
            weight.copy_(weight.roll(1, 0))

    def new_parameter(self):
        model = self.random.choice([self.target, self.draft])
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().roll(3, 0).contiguous())

    def tying(self):
        embedding = self.target.get_input_embeddings().weight
        tied = self.target.lm_head.weight is embedding
        self.target.lm_head.weight = nn.Parameter(embedding.detach().flip(0)) if tied else embedding

    def shared_head(self):
        shares = self.draft.lm_head.weight is self.target.lm_head.weight
        self.draft.lm_head.weight = self.own_head if shares else self.target.lm_head.weight

    def dtype(self):
        other = torch.float32 if self.target.dtype == torch.float64 else torch.float64
        for model in (self.target, self.draft):
            model.to(other)
        self.own_head = nn.Parameter(self.own_head.detach().to(other))

    def constant(self):
        self.target.model.norm.variance_epsilon = self.random.choice([1e-6, 0.5])

    def hooks(self):
        if self.handles:
            self.handles.pop().remove()
        else:
            module = self.random.choice([self.target, self.draft]).model.norm
            self.handles.append(module.register_forward_hook(lambda module, inputs, output: output.roll(1, -1)))

    def adapters(self):
        self._adapters[0].enable_adapters(self.random.choice([True, False]))

    def grad_mode(self):
        self.context = self.random.choice([nullcontext, torch.enable_grad, torch.no_grad, torch.inference_mode])

    def layers(self):
        for model in (self.target, self.draft):
            model.model.layers = nn.ModuleList([*model.model.layers, copy.deepcopy(model.model.layers[0])][:2])
            model.model.layers[-1].self_attn.layer_idx = len(model.model.layers) - 1
            model.config.num_hidden_layers = len(model.model.layers)

    def verifier_setting(self):
        kind = self.random.choice([InAttribute, InPartial, InClosure, InSlots, OnClass, InGlobal])
        self.verifier = kind(self.random.choice(WEIGHTS))

    def library_verifier(self):
        weight = self.random.choice(WEIGHTS)
        self.verifier = self.random.choice(
            [StaticEnsembleVerifier(weight), DiversedVerifier(self.head), DiversedVerifier(self.head, max_bias=0.1)]
        )

    def setting_in_place(self):
        self.verifier.weight = self.random.choice(WEIGHTS)

    def head_in_place(self):
        with torch.no_grad():
            for parameter in self.head.parameters():
                parameter.add_(self.random.choice([-1.0, 1.0]))


CHANGES = [name for name in vars(Walk) if not name.startswith("_") and name != "undo"]


def take_steps(seed: int, steps: int) -> None:
    """Apply every change once in random order, then random ones."""
    walk = Walk(seed)
    order, done = walk.random.sample(CHANGES, len(CHANGES)), ["start"]
    try:
        for index in range(steps):
            if index:
                done.append(order.pop() if order else walk.random.choice(CHANGES))
                getattr(walk, done[-1])()
            torch.set_default_dtype(walk.default_dtype)
            pair, settings = (walk.target, walk.draft), {**SHORT, "suppress_tokens": [PAD]}
            with walk.context():
                expected = decode(pair, {}, walk.verifier, ragged_batch(2), **settings)
                out = decode(pair, TRACED, walk.verifier, ragged_batch(2), **settings)
            assert out.stats.engine == "compiled", done
            assert torch.equal(out.sequences, expected.sequences), (seed, done)
            assert out.stats.num_accepted == expected.stats.num_accepted, (seed, done)
    finally:
        walk.undo()
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("kind", [InAttribute, InPartial, InClosure, InSlots, OnClass, InGlobal])
def test_a_verifiers_setting_is_seen_wherever_it_is_stored(pair, kind, monkeypatch):
    """Catches a compiled round that keeps the first value of a setting."""
    accepted = []
    for weight in (1.0, 0.0):
        verifier = kind(weight)
        expected, out = decode(pair, {}, verifier, **SHORT), decode(pair, TRACED, verifier, **SHORT)
        assert out.stats.engine == "compiled"
        assert out.stats.num_accepted == expected.stats.num_accepted
        accepted.append(out.stats.num_accepted)
        run_new_code_untraced(monkeypatch)
    assert accepted[0] < accepted[1]


def test_compiled_calls_follow_changes_of_state():
    """Catches state that a compiled function keeps: weights, tying, dtype, hooks, settings, modes."""
    take_steps(seed=237, steps=1 + len(CHANGES))  # 13 of the 20 changes alter tokens or acceptance, more than usual


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, NUM_WALKS + 1))
def test_many_changes_of_state(seed):
    """The same with 500 changes (FUZZ_CASES sets another number)."""
    take_steps(seed, STEPS_PER_WALK)
