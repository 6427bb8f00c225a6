"""Draft models made of a target's layers: what is copied, which tokens are kept, and decoding with them."""

import json
import subprocess
import sys
from collections import Counter

import pytest
import torch
import transformers as tf

import hf_diversed
from hf_diversed import _compat, load_demo_pair
from hf_diversed.cut_vocabulary import CUT, CutLlamaForCausalLM
from hf_diversed.running.pair import load_model
from hf_diversed.training.draft_making import count_ids, frequent_ids, make_draft
from hf_diversed.zoo.loader import WEIGHTS
from tests.commands import run
from tests.tiny import ARCHITECTURES, EOS, VOCAB_SIZE, ragged_batch, sharpen, tiny_model


KEPT = [EOS, 5, 9, 11, 30, 47, 63]


@pytest.fixture(scope="module")
def pair():
    return load_demo_pair()


def deep(kind: type, layers: int = 4, **settings):
    """A random model with several different layers."""
    torch.manual_seed(0)
    small = {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
    small |= (
        {"num_key_value_heads": 4, "head_dim": 8} if kind is not tf.Qwen2ForCausalLM else {"num_key_value_heads": 4}
    )
    special = {"pad_token_id": 0, "eos_token_id": EOS, "bos_token_id": 2}
    model = kind(kind.config_class(**small, **special, num_hidden_layers=layers, **settings)).eval()
    sharpen(model)
    return model


# What is copied


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_all_layers_are_the_target(architecture):
    """Catches a weight that is not copied, in any architecture, and one that is shared with the target."""
    target = tiny_model(architecture, attention="eager" if architecture in ("gemma2", "gpt_oss") else "sdpa")
    draft = make_draft(target, range(_compat.num_layers(target)))
    ids = torch.randint(4, VOCAB_SIZE, (2, 7))
    assert torch.equal(draft(ids).logits, target(ids).logits)
    assert type(draft) is type(target)
    shared = {parameter.data_ptr() for parameter in target.parameters()}
    assert not shared & {parameter.data_ptr() for parameter in draft.parameters()}
    assert draft.generation_config.eos_token_id == target.generation_config.eos_token_id


@pytest.mark.parametrize("layers", [[0], [0, 3], [1, 2]])
def test_layers_are_those_that_were_named(layers):
    """Catches layers in another order, the first ones instead of the named ones, and a changed target."""
    target = deep(tf.LlamaForCausalLM)
    before = {name: value.clone() for name, value in target.state_dict().items()}
    draft = make_draft(target, layers)
    reference = deep(tf.LlamaForCausalLM)
    reference.model.layers = torch.nn.ModuleList([reference.model.layers[layer] for layer in layers])
    for place, layer in enumerate(reference.model.layers):
        layer.self_attn.layer_idx = place
    reference.config.num_hidden_layers = len(layers)
    ids = torch.randint(4, VOCAB_SIZE, (1, 6))
    assert torch.equal(draft(ids).logits, reference(ids).logits)
    assert target.config.num_hidden_layers == 4
    assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())


def test_what_a_config_lists_by_layer_is_shortened():
    """Catches a full-attention layer that becomes a sliding one because the list of types was not shortened."""
    kinds = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    target = deep(tf.Gemma3ForCausalLM, layer_types=kinds, sliding_window=8)
    draft = make_draft(target, [1, 2, 3])
    assert draft.config.layer_types == kinds[1:]
    assert [layer.self_attn.is_sliding for layer in draft.model.layers] == [False, True, False]


# The cut vocabulary


@pytest.mark.parametrize("kind", CUT)
@pytest.mark.parametrize("tied", [False, True])
def test_a_cut_draft_has_the_logits_of_the_whole_one_at_kept_ids(kind, tied, tmp_path):
    """Catches rows of other tokens, probability elsewhere, and ids, weights or ties that are lost on disk."""
    target = deep(kind, tie_word_embeddings=tied)
    whole, cut = make_draft(target, [0, 2]), make_draft(target, [0, 2], KEPT)
    ids = torch.randint(4, VOCAB_SIZE, (2, 7))
    expected = torch.full((2, 7, VOCAB_SIZE), -torch.inf)
    expected[..., KEPT] = whole(ids).logits[..., KEPT]
    assert torch.equal(cut(ids).logits.isinf(), expected.isinf())
    assert torch.allclose(cut(ids).logits, expected, atol=1e-5)
    assert (_compat.vocab_size(cut), _compat.known_ids(cut)) == (VOCAB_SIZE, VOCAB_SIZE)
    cut.save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), "cpu")
    assert type(loaded) is type(cut)
    assert torch.equal(loaded(ids).logits, cut(ids).logits)


