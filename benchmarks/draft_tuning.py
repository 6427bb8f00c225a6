"""Measure on one task what a tuned draft model gains, and what DIVERSED gains in addition.

python -m benchmarks.draft_tuning math --samples-per-prompt 2

Compares the untuned, a supervised and a distilled draft. For each: acceptance and quality of lossless decoding, and of
DIVERSED with a head trained for this draft under the settings of the packaged mixture head and `--set`. Corresponds to
the paper's table of tuned drafts (arXiv 2604.07622). Writes results/drafts-TASK.json. Two processes with RANK and
WORLD_SIZE share the drafts.
"""

import argparse
import dataclasses
import json
import os
from pathlib import Path

from benchmarks.variants import Variant, claim, train
from embedded.records import draw_records
from hf_diversed import DiversedHead, load_demo_pair
from hf_diversed.cli.train import supervised_rows
from hf_diversed.evaluation import EvaluationSettings, evaluate
from hf_diversed.provenance import provenance
from hf_diversed.tasks import get_task, load_records
from hf_diversed.training.draft_tuning import DraftTuningConfig, tune_draft
from hf_diversed.zoo.loader import MIXTURE, WEIGHTS


MODES = ("untuned", "supervised", "distill")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--num-prompts", type=int, default=2048, help="Prompts that drafts are tuned on")
    parser.add_argument("--num-examples", type=int, default=1000)
    parser.add_argument("--samples-per-prompt", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=250)
    parser.add_argument("--set", type=json.loads, default={}, help="JSON of training settings for every head")
    parser.add_argument("--output", type=Path, help="results/drafts-TASK.json by default")
    options = parser.parse_args()
    output = options.output or Path("results") / f"drafts-{options.task}.json"
    folder = output.with_suffix(".parts")
    task = get_task(options.task, allow_code_execution=True)
    settings = EvaluationSettings(
        num_examples=options.num_examples,
        samples_per_prompt=options.samples_per_prompt,
        batch_size=options.batch_size,
    )
    # Removed from the environment, because training would otherwise wait for the other processes.
    rank, world_size = (int(os.environ.pop(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))
    for mode in MODES[rank::world_size]:
        pair = load_demo_pair()
        if mode != "untuned":
            claim(folder / mode, {"num_prompts": options.num_prompts})
            draft = tuned(mode, pair, task, folder / mode / "draft", options.num_prompts)
            pair = dataclasses.replace(pair, draft=draft)
        train(Variant(), pair, task, folder / mode / "head", WEIGHTS / MIXTURE / task.name, options.set)
        head = DiversedHead.from_pretrained(folder / mode / "head").eval()
        examples = load_records(task, "test", options.num_examples)
        evaluate(
            pair,
            task,
            examples,
            ["target", "lossless", "diversed"],
            settings,
            head=head,
            output=folder / mode / "evaluation",
        )
    reports = {mode: folder / mode / "evaluation" / "evaluation.json" for mode in MODES}
    if not all(path.exists() for path in reports.values()):
        print("Other processes are still running; the last one writes the results.")
        return
    rows = [
        {"draft": mode, **record}
        for mode, path in reports.items()
        for record in json.loads(path.read_text())["records"]
    ]
    output.write_text(json.dumps({"records": rows, "provenance": provenance(settings.seed)}, indent=1) + "\n")
    for row in rows:
        print(row["draft"], row["method"], row["acceptance_rate"], row["quality"], row["quality_drop_ci"])


def tuned(mode: str, pair, task, folder: Path, num_prompts: int):
    """Return the draft merged with an adapter tuned on the task's training prompts; `resume` loads a finished one."""
    config = DraftTuningConfig(
        output_dir=str(folder),
        mode=mode,
        resume=True,
        num_train_epochs=2,
        per_device_train_batch_size=16,
        learning_rate=1e-3,
        use_cpu=True,
        report_to="none",
    )
    rows = supervised_rows(task, draw_records(task.name, "train", num_prompts, config.seed), 0, False)
    return tune_draft(pair.target, pair.draft, pair.tokenizer, rows, config, task.stop_strings).merge_and_unload()


if __name__ == "__main__":
    main()
