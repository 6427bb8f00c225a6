"""Runs that get killed: `python -m tests.training.driver FOLDER SEED KILLS`, for test_resume.py.

Imports once, then forks a child per attempt: `hf-diversed train --resume` without the start of an interpreter. It
trains until it is done or gets SIGKILL. Children report their position over a pipe. Prints a line of JSON: the kills,
and the folders of the finished runs.
"""

import json
import os
import random
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from hf_diversed.cli.train import build_trainer
from hf_diversed.cli.training import call, parse
from hf_diversed.training import checkpoints, references, scoring
from hf_diversed.training import trainer as trainer_module
from tests.training import runs


# No thread may run when a child is forked.
torch.set_num_threads(1)
disable_progress_bar()

STEPS = 16
SETTINGS = {
    "max_steps": STEPS,
    "task": "gsm8k",
    "num_examples": 10,
    "reward_funcs": "tests.training.runs.letters",
    "max_completion_length": 6,
    "reference_generations": 2,  # two portions of eight prompts
    "eval_strategy": "steps",
    "load_best_model_at_end": True,
    "metric_for_best_model": "reward",  # keeps changing hands
    "save_total_limit": 3,
    "token_features": True,  # the kind of head that has more to keep: where it starts, and a baseline by prompt
    "learning_rate": 0.3,
}
# Places where a child can wait to be killed; all but the first two lie inside a save.
PAUSES = ("reference", "reward", "weights", "optimizer", "flush", "rename", "rotation")
KILLED = -signal.SIGKILL


def argv(folder: Path) -> list[str]:
    """The command line of a run; pair and prompts are next to its folder."""
    files = {name: folder.parent / name for name in ("target", "draft")}
    files |= {"data_file": folder.parent / "train.jsonl", "eval_data_file": folder.parent / "eval.jsonl"}
    given = {name: value for name, value in runs.TINY.items() if name != "acceptance_coef"} | SETTINGS | files
    return [f"--{name}={value}" for name, value in given.items()] + [f"--output_dir={folder}", "--resume"]


def prepare(folder: Path) -> None:
    """Save pair and prompts there."""
    target, draft = runs.pair()
    target.save_pretrained(folder / "target")
    runs.tokenizer().save_pretrained(folder / "target")
    draft.save_pretrained(folder / "draft")
    lines = [json.dumps({"question": prompt, "answer": "#### 1"}) + "\n" for prompt in runs.PROMPTS]
    (folder / "train.jsonl").write_text("".join(lines))
    (folder / "eval.jsonl").write_text("".join(lines[:4]))


def train(folder: Path, pause: str | None, tell: Callable[[str], None]) -> None:
    """Train once. At the place `pause` the process waits to be killed, the first time that it is reached."""
    _install(tell, pause)
    trainer = call(argv(folder))
    state = {"constraint": trainer.constraint.state(), "references": trainer.scorer.references.rewards}
    # The last line is of this process alone, from where it began.
    log = trainer.state.log_history[:-1]
    state["log"] = [{name: value for name, value in line.items() if "time/" not in name} for line in log]
    state["best"] = [trainer.state.best_metric, trainer.state.best_global_step]
    (folder / "final.json").write_text(json.dumps(state))


def _install(tell: Callable[[str], None], pause: str | None) -> None:
    """Report every place of interest, and wait at one of them."""

    def at(place: str) -> None:
        tell(place)
        if place == pause:
            signal.pause()

    def around(owner, name: str, before: str = "", after: str = "", here: Callable[..., bool] | None = None) -> None:
        inner = getattr(owner, name)

        def wrapped(*args, **kwargs):
            if before and (here is None or here(*args)):
                at(before)
            result = inner(*args, **kwargs)
            if after:
                at(after)
            return result

        setattr(owner, name, wrapped)

    DiversedTrainer = trainer_module.DiversedTrainer
    around(references.ReferenceRewards, "save", after="reference")
    around(scoring.Scorer, "facts", before="reward")
    around(DiversedTrainer, "_save_checkpoint", before="save", after="saved")
    around(DiversedTrainer, "_save", after="weights")
    around(DiversedTrainer, "_save_optimizer_and_scheduler", after="optimizer")
    around(checkpoints, "publish", before="flush")
    around(Path, "replace", before="rename", here=lambda path, target: path.parent.name == checkpoints.SAVING)
    around(checkpoints, "rotate_checkpoints", before="rotation")


def attempt(folder: Path, pause: str | None = None, delay: float | None = None) -> tuple[int, list[str]]:
    """Fork, and kill the child at `pause`, or `delay` seconds after it began to train, unless it ended before.

    Returns:
        The child's exit status, `KILLED` if it was killed, and the places that it reported.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            train(folder, pause, lambda place: os.write(writing, f"{place} ".encode()) and None)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    deadline = None if delay is None else time.monotonic() + delay
    reported = b""
    while True:
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        ready = select.select([reading], [], [], left)[0]
        data = os.read(reading, 4096) if ready else b""
        reported += data
        if not data or (pause is not None and pause in reported.decode().split()):
            break
    if not ready or data:
        os.kill(child, signal.SIGKILL)
    while data := os.read(reading, 4096):
        reported += data
    os.close(reading)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), reported.decode().split()


def in_save(places: list[str]) -> bool:
    """Whether a save has begun and not ended."""
    return places.count("save") > places.count("saved")


def main(folder: Path, seed: int, num_kills: int) -> dict:
    """Run once undisturbed, then kill and resume until there were enough kills and the last run came to its end."""
    prepare(folder)
    _warm_up(folder / "unused")
    began = time.monotonic()
    status, _ = attempt(folder / "unbroken")
    assert status == 0
    duration = time.monotonic() - began
    choose = random.Random(seed)
    plan: list[str | None] = [*PAUSES, *[None] * (num_kills - len(PAUSES))]
    # The measurement of the references comes first or never.
    plan = plan[:1] + choose.sample(plan[1:], len(plan) - 1)
    kills, finished = [], []
    while plan or not finished:
        run = folder / f"broken-{len(finished)}"
        status = KILLED
        while status == KILLED:
            pause = plan[0] if plan else None
            delay = choose.uniform(0.0, duration / 2) if plan and pause is None else None
            began = time.monotonic()
            status, places = attempt(run, pause=pause, delay=delay)
            if status == KILLED:
                seconds = round(time.monotonic() - began, 3)
                kills.append({"pause": pause, "seconds": seconds, "in_save": in_save(places), "places": places})
                plan.pop(0)
        assert status == 0, f"{run.name} failed"
        finished.append(run.name)
    return {"duration": duration, "kills": kills, "finished": finished}


def _warm_up(folder: Path) -> None:
    """Import what is imported late, once for all children. No backward pass, which could start threads."""
    arguments, config = parse(argv(folder))
    trainer = build_trainer(arguments, config)
    trainer.create_optimizer_and_scheduler(STEPS)
    trainer.sampler.relaxed(["a"], trainer.model, seed=0)
    assert threading.active_count() == 1, threading.enumerate()


if __name__ == "__main__":
    given, seed, num_kills = sys.argv[1:]
    print(json.dumps(main(Path(given), int(seed), int(num_kills))))
