"""Rewards that fail and invalid prompts: the run ends with a message."""

import pytest
import torch

from hf_diversed.training import rewards
from hf_diversed.training.rewards import RewardError
from tests.training import runs
from tests.training.runs import trainer


@pytest.mark.parametrize(
    ("failure", "words"),
    [(KeyError("answer"), "reward 'moody' raised KeyError: 'answer'"), (float("nan"), "must return finite numbers")],
    ids=["raises", "nan"],
)
def test_failing_reward(tmp_path, failure, words):
    """Catches NaN as "no reward", and an error without the name of the reward."""

    def moody(completions, **columns):
        if isinstance(failure, Exception):
            raise failure
        return [failure] * len(completions)

    with pytest.raises(RewardError, match=words):
        trainer(tmp_path, moody).train()


def test_rewards_that_are_all_none(tmp_path):
    """Catches a mean over no rewards."""
    with pytest.raises(RewardError, match="every reward of a batch of rollouts is None"):
        trainer(tmp_path, lambda completions, **columns: [None] * len(completions)).train()


def test_reward_that_fails_on_another_device(monkeypatch):
    """Catches a process that waits forever for the rewards of one whose reward failed."""
    other = RewardError("there")
    monkeypatch.setattr(rewards, "gather_object", lambda mine: [*mine, other])
    with pytest.raises(RewardError, match="there"):
        rewards.gathered(lambda: [1.0])
    given = []
    monkeypatch.setattr(rewards, "gather_object", lambda mine: given.extend(mine) or mine)

    def fail():
        raise RewardError("here")

    with pytest.raises(RewardError, match="here"):
        rewards.gathered(fail)
    assert [type(item) for item in given] == [RewardError]


# Prompts


@pytest.mark.parametrize("coef", [0.3, None], ids=["fixed", "constrained"])
def test_one_prompt(tmp_path, coef):
    """Catches a mean, a standard deviation or an order that needs two prompts."""
    rows = runs.rows()[:1]
    done = trainer(tmp_path, train_dataset=rows, eval_dataset=rows, acceptance_coef=coef, eval_strategy="steps")
    done.train()
    assert done.state.global_step == done.args.max_steps
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
    assert sum(updates) == 4  # in a distributed run, gradients are only shared by a forward pass of the wrapper
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
