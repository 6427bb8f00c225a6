"""Train variants of a task's packaged mixture head that differ in inputs and shape, and compare them with it.

python -m benchmarks.variants math

Writes results/features-TASK.json. Trained heads and finished batches are kept, so an interrupted run can continue.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.differences import compare
from embedded.records import draw_records
from hf_diversed import DiversedHead, load_demo_pair
from hf_diversed.evaluation import EvaluationSettings, evaluate, read_results
from hf_diversed.files import write_json
from hf_diversed.harness.pair import Pair
from hf_diversed.head.configuration_diversed import FEATURES, HEAD_TYPES
from hf_diversed.provenance import provenance
from hf_diversed.tasks import Task, get_task, load_records, prompt_rows
from hf_diversed.tasks.rewards import task_reward
from hf_diversed.training import DiversedConfig, DiversedTrainer
from hf_diversed.training.references import ReferenceRewards
from hf_diversed.training.rollout import RecordingVerifier
from hf_diversed.zoo.loader import MIXTURE, WEIGHTS


# Training settings of each variant that differ from those of the packaged head.
FEATURES_STUDY: dict[str, dict[str, Any]] = {
    # Adam changes every weight by about the learning rate, so a head with eight inputs needs a larger one.
    f"{features}-{shape}": {"head_features": features, "head_type": shape}
    | ({} if (features, shape) == ("distribution", "linear") else {"learning_rate": 0.02})
    | {"max_steps": 80, "eval_steps": 40, "save_steps": 40}
    for features in FEATURES
    for shape in HEAD_TYPES
}
BASELINES = ["target", "lossless", "static:0.9", "static:0.7", "static:0.5", "static:0.4", "static:0.3", "diversed"]
REFERENCES = "reference_rewards.json"
DONE = "provenance.json"  # written last


def main() -> None:
    options = parse_arguments()
    folder = options.output.parent / f"variants-{options.task}.parts"
    pair, task = load_demo_pair(heads=MIXTURE), get_task(options.task, allow_code_execution=True)
    for name in FEATURES_STUDY:
        train(FEATURES_STUDY[name], pair, task, folder / name, WEIGHTS / MIXTURE / task.name)
    methods: list = list(BASELINES)
    for name in FEATURES_STUDY:
        head = DiversedHead.from_pretrained(folder / name).eval()
        methods.append((name, RecordingVerifier(head)))
    settings = EvaluationSettings(
        num_examples=options.num_examples,
        samples_per_prompt=options.samples_per_prompt,
        batch_size=options.batch_size,
    )
    examples = load_records(task, "test", options.num_examples)
    done = folder / f"evaluation-x{options.samples_per_prompt}"
    rows = evaluate(pair, task, examples, methods, settings, head=pair.heads[task.name], output=done)
    results = read_results(done)
    differences = [compare(results, "diversed", name) for name in FEATURES_STUDY]
    labels = [*BASELINES, *FEATURES_STUDY]
    record = {
        "records": [row for row in rows if row["method"] in labels],
        "differences": differences,
        "provenance": provenance(settings.seed) | {"sessions": results.sessions},
    }
    write_json(options.output, record)
    print(json.dumps(differences, indent=1))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--num-examples", type=int, default=1000)
    parser.add_argument("--samples-per-prompt", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=250)
    parser.add_argument("--output", type=Path, help="results/features-TASK.json by default")
    options = parser.parse_args()
    options.output = options.output or Path("results") / f"features-{options.task}.json"
    return options


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


if __name__ == "__main__":
    main()