def test_a_cut_draft_loads_without_this_package(tmp_path):
    """Catches a file saved with the weights that imports this package."""
    draft = make_draft(deep(tf.LlamaForCausalLM), [0], KEPT)
    draft.save_pretrained(tmp_path / "draft")
    program = f"""
import sys
sys.modules["hf_diversed"] = None
import torch
from transformers import AutoModelForCausalLM
draft = AutoModelForCausalLM.from_pretrained({str(tmp_path / "draft")!r}, trust_remote_code=True)
print(draft(torch.tensor([[5, 6]])).logits[0, -1].isfinite().nonzero().flatten().tolist())
"""
    environment = {"PATH": "/usr/bin:/bin", "HF_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == KEPT


@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}])
@pytest.mark.parametrize("sampled", [False, True])
def test_loops_decode_with_a_cut_draft(options, sampled):
    """Catches NaN from 0 times minus infinity, ids that can no longer be emitted, and tokens that differ from plain
    decoding."""
    target = deep(tf.LlamaForCausalLM)
    draft = make_draft(target, range(4), list(range(0, VOCAB_SIZE, 2)))
    batch = ragged_batch()
    if options:
        options = options | {"compile_config": tf.CompileConfig(backend="eager")}
    settings = {"max_new_tokens": 24, "do_sample": sampled, "top_k": 0} | options
    torch.manual_seed(0)
    output = target.generate(
        **batch, **settings, assistant_model=draft, verifier="lossless", return_dict_in_generate=True
    )
    new = output.sequences[:, batch["input_ids"].shape[1] :]
    assert 0 < output.stats.num_accepted < output.stats.num_drafted
    assert (new % 2 == 1).any()
    if not sampled:
        assert torch.equal(output.sequences, target.generate(**batch, max_new_tokens=24, do_sample=False))
    for rule in ("static:0.5", "lenience:0.3", "block"):
        torch.manual_seed(0)
        if rule == "block" and not sampled:
            continue
        target.generate(**batch, **settings, assistant_model=draft, verifier=rule)


@pytest.mark.parametrize("sampled", [False, True])
def test_upstream_decodes_with_a_cut_draft(sampled):
    """Catches a draft model that works in our loop only."""
    target = deep(tf.LlamaForCausalLM)
    draft = make_draft(target, range(4), list(range(0, VOCAB_SIZE, 2)))
    batch = {name: value[:1] for name, value in ragged_batch().items()}
    output = target.generate(**batch, assistant_model=draft, max_new_tokens=16, do_sample=sampled, top_k=0)
    assert output.shape[1] > batch["input_ids"].shape[1]
    if not sampled:
        assert torch.equal(output, target.generate(**batch, max_new_tokens=16, do_sample=False))


# Which tokens are kept


def test_tokens_are_counted_in_texts_lines_and_samples(pair, tmp_path):
    """Catches prompts counted in the target's samples, keys counted as text, and nested texts that are not counted."""
    tokenizer = pair.tokenizer
    text, lines, samples = tmp_path / "a.txt", tmp_path / "b.jsonl", tmp_path / "c.jsonl"
    text.write_text("Mia has apples. Mia has pears.")
    lines.write_text('{"x": "Mia has apples.", "n": 3}\n\n{"x": {"y": ["Mia has pears."]}}\n')
    samples.write_text('{"settings": {"target": "abc"}}\n{"prompt_ids": [1], "completion_ids": [[5, 5], [7]]}\n')
    expected = Counter(tokenizer("Mia has apples. Mia has pears.", add_special_tokens=False).input_ids)
    assert count_ids(text, tokenizer) == expected
    apart = [tokenizer(part, add_special_tokens=False).input_ids for part in ("Mia has apples.", "Mia has pears.")]
    assert count_ids(lines, tokenizer) == Counter(token for ids in apart for token in ids)
    counted = count_ids(samples, tokenizer)
    assert (counted[5], counted[7], counted[1]) == (2, 1, 0)
    (tmp_path / "d.jsonl").write_text('{"n": 1}\n')
    with pytest.raises(ValueError, match=r"d\.jsonl contains no text"):
        count_ids(tmp_path / "d.jsonl", tokenizer)
    with pytest.raises(ValueError, match="the text must be an existing file"):
        count_ids(tmp_path / "none.txt", tokenizer)


