"""What goes wrong around a run, one thing at a time: each ends in a sentence that says what to do, or is survived, and
a run that goes on afterwards ends with the weights of one that nothing happened to."""

import errno
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from hf_diversed.evaluation.journal import WriteError
from hf_diversed.tasks.rewards import RewardError
from hf_diversed.training import checkpoints, run_folder, scoring
from hf_diversed.training.checkpoints import MARKER, damage
from hf_diversed.training.run_folder import LOCK
from tests.training import runs


STEPS = 6
EVALUATED = {"eval_strategy": "steps", "load_best_model_at_end": True, "metric_for_best_model": "reward"}


def trainer(folder: Path, reward=runs.letters, **settings):
    held_out = {"eval_dataset": runs.rows()[:3]} | EVALUATED if settings.pop("evaluated", False) else {}
    return runs.trainer(folder, reward, **({"max_steps": STEPS, "learning_rate": 0.3} | held_out | settings))


def same(one: torch.nn.Module, folder: Path) -> bool:
    """Whether a head has the weights in a folder, bit for bit."""
    stored = load_file(folder / "model.safetensors")
    return all(torch.equal(value, stored[name]) for name, value in one.state_dict().items())


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken")
    trainer(folder).train()
    return folder


@pytest.fixture(scope="module")
def unbroken_best(tmp_path_factory) -> Path:
    """The same with evaluations; the best head is saved in "final"."""
    folder = tmp_path_factory.mktemp("best")
    done = trainer(folder, evaluated=True)
    done.train()
    assert done.state.best_global_step == 2
    done.save_model(str(folder / "final"))
    return folder


@pytest.fixture
def run(unbroken, tmp_path) -> Path:
    return shutil.copytree(unbroken, tmp_path / "run")


# Checkpoints


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


DAMAGES = {
    "weights truncated": ("model.safetensors", truncate),
    "weights flipped": ("model.safetensors", flip),
    "optimizer truncated": ("optimizer.pt", truncate),
    "optimizer flipped": ("optimizer.pt", flip),
    "state truncated": ("trainer_state.json", truncate),
    "state flipped": ("trainer_state.json", flip),
    "schedule missing": ("scheduler.pt", Path.unlink),
}


