"""Tune the draft model of the embedded pair by distillation, and measure lossless acceptance before and after.

    pip install "trl[peft]==1.16.0"   # Python 3.11 or later
    python examples/recipes/tune_draft.py --output-dir tuned-draft

GKD of TRL trains a LoRA adapter. `beta=0` is forward KL; `lmbda=0` with `seq_kd` draws every batch of completions from
the target model. The adapter is then merged, so the saved draft model is an ordinary model, for `assistant_model`. For
another pair, replace `pair`. Both models need the same vocabulary size and rotary or other relative positions, because
the trainer pads on the left and passes no position ids.
"""

import argparse
import os
from dataclasses import replace

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM

from hf_diversed import load_demo_pair
from hf_diversed.evaluation import EvaluationSettings, evaluate
from hf_diversed.tasks import get_task, load_records


os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # otherwise the import prints that the API may change
from trl.experimental.gkd import GKDConfig, GKDTrainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", default="tuned-draft")
    parser.add_argument("--task", default="math", help="its prompts are completed by the target model")
    parser.add_argument("--num-prompts", type=int, default=1024, help="training prompts")
    parser.add_argument("--max-steps", type=int, default=96, help="updates")
    parser.add_argument("--batch-size", type=int, default=16, help="completions per update")
    parser.add_argument("--num-examples", type=int, default=500, help="held-out prompts for the acceptance rate")
    options = parser.parse_args()

    pair, task = load_demo_pair(), get_task(options.task)
    prompts = [{"prompt": task.prompt(record)} for record in load_records(task, "train", options.num_prompts)]
    held_out = load_records(task, "test", options.num_examples)
    print(f"before: {acceptance(pair, task, held_out)}")

    def collate(rows: list[dict]) -> dict[str, torch.Tensor]:
        """Return left-padded prompts, long `[B, S]`; the trainer appends the completions and their labels."""
        batch = pair.tokenizer([row["prompt"] for row in rows], return_tensors="pt", padding=True, padding_side="left")
        return {"prompts": batch["input_ids"], "prompt_attention_mask": batch["attention_mask"]}

    trainer = GKDTrainer(
        model=pair.draft,
        teacher_model=pair.target,
        args=GKDConfig(
            output_dir=options.output_dir,
            beta=0.0,
            lmbda=0.0,
            seq_kd=True,
            temperature=1.0,
            max_new_tokens=task.max_new_tokens,
            max_steps=options.max_steps,
            per_device_train_batch_size=options.batch_size,
            learning_rate=1e-3,
            lr_scheduler_type="cosine",
            bf16=False,
            gradient_checkpointing=False,  # also lets completions be drawn with a cache
            save_strategy="no",
            report_to="none",
        ),
        train_dataset=Dataset.from_list(prompts),
        data_collator=collate,
        processing_class=pair.tokenizer,
        peft_config=LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32, target_modules="all-linear"),
    )
    seconds = trainer.train().metrics["train_runtime"]
    trainer.model.merge_and_unload().save_pretrained(options.output_dir)
    pair.tokenizer.save_pretrained(options.output_dir)

    tuned = AutoModelForCausalLM.from_pretrained(options.output_dir).to(pair.target.device)
    after = acceptance(replace(pair, draft=tuned), task, held_out)
    print(f"after {options.max_steps} updates in {seconds:.0f} s: {after}")


def acceptance(pair, task, records) -> str:
    """Return the acceptance rate of lossless decoding at temperature 1, with its 95% interval over prompts."""
    settings = EvaluationSettings(num_assistant_tokens=5, batch_size=100, progress=False)
    [row] = evaluate(pair, task, records, ["lossless"], settings)
    low, high = row["acceptance_rate_ci"]
    return f"{row['acceptance_rate']:.1%} accepted ({low:.1%} to {high:.1%}; {row['n']} prompts)"


if __name__ == "__main__":
    main()
