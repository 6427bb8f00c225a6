"""Rewards of the target model's own completions, the baseline of the constraint; measured once per prompt."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hf_diversed.files import differences, write_json


class ReferenceRewards:
    """Mean reward of the target model's own completions by prompt, stored in a file.

    Args:
        path: JSON file, read if it exists.
        settings: everything except the prompt that the rewards depend on.

    Raises:
        ValueError: if the file was made with other settings, or is damaged.
    """

    def __init__(self, path: Path, settings: dict):
        self.path, self.settings = path, json.loads(json.dumps(settings))
        self.rewards: dict[str, float | None] = {}
        if path.exists():
            stored = _read(path)
            if changes := differences(stored["settings"], self.settings):
                raise ValueError(
                    f"{path.name} holds rewards that were measured with other settings ({changes}); use another "
                    "output_dir, or remove the file to measure again."
                )
            self.rewards = stored["rewards"]

    def __getitem__(self, prompt: object) -> float | None:
        return self.rewards[_key(prompt)]

    def missing(self, prompts: list) -> list:
        """Return the distinct prompts without a stored reward, in order."""
        return [prompt for key, prompt in {_key(p): p for p in prompts}.items() if key not in self.rewards]

    def add(self, prompts: list, rewards: list[float | None]) -> None:
        """Add the mean reward of each prompt; `prompts` and `rewards` have one entry per completion. The mean omits
        rewards that are None; if all are None, so is the mean."""
        by_key: dict[str, list[float]] = {_key(prompt): [] for prompt in prompts}
        for prompt, reward in zip(prompts, rewards):
            if reward is not None:
                by_key[_key(prompt)].append(reward)
        self.rewards |= {key: sum(values) / len(values) if values else None for key, values in by_key.items()}

    def measure(self, rows: Sequence[dict[str, Any]], draw: Callable[..., list], portion: int, save: bool) -> None:
        """Measure the missing rewards of `rows` in portions, and save after each portion.

        Args:
            draw: function of rows and a seed; returns one (prompt, reward) pair per completion. The seed is the number
                of stored rewards, so a resumed measurement draws the same completions.
            save: whether this process writes the file.
        """
        by_prompt = {_key(row["prompt"]): row for row in reversed(rows)}
        todo = [by_prompt[_key(prompt)] for prompt in self.missing([row["prompt"] for row in rows])]
        for start in range(0, len(todo), portion):
            drawn = draw(todo[start : start + portion], len(self.rewards))
            self.add([prompt for prompt, _ in drawn], [reward for _, reward in drawn])
            if save:
                self.save()

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, {"settings": self.settings, "rewards": self.rewards})


def _read(path: Path) -> dict:
    try:
        stored = json.loads(path.read_bytes())
        return {"settings": dict(stored["settings"]), "rewards": dict(stored["rewards"])}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}); remove it to measure the target's own rewards again."
        ) from error


def _key(prompt: object) -> str:
    return hashlib.blake2b(json.dumps(prompt, sort_keys=True).encode(), digest_size=12).hexdigest()
