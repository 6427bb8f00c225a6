"""Compare the losses of draft tuning at equal updates on the embedded pair: KL, TV and LK.

python -m benchmarks.draft_losses

Each loss starts from the packaged draft model and uses the same completions of the target in the same order. The
report contains the lossless acceptance 1 - TV(p, q) on held-out completions. Writes results/draft-losses.json and
continues an interrupted run.
"""

import argparse
import json
from pathlib import Path

from hf_diversed import load_demo_pair
from hf_diversed.cli.train import supervised_rows
from hf_diversed.provenance import provenance
from hf_diversed.tasks import get_task, load_records
from hf_diversed.training.draft_tuning import DIVERGENCES, DraftTuningConfig, tune_draft


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="math")
    parser.add_argument("--num-prompts", type=int, default=1024)
    parser.add_argument("--num-eval-prompts", type=int, default=256)
    parser.add_argument("--updates", type=int, default=128)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--output", type=Path, default=Path("results/draft-losses.json"))
    options = parser.parse_args()
    runs = json.loads(options.output.read_text())["runs"] if options.output.exists() else []
    finished = [(run["loss"], run["seed"]) for run in runs]
    for seed in range(options.seeds):
        for loss in DIVERGENCES:
            if (loss, seed) in finished:
                continue
            runs.append({"loss": loss, "seed": seed, "acceptance": measure(options, loss, seed)})
            setting = {name: getattr(options, name) for name in ("task", "num_prompts", "num_eval_prompts")}
            result = {"setting": setting, "runs": runs, "provenance": provenance(seed)}
            options.output.write_text(json.dumps(result, indent=1) + "\n")
            print(json.dumps(runs[-1]), flush=True)


def measure(options: argparse.Namespace, loss: str, seed: int) -> dict[int, float]:
    """Tune with one loss; return the held-out acceptance by number of updates."""
    pair, task = load_demo_pair(), get_task(options.task)
    records = load_records(task, "train", options.num_prompts + options.num_eval_prompts)
    rows = supervised_rows(task, records, 0, False)
    folder = options.output.with_suffix(".parts") / f"seed-{seed}"
    config = DraftTuningConfig(
        output_dir=str(folder),
        divergence=loss,
        max_steps=options.updates,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=64,
        learning_rate=options.learning_rate,
        eval_strategy="steps",
        eval_steps=options.updates // 4,
        eval_on_start=True,
        save_strategy="no",
        seed=seed,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    train, held_out = rows[: options.num_prompts], rows[options.num_prompts :]
    tune_draft(pair.target, pair.draft, pair.tokenizer, train, config, task.stop_strings, held_out)
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return {entry["step"]: entry["eval_acceptance"] for entry in history if "eval_acceptance" in entry}


if __name__ == "__main__":
    main()
