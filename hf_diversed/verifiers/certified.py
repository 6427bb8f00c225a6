"""DIVERSED at the most permissive strictness certified for a given quality drop."""

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
# Conditions of a certificate besides the head. A call must match all of them.
CONDITIONS = (*_SETTINGS, "processors", "dtype", "target", "draft")
_ADVICE = "run `hf-diversed calibrate`"
_MAX_LISTED = 64  # processor tensors with more elements are stored as a digest


class CertifiedVerifier(Verifier):
    """Verify with a head at the lowest strictness whose certified quality drop is at most `max_drop`.

    Certificates are the entries of the head's `config.certified_drops`. Each is valid for one head and the conditions
    that `conditions_of` returns, which include both models. It also assumes that prompts follow the distribution of
    the calibration prompts, which is not checked. Certificates are not protected against editing.

    Args:
        head: the trained `DiversedHead`, with the weights of the calibration.
        max_drop: in [0, 1], in units of the calibration's metric, one value, or one per prompt or row.

    Raises:
        ValueError: if values are out of range, the head was not calibrated, its weights have changed, or an earlier
            version wrote its certificates. `for_call` also raises it if no certificate matches the call or `max_drop`.
    """

    def __init__(self, head: Head, max_drop: Values):
        self.head = head
        self.needs_hidden_states = head.needs_hidden_states
        self.max_drop = per_row_values("max_drop", max_drop, "0.01 tolerates one point.")
        self.num_assistant_tokens = self._certificates()[-1]["num_assistant_tokens"]

    def _certificates(self) -> list[Mapping[str, Any]]:
        """Return the complete certificates for the head's current weights; at least one."""
        entries = getattr(self.head.config, "certified_drops", None) or []
        if not entries:
            raise ValueError(f"this head has no certificate, which max_drop requires; {_ADVICE} first.")
        digest = module_digest(cast(torch.nn.Module, self.head))
        certificates = [entry for entry in entries if entry["head"] == digest]
        if not certificates:
            raise ValueError(
                f"the certificates are for a head with digest {entries[0]['head']}, but this head has digest "
                f"{digest}: it was trained or cast to another dtype after the calibration; {_ADVICE} again."
            )
        complete = [entry for entry in certificates if entry.keys() >= set(CONDITIONS)]
        if not complete:
            missing = ", ".join(name for name in CONDITIONS if name not in certificates[0])
            raise ValueError(
                f"the certificates of this head lack {missing}: an earlier version wrote them; {_ADVICE} again."
            )
        return complete

    def for_call(self, context: DecodingContext) -> DiversedVerifier:
        if context.draft_hidden_size is None:
            raise ValueError(
                "certificates are for draft tokens sampled from a draft model, but this call uses prompt lookup or "
                'greedy draft tokens; pass `assistant_model`, or in vLLM "draft_sample_method": "probabilistic".'
            )
        check_row_values(context, diversed_max_drop=self.max_drop)
        conditions, certificates = conditions_of(context), self._certificates()
        differences = [_differences(entry, conditions) for entry in certificates]
        if all(differences):
            closest: list[str] = min(differences, key=len)
            raise ValueError(
                f"diversed_max_drop is not certified for this call, which differs in {'; '.join(closest)}. Use "
                f"the certified values, or {_ADVICE} with those of this call."
            )
        fitting = [entry for entry, different in zip(certificates, differences) if not different]
        return DiversedVerifier(self.head, strictness=[_strictness_for(fitting, drop) for drop in self.max_drop])


def conditions_of(context: DecodingContext) -> dict[str, Any]:
    """Return the conditions of a call, by the names in `CONDITIONS`, as JSON-compatible values.

    `target` and `draft` are digests of the configuration and of a sample of the weights, see `model_digest`. If the
    context has no models (vLLM), only sampling settings and lengths are returned.
    """
    conditions = {name: getattr(context, name) for name in _SETTINGS}
    if context.target is None or context.draft is None:
        return conditions
    models = {"target": context.target, "draft": context.draft}
    return conditions | {
        "processors": [_describe(processor) for processor in context.processors],
        "dtype": ", ".join(f"{name} {_dtype(model)}" for name, model in models.items()),
        **{name: model_digest(model) for name, model in models.items()},
    }


def certified_entries(entries: Iterable[Mapping[str, Any]], head: str) -> list[dict[str, Any]]:
    """Return the complete certificates in `entries` whose head has the digest `head`."""
    return [dict(entry) for entry in entries if entry["head"] == head and entry.keys() >= set(CONDITIONS)]


def _differences(entry: Mapping[str, Any], conditions: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} (certified {entry[name]!r}, got {value!r})"
        for name, value in conditions.items()
        if entry[name] != value
    ]


def _dtype(model: torch.nn.Module) -> str:
    """Return the parameter dtype and, if enabled, the autocast dtype."""
    parameter = next(model.parameters())
    kind = parameter.device.type
    autocast = f" under autocast to {torch.get_autocast_dtype(kind)}" if torch.is_autocast_enabled(kind) else ""
    return f"{parameter.dtype}{autocast}".replace("torch.", "")


def _describe(processor: object) -> str:
    """Return the class name and attributes of a logits processor; the name only for classes of other packages."""
    name = type(processor).__name__
    if type(processor).__module__.partition(".")[0] not in ("transformers", __package__.partition(".")[0]):
        return f"{name} (not a class of transformers, so its parameters cannot be compared)"
    return f"{name}({', '.join(f'{key}={_value(value)}' for key, value in sorted(vars(processor).items()))})"


def _value(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        values = repr(value.tolist())
        return values if value.numel() <= _MAX_LISTED else hashlib.sha256(values.encode()).hexdigest()[:16]
    return repr(value)


def _strictness_for(certificates: list[Mapping[str, Any]], max_drop: float) -> float:
    """Return the lowest strictness certified for `max_drop`."""
    within = [entry["strictness"] for entry in certificates if entry["max_drop"] <= max_drop]
    if not within:
        known = ", ".join(f"{drop:g}" for drop in sorted(entry["max_drop"] for entry in certificates))
        raise ValueError(
            f"diversed_max_drop must be at least one of the certified drops ({known}), got {max_drop:g}; increase it, "
            f"or {_ADVICE} with more prompts."
        )
    return min(within)
