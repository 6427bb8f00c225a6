"""Rewards that fail and invalid prompts: the run ends with a message and loses no step."""

import pytest
import torch

from hf_diversed.tasks.rewards import RewardError
from hf_diversed.training import scoring
from tests.training import runs
from tests.training.short_runs import EVALUATED, STEPS, check_resumed, trainer


def failing_at(number: int, failure: Exception | float):
    """A reward that raises, or returns an invalid number, for one completion of its `number`-th call."""
    calls = []

    def moody(completions, prompts, **columns):
        calls.append(prompts[-1])
        rewards = runs.letters(completions)
        if len(calls) >= number and calls[number - 1] in prompts:
            if isinstance(failure, Exception):
                raise failure
            rewards[prompts.index(calls[number - 1])] = failure
        return rewards

    return moody, calls


@pytest.mark.parametrize("failure", [KeyError("answer"), float("nan")], ids=["raises", "nan"])
def test_failing_reward(unbroken, tmp_path, failure):
    """Catches NaN as "no reward", an error without reward or prompt, and steps that are lost by it."""
    reward, calls = failing_at(3, failure)
    words = "reward 'moody' (raised KeyError: 'answer'|must return finite numbers .* nan for completion )"
    failing = trainer(tmp_path, reward, save_steps=STEPS)
    with pytest.raises(RewardError, match=words + ".* The 4 steps before it are saved in checkpoint-4") as error:
        failing.train()
    assert isinstance(failure, Exception) or f"of prompt {calls[2]!r}" in str(error.value)
    check_resumed(tmp_path, 4, unbroken / "checkpoint-6", save_steps=STEPS)


def test_rewards_that_become_none(tmp_path):
    """Catches steps that are lost when a batch of rollouts has no reward."""
    calls = []

    def fading(completions, **columns):
        calls.append(len(completions))
        return runs.letters(completions) if len(calls) < 2 else [None] * len(completions)

    with pytest.raises(
        RewardError, match=r"every reward of a batch .* The 2 steps before it are saved in checkpoint-2"
    ):
        trainer(tmp_path, fading, save_steps=STEPS).train()
    assert (tmp_path / "checkpoint-2").is_dir()


def test_reward_that_fails_at_once(tmp_path):
    """Catches an empty checkpoint, and one that a resumed run overwrites."""
    reward, _ = failing_at(1, KeyError("answer"))
    with pytest.raises(RewardError, match="No step was finished"):
        trainer(tmp_path, reward).train()
    assert list(tmp_path.glob("checkpoint-*")) == []


def test_reward_that_fails_while_references_are_measured(tmp_path):
    """Catches references of earlier prompts that are measured again because a later one made the reward fail."""
    settings = {"acceptance_coef": None, "generation_batch_size": 1, "reference_generations": 2}
    reward, _ = failing_at(3, KeyError("answer"))
    failing = trainer(tmp_path, reward, **settings)
    with pytest.raises(RewardError, match="reward 'moody' raised KeyError"):
        failing.train()
    assert len(failing.scorer.references.rewards) == 2  # saved every two batches, here of one completion
    stored = (tmp_path / "reference_rewards.json").read_text()
    assert all(key in stored for key in failing.scorer.references.rewards)


@pytest.mark.parametrize("call", [2, 6])
def test_reward_that_fails_in_an_evaluation(unbroken_best, tmp_path, call: int):
    """Catches an evaluation that is skipped when the run is resumed: its head could be the best."""
    reward, _ = failing_at(call, KeyError("answer"))
    failing = trainer(tmp_path, reward, evaluated=True)
    with pytest.raises(RewardError, match=f"The {call} steps before it are saved in checkpoint-{call}"):
        failing.train()
    resumed = check_resumed(tmp_path, call, unbroken_best / "final", evaluated=True)
    steps = [line["step"] for line in resumed.state.log_history if "eval_reward" in line]
    assert steps == [2, 4, 6]
    assert all((tmp_path / f"checkpoint-{step}").is_dir() for step in steps)


def test_reward_that_fails_on_another_device(monkeypatch):
    """Catches a process that waits forever for the rewards of one whose reward failed."""
    other = RewardError("there")
    monkeypatch.setattr(scoring, "gather_object", lambda mine: [*mine, other])
    with pytest.raises(RewardError, match="there"):
        scoring.gathered(lambda: [1.0])
    given = []
    monkeypatch.setattr(scoring, "gather_object", lambda mine: given.extend(mine) or mine)

    def fail():
        raise RewardError("here")

    with pytest.raises(RewardError, match="here"):
        scoring.gathered(fail)
    assert [type(item) for item in given] == [RewardError]


