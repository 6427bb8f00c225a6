"""The packaged pair: what the loader returns, its size, and its agreement with its provenance."""

import hashlib
import json
import re
from itertools import islice
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from embedded.corpus import STYLES, training_examples
from hf_diversed.evaluation import EvaluationSettings, evaluate
from hf_diversed.tasks import get_task, load_records
from hf_diversed.zoo import EXAMPLE_PROMPT, load_demo_pair
from hf_diversed.zoo.loader import WEIGHTS
from tests.isolation import needs_isolation


@pytest.fixture(scope="module")
def pair():
    return load_demo_pair()


@pytest.fixture(scope="module")
def provenance():
    return json.loads((WEIGHTS / "training.json").read_text())


def test_models_are_float32_with_neutral_settings(pair, provenance):
    """Catches half precision, in which the weights are stored, and sampling settings that change the distributions."""
    for role, model in (("target", pair.target), ("draft", pair.draft)):
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        assert not model.training
        assert model.num_parameters() == provenance["training"][role]["parameters"]
        assert model.config.vocab_size == len(pair.tokenizer)
        settings = model.generation_config
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            assert getattr(settings, name) == getattr(pair.tokenizer, name)
        assert settings.do_sample is settings.temperature is settings.top_k is settings.top_p is None


def test_weights_are_those_of_the_provenance(provenance):
    for role in ("target", "draft"):
        digest = hashlib.sha256((WEIGHTS / role / "model.safetensors").read_bytes()).hexdigest()
        assert digest == provenance["training"][role]["sha256"]


def test_tokenizer_gives_text_back():
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS / "tokenizer")
    stream = training_examples({"math": 1.0}, STYLES["draft"], "round trip")
    texts = [example.prompt + example.completion for example in islice(stream, 200)]
    for text in [*texts, "  två  spaces ,\tand 007\n\n", "naïve 数 🙂", ""]:
        ids = tokenizer(text).input_ids
        assert ids[0] == tokenizer.bos_token_id
        assert tokenizer.bos_token_id not in ids[1:]
        assert tokenizer.eos_token_id not in ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_target_solves_held_out_problems(pair):
    """Catches a target that no longer solves the task; at accuracy 0.75 it fails with probability 1e-4."""
    task = get_task("math")
    records = load_records(task, "test", 24, seed=11)
    (row,) = evaluate(pair, task, records, ["target"], EvaluationSettings(batch_size=24))
    assert row["quality"] >= 10 / 24


@pytest.mark.parametrize("name", ["math", "summary", pytest.param("code", marks=needs_isolation)])
def test_every_packaged_head_relaxes_and_keeps_most(pair, name):
    """Catches a head of another pair, and one that degenerated to always-draft or always-target."""
    head = pair.heads[name]
    assert head.config.task == name
    settings = EvaluationSettings(batch_size=12)
    task = get_task(name, allow_code_execution=True)
    methods = ["lossless", "diversed"]
    rows = evaluate(pair, task, load_records(task, "test", 12, seed=12), methods, settings, head=head)
    lossless, relaxed = (row["acceptance_rate"] for row in rows)
    assert lossless < relaxed < 1.0


ANSWERS = {
    EXAMPLE_PROMPT: "11",
    "Question: An orchard has 6 rows of 16 trees. A storm breaks 34 of them. How many trees stand?\nAnswer:": "62",
}


def test_the_documented_examples_are_solved_by_the_target(pair):
    """Catches a documented problem that the target gets wrong, or whose answer does not depend on strictness."""
    root = Path(__file__).parents[2]
    files = [root / "README.md", *(root / "docs").glob("*.md"), *(root / "examples").rglob("*.py")]
    files += (root / "examples").rglob("*.ipynb")
    found = {text for path in files for text in re.findall(r'Question: [A-Z][^"\\]*\\+nAnswer:', path.read_text())}
    found = {re.sub(r"\\+n", "\n", text) for text in found if "..." not in text}
    assert found == ANSWERS.keys()

    def answer(prompt, **verifier):
        inputs = pair.tokenizer(prompt, return_tensors="pt")
        output = pair.target.generate(**inputs, **verifier, do_sample=False, max_new_tokens=100)
        text = pair.tokenizer.decode(output[0], skip_special_tokens=True)
        return re.search(r"The answer is (.*)\.", text)[1]

    assert {prompt: answer(prompt) for prompt in ANSWERS} == ANSWERS
    permissive = {"diversed_head": pair.heads["math"], "diversed_strictness": 0.0}
    assert answer(EXAMPLE_PROMPT, assistant_model=pair.draft, **permissive) != ANSWERS[EXAMPLE_PROMPT]
