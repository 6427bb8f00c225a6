"""Results do not depend on torch's default dtype and device: random numbers, probabilities and buffers name theirs."""

import ast
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import hf_diversed
from tests.generation.modes import STATIC, shallow
from tests.generation.test_equals_reference import VERIFIERS
from tests.tiny import SAMPLED, generate, ragged_batch
from tests.verifier_cases import DISTRIBUTION_CASES, Probs, enumerate_emitted, make_block


PACKAGE = Path(hf_diversed.__file__).parent
# Constructors whose result has the default dtype, whatever their other arguments are.
CONSTRUCTORS = {"empty", "eye", "full", "linspace", "logspace", "normal", "ones", "rand", "randn", "scalar_tensor"}
CONSTRUCTORS |= {"empty_strided", "zeros"}
RETURNED = {"max_new_tokens": 4, "output_scores": True, "output_logits": True}
LOOKUP = {"assistant_model": None, "prompt_lookup_num_tokens": 3, "no_repeat_ngram_size": 3}


every_verifier = pytest.mark.parametrize(
    ("name", "mode"), [*((name, {}) for name in VERIFIERS), *((name, STATIC) for name in ("lossless", "token-bounds"))]
)


def supported(verifier) -> Iterator[dict]:
    """Yield settings of calls that the verifier supports: greedy, sampled, prompt lookup."""
    for settings in ({"do_sample": False}, {}, LOOKUP):
        needs_model = verifier.needs_hidden_states is True or verifier.needs_draft_confidence
        if not (settings is LOOKUP and needs_model):
            yield settings


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class Flagging(TorchDispatchMode):
    """Records the lines of the library that create a bfloat16 tensor from tensors of other dtypes."""

    def __init__(self):
        super().__init__()
        self.lines: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **kwargs or {})
        if has_half(out) and not has_half((args, kwargs)):
            caller = next(each for each in reversed(traceback.extract_stack()) if not is_in_torch(each))
            if Path(caller.filename).is_relative_to(PACKAGE):
                self.lines.add(f"{Path(caller.filename).relative_to(PACKAGE)}:{caller.lineno}: {caller.line}")
        return out


def is_in_torch(frame: traceback.FrameSummary) -> bool:
    return frame.name == "__torch_dispatch__" or Path(frame.filename).is_relative_to(Path(torch.__file__).parent)


def has_half(values) -> bool:
    if isinstance(values, torch.Tensor):
        return values.dtype == torch.bfloat16
    return any(has_half(leaf) for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))


def test_constructors_name_their_dtype():
    """Catches a constructor that takes the default dtype. `torch.tensor` and `arange` may make integers."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            is_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
            if is_torch and node.func.attr in CONSTRUCTORS and "dtype" not in {item.arg for item in node.keywords}:
                found.append(f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


@pytest.mark.parametrize("case", DISTRIBUTION_CASES, ids=lambda case: case.id)
def test_emitted_distributions(case):
    """Catches a verifier that computes in the default dtype."""
    verifier, (draft, target) = case.make(), make_block()
    with default_dtype(torch.bfloat16):
        found = enumerate_emitted(verifier, draft, target)
    expected = case.emitted(Probs.of(draft, target, found.weight))
    torch.testing.assert_close(found.emitted, expected, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("mode", [{}, STATIC], ids=["eager", "static"])
@pytest.mark.parametrize(
    ("dtype", "num_prompts"), [(torch.bfloat16, 1), (torch.bfloat16, 4), (torch.float64, 1), (torch.float64, 4)]
)
def test_a_seed_gives_the_same_text(pair, mode, dtype, num_prompts):
    """Catches random numbers of 8 or 11 bits, which distort the distribution, and float64, which changes the text."""
    outputs = []
    prompts = {"input_ids": torch.arange(4, 4 + 6 * num_prompts).view(num_prompts, 6)}
    prompts["attention_mask"] = torch.ones_like(prompts["input_ids"])
    for default in (torch.float32, dtype):
        with default_dtype(default):
            torch.manual_seed(0)
            outputs.append(generate(pair, verifier="lossless", max_new_tokens=40, **prompts, **mode))
    first, second = outputs
    assert torch.equal(first.sequences, second.sequences)
    assert first.stats == second.stats


def test_a_tensor_of_the_default_dtype_is_listed():
    """Catches a mode that records nothing, so that the next test could not fail."""
    code, flagging = compile("torch.arange(2) * 0.5", PACKAGE / "example.py", "exec"), Flagging()
    with default_dtype(torch.bfloat16), flagging:
        exec(code)
    assert flagging.lines == {"example.py:1: "}


@every_verifier
def test_no_tensor_takes_the_default_dtype(pair, name, mode):
    """Catches all other ways to the default dtype: lists of floats, and integers or booleans combined with floats."""
    pair, verifier, flagging = shallow(pair), VERIFIERS[name](), Flagging()
    for settings in supported(verifier):
        with default_dtype(torch.bfloat16), flagging:
            generate(pair, **{"verifier": verifier, "output_token_records": True, **RETURNED, **settings}, **mode)
    assert flagging.lines == set()


@every_verifier
def test_no_tensor_is_created_on_the_default_device(pair, name, mode):
    """Catches tensors on the default device, such as a GPU, that are combined with those of models on another."""
    (target, draft), verifier = shallow(pair), VERIFIERS[name]()
    for settings in supported(verifier):
        call = {**ragged_batch(), **SAMPLED, "assistant_model": draft, "verifier": verifier, **RETURNED}
        call |= {"output_token_records": True, "return_dict_in_generate": True, **settings, **mode}
        outputs = []
        for device in ("cpu", "meta"):
            torch.manual_seed(0)
            with torch.device(device):
                outputs.append(target.generate(**call))
        expected, found = outputs
        assert torch.equal(found.sequences, expected.sequences)
        assert torch.equal(found.token_records.source, expected.token_records.source)