# Prompts


@pytest.mark.parametrize("coef", [0.3, None], ids=["fixed", "constrained"])
def test_one_prompt(tmp_path, coef):
    """Catches a mean, a standard deviation or an order that needs two prompts."""
    rows = runs.rows()[:1]
    done = trainer(tmp_path, train_dataset=rows, eval_dataset=rows, acceptance_coef=coef, **EVALUATED)
    done.train()
    assert done.state.global_step == STEPS
    assert all(value == value for line in done.state.log_history for value in line.values())


PROMPTS = {
    "none": ({"train_dataset": []}, 'train_dataset must hold rows with a "prompt", got no row'),
    "a later row": ({"train_dataset": [{"prompt": "a"}, {"text": "b"}]}, "must hold rows with a"),
    "no prompt to evaluate on": ({"eval_dataset": [{"text": "a"}]}, "eval_dataset must hold rows"),
    "a column of rewards": ({"train_dataset": [{"prompt": "a", "completions": "b"}]}, "a column 'completions'"),
    "no data to evaluate on": ({"eval_strategy": "steps"}, 'eval_strategy="steps" needs eval_dataset, got none'),
    "too long": (
        {"train_dataset": runs.rows(["a", "b" * 117, "c" * 118, "d" * 200])},
        "prompt 2 of train_dataset has 119 tokens; at most 118 fit, as the target has 128 positions and a completion "
        "takes up to 10. 2 of 4 prompts are too long",
    ),
    "too long with the completion": ({"max_completion_length": 128}, "train_dataset has 2 tokens; at most 0"),
}


@pytest.mark.parametrize(("settings", "message"), PROMPTS.values(), ids=PROMPTS)
def test_prompts_that_cannot_be_trained_on(tmp_path, settings: dict, message: str):
    """Catches prompts without a position left for a completion, which models with rotary positions accept."""
    with pytest.raises(ValueError) as error:
        trainer(tmp_path, **settings)
    assert message in str(error.value)


def test_rollouts_without_draft_tokens(tmp_path):
    """Catches a head with inputs scaled by NaN, and a batch in which prompt lookup found nothing that ends the run."""
    settings = {"models": (runs.pair()[0], None), "head_features": "distribution", "max_completion_length": 2}
    settings["train_dataset"] = runs.rows(["a", "bc", "jk"])
    alone = trainer(tmp_path, **settings)
    with pytest.raises(ValueError, match="the first rollouts have no draft tokens"):
        alone.train()
    head = alone.model
    weights = {name: value.clone() for name, value in head.state_dict().items()}
    updates: list = []
    head.register_forward_hook(lambda module, args, output: updates.append(output.requires_grad))
    trainer(tmp_path / "given", head=head, **settings).train()
    assert sum(updates) == STEPS  # in a distributed run, gradients are only shared by a forward pass of the wrapper
    assert all(torch.equal(value, weights[name]) for name, value in head.state_dict().items())


def test_prompt_beyond_the_draft(tmp_path):
    """Catches a draft model with fewer positions than its target."""
    target, draft = runs.pair()
    draft.config.max_position_embeddings = 16
    rows = runs.rows(["a" * 7])
    with pytest.raises(ValueError, match="prompt 0 of train_dataset has 8 tokens; at most 6 fit, as the draft has 16"):
        trainer(tmp_path, models=(target, draft), train_dataset=rows)
    draft.config.max_position_embeddings = 18
    trainer(tmp_path, models=(target, draft), train_dataset=rows)


def test_prompt_without_tokens(tmp_path, monkeypatch):
    """Catches an empty line of a data file, which fails inside the loop if the tokenizer adds no BOS."""
    tokenizer = runs.tokenizer()
    tokenizer.backend_tokenizer.post_processor = None
    monkeypatch.setattr(runs, "tokenizer", lambda: tokenizer)
    with pytest.raises(ValueError, match="prompt 1 of train_dataset has no tokens; leave it out"):
        trainer(tmp_path, train_dataset=runs.rows(["a", "", "b"]))
