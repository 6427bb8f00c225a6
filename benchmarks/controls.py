"""Is it the head, or would any weight do? Trains two controls as a packaged head was trained, and evaluates all three.

python benchmarks/controls.py math --samples-per-prompt 10

"constant": the head sees nothing, so that only its bias learns. "shuffled": it sees what belongs to other positions of
the batch. Writes results/controls-<task>.json.
"""

import argparse
import json
from pathlib import Path

import torch

from hf_diversed import DiversedHead, load_demo_pair
from hf_diversed.evaluation import EvaluationSettings, compare, evaluate, read_results
from hf_diversed.provenance import provenance
from hf_diversed.tasks import get_task, load_records
from hf_diversed.tasks.rewards import task_reward
from hf_diversed.tasks.rows import prompt_rows
from hf_diversed.training import DiversedConfig, DiversedTrainer
from hf_diversed.training.rollout import RecordingVerifier
from hf_diversed.zoo.loader import WEIGHTS


class ConstantVerifier(RecordingVerifier):
    """The head sees zeros."""

    def head_inputs(self, draft, target):
        inputs, tv = super().head_inputs(draft, target)
        return {name: torch.zeros_like(values) for name, values in inputs.items()}, tv


class ShuffledVerifier(RecordingVerifier):
    """The head sees inputs of other positions: the same law of inputs, without what they say."""

    def head_inputs(self, draft, target):
        inputs, tv = super().head_inputs(draft, target)
        order = torch.randperm(draft.tokens.numel())
        return {name: values.flatten(0, 1)[order].view_as(values) for name, values in inputs.items()}, tv


CONTROLS = {"constant": ConstantVerifier, "shuffled": ShuffledVerifier}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task")
    parser.add_argument("--num-examples", type=int, default=1000)
    parser.add_argument("--samples-per-prompt", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=250)
    parser.add_argument("--output", type=Path, help="results/controls-<task>.json by default")
    options = parser.parse_args()
    output = options.output or Path("results") / f"controls-{options.task}.json"
    folder = output.with_suffix(".parts")

    pair, task = load_demo_pair(), get_task(options.task, allow_code_execution=True)
    heads = {name: trained(name, pair, task, folder / name) for name in CONTROLS}
    methods = ["sd", "diversed", *((name, CONTROLS[name](head)) for name, head in heads.items())]
    settings = EvaluationSettings(
        num_examples=options.num_examples,
        samples_per_prompt=options.samples_per_prompt,
        batch_size=options.batch_size,
    )
    examples = load_records(task, "test", options.num_examples)
    rows = evaluate(pair, task, examples, methods, settings, head=pair.heads[task.name], output=folder)
    results = read_results(folder)
    record = {
        "records": rows,
        "differences": [compare(results, "diversed", name) for name in CONTROLS],
        "provenance": provenance(settings.seed),
    }
    output.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record["differences"], indent=1))


def trained(control: str, pair, task, folder: Path) -> DiversedHead:
    """A control, trained under the settings that the packaged head's provenance names; kept in `folder`."""
    if (folder / "config.json").exists():
        return DiversedHead.from_pretrained(folder).eval()
    source = json.loads((WEIGHTS / "heads" / task.name / "provenance.json").read_text())
    settings = {name: value for name, value in source["training"].items() if value is not None}
    trainer = DiversedTrainer(
        pair.target,
        pair.draft,
        reward_funcs=task_reward(task),
        args=DiversedConfig(
            **settings, output_dir=str(folder), seed=source["seed"], eval_strategy="steps", load_best_model_at_end=True
        ),
        train_dataset=prompt_rows(task, load_records(task, "train", source["num_prompts"], source["seed"])),
        eval_dataset=prompt_rows(task, load_records(task, "validation", source["num_prompts"], source["seed"])),
        processing_class=pair.tokenizer,
        task=task.name,
    )
    trainer.sampler.verifier_class = CONTROLS[control]
    trainer.train(resume_from_checkpoint=True)
    trainer.save_model(str(folder))
    return trainer.model.eval()


if __name__ == "__main__":
    main()
