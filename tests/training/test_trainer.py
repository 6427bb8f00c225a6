"""The trainer as a whole: training, logs, files, errors, and what it must not change."""

import copy
import json
import math

import pytest
import torch

from hf_diversed import DiversedHead
from tests.tiny import EOS, calibration
from tests.training import runs


def history(trainer, name: str) -> list[float]:
    return [line[name] for line in trainer.state.log_history if name in line]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished run with a constraint and evaluations, and the weights of its models before it."""
    models = runs.pair()
    before = [copy.deepcopy(model.state_dict()) for model in models]
    evaluated = {"eval_dataset": runs.rows()[:3], "eval_strategy": "steps", "load_best_model_at_end": True}
    settings = {"acceptance_coef": None, "reward_weights": [1.0, 2.0], "learning_rate": 0.3, "max_steps": 6}
    rewards = [runs.letters, runs.zero]
    return runs.trained(tmp_path_factory.mktemp("run"), rewards, models=models, **evaluated, **settings), before


def test_run(done):
    """Catches a gradient, an update or a lasting hook on target or draft, and a metric with another name than in
    TRL."""
    trainer, before = done
    for model, state in zip((trainer.sampler.pair.target, trainer.sampler.pair.draft), before):
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
        assert all(parameter.grad is None and not parameter.requires_grad for parameter in model.parameters())
        assert not model.training
    names = {"loss", "learning_rate", "grad_norm", "reward", "reward_std", "rewards/letters/mean", "rewards/zero/mean"}
    names |= {"completions/mean_length", "completions/clipped_ratio"}
    names |= {"acceptance_rate", "block_efficiency", "acceptance_coef", "effective_acceptance_coef"}
    names |= {"quality_drop", "weight", "clip_fraction"}
    lines = [line for line in trainer.state.log_history if "loss" in line]
    assert len(lines) == trainer.state.max_steps // trainer.state.logging_steps
    for line in lines:
        assert names <= set(line)
        assert all(math.isfinite(value) for value in line.values())


def test_runs_that_teach_nothing(tmp_path, caplog):
    """Catches an endless loop without prompts, and rewards of completions of which none is complete."""
    with pytest.raises(ValueError, match="train_dataset is empty"):
        runs.trained(tmp_path, train_dataset=[])
    runs.trained(tmp_path, max_completion_length=2, max_steps=2)
    assert "ended within max_completion_length=2" in caplog.text


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
    assert trainer.batch["advantage"].tolist() == pytest.approx([1.0, -1.0, 0.0, 0.0] * 2)


@pytest.mark.parametrize("coef", [0.3, None], ids=["fixed", "constrained"])
def test_the_targets_own_reward_is_subtracted(tmp_path, coef):
    """Catches a baseline that is added, or missing: in a constrained run, rewards that depend on the prompt only must
    have no effect; and a run that fails for a prompt without a reference reward."""

    def by_prompt(completions, number, **columns):
        return [None if index == 0 else float(index) for index in number]

    trainer = runs.trained(tmp_path, by_prompt, acceptance_coef=coef, max_steps=2)
    assert bool((trainer.batch["advantage"] == 0.0).all()) == (coef is None)
    if coef is None:
        assert trainer.references[runs.rows()[0]] is None
        assert history(trainer, "quality_drop") == [0.0]


STEPS = {"max_steps": 16, "save_steps": 16, "logging_steps": 4}
TOKEN = {"token_features": True, "head_features": "distribution"}


@pytest.mark.parametrize("kind", [{}, {**TOKEN, "initial_lenience": 0.5}], ids=["position", "token"])
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


def test_initial_predictions(tmp_path):
    """Catches a start that changes when the inputs are scaled, or that differs from the requested one, and advantages
    over groups with rows of other prompts."""
    start = {"learning_rate": 0.0, "max_steps": 2}
    trainer = runs.trained(tmp_path / "mixture", initial_weight=0.8, head_features="both", **start)
    assert history(trainer, "weight") == pytest.approx([0.8])
    trainer = runs.trained(tmp_path / "token", initial_lenience=0.1, **TOKEN, **start)
    batch, head = trainer.batch, trainer.model
    assert head.input_std[-5] != 1.0
    ratio = batch["inputs"]["token"][..., 0]
    torch.testing.assert_close(batch["old_logit"], 2.0 * (torch.tensor(0.1).log() - ratio), rtol=1e-4, atol=1e-4)
    assert history(trainer, "ratio") == [1.0]
    one, other = batch["advantage"].view(-1, 2).unbind(1)
    torch.testing.assert_close(one, -other)
    assert one.abs().max() > 0.0


def test_evaluation_and_the_best_head(done, tmp_path):
    """Catches evaluations with different seeds, a best head by another metric, one that is not loaded at the end, and
    one that is saved with the number of the last step."""
    trainer, _ = done
    one, two = trainer.evaluate(), trainer.evaluate()
    assert one == two
    names = ("reward", "acceptance_rate", "block_efficiency", "quality_drop", "quality_drop_error", "objective")
    assert set(one) == {f"eval_{name}" for name in names} | {"epoch"}
    objectives = history(trainer, "eval_objective")[:3]
    assert trainer.state.best_metric == max(objectives)
    best = runs.Path(trainer.state.best_model_checkpoint)
    step = 2 * (objectives.index(max(objectives)) + 1)
    assert best.name == f"checkpoint-{step}"
    trainer.save_model(str(tmp_path))
    assert json.loads((tmp_path / "provenance.json").read_text())["step"] == step
    assert (tmp_path / "model.safetensors").read_bytes() == (best / "model.safetensors").read_bytes()


def test_checkpoint_holds_the_head_alone(done):
    """Catches base models or pickled arguments in a checkpoint, and one without provenance."""
    trainer, _ = done
    checkpoint = runs.Path(trainer.args.output_dir) / "checkpoint-4"
    head = DiversedHead.from_pretrained(checkpoint)
    assert (head.num_parameters(), head.config.num_assistant_tokens, head.config.training_temperature) == (9, 3, 1.0)
    listed = {path.name for path in checkpoint.iterdir()}
    assert {"model.safetensors", "optimizer.pt", "trainer_state.json", "provenance.json"} <= set(listed)
    assert "training_args.bin" not in listed
    assert sum((checkpoint / name).stat().st_size for name in listed) < 100_000
    found = json.loads((checkpoint / "provenance.json").read_text())
    assert (found["step"], found["seed"], found["rewards"]) == (4, runs.TINY["seed"], ["letters", "zero"])
    assert found["training"]["reward_weights"] == [1.0, 2.0]
    logged = next(line for line in trainer.state.log_history if line["step"] == 4 and "eval_objective" in line)
    assert found["validation"]["quality_drop"] == logged["eval_quality_drop"]


def test_noise_does_not_select_a_head(tmp_path, monkeypatch):
    """Catches a head that is selected for a noisy mean drop."""
    trainer = runs.trainer(tmp_path, eval_dataset=runs.rows()[:4], acceptance_coef=None, max_quality_drop=0.1)
    counts = {"num_accepted": 3, "num_drafted": 4, "num_emitted": 4, "num_rounds": 1}

    def evaluated(drops: list[float | None]) -> float:
        monkeypatch.setattr(trainer, "_facts", lambda *_: [{"reward": 1.0, "drop": drop} | counts for drop in drops])
        return trainer.evaluate()["eval_objective"]

    assert evaluated([0.05] * 4) == 0.75
    assert evaluated([0.3, -0.3, 0.3, -0.3]) == pytest.approx(-(0.12**0.5) / 2)
    assert evaluated([0.2, None, 0.2, 0.2]) == pytest.approx(-0.2)


def test_given_head_is_trained(tmp_path):
    """Catches a given head that is replaced by a new one, that keeps a calibration of its earlier weights, or that is
    trained with the settings of the other kind."""
    head = runs.trainer(tmp_path, **TOKEN).model
    head.config.strictness, head.config.calibration = 0.35, calibration()
    trainer = runs.trainer(tmp_path, head=head, task="gsm8k", temperature=0.7, num_assistant_tokens=2)
    assert trainer.model is head
    assert head.config.task == "gsm8k"
    assert (head.config.strictness, head.config.calibration) == (0.5, None)
    assert (head.config.training_temperature, head.config.num_assistant_tokens) == (0.7, 2)
    assert (trainer.args.clip_range, trainer.args.baseline) == (0.5, "prompt")


def test_runs_that_cannot_start(tmp_path):
    """Catches a reward without a weight, which would be ignored."""
    with pytest.raises(ValueError, match="reward_weights must hold 1, one per reward, got 2"):
        runs.trainer(tmp_path, reward_weights=[1.0, 2.0])
