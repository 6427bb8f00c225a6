"""JSON by a grammar with state, `examples/json_grammar.py`, under every verifier on the embedded pair."""

import json
import runpy
from pathlib import Path

import pytest
import torch
from transformers import LogitsProcessorList
from transformers.utils import get_json_schema

from hf_diversed import DiversedVerifier, PhaseVerifier, StaticEnsembleVerifier, load_demo_pair
from hf_diversed.tasks import get_task, load_records
from hf_diversed.verifiers import EXAMPLES, VERIFIERS, build_verifier


pytest.importorskip("outlines_core", reason="the example needs outlines-core")
EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "json_grammar.py"))
SPECS = [next(spec for spec in EXAMPLES if spec.split(":")[0] == name) for name in VERIFIERS if name not in
         ("diversed", "phase")]  # fmt: skip
NAMES = [*SPECS, "diversed", "phase"]
CALL = {"max_new_tokens": 64, "top_k": 0, "return_dict_in_generate": True}


@pytest.fixture(scope="module")
def pair():
    return load_demo_pair()


@pytest.fixture(scope="module")
def index(pair):
    return EXAMPLE["build_index"](EXAMPLE["SCHEMA"], pair.tokenizer)


@pytest.fixture(scope="module")
def prompts():
    task = get_task("math")
    return [task.prompt(record) for record in load_records(task, "test", 8)]


def make(name: str, pair):
    if name == "diversed":
        return DiversedVerifier(pair.heads["math"])
    if name == "phase":
        begin, end = pair.tokenizer.convert_tokens_to_ids([":", ","])
        return PhaseVerifier(StaticEnsembleVerifier(0.2), begin=begin, end=end)
    return build_verifier(name)


def decode(pair, index, prompts, **call):
    """Return the output and the texts of one call with a processor of its own."""
    inputs = pair.tokenizer(list(prompts), return_tensors="pt", padding=True)
    length = inputs["input_ids"].shape[1]
    processor = EXAMPLE["GrammarProcessor"](index, length)
    call = {**CALL, "logits_processor": LogitsProcessorList([processor]), **call}
    out = pair.target.generate(**inputs, **call)
    return out, pair.tokenizer.batch_decode(out.sequences[:, length:], skip_special_tokens=True)


def check_json(text: str) -> None:
    found = json.loads(text)
    assert list(found) == ["answer", "unit", "note"]
    assert isinstance(found["answer"], int)
    assert found["unit"] in ("dollars", "pens", None)
    assert len(found["note"]) <= 8


@pytest.mark.parametrize("name", NAMES)
def test_every_verifier_emits_json(name, pair, index, prompts):
    """Catches draft tokens that the grammar forbids, residual tokens from unprocessed scores, and a state that keeps
    rejected draft tokens."""
    torch.manual_seed(0)
    verifier = make(name, pair)
    call = {"assistant_model": pair.draft, "verifier": verifier, "do_sample": True}
    out, texts = decode(pair, index, prompts[:4], **call)
    for text in texts:
        check_json(text)
    assert out.stats.num_accepted > 0
    assert out.stats.num_rejected > 0  # so the grammar's state was rolled back


@pytest.mark.parametrize("source", ["draft", "lookup"])
def test_lossless_json_is_that_of_plain_generate(pair, index, prompts, source):
    """Catches a grammar that is applied at another position than without draft tokens, in rows of a batch."""
    given = {"assistant_model": pair.draft} if source == "draft" else {"prompt_lookup_num_tokens": 4}
    plain, _ = decode(pair, index, prompts, do_sample=False)
    out, texts = decode(pair, index, prompts, do_sample=False, verifier="lossless", **given)
    assert torch.equal(out.sequences, plain.sequences)
    assert len(set(texts)) > 1


def add(first: int, second: int) -> int:
    """
    Add two numbers.

    Args:
        first: a number.
        second: another number.
    """
    return first + second


TEMPLATE = (
    "{% for tool in tools %}{{ 'Tool: ' + tool.function.name + '\n' }}{% endfor %}"
    "{% for message in messages %}{% if message.tool_calls is defined %}"
    "{{ 'Call: ' + message.tool_calls[0].function.name + '\n' }}"
    "{% else %}{{ 'Question: ' + message.content + '\n' }}{% endif %}{% endfor %}Answer:"
)


@pytest.mark.parametrize("name", ["lossless", "lenience:0.3"])
def test_tool_calls_by_the_chat_template(name, pair):
    """Catches calls of unknown tools and arguments of other types, in a prompt that a chat template renders."""
    tool = get_json_schema(add)
    numbers = {key: {"type": "integer", "maxDigits": 2} for key in tool["function"]["parameters"]["properties"]}
    arguments = {"type": "object", "properties": numbers, "required": list(numbers)}
    call = {"type": "object", "properties": {"name": {"enum": ["add"]}, "arguments": arguments}}
    index = EXAMPLE["build_index"](call | {"required": ["name", "arguments"]}, pair.tokenizer)
    chats = [[{"role": "user", "content": f"What is {n} plus 7?"}] for n in range(4)]
    rendered = pair.tokenizer.apply_chat_template(chats, tools=[tool], chat_template=TEMPLATE, tokenize=False)
    torch.manual_seed(0)
    options = {"assistant_model": pair.draft, "verifier": make(name, pair), "do_sample": True}
    _, texts = decode(pair, index, rendered, **options)
    for chat, text in zip(chats, texts):
        found = json.loads(text)
        assert isinstance(add(**found["arguments"]), int)
        chat.append({"role": "assistant", "tool_calls": [{"type": "function", "function": found}]})
        again = pair.tokenizer.apply_chat_template(chat, tools=[tool], chat_template=TEMPLATE, tokenize=False)
        assert again.endswith("Call: add\nAnswer:")