@pytest.mark.parametrize(("name", "harm"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_checkpoint_file(unbroken, run, caplog, name: str, harm):
    """Catches damaged weights or training state that a resumed run goes on from."""
    harm(run / "checkpoint-6" / name)
    resumed = trainer(run)
    with caplog.at_level(logging.WARNING):
        resumed.train(resume_from_checkpoint=True)
    assert f"checkpoint-6 is damaged ({name} " in caplog.text
    assert resumed._rescue.first_step == 4
    assert same(resumed.model, unbroken / "checkpoint-6")
    assert damage(run / "checkpoint-6") is None


def test_missing_marker(unbroken, run, caplog):
    """Catches an interrupted save that counts, and a fall back without a word."""
    (run / "checkpoint-6" / MARKER).unlink()
    resumed = trainer(run)
    with caplog.at_level(logging.WARNING):
        resumed.train(resume_from_checkpoint=True)
    assert f"checkpoint-6 is damaged (its save was interrupted (no {MARKER})) and is passed over" in caplog.text
    assert resumed._rescue.first_step == 4
    assert same(resumed.model, unbroken / "checkpoint-6")


def test_checkpoint_that_cannot_be_read(run, monkeypatch):
    """Catches a bad sector that ends a run in an error of the file system, though older checkpoints are whole."""
    inner = checkpoints._digest

    def digest(path):
        if path == run / "checkpoint-6" / "optimizer.pt":
            raise OSError(errno.EIO, "Input/output error")
        return inner(path)

    monkeypatch.setattr(checkpoints, "_digest", digest)
    assert damage(run / "checkpoint-6") == "optimizer.pt cannot be read (Input/output error)"
    assert checkpoints.resume_point(run) == str(run / "checkpoint-4")


@pytest.mark.parametrize(
    ("harm", "steps"), [(flip, STEPS), (flip, 8), (lambda path: shutil.rmtree(path.parent), 8)], ids=[0, 1, 2]
)
def test_damaged_best_checkpoint(unbroken_best, tmp_path, caplog, harm, steps: int):
    """Catches the best head, saved long ago and damaged since, that is loaded at the end as if nothing were wrong, or
    forgotten while its score still keeps others from becoming the best."""
    run = shutil.copytree(unbroken_best, tmp_path / "run")
    harm(run / "checkpoint-2" / "model.safetensors")
    resumed = trainer(run, evaluated=True, max_steps=steps)
    with caplog.at_level(logging.WARNING):
        resumed.train(resume_from_checkpoint=True)
    assert "the best checkpoint, checkpoint-2, is damaged (" in caplog.text
    scores = {line["step"]: line["eval_reward"] for line in resumed.state.log_history if "eval_reward" in line}
    others = {step: score for step, score in scores.items() if step > 2}
    best = max(others, key=others.__getitem__)
    assert (resumed.state.best_global_step, resumed.state.best_metric) == (best, others[best])
    assert same(resumed.model, run / f"checkpoint-{best}")


def test_no_best_checkpoint_is_left(unbroken_best, tmp_path, caplog):
    """Catches a run that ends in an error of the loader, as every checkpoint was damaged while it went on."""
    done = trainer(tmp_path, evaluated=True)

    def harm():
        for folder in tmp_path.glob("checkpoint-*"):
            if damage(folder) is None:
                flip(folder / "model.safetensors")

    done.add_callback(runs.Watch(lambda: None))
    done.callback_handler.callbacks[-1].on_save = lambda *_, **__: harm()
    with caplog.at_level(logging.WARNING):
        done.train()
    assert "the last head remains unless a later one is better" in caplog.text
    assert same(done.model, unbroken_best / "checkpoint-6")


# The disk


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A small file system of its own, which holds one checkpoint and not two."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if not mounted("-t", "tmpfs", "-o", "size=56k", "tmpfs", str(folder)):
        pytest.skip("mounting a file system is not permitted here; the faked failures below stand in for it")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def mounted(*arguments: str) -> bool:
    if shutil.which("mount") is None:
        return False
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


def test_full_disk(unbroken, disk):
    """Catches 'basic_ios::clear: iostream error' of torch, which tells nobody that a disk is full, and an error of the
    system that names no file."""
    full = trainer(disk / "run")
    words = r"checkpoint-\d could not be written: .* 0\.0 MiB are free there\. Free some space"
    with pytest.raises(WriteError, match=words):
        full.train()
    saved = full.state.global_step - 2
    assert saved >= 2
    assert mounted("-o", "remount,size=1m", str(disk))
    resumed = trainer(disk / "run")
    resumed.train(resume_from_checkpoint=True)
    assert resumed._rescue.first_step == saved
    assert same(resumed.model, unbroken / "checkpoint-6")


def test_full_disk_at_the_references(disk):
    """Catches references that are left half written, or destroy those that were measured before."""
    (disk / "filler").write_bytes(bytes(56 * 1024))
    with pytest.raises(WriteError, match=r"reference_rewards\.json could not be written: .*No space left on device"):
        trainer(disk / "run", acceptance_coef=None).train()
    assert [path.name for path in (disk / "run").iterdir()] == [LOCK]


@pytest.mark.parametrize("there", [True, False], ids=["there", "to be made"])
def test_read_only_folder(disk, there: bool):
    """Catches a run that measures its references, or loads its models, for hours before it fails to write."""
    (disk / "run").mkdir()
    assert mounted("-o", "remount,ro", str(disk))
    folder = disk / "run" if there else disk / "other"
    with pytest.raises(
        WriteError, match=r"could not be written: .*Read-only file system.* choose a folder that can be"
    ):
        trainer(folder)


FAILURES = {
    "system": OSError(errno.ENOSPC, "No space left on device"),
    "torch": RuntimeError("basic_ios::clear: iostream error"),
    "safetensors": SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
}


@pytest.mark.parametrize(
    ("place", "name"),
    [("_save", "safetensors"), ("_save_optimizer_and_scheduler", "torch"), ("_save_rng_state", "system")],
)
def test_failing_save(unbroken, tmp_path, monkeypatch, place: str, name: str):
    """Catches what a full disk looks like from torch and safetensors, where no disk can be filled; and a failed save
    that damages the one before."""
    failing = trainer(tmp_path)
    inner = getattr(failing, place)

    def save(*args, **kwargs):
        if failing.state.global_step == 4:
            raise FAILURES[name]
        return inner(*args, **kwargs)

    monkeypatch.setattr(failing, place, save)
    with pytest.raises(WriteError, match=r"checkpoint-4 could not be written: .*(iostream|No space).*Free some space"):
        failing.train()
    resumed = trainer(tmp_path)
    resumed.train(resume_from_checkpoint=True)
    assert resumed._rescue.first_step == 2
    assert same(resumed.model, unbroken / "checkpoint-6")


@pytest.mark.parametrize("call", ["save_model", "save_state"])
def test_failing_last_save(tmp_path, monkeypatch, call: str):
    """Catches an error of the system without a file's name where a finished run writes its head and its log."""
    failing = trainer(tmp_path)

    def fail(*args, **kwargs):
        raise FAILURES["system"]

    monkeypatch.setattr(failing, "_save", fail)
    monkeypatch.setattr(type(failing.state), "save_to_json", fail)
    with pytest.raises(WriteError, match=f"{tmp_path}.* could not be written"):
        getattr(failing, call)()


def test_folder_that_cannot_be_written(tmp_path, monkeypatch):
    """Catches the check above that is skipped: permissions do not hold for root, and not everybody may mount."""

    def fail(**_):
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(run_folder.tempfile, "TemporaryFile", fail)
    with pytest.raises(WriteError, match=f"{tmp_path} could not be written: .*Permission denied"):
        trainer(tmp_path)


def test_a_file_where_the_folder_should_be(tmp_path):
    """Catches 'File exists', which sounds as if all were well."""
    (tmp_path / "run").touch()
    with pytest.raises(WriteError, match=r"run could not be written: .*File exists.* choose a folder"):
        trainer(tmp_path / "run")


# Two runs


def test_second_run_in_one_folder(unbroken, tmp_path):
    """Catches two runs that write each other's checkpoints."""
    refused = []

    def reward(completions, **columns):
        if not refused:
            with pytest.raises(OSError, match=r"another run is training in .*wait for its end, or choose another"):
                trainer(tmp_path).train(resume_from_checkpoint=True)
            refused.append(True)
        return runs.letters(completions)

    first = trainer(tmp_path, reward)
    first.train()
    assert refused
    assert same(first.model, unbroken / "checkpoint-6")
    trainer(tmp_path).train(resume_from_checkpoint=True)


def test_a_killed_run_leaves_no_lock(tmp_path):
    """Catches a folder that stays locked for ever, since nobody could release it."""
    hold = f"lock = filelock.FileLock({str(tmp_path / LOCK)!r}); lock.acquire(); print('held', flush=True); input()"
    other = subprocess.Popen([sys.executable, "-c", f"import filelock; {hold}"], stdin=-1, stdout=-1)
    try:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(OSError, match="another run is training"):
            trainer(tmp_path, max_steps=2).train()
    finally:
        other.kill()
        other.communicate()
    assert (tmp_path / LOCK).exists()
    trainer(tmp_path, max_steps=2).train()


# Rewards


def failing_at(number: int, failure: Exception | float):
    """A reward that raises, or returns a number that is none, for one completion of its `number`-th call."""
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


@pytest.mark.parametrize("failure", [KeyError("answer"), float("nan"), float("inf")], ids=["raises", "nan", "inf"])
def test_failing_reward(unbroken, tmp_path, failure):
    """Catches NaN that passes for "no reward", an error that names neither reward nor prompt, and steps since the last
    checkpoint that are lost for a mistake in somebody's reward."""
    reward, calls = failing_at(3, failure)
    words = "reward 'moody' .*(KeyError: 'answer'|nan|inf).* for completion .* of prompt "
    failing = trainer(tmp_path, reward, save_steps=STEPS)
    with pytest.raises(RewardError, match=words + ".* The 4 steps before it are saved in checkpoint-4") as error:
        failing.train()
    assert f"of prompt {calls[2]!r}" in str(error.value)
    resumed = trainer(tmp_path, save_steps=STEPS)
    resumed.train(resume_from_checkpoint=True)
    assert resumed._rescue.first_step == 4
    assert same(resumed.model, unbroken / "checkpoint-6")


def test_rewards_that_become_none(tmp_path):
    """Catches steps that are lost when a batch of rollouts gets no reward at all."""
    calls = []

    def fading(completions, **columns):
        calls.append(len(completions))
        return runs.letters(completions) if len(calls) < 2 else [None] * len(completions)

    with pytest.raises(
        RewardError, match=r"every reward of a batch .* The 2 steps before it are saved in checkpoint-2"
    ):
        trainer(tmp_path, fading, save_steps=STEPS).train()
    assert damage(tmp_path / "checkpoint-2") is None


def test_reward_that_fails_at_once(tmp_path):
    """Catches a checkpoint of nothing, and one that a resumed run writes again over itself."""
    reward, _ = failing_at(1, KeyError("answer"))
    with pytest.raises(RewardError, match="No step was done since the run was started"):
        trainer(tmp_path, reward).train()
    assert list(tmp_path.glob("checkpoint-*")) == []


def test_reward_that_fails_while_references_are_measured(tmp_path):
    """Catches references of earlier prompts that are measured again since a later one made the reward fail."""
    settings = {"acceptance_coef": None, "generation_batch_size": 1, "reference_generations": 2}
    reward, _ = failing_at(3, KeyError("answer"))
    failing = trainer(tmp_path, reward, **settings)
    with pytest.raises(RewardError, match="reward 'moody' raised KeyError"):
        failing.train()
    assert len(failing.scorer.references.rewards) == 8
    stored = (tmp_path / "reference_rewards.json").read_text()
    assert all(key in stored for key in failing.scorer.references.rewards)


@pytest.mark.parametrize("call", [2, 6])
def test_reward_that_fails_in_an_evaluation(unbroken_best, tmp_path, call: int):
    """Catches an evaluation that never happens, as the run went on behind it: that step's head could be the best."""
    reward, _ = failing_at(call, KeyError("answer"))
    failing = trainer(tmp_path, reward, evaluated=True)
    with pytest.raises(RewardError, match=f"The {call} steps before it are saved in checkpoint-{call}"):
        failing.train()
    resumed = trainer(tmp_path, evaluated=True)
    resumed.train(resume_from_checkpoint=True)
    assert resumed._rescue.first_step == call
    assert same(resumed.model, unbroken_best / "final")
    steps = [line["step"] for line in resumed.state.log_history if "eval_reward" in line]
    assert steps == [2, 4, 6]
    assert all(damage(tmp_path / f"checkpoint-{step}") is None for step in steps)


def test_reward_that_fails_on_another_device(monkeypatch):
    """Catches a process that waits for ever for the rewards of one whose reward failed."""
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
    """Catches a mean, a spread or an order that needs two prompts."""
    rows = runs.rows()[:1]
    done = trainer(tmp_path, train_dataset=rows, eval_dataset=rows, acceptance_coef=coef, **EVALUATED)
    done.train()
    assert done.state.global_step == STEPS
    assert all(value == value for line in done.state.log_history for value in line.values())


PROMPTS = {
    "none": ({"train_dataset": []}, 'train_dataset must hold rows with a "prompt", got no row'),
    "none to evaluate on": ({"eval_dataset": []}, 'eval_dataset must hold rows with a "prompt", got no row'),
    "no data to evaluate on": ({"eval_strategy": "steps"}, 'eval_strategy="steps" needs eval_dataset, got none'),
    "too long": (
        {"train_dataset": runs.rows(["a", "b" * 117, "c" * 118, "d" * 200])},
        "prompt 2 of train_dataset has 119 tokens; at most 118 fit, as the target has 128 positions and a completion "
        "takes up to 10. 2 of 4 prompts are too long: leave them out, shorten them, or lower max_completion_length",
    ),
    "too long to evaluate on": (
        {"eval_dataset": runs.rows(["a" * 500])},
        "prompt 0 of eval_dataset has 501 tokens; at most 118 fit",
    ),
    "too long with the completion": (
        {"max_completion_length": 128},
        "prompt 0 of train_dataset has 2 tokens; at most 0",
    ),
}


@pytest.mark.parametrize(("settings", "message"), PROMPTS.values(), ids=PROMPTS)
def test_prompts_that_cannot_be_trained_on(tmp_path, settings: dict, message: str):
    """Catches prompts that no position is left for, which models with rotary positions take without a word."""
    with pytest.raises(ValueError) as error:
        trainer(tmp_path, **settings)
    assert message in str(error.value)


def test_prompt_beyond_the_draft(tmp_path):
    """Catches a draft of fewer positions than its target has."""
    target, draft = runs.pair()
    draft.config.max_position_embeddings = 16
    rows = runs.rows(["a" * 7])
    with pytest.raises(ValueError, match="prompt 0 of train_dataset has 8 tokens; at most 6 fit, as the draft has 16"):
        trainer(tmp_path, models=(target, draft), train_dataset=rows)
    draft.config.max_position_embeddings = 18
    trainer(tmp_path, models=(target, draft), train_dataset=rows)


def test_prompt_without_tokens(tmp_path, monkeypatch):
    """Catches an empty line of a data file, which fails deep inside the loop where a tokenizer adds no BOS."""
    tokenizer = runs.tokenizer()
    tokenizer.backend_tokenizer.post_processor = None
    monkeypatch.setattr(runs, "tokenizer", lambda: tokenizer)
    with pytest.raises(ValueError, match="prompt 1 of train_dataset has no tokens; leave it out"):
        trainer(tmp_path, train_dataset=runs.rows(["a", "", "b"]))


# Files beside the checkpoints


@pytest.mark.parametrize("content", [b"", b'{"settings": {"a', b"\xff\xfe\x00", b"[]", b'{"settings": {}}'])
def test_damaged_references(tmp_path, content: bytes):
    """Catches 'Unterminated string starting at: line 1 column 49' as all that is said of a damaged file."""
    (tmp_path / "reference_rewards.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"reference_rewards\.json is damaged .*; remove it to measure"):
        trainer(tmp_path, acceptance_coef=None).train()


def test_older_checkpoints_go_once_the_new_one_is_on_the_disk(tmp_path, monkeypatch):
    """Catches a rotation that trusts the cache: after a power failure neither the old nor the new files would be
    there."""
    synced, inner = [], os.fsync

    def fsync(handle):
        synced.append(Path(os.readlink(f"/proc/self/fd/{handle}")))
        inner(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    trainer(tmp_path, max_steps=2).train()
    folder = tmp_path / "checkpoint-2"
    files = {path for path in folder.iterdir() if path.name != MARKER}
    marker = synced.index(folder / f".{MARKER}")
    assert {*files, folder} <= set(synced[:marker])
    assert synced[marker + 1 :] == [folder, tmp_path]
