"""JSON by a grammar with state, `examples/json_grammar.py`, under every verifier on the embedded pair."""

import json
import runpy
from pathlib import Path

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList
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
    return [task.prompt(record) for record in load_records(task, "test", 50)]


def make(name: str, pair):
    if name == "diversed":
        return DiversedVerifier(pair.heads["math"])
    if name == "phase":
        begin, end = pair.tokenizer.convert_tokens_to_ids([":", ","])
        return PhaseVerifier(StaticEnsembleVerifier(0.2), begin=begin, end=end)
    return build_verifier(name)


def decode(pair, index, prompts, processor=None, **call):
    """Return the output and the texts of one call with a processor of its own."""
    inputs = pair.tokenizer(list(prompts), return_tensors="pt", padding=True)
    length = inputs["input_ids"].shape[1]
    processor = processor or EXAMPLE["GrammarProcessor"](index, length)
    call = {**CALL, "logits_processor": LogitsProcessorList([processor]), **call}
    out = pair.target.generate(**inputs, **call)
    return out, pair.tokenizer.batch_decode(out.sequences[:, length:], skip_special_tokens=True)


def check_json(text: str) -> None:
    found = json.loads(text)
    assert list(found) == ["answer", "unit", "note"]
    assert isinstance(found["answer"], int)
    assert found["unit"] in ("dollars", "pens", None)
    assert len(found["note"]) <= 8


def check_verifier(name, pair, index, prompts, batch_size) -> None:
    torch.manual_seed(0)
    verifier, accepted, rejected = make(name, pair), 0, 0
    for start in range(0, len(prompts), batch_size):
        out, texts = decode(
            pair,
            index,
            prompts[start : start + batch_size],
            assistant_model=pair.draft,
            verifier=verifier,
            do_sample=not verifier.greedy_only,
        )
        for text in texts:
            check_json(text)
        accepted, rejected = accepted + out.stats.num_accepted, rejected + out.stats.num_rejected
    assert accepted > 0
    assert rejected > 0  # so the grammar's state was rolled back


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("name", NAMES)
def test_every_verifier_emits_json(name, pair, index, prompts, batch_size):
    """Catches draft tokens that the grammar forbids, residual tokens from unprocessed scores, and a state that keeps
    rejected draft tokens."""
    check_verifier(name, pair, index, prompts[:4], batch_size)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("name", NAMES)
def test_every_verifier_emits_json_on_many_prompts(name, pair, index, prompts, batch_size):
    """The same on 50 prompts."""
    check_verifier(name, pair, index, prompts, batch_size)


@pytest.mark.parametrize("source", ["draft", "lookup"])
def test_lossless_json_is_that_of_plain_generate(pair, index, prompts, source):
    """Catches a grammar that is applied at another position than without draft tokens, in rows of a batch."""
    given = {"assistant_model": pair.draft} if source == "draft" else {"prompt_lookup_num_tokens": 4}
    plain, _ = decode(pair, index, prompts[:8], do_sample=False)
    out, texts = decode(pair, index, prompts[:8], do_sample=False, verifier="lossless", **given)
    assert torch.equal(out.sequences, plain.sequences)
    assert len(set(texts)) > 1


class OneTokenPerCall(LogitsProcessor):
    """A grammar processor for plain `generate`: every call after the first one reads one more token."""

    def __init__(self, index):
        self.index, self.states = index, None

    def __call__(self, input_ids, scores):
        if self.states is None:
            self.states = [self.index.get_initial_state()] * len(scores)
        else:
            self.states = [
                state and self.index.get_next_state(state, token)
                for state, token in zip(self.states, input_ids[:, -1].tolist())
            ]
        allowed = torch.zeros_like(scores, dtype=torch.bool)
        for row, state in enumerate(self.states):
            allowed[row, self.index.get_allowed_tokens(state) if state else slice(None)] = True
        return scores.masked_fill(~allowed, -torch.inf)


def test_a_state_by_calls_does_not_work(pair, index, prompts):
    """Shows that the tests above need the state to follow the ids: counted calls give valid JSON in plain decoding,
    and not with draft tokens."""
    _, plain = decode(pair, index, prompts[:1], OneTokenPerCall(index), do_sample=False)
    check_json(plain[0])
    given = {"assistant_model": pair.draft, "verifier": "lossless", "do_sample": False}
    _, drafted = decode(pair, index, prompts[:1], OneTokenPerCall(index), **given)
    assert drafted != plain


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


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("name", ["lossless", "lenience:0.3", "mars", "diversed"])
def test_tool_calls_by_the_chat_template(name, pair, batch_size):
    """Catches calls of unknown tools and arguments of other types, in a prompt that a chat template renders."""
    tool = get_json_schema(add)
    numbers = {key: {"type": "integer", "maxDigits": 2} for key in tool["function"]["parameters"]["properties"]}
    arguments = {"type": "object", "properties": numbers, "required": list(numbers)}
    call = {"type": "object", "properties": {"name": {"enum": ["add"]}, "arguments": arguments}}
    index = EXAMPLE["build_index"](call | {"required": ["name", "arguments"]}, pair.tokenizer)
    chats = [[{"role": "user", "content": f"What is {n} plus 7?"}] for n in range(batch_size)]
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
