"""Draft tuning on tiny models: which tokens have loss, what is trained and saved, and decoding with the result."""

import copy
import json
import shutil

import pytest
import torch
import transformers as tf
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import PeftModel
from torch._dynamo.utils import counters
from torch.nn.functional import cross_entropy

import hf_diversed
from hf_diversed import load_demo_pair
from hf_diversed.cli.training import call
from hf_diversed.running.pair import load_model
from hf_diversed.training import draft_tuning
from hf_diversed.training.completions import collate, divergences
from hf_diversed.training.draft_tuning import DraftTuner, sample_completions, tune_draft
from hf_diversed.training.run_folder import sole_run
from tests.tiny import BOS, EOS, VOCAB_SIZE, first_layers, ragged_batch, tiny_draft, tiny_model
from tests.training.drafts import config, make_rows


@pytest.fixture(scope="module")
def target():
    return tiny_model("llama")


@pytest.fixture
def draft(target):
    return tiny_draft(target, noise=0.5)


@torch.no_grad()
def mean_loss(model, tokenizer, rows) -> float:
    """Cross entropy of the references with their EOS, independent of the code under test."""
    losses = []
    for row in rows:
        prompt = tokenizer(row["prompt"]).input_ids
        whole = [*prompt, *tokenizer(row["completion"], add_special_tokens=False).input_ids, EOS]
        logits = model(torch.tensor([whole])).logits[0, len(prompt) - 1 : -1]
        losses.append(cross_entropy(logits, torch.tensor(whole[len(prompt) :])).item())
    return sum(losses) / len(losses)


@torch.no_grad()
def agreement(target, draft, samples) -> float:
    """Mean of sum(min(p, q)) over the completion tokens of samples."""
    shares = []
    for prompt, completions in samples.items():
        for completion in completions:
            ids = torch.tensor([[*prompt, *completion]])
            p, q = (model(ids).logits[0, len(prompt) - 1 : -1].softmax(-1) for model in (target, draft))
            shares += torch.minimum(p, q).sum(-1).tolist()
    return sum(shares) / len(shares)


# What is learned


def test_supervised_lowers_the_cross_entropy_of_references_only_by_the_adapter(tokenizer, draft, tmp_path):
    """Catches a loss of the wrong sign or shift, a missing EOS, and base weights that are trained."""
    rows, before = make_rows(16), copy.deepcopy(draft.state_dict())
    untuned = mean_loss(draft, tokenizer, rows)
    tuned = tune_draft(None, draft, tokenizer, rows, config(tmp_path, mode="supervised"))
    assert mean_loss(tuned, tokenizer, rows) < 0.6 * untuned
    assert not tuned.training
    base = tuned.unload()
    for name, value in base.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("divergence", ["kl", "tv", "lk"])
def test_distillation_raises_agreement_on_unseen_samples(tokenizer, target, draft, tmp_path, divergence):
    """Catches a divergence of the wrong sign, distributions of shifted positions, and a target that is trained."""
    rows, before = make_rows(48), copy.deepcopy(target.state_dict())
    unseen = {tuple(tokenizer(row["prompt"]).input_ids) for row in make_rows(24, seed=1)}
    held_out = sample_completions(target, tokenizer, unseen, config(tmp_path / "held_out"))
    untuned = agreement(target, draft, held_out)
    args = config(tmp_path, divergence=divergence, max_steps=24, per_device_train_batch_size=16)
    tuned = tune_draft(target, draft, tokenizer, rows, args)
    assert agreement(target, tuned, held_out) > untuned + 0.06
    for name, value in target.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_logged_acceptance_and_loss_are_those_of_the_batch(tokenizer, target, draft, tmp_path):
    """Catches padding or prompts in the means: the first logged numbers are enumerated row by row."""
    rows = make_rows(6)
    args = config(
        tmp_path,
        divergence="tv",
        max_steps=1,
        per_device_train_batch_size=6,
        logging_strategy="steps",
        logging_steps=1,
    )
    tuned = tune_draft(target, copy.deepcopy(draft), tokenizer, rows, args)
    history = json.loads((tmp_path / "trainer_state.json").read_text())["log_history"][0]
    samples = sample_completions(target, tokenizer, [tuple(tokenizer(r["prompt"]).input_ids) for r in rows], args)
    shares = torch.cat(
        [
            torch.minimum(
                *(m(torch.tensor([[*k, *c]])).logits[0, len(k) - 1 : -1].softmax(-1) for m in (target, draft))
            )
            .sum(-1)
            .detach()
            for k, completions in samples.items()
            for c in completions
        ]
    )
    assert history["acceptance"] == pytest.approx(shares.mean().item(), abs=1e-5)
    assert history["loss"] == pytest.approx(1.0 - shares.mean().item(), abs=1e-4)
    assert tuned.active_adapters == ["default"]


