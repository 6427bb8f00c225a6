"""The target's own rewards, which the constraint compares with: computed once per prompt, and stored."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hf_diversed.running.files import write_json


class ReferenceRewards:
    """Mean reward of the target's own completions by prompt, kept in a file.

    Args:
        path: JSON file; read if it is there. settings: what the rewards depend on beside the prompt; a file made under
            other settings is refused.

    Raises:
        ValueError: if the file was made under other settings, or is damaged.
    """

    def __init__(self, path: Path, settings: dict):
        self.path, self.settings = path, json.loads(json.dumps(settings))
        self.rewards: dict[str, float | None] = {}
        if path.exists():
            stored = _read(path)
            if stored["settings"] != self.settings:
                changed = {key for key in self.settings if stored["settings"].get(key) != self.settings[key]}
                raise ValueError(
                    f"{path.name} holds rewards that were measured with other settings "
                    f"({', '.join(sorted(changed))}); use another output_dir, or remove the file to measure again."
                )
            self.rewards = stored["rewards"]

    def __getitem__(self, prompt: object) -> float | None:
        return self.rewards[_key(prompt)]

    def missing(self, prompts: list) -> list:
        """The distinct prompts that were not measured yet, in order."""
        return [prompt for key, prompt in {_key(p): p for p in prompts}.items() if key not in self.rewards]

    def add(self, prompts: list, rewards: list[float | None]) -> None:
        """Take the mean over a prompt's rewards; a prompt occurs once per completion. None is left out, and a prompt
        with nothing else has None."""
        found: dict[str, list[float]] = {_key(prompt): [] for prompt in prompts}
        for prompt, reward in zip(prompts, rewards):
            if reward is not None:
                found[_key(prompt)].append(reward)
        self.rewards |= {key: sum(values) / len(values) if values else None for key, values in found.items()}

    def measure(self, rows: Sequence[dict[str, Any]], draw: Callable[..., list], portion: int, save: bool) -> None:
        """Fill in what is missing for `rows`, `portion` prompts at a time; stored as it goes.

        Args:
            draw: makes (prompt, reward) pairs, one per completion, from rows and a number. The number counts what was
                measured before, not in this process, so that a measurement that goes on draws as an unbroken one.
            save: whether this process keeps the file.
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
