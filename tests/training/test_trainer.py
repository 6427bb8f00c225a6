"""The trainer as a whole: training, logs, files, errors, and what it must not change."""

import copy
import math

import pytest
import torch
from safetensors.torch import load_file

from hf_diversed import DiversedHead, DiversedHeadConfig
from hf_diversed.training import trainer as trainer_module
from tests.tiny import EOS, calibration
from tests.training import runs


def history(trainer, name: str) -> list[float]:
    return [line[name] for line in trainer.state.log_history if name in line]


# What it leaves alone


def test_models_are_frozen_and_unchanged(done):
    """Catches a gradient, an update or a lasting hook on target or draft."""
    trainer, before = done
    for model, state in zip((trainer.sampler.pair.target, trainer.sampler.pair.draft), before):
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
        assert all(parameter.grad is None and not parameter.requires_grad for parameter in model.parameters())
        assert not model.training


# What it logs


def test_log_has_trl_s_names(done):
    """Catches a metric with another name than in TRL."""
    trainer, _ = done
    names = {"loss", "learning_rate", "grad_norm", "reward", "reward_std", "rewards/letters/mean", "rewards/zero/mean"}
    names |= {"completions/mean_length", "completions/clipped_ratio"}
    names |= {"acceptance_rate", "block_efficiency", "acceptance_coef", "effective_acceptance_coef"}
    names |= {"quality_drop", "weight", "clip_fraction"}
    lines = [line for line in trainer.state.log_history if "loss" in line]
    assert len(lines) == trainer.state.max_steps // trainer.state.logging_steps
    for line in lines:
        assert names <= set(line)
        assert all(math.isfinite(value) for value in line.values())


def test_the_sampler_gets_the_sampling_settings(tmp_path):
    """Catches a top_k, top_p or temperature that is not passed to the sampler."""
    trainer = runs.trainer(tmp_path, top_k=7, top_p=0.8, temperature=0.6)
    settings = trainer.sampler.settings
    assert (settings.top_k, settings.top_p, settings.temperature) == (7, 0.8, 0.6)
    assert trainer.model.config.training_temperature == 0.6


# Rewards


def test_rewards_are_called_as_trl_calls_them(tmp_path):
    """Catches a missing column, or one that is not in the order of the completions."""
    seen = []

    def reward(completions, prompts, completion_ids, number, **columns):
        seen.append(columns)
        assert len(completions) == len(prompts) == len(completion_ids) == len(number) == 8
        assert [runs.PROMPTS[index] for index in number] == prompts
        for text, ids in zip(completions, completion_ids):
            assert text == runs.tokenizer().decode(ids, skip_special_tokens=True)
        return [0.0] * 8

    runs.trained(tmp_path, reward, max_steps=2)
    assert len(seen) == 1


