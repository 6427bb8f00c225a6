"""Train a head for the embedded pair on word problems, and evaluate it at three strictness values."""

import argparse

from hf_diversed import load_demo_pair
from hf_diversed.evaluation import evaluate
from hf_diversed.tasks import get_task, load_records, prompt_rows
from hf_diversed.training import DiversedConfig, DiversedTrainer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", default="example-head")
    parser.add_argument("--max-steps", type=int, default=40, help="updates; four per batch of rollouts")
    parser.add_argument("--rollouts", type=int, default=128, help="rollouts in a batch")
    parser.add_argument("--num-prompts", type=int, default=256, help="prompts to train on")
    parser.add_argument("--num-examples", type=int, default=64, help="held-out prompts for the comparison")
    options = parser.parse_args()

    pair, task = load_demo_pair(), get_task("math")
    trainer = DiversedTrainer(
        pair.target,
        pair.draft,
        reward_funcs="task:math",  # or your own: (completions, **columns) -> list of floats
        args=DiversedConfig(
            output_dir=options.output_dir,
            token_features=True,  # a token head; False trains a mixture head, as in the paper
            max_steps=options.max_steps,
            per_device_train_batch_size=options.rollouts,
            max_quality_drop=0.01,
            save_strategy="no",
        ),
        train_dataset=prompt_rows(task, load_records(task, "train", options.num_prompts)),
        processing_class=pair.tokenizer,
        task="math",
    )
    trainer.train()
    trainer.save_model(options.output_dir)

    head = trainer.model.eval()
    methods = ["target", "lossless", "static:0.5", "diversed@0.25", "diversed", "diversed@0.75"]
    records = load_records(task, "test", options.num_examples)
    for row in evaluate(pair, task, records, methods, head=head):
        accepted = "" if row["acceptance_rate"] is None else f"{row['acceptance_rate']:.1%} accepted"
        print(f"{row['method']:<14} {row['quality']:.1%} correct  {accepted}")


if __name__ == "__main__":
    main()
