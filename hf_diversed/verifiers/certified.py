"""A tolerated drop of quality in place of a dial: the head at the most permissive dial certified for that drop."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch

from hf_diversed.blocks import DecodingContext
from hf_diversed.provenance import model_digest, module_digest
from hf_diversed.verifiers.base import Verifier
from hf_diversed.verifiers.diversed import DiversedVerifier, Head
from hf_diversed.verifiers.mixture import Values, check_row_values, per_row_values


_SETTINGS = ("temperature", "top_k", "top_p", "num_assistant_tokens", "max_new_tokens")
# What a certificate holds for, besides the head. A call must have the same values.
CONDITIONS = (*_SETTINGS, "processors", "dtype", "target", "draft")
_ADVICE = "run `hf-diversed calibrate`"
_MANY = 64  # longer tensors of a processor are stored as a digest


class CertifiedVerifier(Verifier):
    """Verify with a head at the most permissive dial whose certified drop of quality is at most `max_drop`.

    The certificates are the entries of the head's `config.certified_drops`. Each holds for one head, one pair of
    models, one dtype, one list of logits processors, one draft length and one `max_new_tokens`, see `conditions_of`,
    and for prompts drawn like those of the calibration, which is not checked. A certificate is not protected against
    editing.

    Args:
        head: the trained `DiversedHead`, with the weights it had when it was calibrated.
        max_drop: in [0, 1], in units of the calibration's metric, one value or one per row.

    Raises:
        ValueError: if values are out of range, if the head was not calibrated, or if its weights have changed. In
            `for_call`: also if no certificate covers the drop or the call.
    """

    def __init__(self, head: Head, max_drop: Values):
        self.head = head
        self.needs_hidden_states = head.needs_hidden_states
        self.max_drop = per_row_values("max_drop", max_drop, "0.01 tolerates one point.")
        self.num_assistant_tokens = self._certificates()[-1]["num_assistant_tokens"]

    def _certificates(self) -> list[Mapping[str, Any]]:
        """Certificates of the head with its present weights, at least one."""
        found = getattr(self.head.config, "certified_drops", None) or []
        if not found:
            raise ValueError(f"nothing was certified for this head, so max_drop cannot be used; {_ADVICE} first.")
        digest = module_digest(cast(torch.nn.Module, self.head))
        certificates = [entry for entry in found if entry["head"] == digest]
        if not certificates:
            raise ValueError(
                f"the certified drops are those of {found[0]['head']}, but this head is {digest}: it was trained or "
                f"cast to another dtype after the calibration; {_ADVICE} again."
            )
        complete = [entry for entry in certificates if entry.keys() >= set(CONDITIONS)]
        if not complete:
            missing = ", ".join(name for name in CONDITIONS if name not in certificates[0])
            raise ValueError(
                f"the certified drops do not record {missing}: an earlier version wrote them; {_ADVICE} again."
            )
        return complete

    def for_call(self, context: DecodingContext) -> DiversedVerifier:
        if context.draft_hidden_size is None:
            raise ValueError("drops were certified with an assistant_model, not for prompt lookup; pass the model.")
        check_row_values(context, diversed_max_drop=self.max_drop)
        conditions, certificates = conditions_of(context), self._certificates()
        differences = [_differences(entry, conditions) for entry in certificates]
        if all(differences):
            closest: list[str] = min(differences, key=len)
            raise ValueError(
                f"diversed_max_drop is not certified for this call, which differs in {'; '.join(closest)}. Use "
                f"the certified values, or {_ADVICE} with these."
            )
        fitting = [entry for entry, different in zip(certificates, differences) if not different]
        return DiversedVerifier(self.head, strictness=[_dial(fitting, drop) for drop in self.max_drop])


def conditions_of(context: DecodingContext) -> dict[str, Any]:
    """Return what a certificate and a call must have in common, by the names in `CONDITIONS`, ready for JSON.

    `target` and `draft` are digests of the configuration and of a sample of the weights, see `model_digest`. Without
    models in the context (vLLM), only its sampling settings and lengths are returned.
    """
    found = {name: getattr(context, name) for name in _SETTINGS}
    if context.target is None or context.draft is None:
        return found
    models = {"target": context.target, "draft": context.draft}
    return found | {
        "processors": [_in_words(processor) for processor in context.processors],
        "dtype": ", ".join(f"{name} {_dtype(model)}" for name, model in models.items()),
        **{name: model_digest(model) for name, model in models.items()},
    }


def certified_entries(entries: Iterable[Mapping[str, Any]], head: str) -> list[dict[str, Any]]:
    """The complete certificates among `entries` whose head has the digest `head`."""
    return [dict(entry) for entry in entries if entry["head"] == head and entry.keys() >= set(CONDITIONS)]


def _differences(entry: Mapping[str, Any], conditions: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} (certified {entry[name]!r}, got {value!r})"
        for name, value in conditions.items()
        if entry[name] != value
    ]


def _dtype(model: torch.nn.Module) -> str:
    """Parameter dtype, and that of autocast where it is on."""
    parameter = next(model.parameters())
    kind = parameter.device.type
    autocast = f" under autocast to {torch.get_autocast_dtype(kind)}" if torch.is_autocast_enabled(kind) else ""
    return f"{parameter.dtype}{autocast}".replace("torch.", "")


def _in_words(processor: object) -> str:
    """Class and parameters of a logits processor; those of unknown classes may have more state than they show."""
    name = type(processor).__name__
    if type(processor).__module__.partition(".")[0] not in ("transformers", __package__.partition(".")[0]):
        return f"{name} (not a class of transformers, so its parameters cannot be compared)"
    return f"{name}({', '.join(f'{key}={_value(value)}' for key, value in sorted(vars(processor).items()))})"


def _value(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        values = repr(value.tolist())
        return values if value.numel() <= _MANY else hashlib.sha256(values.encode()).hexdigest()[:16]
    return repr(value)


def _dial(certificates: list[Mapping[str, Any]], max_drop: float) -> float:
    """The most permissive dial certified for the drop."""
    within = [entry["strictness"] for entry in certificates if entry["max_drop"] <= max_drop]
    if not within:
        known = ", ".join(f"{drop:g}" for drop in sorted(entry["max_drop"] for entry in certificates))
        raise ValueError(
            f"diversed_max_drop must be at least a drop that was certified ({known}), got {max_drop:g}; tolerate a "
            f"larger one, or {_ADVICE} with more prompts."
        )
    return min(within)