def test_compiled_tuning_compiles_once(tokenizer, target, draft, tmp_path):
    """Catches a hook per batch, which made a compiled draft model compile again at every batch, and other results."""
    rows, options = make_rows(24), {"mode": "supervised", "max_steps": 8, "per_device_train_batch_size": 3}
    eager = tune_draft(None, copy.deepcopy(draft), tokenizer, rows, config(tmp_path / "eager", **options))
    torch._dynamo.reset()
    counters.clear()
    options |= {"torch_compile": True, "torch_compile_backend": "eager"}
    compiled = tune_draft(None, copy.deepcopy(draft), tokenizer, rows, config(tmp_path / "compiled", **options))
    torch._dynamo.reset()
    assert 0 < counters["stats"]["unique_graphs"] <= 3  # one for the first lengths, others for varying lengths
    for one, other in zip(eager.parameters(), compiled.parameters()):
        torch.testing.assert_close(one, other)


# What has loss


@pytest.mark.parametrize("mode", ["supervised", "distill"])
def test_prompts_and_padding_have_no_loss(target, draft, tmp_path, mode):
    """Catches unmasked prompts, labels off by one, and a missing first completion token: the output embedding has
    inputs with a gradient exactly where the next token belongs to the completion."""
    prompts, lengths = [3, 5, 2], [4, 1, 3]
    generator = torch.Generator().manual_seed(0)
    examples = []
    for prompt, length in zip(prompts, lengths):
        ids = torch.randint(4, VOCAB_SIZE, (prompt + length,), generator=generator).tolist()
        examples.append({"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]})
    args = config(tmp_path, mode=mode)
    trainer = DraftTuner(draft, target if mode == "distill" else None, args, examples)
    kept = {}
    draft.requires_grad_(True)
    draft.model.norm.register_forward_hook(
        lambda _, inputs, output: (output.retain_grad(), kept.update(hidden=output))[1]
    )
    draft.lm_head.register_forward_hook(lambda _, inputs, output: kept.update(rows=len(output)))
    trainer.compute_loss(draft, collate(examples)).backward()
    width = max(p + n for p, n in zip(prompts, lengths))
    touched = kept["hidden"].grad.abs().sum(-1) > 0
    assert kept["rows"] == sum(lengths)
    for row, (prompt, length) in enumerate(zip(prompts, lengths)):
        expected = [prompt - 1 <= place < prompt + length - 1 for place in range(width)]
        assert touched[row].tolist() == expected


def supervised_examples(monkeypatch, draft, tokenizer, rows, args) -> list[dict]:
    """The training examples of `tune_draft`."""
    seen = []

    class Stop(Exception):
        pass

    def refuse(model, target, args, examples, held_out):
        seen.extend(examples)
        raise Stop

    monkeypatch.setattr(draft_tuning, "DraftTuner", refuse)
    with pytest.raises(Stop):
        tune_draft(None, draft, tokenizer, rows, args)
    return seen


def test_references_end_with_eos_unless_cut(monkeypatch, tokenizer, draft, tmp_path):
    """Catches a BOS in the middle, an EOS that is missing or follows a cut, and text after an EOS of the reference."""
    rows = [{"prompt": "w9", "completion": text} for text in ("w5 w6", "w5 w6 w7 w8", "w5 w1 w6", "")]
    args = config(tmp_path, mode="supervised", max_completion_length=3)
    examples = supervised_examples(monkeypatch, draft, tokenizer, rows, args)
    assert [e["labels"] for e in examples] == [[-100, -100, *ids] for ids in ([5, 6, EOS], [5, 6, 7], [5, EOS], [EOS])]
    assert [e["input_ids"][:2] for e in examples] == [[BOS, 9]] * 4


def test_chat_references_are_the_turn_that_the_template_writes(monkeypatch, tokenizer, draft, tmp_path):
    """Catches a second BOS, a turn that starts within the prompt, and the line break after its end."""
    chat = copy.deepcopy(tokenizer)
    chat.chat_template = (
        "w2 {% for m in messages %}{{ 'w30 ' if m.role == 'user' else 'w31 ' }}{{ m.content }} w1 w32 {% endfor %}"
        "{% if add_generation_prompt %}w31 {% endif %}"
    )
    row = {"prompt": [{"role": "user", "content": "w9"}], "completion": "w5"}
    (example,) = supervised_examples(monkeypatch, draft, chat, [row], config(tmp_path, mode="supervised"))
    assert example["input_ids"] == [BOS, 30, 9, EOS, 32, 31, 5, EOS]
    assert example["labels"] == [-100] * 6 + [5, EOS]
    chat.chat_template = chat.chat_template.replace("w31 {% endif", "w33 {% endif")
    with pytest.raises(ValueError, match="do not start with the prompt"):
        tune_draft(None, draft, chat, [row], config(tmp_path, mode="supervised"))


# Divergences

LOGITS = st.lists(st.floats(-6, 6, width=32), min_size=6, max_size=6).map(torch.tensor)


@settings(deadline=None)
@given(LOGITS, LOGITS, st.integers(-2, 2), st.sampled_from([0.5, 1.0, 2.0]))
def test_divergences_against_their_definitions(p_logits, q_logits, padding, temperature):
    """Catches a swapped order, a missing temperature, and vocabularies of different size that are cut wrongly."""
    p_logits, q_logits = p_logits[: 6 + min(padding, 0)], q_logits[: 6 - max(padding, 0)]
    found = divergences(p_logits[None], q_logits[None], temperature)
    common = min(len(p_logits), len(q_logits))
    p = torch.softmax(p_logits.double() / temperature, -1)
    q = torch.softmax(q_logits[:common].double() / temperature, -1)
    kl = (p[:common] * (p[:common] / q).log()).sum()
    assert found["kl"].item() == pytest.approx(kl.item(), abs=1e-4)
    q = torch.cat([q, q.new_zeros(len(p) - common)])
    assert found["tv"].item() == pytest.approx(((p - q).abs().sum() / 2).item(), abs=1e-5)
    assert found["lk"].item() == pytest.approx(-torch.minimum(p, q).sum().log().item(), abs=1e-4)


@pytest.mark.parametrize("more", ["target", "draft"])
def test_padded_vocabularies(tokenizer, target, draft, tmp_path, more):
    """Catches ids that the embedding of the draft model lacks: a padded target samples them here."""
    larger = {"target": copy.deepcopy(target), "draft": draft}[more]
    larger.resize_token_embeddings(VOCAB_SIZE + 16, mean_resizing=False)
    pair = {"target": target, "draft": draft} | {more: larger}
    tuned = tune_draft(**pair, tokenizer=tokenizer, rows=make_rows(8), args=config(tmp_path, max_steps=2))
    assert all(value.isfinite().all() for value in tuned.state_dict().values())
    drawn = [json.loads(line) for line in (tmp_path / "target_samples.jsonl").read_text().splitlines()[1:]]
    largest = max(token for line in drawn for ids in line["completion_ids"] for token in ids)
    assert (largest >= VOCAB_SIZE) == (more == "target")


# The target's completions


def test_completions_follow_the_distribution_of_the_target(tokenizer, target, tmp_path):
    """Catches prompts padded on the wrong side, and warpers of the target's own generation config: completions of one
    token are compared with the distribution. False alarm below 1e-4 (bound on TV at 2000 draws)."""
    target = copy.deepcopy(target)
    target.generation_config.top_k = 2
    prompts = [tuple(tokenizer(text).input_ids) for text in ("w9", "w4 w5 w6 w7")]
    options = {"max_completion_length": 1, "num_samples_per_prompt": 2000, "generation_batch_size": 4000}
    args = config(tmp_path, **options, temperature=2.0)
    samples = sample_completions(target, tokenizer, prompts, args)
    for prompt in prompts:
        with torch.no_grad():
            distribution = (target(torch.tensor([prompt])).logits[0, -1] / 2.0).softmax(-1)
        counts = torch.bincount(torch.tensor(samples[prompt]).flatten(), minlength=VOCAB_SIZE)
        # E TV <= sum(sqrt(p(1-p)/n))/2, and McDiarmid: P(TV > E TV + t) <= exp(-2 n t^2), t = 0.05.
        bound = (distribution * (1 - distribution) / 2000).sqrt().sum() / 2 + 0.05
        assert (counts / 2000 - distribution).abs().sum() / 2 < bound


def test_completions_end_at_stop_strings(tmp_path):
    """Catches stop strings that are dropped. Words cannot be matched within words, so this uses the embedded pair."""
    pair = load_demo_pair()
    prompts = [tuple(pair.tokenizer(f"Question: 2 plus {number}?\nAnswer:").input_ids) for number in range(3, 7)]
    free = sample_completions(pair.target, pair.tokenizer, prompts, config(tmp_path / "free"))
    stop = pair.tokenizer.decode(free[prompts[0]][0][3:4])
    cut = sample_completions(pair.target, pair.tokenizer, prompts, config(tmp_path / "cut"), stop_strings=[stop])
    assert all(stop not in pair.tokenizer.decode(completion[:-1]) for (completion,) in cut.values())
    assert any(len(cut[prompt][0]) < len(free[prompt][0]) for prompt in prompts)


def test_completions_are_drawn_once_and_an_interrupted_run_continues(monkeypatch, tokenizer, target, tmp_path):
    """Catches completions that are drawn again on resume, incomplete lines (an incomplete first one counted as other
    settings), and a resumed run that draws other completions."""
    prompts = [tuple(tokenizer(row["prompt"]).input_ids) for row in make_rows(10)]
    args = config(tmp_path, generation_batch_size=4, num_samples_per_prompt=2)
    samples = sample_completions(target, tokenizer, [*prompts, prompts[0]], args)
    assert set(samples) == set(prompts)
    assert all(len(completions) == 2 for completions in samples.values())
    path = tmp_path / "target_samples.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    assert len(lines) == 1 + len(set(prompts))

    calls = []
    original = target.generate
    monkeypatch.setattr(target, "generate", lambda **inputs: calls.append(inputs) or original(**inputs))
    assert sample_completions(target, tokenizer, prompts, args) == samples
    assert not calls

    path.write_text("".join(lines[:5]) + lines[5][:-9])
    assert sample_completions(target, tokenizer, prompts, args) == samples
    assert len(calls) == 3
    assert path.read_text() == "".join(lines)

    path.write_text(lines[0][:-9])
    assert sample_completions(target, tokenizer, prompts, args) == samples
    assert path.read_text() == "".join(lines)

    path.write_text(lines[0] + "{}}\n" + "".join(lines[1:]))
    with pytest.raises(ValueError, match=r"target_samples\.jsonl, line 2 is not JSON .* remove the line"):
        sample_completions(target, tokenizer, prompts, args)
    path.write_text("".join(lines))

    other = config(tmp_path, generation_batch_size=4, num_samples_per_prompt=2, temperature=0.7, seed=5)
    with pytest.raises(ValueError, match=r"other settings \(seed, temperature\)"):
        sample_completions(target, tokenizer, prompts, other)
    with pytest.raises(ValueError, match=r"other settings \(target_weights\)"):
        sample_completions(tiny_model("llama", seed=3), tokenizer, prompts, args)


# What is written


def test_adapter_loads_and_drafts(tokenizer, target, draft, tmp_path):
    """Catches an adapter that is incomplete on disk, that decoding ignores, or that contains local paths."""
    base = copy.deepcopy(draft)
    tuned = tune_draft(target, draft, tokenizer, make_rows(8), config(tmp_path, max_steps=3, merge=True))
    written = {path.name for path in tmp_path.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "provenance.json"} <= written
    assert not any(name.endswith((".bin", ".pt", ".pkl")) for name in written)
    assert json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"] in (None, "")
    assert json.loads((tmp_path / "provenance.json").read_text())["tuning"]["mode"] == "distill"

    loaded = PeftModel.from_pretrained(copy.deepcopy(base), tmp_path).eval()
    merged = tf.AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    batch = ragged_batch()
    with torch.no_grad():
        logits = tuned(**batch).logits
        assert torch.equal(loaded(**batch).logits, logits)
        assert torch.allclose(merged(**batch).logits, logits, atol=1e-4)
        assert not torch.allclose(base(**batch).logits, logits, atol=1e-2)

    settings = {"max_new_tokens": 12, "do_sample": False}
    plain = target.generate(**batch, **settings)
    accepted = []
    for model in (loaded, merged, base):
        with hf_diversed.record_stats() as stats:
            assert torch.equal(target.generate(**batch, **settings, assistant_model=model, verifier="lossless"), plain)
        accepted.append(stats.num_accepted)
    assert accepted[0] == accepted[1] != accepted[2]


@pytest.mark.parametrize("all_weights", [False, True])
def test_resume_continues_from_the_newest_checkpoint(monkeypatch, tokenizer, target, draft, tmp_path, all_weights):
    """Catches a resumed run that starts from the beginning, and a checkpoint of all weights that is not loaded."""
    base = copy.deepcopy(draft)
    options = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4, "lr_scheduler_type": "constant"}
    options["all_weights"] = all_weights
    whole = tune_draft(target, draft, tokenizer, make_rows(8), config(tmp_path, **options))
    shutil.rmtree(tmp_path / "checkpoint-4")
    steps = []
    loss = DraftTuner.compute_loss
    monkeypatch.setattr(DraftTuner, "compute_loss", lambda *args, **kwargs: steps.append(1) or loss(*args, **kwargs))
    again = tune_draft(target, copy.deepcopy(base), tokenizer, make_rows(8), config(tmp_path, **options, resume=True))
    for (name, value), other in zip(whole.state_dict().items(), again.state_dict().values()):
        assert torch.allclose(value, other, atol=1e-6), name
    assert len(steps) == 2


# All weights


def test_all_weights_are_trained(tokenizer, target, tmp_path):
    """Catches weights that do not change, an adapter that was not requested, and an incomplete result on disk."""
    draft = first_layers(target, 1)
    before = {name: value.clone() for name, value in draft.state_dict().items()}
    prompts = [tuple(tokenizer(row["prompt"]).input_ids) for row in make_rows(12, seed=7)]
    unseen = sample_completions(target, tokenizer, prompts, config(tmp_path / "unseen"))
    untuned = agreement(target, draft, unseen)
    args = config(tmp_path / "run", all_weights=True, max_steps=80, learning_rate=3e-3)
    tuned = tune_draft(target, draft, tokenizer, make_rows(96), args)
    assert tuned is draft
    assert not tuned.training
    assert not any(parameter.requires_grad for parameter in tuned.parameters())
    floating = {name: value for name, value in tuned.state_dict().items() if value.is_floating_point()}
    assert all(not torch.equal(value, before[name]) for name, value in floating.items())
    assert all(value.isfinite().all() for value in floating.values())
    assert agreement(target, tuned, unseen) > untuned + 0.02
    loaded = load_model(str(tmp_path / "run"), "cpu")
    batch = ragged_batch()
    assert torch.equal(loaded(**batch).logits, tuned(**batch).logits)
    assert tf.AutoTokenizer.from_pretrained(tmp_path / "run").eos_token_id == EOS
    assert not (tmp_path / "run" / "adapter_config.json").exists()


@pytest.mark.parametrize("all_weights", [False, True])
def test_held_out_acceptance_is_logged(tokenizer, target, draft, tmp_path, all_weights):
    """Catches the acceptance of training prompts logged as that of held-out ones, and held-out prompts that are
    trained on."""
    rows, held_out = make_rows(8), make_rows(6, seed=9)
    start = copy.deepcopy(draft)
    options = {"eval_strategy": "steps", "eval_steps": 1, "max_steps": 2, "learning_rate": 0.0, "save_strategy": "no"}
    args = config(tmp_path, **options, all_weights=all_weights, per_device_eval_batch_size=4)
    tune_draft(target, draft, tokenizer, rows, args, eval_rows=held_out)
    logs = json.loads((tmp_path / "trainer_state.json").read_text())["log_history"]
    found = [line["eval_acceptance"] for line in logs if "eval_acceptance" in line]
    prompts = [tuple(tokenizer(row["prompt"]).input_ids) for row in held_out]
    samples = sample_completions(target, tokenizer, prompts, args)
    drafts = {prompt: samples[prompt] for prompt in prompts}
    assert found == pytest.approx([agreement(target, start, drafts)] * 2, abs=1e-4)
    assert json.loads((tmp_path / "provenance.json").read_text())["num_completions"] == len(rows)


def test_ids_without_an_output_row_add_no_divergence():
    """Catches an infinite KL, NaN, and a gradient at ids whose logit is minus infinity."""
    torch.manual_seed(0)
    p_logits, q_logits = torch.randn(3, 6), torch.randn(3, 6)
    q_logits[:, [1, 4]] = -torch.inf
    q_logits.requires_grad_(True)
    found = divergences(p_logits, q_logits, 1.0)
    assert not found["tv"].requires_grad  # what is only logged keeps no graph
    disjoint = divergences(torch.tensor([[0.0, -200.0]]), torch.tensor([[-200.0, 0.0]], requires_grad=True), 1.0, "lk")
    assert disjoint["lk"].isfinite().all()
    p, q = p_logits.softmax(-1), q_logits.detach().softmax(-1)
    kept = [0, 2, 3, 5]
    expected = (p[:, kept] * (p[:, kept] / q[:, kept]).log()).sum(-1)
    assert torch.allclose(found["kl"], expected, atol=1e-6)
    assert torch.allclose(found["tv"], 0.5 * (p - q).abs().sum(-1), atol=1e-6)
    found["kl"].sum().backward()
    assert q_logits.grad.isfinite().all()
    assert (q_logits.grad[:, [1, 4]] == 0).all()


# Errors


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "both"}, "mode must be one of distill, supervised, got 'both'"),
        ({"divergence": "js"}, "divergence must be one of kl, tv, lk"),
        ({"lora_r": 0}, "`lora_r` must lie in"),
        ({"lora_dropout": 1.0}, "`lora_dropout` must lie in"),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"temperature": float("nan")}, "temperature must be above 0"),
        ({"max_completion_length": 0}, "`max_completion_length` must lie in"),
        ({"num_samples_per_prompt": 0}, "`num_samples_per_prompt` must lie in"),
        ({"lora_target_modules": []}, "at least one layer"),
        ({"mode": "supervised", "divergence": "tv"}, 'needs mode="distill"'),
        ({"label_smoothing_factor": 0.1}, 'needs mode="supervised"'),
        ({"push_to_hub": True}, "publish the tuned draft with its own"),
    ],
)
def test_settings_are_checked(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        config(tmp_path, **options)


def test_layers_by_name(tokenizer, draft, tmp_path):
    args = config(tmp_path, mode="supervised", lora_target_modules="q_proj", max_steps=1)
    tuned = tune_draft(None, draft, tokenizer, make_rows(2), args)
    assert {name.split(".")[-4] for name in tuned.state_dict() if "lora" in name} == {"q_proj"}


def test_prompts_beyond_the_context_are_refused(tokenizer, target, draft, tmp_path):
    """Catches prompts without a position left for completions, which would only result in a worse draft model."""
    rows = [*make_rows(1), {"prompt": "w9 " * 120, "completion": "w5"}]
    for mode in ("distill", "supervised"):
        with pytest.raises(ValueError, match="prompt 1 of rows has 121 tokens; at most 116 fit"):
            tune_draft(target, draft, tokenizer, rows, config(tmp_path, mode=mode))


def test_two_tunings_in_one_folder_are_refused(tokenizer, draft, tmp_path):
    """Catches two runs that write each other's samples and checkpoints."""
    args = config(tmp_path, mode="supervised", max_steps=1)
    with sole_run(args), pytest.raises(OSError, match=r"another run is training in .* wait until it ends"):
        tune_draft(None, draft, tokenizer, make_rows(4), args)
    tune_draft(None, draft, tokenizer, make_rows(4), args)


def test_calls_are_checked(tokenizer, target, draft, tmp_path):
    """Catches errors that would be reported only after an hour of sampling."""
    args, supervised = config(tmp_path), config(tmp_path, mode="supervised")
    rows = make_rows(2)
    with pytest.raises(ValueError, match="at least one"):
        tune_draft(target, draft, tokenizer, [], args)
    with pytest.raises(ValueError, match=r"rows\[1\] lacks 'completion'; it has"):
        tune_draft(target, draft, tokenizer, [rows[0], {"prompt": "w5"}], supervised)
    with pytest.raises(ValueError, match="needs a target"):
        tune_draft(None, draft, tokenizer, rows, args)
    endless = copy.deepcopy(tokenizer)
    endless.eos_token = None
    with pytest.raises(ValueError, match="EOS token"):
        tune_draft(target, draft, endless, rows, args)
    foreign = copy.deepcopy(draft)
    foreign.resize_token_embeddings(VOCAB_SIZE + 1000, mean_resizing=False)
    with pytest.raises(ValueError, match="more than padding"):
        tune_draft(target, foreign, tokenizer, rows, args)
    draft.resize_token_embeddings(8)
    with pytest.raises(ValueError, match="must be below 8"):
        tune_draft(None, draft, tokenizer, rows, supervised)
    assert not (tmp_path / "target_samples.jsonl").exists()


# The command


def test_command_tunes_the_embedded_draft(tmp_path):
    """Catches lost options, and a local path in files saved with the adapter."""
    folder, run = tmp_path / "draft", tmp_path / "run.yaml"
    run.write_text(yaml.safe_dump({"task": "math", "num_examples": 4, "max_steps": 9, "learning_rate": "1e-3"}))
    quick = "--max_completion_length 8 --max_steps 1 --lora_r 2 --use_cpu --disable_tqdm true --save_strategy no"
    tuned = call("tune-draft", [f"--config={run}", "--output_dir", str(folder), *quick.split()])
    record = json.loads((folder / "provenance.json").read_text())
    assert record["tuning"]["learning_rate"] == pytest.approx(1e-3)
    assert (record["step"], record["num_completions"]) == (1, 4)
    assert tuned.peft_config["default"].r == 2
    package = next(iter(hf_diversed.__path__))
    texts = [path for path in folder.rglob("*") if path.suffix in (".json", ".md", ".jsonl")]
    assert not [path.name for path in texts if package in path.read_text()]
    pair = load_demo_pair()
    loaded = PeftModel.from_pretrained(pair.draft, folder)
    inputs = pair.tokenizer("Question: 2 plus 3?\nAnswer:", return_tensors="pt")
    output = pair.target.generate(**inputs, assistant_model=loaded, verifier="lossless", max_new_tokens=4)
    assert output.shape[1] > inputs.input_ids.shape[1]


def test_command_tunes_on_prompts_without_references_and_holds_some_out(tmp_path):
    """Catches distillation that requires references, held-out prompts that are trained on, and an option for all
    weights without effect."""
    rows = [{"category": "writing", "turns": [f"Say {n}."]} for n in range(6)]
    data = tmp_path / "specbench.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = f"--task specbench --data_file {data} --output_dir {tmp_path / 'draft'} --use_cpu --disable_tqdm true"
    options += " --max_completion_length 4 --max_steps 1 --save_strategy no --all_weights true --num_examples 4"
    options += " --num_eval_examples 2 --eval_strategy steps --eval_steps 1"
    tuned = call("tune-draft", options.split())
    assert type(tuned) is tf.LlamaForCausalLM
    assert json.loads((tmp_path / "draft" / "provenance.json").read_text())["num_completions"] == 4
    logs = json.loads((tmp_path / "draft" / "trainer_state.json").read_text())["log_history"]
    assert [line["step"] for line in logs if "eval_acceptance" in line] == [1]
    with pytest.raises(ValueError, match="task 'specbench' has no references"):
        call("tune-draft", [*options.split(), "--mode", "supervised", "--overwrite"])


@pytest.mark.parametrize(
    ("settings", "arguments", "words"),
    [
        ({"nonsense": 1}, [], "unknown options in the config: nonsense"),
        ([1], [], "must contain a mapping"),
        ({}, ["--draft", "alone"], "go together"),
        ({}, ["--mode", "none"], "mode must be one of"),
        ({}, ["--num-eval-examples", "4"], "--num-eval-examples and --eval-strategy go together, got 4 and no"),
        ({}, ["--eval-strategy", "steps", "--eval-steps", "1"], "go together, got 0 and steps"),
    ],
)
def test_command_refuses(tmp_path, settings, arguments, words):
    run = tmp_path / "run.yaml"
    run.write_text(yaml.safe_dump(settings))
    with pytest.raises(ValueError, match=words):
        call(
            "tune-draft", ["--task", "math", "--config", str(run), "--output_dir", str(tmp_path / "draft"), *arguments]
        )
