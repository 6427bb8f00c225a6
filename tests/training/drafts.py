"""Rows and settings for tuning a tiny draft."""

import torch

from hf_diversed.training.draft_tuning import DraftTuningConfig
from tests.tiny import VOCAB_SIZE


LENGTH = 12


def make_rows(n: int, seed: int = 0) -> list[dict]:
    """Prompts of 2 to 5 words; every reference counts up from the prompt's last word."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for number in range(n):
        words = torch.randint(4, VOCAB_SIZE - 8, (2 + number % 4,), generator=generator).tolist()
        completion = " ".join(f"w{words[-1] + step}" for step in range(1, 4))
        rows.append({"prompt": " ".join(f"w{word}" for word in words), "completion": completion})
    return rows


def config(folder, **options) -> DraftTuningConfig:
    quick = {"max_completion_length": LENGTH, "learning_rate": 1e-2, "max_steps": 12, "use_cpu": True}
    quick |= {"save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    return DraftTuningConfig(output_dir=str(folder), **(quick | options))