def test_frequent_ids(pair):
    """Catches an EOS that cannot be drafted, rare ids instead of frequent ones, and duplicate ids."""
    target, tokenizer = pair.target, pair.tokenizer
    always = {*tokenizer.all_special_ids, target.generation_config.eos_token_id}
    size = len(always) + 3
    kept = frequent_ids(Counter({300: 5, 200: 9, 100: 1, 400: 7}), size, target, tokenizer)
    assert kept == sorted(always | {200, 300, 400})
    more = frequent_ids(Counter({300: 5}), size, target, tokenizer)
    assert set(more) - always - {300} == set(sorted(set(range(size * 2)) - always)[:2])
    total = _compat.vocab_size(target)
    assert frequent_ids(Counter(), total, target, tokenizer) == list(range(total))
    for wrong in (len(always), total + 1):
        with pytest.raises(ValueError, match=f"`vocabulary` must be above {len(always)}.*got {wrong}"):
            frequent_ids(Counter(), wrong, target, tokenizer)


# Errors, and the command


@pytest.mark.parametrize("layers", [[], [1, 1], [2, 1], [0, 4], [-1]])
def test_layers_that_do_not_exist(layers):
    with pytest.raises(ValueError, match="`layers` must be ascending numbers from 0 to 3, at least one, got "):
        make_draft(deep(tf.LlamaForCausalLM), layers)


def test_vocabularies_that_cannot_be_cut():
    with pytest.raises(ValueError, match="`kept_ids` must be ascending numbers from 0 to 63"):
        make_draft(deep(tf.LlamaForCausalLM), [0], [5, 3])
    with pytest.raises(ValueError, match=r"`kept_ids` is supported for LlamaForCausalLM, Q.*, got GPT2LMHeadModel"):
        make_draft(tiny_model("gpt2"), [0], [3, 5])


def test_command_makes_a_draft_that_decodes(pair, tmp_path):
    """Catches options without effect, a card without instructions for loading, and a path of this machine in it."""
    target, output = tmp_path / "target", tmp_path / "draft"
    pair.target.save_pretrained(target)
    pair.tokenizer.save_pretrained(target)
    text = tmp_path / "text.txt"
    text.write_text("Question: Mia has 12 apples. Leo has 3 times as many. The answer is 48.")
    options = ["--layers", "2", "--output", str(output), "--device", "cpu"]
    result = run("make-draft", str(target), *options, "--vocabulary", "300", "--text", str(text))
    assert result.exit_code == 0, result.output
    assert str(output) in result.stdout.replace("\n", "")
    draft = load_model(str(output), "cpu")
    assert isinstance(draft, CutLlamaForCausalLM)
    assert len(draft.lm_head.kept_ids) == 300
    record = json.loads((output / "provenance.json").read_text())
    assert (record["target"], record["layers"], record["vocabulary"]) == ("target", [0, 1], 300)
    for place, layer in enumerate(draft.model.layers):
        assert torch.equal(layer.mlp.up_proj.weight, pair.target.model.layers[place].mlp.up_proj.weight)
    card = (output / "README.md").read_text()
    assert "trust_remote_code=True" in card
    assert str(tmp_path) not in card + json.dumps(record["target"])
    inputs = pair.tokenizer("Question: 2 plus 3?\nAnswer:", return_tensors="pt")
    with hf_diversed.record_stats() as stats:
        pair.target.generate(**inputs, assistant_model=draft, verifier="lossless", max_new_tokens=8, do_sample=True)
    assert stats.num_drafted > 0
    again = run("make-draft", str(target), *options, "--overwrite")
    assert again.exit_code == 0, again.output
    assert type(load_model(str(output), "cpu")) is tf.LlamaForCausalLM
    assert not (output / "cut_vocabulary.py").exists()
    assert "trust" not in (output / "README.md").read_text()


def test_command_refuses_before_it_loads(monkeypatch, tmp_path):
    """Catches a model that is loaded before an error about an option."""
    monkeypatch.setattr("hf_diversed.cli.make_draft.load_model", lambda *_: pytest.fail("a model was loaded"))
    options = ["--layers", "2", "--output", str(tmp_path / "d"), "--vocabulary", "300"]
    result = run("make-draft", str(WEIGHTS / "target"), *options)
    assert result.exit_code == 2
    assert "--vocabulary and --text go together" in " ".join(result.output.split())


def test_command_refuses_more_layers_than_the_target_has(pair, tmp_path):
    """Catches an error that does not name the option, and a folder written before it."""
    total = pair.target.config.num_hidden_layers
    pair.target.save_pretrained(tmp_path / "target")
    pair.tokenizer.save_pretrained(tmp_path / "target")
    options = ["--layers", str(total + 1), "--output", str(tmp_path / "d"), "--device", "cpu"]
    result = run("make-draft", str(tmp_path / "target"), *options)
    assert result.exit_code == 2
    message = f"--layers must be at most {total}, the number of layers of the target, got {total + 1}."
    assert message in " ".join(result.output.split())
    assert not (tmp_path / "d").exists()
