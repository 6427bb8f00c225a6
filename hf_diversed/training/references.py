"""Rewards of the target model's own completions, the baseline of the constraint; measured once per row."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hf_diversed.files import differences, write_json


Row = dict[str, Any]
# Settings of lossless decoding that do not change the distribution of completions.
_WITHOUT_EFFECT = ("batch_size", "num_assistant_tokens")


class ReferenceRewards:
    """Mean reward of the target model's own completions by row of the dataset, stored in a file.

    The key is the whole row: a reward may read all of its columns, such as the reference answer.

    Args:
        path: JSON file, read if it exists.
        settings: everything except the row that the rewards depend on. `batch_size` and `num_assistant_tokens` are
            ignored.

    Raises:
        ValueError: if the file was made with other settings, or is damaged.
    """

    def __init__(self, path: Path, settings: dict):
        self.path, self.settings = path, _relevant(json.loads(json.dumps(settings)))
        self.rewards: dict[str, float | None] = {}
        if path.exists():
            stored = _read(path)
            if changes := differences(stored["settings"], self.settings):
                raise ValueError(
                    f"{path.name} holds rewards that were measured with other settings ({changes}); use another "
                    "output_dir, or remove the file to measure again."
                )
            self.rewards = stored["rewards"]

    def __getitem__(self, row: Row) -> float | None:
        return self.rewards[_key(row)]

    def missing(self, rows: Sequence[Row]) -> list[Row]:
        """Return the distinct rows without a stored reward, in order."""
        return [row for key, row in {_key(row): row for row in rows}.items() if key not in self.rewards]

    def add(self, rewarded: Sequence[tuple[Row, float | None]]) -> None:
        """Add the mean reward of each row, given one (row, reward) pair per completion. The mean omits rewards that
        are None; if all are None, so is the mean."""
        by_key: dict[str, list[float]] = {}
        for row, reward in rewarded:
            known = by_key.setdefault(_key(row), [])
            if reward is not None:
                known.append(reward)
        self.rewards |= {key: sum(values) / len(values) if values else None for key, values in by_key.items()}

    def measure(self, rows: Sequence[Row], draw: Callable[..., list], portion: int, save: bool) -> None:
        """Measure the missing rewards of `rows` in portions, and save after each portion.

        Args:
            draw: function of rows and a seed; returns one (row, reward) pair per completion. The seed is the number
                of stored rewards, so a resumed measurement with the same batch size draws the same completions.
            save: whether this process writes the file.
        """
        todo = self.missing(rows)
        for start in range(0, len(todo), portion):
            self.add(draw(todo[start : start + portion], len(self.rewards)))
            if save:
                self.save()

    def save(self) -> None:
        write_json(self.path, {"settings": self.settings, "rewards": self.rewards})


def _read(path: Path) -> dict:
    try:
        stored = json.loads(path.read_bytes())
        return {"settings": _relevant(dict(stored["settings"])), "rewards": dict(stored["rewards"])}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}); remove it to measure the target's own rewards again."
        ) from error


def _relevant(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in _WITHOUT_EFFECT}


def _key(row: Row) -> str:
    return hashlib.blake2b(json.dumps(row, sort_keys=True, default=_plain).encode(), digest_size=12).hexdigest()


def _plain(value: Any) -> Any:
    """Return an array as a list, and any other value as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
