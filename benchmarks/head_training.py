"""Train heads with the settings of a packaged head, some of them changed. An interrupted run can continue."""

import json
from pathlib import Path
from typing import Any

from embedded.records import draw_records
from hf_diversed.files import write_json
from hf_diversed.harness.pair import Pair
from hf_diversed.tasks import Task, prompt_rows
from hf_diversed.tasks.rewards import task_reward
from hf_diversed.training import DiversedConfig, DiversedTrainer
from hf_diversed.training.references import ReferenceRewards


REFERENCES = "reference_rewards.json"
DONE = "provenance.json"  # written last


def claim(folder: Path, settings: dict[str, Any]) -> None:
    """Write a folder's settings, or raise ValueError if the folder was started with other settings."""
    path = folder / "settings.json"
    if not path.exists() and not (folder / DONE).exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, settings)
    if not path.exists() or json.loads(path.read_text()) != settings:
        raise ValueError(f"{folder} was written with other settings; move or remove it, or use the same settings.")


def train(changes: dict[str, Any], pair: Pair, task: Task, folder: Path, packaged: Path) -> None:
    """Train a head with changes to the settings in the packaged head's provenance, unless `folder` contains it.

    Raises:
        ValueError: if `folder` contains a finished or unfinished head with other settings.
    """
    source = json.loads((packaged / "provenance.json").read_text())
    settings = {name: value for name, value in source["training"].items() if value is not None}
    settings["per_device_train_batch_size"] *= source["world_size"]  # one process samples the rollouts of all
    settings |= {"eval_strategy": "steps", "load_best_model_at_end": True, "seed": source["seed"]}
    settings |= changes
    claim(folder, settings)
    if (folder / DONE).exists():
        return
    numbers = {"train": source["num_prompts"], "validation": source["num_eval_prompts"]}
    rows = {
        split: prompt_rows(task, draw_records(task.name, split, number, source["seed"]))
        for split, number in numbers.items()
    }
    trainer = DiversedTrainer(
        pair.target,
        pair.draft,
        reward_funcs=task_reward(task),
        args=DiversedConfig(**settings, output_dir=str(folder), use_cpu=True),
        train_dataset=rows["train"],
        eval_dataset=rows["validation"],
        processing_class=pair.tokenizer,
        task=task.name,
        stop_strings=task.stop_strings,
    )
    # The target's own rewards do not depend on the head, so the first measurement is shared.
    measured = next(folder.parent.glob(f"*/{REFERENCES}"), None)
    if measured is not None:
        trainer.scorer.references = ReferenceRewards(measured, json.loads(measured.read_text())["settings"])
    trainer.train(resume_from_checkpoint=True)
    trainer.save_model(str(folder))
