"""One process of a run under `accelerate launch -m tests.training.worker FOLDER`, for test_distributed.py."""

import sys
from dataclasses import asdict
from pathlib import Path

import torch

from hf_diversed.training import DiversedTrainer
from tests.training import runs


SETTINGS = {"per_device_train_batch_size": 4, "acceptance_coef": None, "learning_rate": 0.3}
SETTINGS |= {"eval_strategy": "steps", "ddp_backend": "gloo"}
PROMPTS = runs.PROMPTS[:9]  # an odd number, so that no two processes get equal shares


class Recorded(DiversedTrainer):
    """Keeps every batch of rollouts, and how many completions were drawn to what end."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.batches, self.gradients, self.num_drawn = [], [], 0

    def roll_out(self, rows):
        batch = super().roll_out(rows)
        start = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.num_drawn += len(rows)
        record = {"batch": batch, "head": start, "coef": self.constraint.effective_coef}
        self.batches.append(record | {"prompts": [row["prompt"] for row in rows]})
        return batch

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        self.gradients.append({name: p.grad.clone() for name, p in self.model.named_parameters()})
        return loss


def main(folder: Path) -> None:
    trainer = Recorded(
        *runs.pair(),
        reward_funcs=runs.letters,
        args=runs.config(folder, **SETTINGS),
        train_dataset=runs.rows(PROMPTS),
        eval_dataset=runs.rows(PROMPTS[:1]),  # the second process has nothing to evaluate
        processing_class=runs.tokenizer(),
    )
    trainer.train()
    trainer.save_model(str(folder / "final"))
    record = {"batches": trainer.batches, "gradients": trainer.gradients, "num_drawn": trainer.num_drawn}
    record |= {"head": trainer.model.state_dict(), "constraint": asdict(trainer.constraint)}
    drawn = [row for row in runs.rows(PROMPTS) for batch in trainer.batches if row["prompt"] in batch["prompts"]]
    record |= {"references": trainer.references.rewards, "missing": trainer.references.missing(drawn)}
    record |= {"history": trainer.state.log_history}
    torch.save(record, folder / f"rank-{trainer.args.process_index}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