def test_weighted_sum_of_several_rewards(tmp_path):
    """Catches weights that are ignored or applied to the wrong reward, and a None that counts as 0."""

    def first(completions, **columns):
        return [1.0, None] * (len(completions) // 2)

    def second(completions, **columns):
        return [10.0, 10.0, None, None] * (len(completions) // 4)

    trainer = runs.trained(tmp_path, [first, second], reward_weights=[2.0, 0.1], max_steps=2)
    # 2 + 1, 1, 2 and nothing at all.
    assert history(trainer, "reward") == pytest.approx([2.0])
    assert history(trainer, "rewards/first/mean") == [1.0]
    assert history(trainer, "rewards/second/mean") == [10.0]
    assert trainer.batch.advantage.tolist() == pytest.approx([1.0, -1.0, 0.0, 0.0] * 2)


def test_prompt_without_reward_in_a_constrained_run(tmp_path):
    """Catches a run that fails for a prompt without a reference reward."""

    def some(completions, number, **columns):
        return [None if index == 0 else 1.0 for index in number]

    trainer = runs.trained(tmp_path, some, acceptance_coef=None, max_steps=2)
    assert trainer.references[runs.rows()[0]] is None
    assert history(trainer, "quality_drop") == [0.0]


@pytest.mark.parametrize(("coef", "known"), [(0.3, False), (None, True)], ids=["fixed", "constrained"])
def test_the_targets_own_reward_is_subtracted(tmp_path, coef, known):
    """Catches a baseline that is added, or missing: rewards that depend on the prompt only must have no effect."""

    def easy(completions, number, **columns):
        return [float(index) for index in number]

    trainer = runs.trained(tmp_path, easy, acceptance_coef=coef, max_steps=2)
    assert bool((trainer.batch.advantage == 0.0).all()) == known


@pytest.mark.parametrize("coef", [0.3, None], ids=["fixed", "constrained"])
def test_chat_rewards_get_messages_everywhere(tmp_path, coef):
    """Catches rewards that receive messages for rollouts, but text or no ids for reference completions."""
    seen = []

    def reward(completions, completion_ids, prompts, **columns):
        for completion, ids, prompt in zip(completions, completion_ids, prompts):
            assert [message["role"] for message in completion] == ["assistant"]
            assert isinstance(completion[0]["content"], str)
            assert len(ids) >= 1
            assert prompt[0]["role"] == "user"
        seen.append(len(completions))
        return [1.0] * len(completions)

    chats = [{"prompt": [{"role": "user", "content": text}]} for text in runs.PROMPTS[:4]]
    runs.trained(tmp_path, reward, train_dataset=chats, acceptance_coef=coef, max_steps=2)
    assert seen == ([8] if coef else [8, 8])


# What it learns


STEPS = {"max_steps": 16, "save_steps": 16, "logging_steps": 4}
TOKEN = {"token_features": True, "head_features": "distribution"}
every_head = pytest.mark.parametrize("kind", [{}, {**TOKEN, "initial_lenience": 0.5}], ids=["position", "token"])


@every_head
def test_constant_reward_increases_acceptance(tmp_path, kind):
    """Catches the acceptance term with the wrong sign: with a constant reward, the head must become permissive."""
    expected = history(runs.trained(tmp_path, runs.zero, learning_rate=0.5, **STEPS, **kind), "expected_acceptance")
    assert expected[-1] > expected[0] + 0.05


def poisoned_pair():
    """A pair whose draft model proposes an odd token where the target would emit one of its frequent ones."""
    target, draft = runs.pair(noise=0.05)
    head = draft.get_output_embeddings().weight
    odd = head.shape[0] - 1
    with torch.no_grad():
        for model in (target, draft):
            model.get_output_embeddings().weight[EOS] = 0.0
        target.get_output_embeddings().weight[odd] = 0.0
        # On average over the others: a logit that is always among the higher ones, whatever the state.
        head[odd] = 1.5 * head[10]
    return target, draft, runs.tokenizer().decode([odd])


@pytest.mark.parametrize("kind", [{}, {**TOKEN, "initial_lenience": 0.001}], ids=["position", "token"])
def test_punished_tokens_make_the_head_stricter(tmp_path, kind):
    """Catches a wrong sign, the residual token's score, and other rollouts' advantages: weights must rise."""
    target, draft, odd = poisoned_pair()

    def clean(completions, **columns):
        return [-float(text.count(odd)) for text in completions]

    sizes = {"per_device_train_batch_size": 64, "generation_batch_size": 64, "num_generations": 8}
    settings = {"acceptance_coef": 0.0, "learning_rate": 0.2, **STEPS, **sizes, **kind}
    trainer = runs.trained(tmp_path, clean, models=(target, draft), **settings)
    reward, accepted = history(trainer, "reward"), history(trainer, "acceptance_rate")
    assert reward[-1] > 0.5 * reward[0]
    if kind:
        assert accepted[-1] > accepted[0] - 0.15  # other tokens need not be rejected more often
    else:
        weight = history(trainer, "weight")
        assert weight[-1] > weight[0] + 0.03 > 0.53


def test_fresh_head_starts_at_the_asked_weight(tmp_path):
    trainer = runs.trained(tmp_path, initial_weight=0.8, learning_rate=0.0, max_steps=2, head_features="both")
    assert history(trainer, "weight") == pytest.approx([0.8])


def test_new_heads_do_not_save_the_random_state_of_gpus(tmp_path, monkeypatch):
    """Catches a new head that saves the random state of every GPU, which creates a context on each."""
    saved, fork = [], torch.random.fork_rng
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices=None: saved.append(devices) or fork(devices))
    runs.trainer(tmp_path)
    assert saved == [[]]


# Evaluation and the best head


def test_evaluation_is_reproducible_and_complete(done):
    """Catches evaluations with different seeds."""
    trainer, _ = done
    one, two = trainer.evaluate(), trainer.evaluate()
    assert one == two
    names = ("reward", "acceptance_rate", "block_efficiency", "quality_drop", "quality_drop_error", "objective")
    assert set(one) == {f"eval_{name}" for name in names} | {"epoch"}
    test = trainer.evaluate(runs.rows()[3:5], metric_key_prefix="test")
    assert set(test) == {f"test_{name}" for name in names} | {"epoch"}


def test_evaluation_batch_size(tmp_path, monkeypatch):
    """Catches a batch size without effect, which users lower when memory is short."""
    trainer = runs.trainer(tmp_path, eval_dataset=runs.rows()[:5], per_device_eval_batch_size=2, max_steps=2)
    seen, inner = [], trainer.sampler.decoder

    def decode(method, prompts, *rest, **options):
        seen.append(len(prompts))
        return inner(method, prompts, *rest, **options)

    decode.text, decode.eos_ids, decode.is_cut_off = inner.text, inner.eos_ids, inner.is_cut_off
    monkeypatch.setattr(trainer.sampler, "decoder", decode)
    trainer.evaluate()
    assert seen == [2, 2, 1]
    trainer.train()
    assert seen[3:] == [8]


def test_noise_does_not_select_a_head(tmp_path, monkeypatch):
    """Catches a head that is selected for a noisy mean drop."""
    trainer = runs.trainer(tmp_path, eval_dataset=runs.rows()[:4], acceptance_coef=None, max_quality_drop=0.1)

    def evaluated(drops: list[float]) -> float:
        facts = {"reward": [1.0] * 4, "drop": drops, "counts": [(3, 4, 4, 1)]}
        monkeypatch.setattr(trainer, "evaluated", lambda rows: facts)
        return trainer.evaluate()["eval_objective"]

    assert evaluated([0.05] * 4) == 0.75
    assert evaluated([0.3, -0.3, 0.3, -0.3]) == pytest.approx(-(0.12**0.5) / 2)
    assert evaluated([0.2, None, 0.2, 0.2]) == pytest.approx(-0.2)


def test_best_head_is_loaded_at_the_end(done):
    """Catches a best head by another metric, or one that is not loaded at the end."""
    trainer, _ = done
    objectives = history(trainer, "eval_objective")[:3]
    assert trainer.state.best_metric == max(objectives)
    best = trainer.state.best_model_checkpoint
    assert best.endswith(f"checkpoint-{2 * (objectives.index(max(objectives)) + 1)}")
    stored = load_file(f"{best}/model.safetensors")
    assert all(torch.equal(value, stored[name]) for name, value in trainer.model.state_dict().items())


@pytest.mark.parametrize(("metric", "is_warned"), [("objective", True), ("reward", False)])
def test_warning_if_no_head_is_within_the_limit(tmp_path, monkeypatch, metric, is_warned):
    """Catches a warning about the drop that reports another metric, such as a reward of 0."""
    warned = []
    monkeypatch.setattr(trainer_module.logger, "warning", warned.append)
    held_out = {"eval_dataset": runs.rows()[:2], "eval_strategy": "steps", "metric_for_best_model": metric}
    trainer = runs.trainer(tmp_path, runs.zero, acceptance_coef=None, max_steps=2, **held_out)
    evaluate = trainer.evaluate
    monkeypatch.setattr(trainer, "evaluate", lambda **kwargs: evaluate(**kwargs) | {"eval_objective": -0.5})
    trainer.train()
    found = [line for line in warned if "no head kept the drop" in line]
    assert len(found) == is_warned
    assert all("the smallest was 0.5000. Train longer, on more prompts" in line for line in found)


# What it is given


def test_models_by_name(tmp_path):
    """Catches names that only work for models already loaded, and a tokenizer that would pad on the right."""
    target, draft = runs.pair()
    for name, model in (("target", target), ("draft", draft)):
        model.save_pretrained(tmp_path / name)
    tokenizer = runs.tokenizer()
    tokenizer.padding_side = "right"
    tokenizer.save_pretrained(tmp_path / "target")
    trainer = runs.DiversedTrainer(
        str(tmp_path / "target"),
        str(tmp_path / "draft"),
        reward_funcs="tests.training.runs.letters",
        args=runs.config(tmp_path / "run", max_steps=2, model_init_kwargs={"dtype": "float32"}),
        train_dataset=runs.rows(),
    )
    trainer.train()
    assert trainer.model.config.base_model_name_or_path == "target"
    assert trainer.model.config.assistant_model_name_or_path == "draft"
    assert trainer.sampler.pair.tokenizer.padding_side == "left"
    assert history(trainer, "reward") == history(runs.trained(tmp_path / "other", runs.letters, max_steps=2), "reward")


def test_options_of_loading_need_names(tmp_path):
    """Catches a dtype that is recorded and published, but not used."""
    with pytest.raises(
        ValueError, match=r"model_init_kwargs=.*bfloat16.* has no effect on the loaded LlamaForCausalLM"
    ):
        runs.trainer(tmp_path, model_init_kwargs={"dtype": "bfloat16"})


def test_given_head_is_trained(done, tmp_path):
    """Catches a given head that is replaced by a new one, and one that keeps a calibration of its earlier weights."""
    trained, _ = done
    head = copy.deepcopy(trained.model)
    head.config.strictness, head.config.calibration = 0.35, calibration()
    trainer = runs.trainer(tmp_path, head=head, task="gsm8k", temperature=0.7, num_assistant_tokens=2)
    assert trainer.model is head
    assert head.config.task == "gsm8k"
    assert (head.config.strictness, head.config.calibration) == (0.5, None)
    assert (head.config.training_temperature, head.config.num_assistant_tokens) == (0.7, 2)


def test_looked_up_drafts_have_no_hidden_states(tmp_path):
    target, _ = runs.pair()
    with pytest.raises(ValueError, match="head_features must be \"distribution\", got 'both'"):
        runs.trainer(tmp_path, models=(target, None), head_features="both")


def test_a_head_of_another_pair_is_an_early_error(tmp_path):
    """Catches an error that follows the measurement of all reference rewards."""
    wide = DiversedHead(DiversedHeadConfig(target_hidden_size=7, draft_hidden_size=7, features="hidden"))
    for draft, words in ((runs.pair()[1], "hidden size 7, got"), (None, "needs hidden states of a draft model")):
        with pytest.raises(ValueError, match=words):
            runs.trainer(tmp_path, models=(runs.pair()[0], draft), head=wide)


def test_references_are_measured_once(tmp_path):
    """Catches reference rewards of a row that are measured for every batch of rollouts, or for an evaluation again."""
    trainer = runs.trainer(tmp_path, acceptance_coef=None, eval_dataset=runs.rows()[:3], max_steps=8)
    drawn, inner = [], trainer.sampler.lossless
    trainer.sampler.lossless = lambda prompts, seed: drawn.extend(prompts) or inner(prompts, seed)
    trainer.train()
    trainer.evaluate()
    assert len(drawn) == 2 * len(set(drawn)) == 2 * len(trainer.references.rewards)


def test_rows_of_several_tasks(tmp_path):
    """Catches an error for a column of one task that rows of another lack: `task_reward` gives those None."""
    rows = [{"prompt": "a", "number": 1}, {"prompt": "bc", "article": "text"}, {"prompt": "l", "number": 3}]
    seen = []

    def reward(completions, number, article, **columns):
        seen.extend(zip(number, article))
        return [0.5] * len(completions)

    runs.trainer(tmp_path, reward, train_dataset=rows, max_steps=2, save_steps=2).train()
    assert set(seen) <= {(1, None), (None, "text"), (3, None)}
    assert len(set(seen)) > 1
