"""A stated drop of quality in place of a dial: the head at the most permissive dial that was certified for it."""

from collections.abc import Mapping
from typing import Any, cast

import torch

from hf_diversed.blocks import DecodingContext
from hf_diversed.provenance import module_digest
from hf_diversed.verifiers.base import Verifier
from hf_diversed.verifiers.diversed import DiversedVerifier, Head
from hf_diversed.verifiers.mixture import Values, check_row_values, per_row_values


# What a certified dial holds for besides its head, by the names of `DecodingContext`.
SETTINGS = ("temperature", "top_k", "top_p", "num_assistant_tokens")
_HOW = "`hf-diversed calibrate` certifies drops"


class CertifiedVerifier(Verifier):
    """Verify with a head at the most permissive dial whose certified drop of quality is at most a stated one.

    Certified are the head's `config.certified_drops`, for the sampling settings and the draft length of the
    calibration and for prompts like its own. Which dial that is, the call's settings decide: `for_call` makes the
    `DiversedVerifier`.

    Args:
        head: the trained `DiversedHead`, as it was when it was calibrated.
        max_drop: in [0, 1], in units of the calibration's metric, one value or one per row.

    Raises:
        ValueError: on values out of range, for a head that nothing was certified for, or another one than was
            calibrated; in `for_call` on drops and settings that were not certified.
    """

    def __init__(self, head: Head, max_drop: Values):
        self.head = head
        self.needs_hidden_states = head.needs_hidden_states
        self.max_drop = per_row_values("max_drop", max_drop, "0.01 tolerates one point.")
        found = getattr(head.config, "certified_drops", None) or []
        if not found:
            raise ValueError(f"nothing was certified for this head, so no drop can be stated; {_HOW}.")
        digest = module_digest(cast(torch.nn.Module, head))
        self._certified = [entry for entry in found if entry["head"] == digest]
        if not self._certified:
            raise ValueError(
                f"the certified drops are those of {found[0]['head']}, this head is {digest}: it was trained, or cast "
                f"to another dtype, since; {_HOW}."
            )
        self.num_assistant_tokens = self._certified[-1]["num_assistant_tokens"]

    def for_call(self, context: DecodingContext) -> DiversedVerifier:
        if context.draft_hidden_size is None:
            raise ValueError("drops were certified with an assistant_model, not for looked-up drafts; pass one.")
        check_row_values(context, diversed_max_drop=self.max_drop)
        asked = {name: getattr(context, name) for name in SETTINGS}
        fitting = [entry for entry in self._certified if all(entry[name] == asked[name] for name in SETTINGS)]
        if not fitting:
            known = dict.fromkeys(_settings_in_words(entry) for entry in self._certified)
            raise ValueError(
                f"drops were certified at {'; '.join(known)}; got {_settings_in_words(asked)}. Decode with what was "
                f"certified; {_HOW} at other settings."
            )
        return DiversedVerifier(self.head, quality=[_dial(fitting, drop) for drop in self.max_drop])


def _dial(certified: list[Mapping[str, Any]], max_drop: float) -> float:
    """The most permissive dial. Dials of smaller drops are stricter, or the same."""
    within = [entry["quality"] for entry in certified if entry["max_drop"] <= max_drop]
    if not within:
        known = ", ".join(f"{entry['max_drop']:g}" for entry in sorted(certified, key=lambda entry: entry["max_drop"]))
        raise ValueError(
            f"diversed_max_drop must be at least a drop that was certified ({known}), got {max_drop:g}; state a "
            f"larger one, or calibrate with more prompts; {_HOW}."
        )
    return min(within)


def _settings_in_words(settings: Mapping[str, Any]) -> str:
    temperature, length = settings["temperature"], settings["num_assistant_tokens"]
    return (
        f"temperature {'of each row' if temperature is None else f'{temperature:g}'}, top_k {settings['top_k']}, "
        f"top_p {settings['top_p']:g} and {'adaptive' if length is None else length} drafts per round"
    )
