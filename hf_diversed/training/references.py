"""The target's own rewards, which the constraint compares with: computed once per prompt, and stored."""

import hashlib
import json
from pathlib import Path


class ReferenceRewards:
    """Mean reward of the target's own completions by prompt, kept in a file.

    Args:
        path: JSON file; read if it is there. settings: what the rewards depend on beside the prompt; a file made under
            other settings is refused.

    Raises:
        ValueError: if the file was made under other settings.
    """

    def __init__(self, path: Path, settings: dict):
        self.path, self.settings = path, json.loads(json.dumps(settings))
        self.rewards: dict[str, float | None] = {}
        if path.exists():
            stored = json.loads(path.read_text())
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

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(".tmp")
        unfinished.write_text(json.dumps({"settings": self.settings, "rewards": self.rewards}))
        unfinished.replace(self.path)


def _key(prompt: object) -> str:
    return hashlib.blake2b(json.dumps(prompt, sort_keys=True).encode(), digest_size=12).hexdigest()
