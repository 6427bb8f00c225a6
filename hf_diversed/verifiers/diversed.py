"""DIVERSED: weights predicted per position (arXiv 2604.07622) or per token, with a strictness and bounds."""

from typing import TYPE_CHECKING, Any

import torch

from hf_diversed.blocks import DecodingContext, DraftOutput, TargetOutput
from hf_diversed.features import (
    TOTAL_VARIATION,
    distribution_features,
    drafted_token_features,
    vocabulary_features,
)
from hf_diversed.provenance import cached_weights_digest
from hf_diversed.verifiers.mixture import MixtureVerifier, PerRowSetting, Weights, per_row_values


if TYPE_CHECKING:
    from hf_diversed.head import DiversedHead


class DiversedVerifier(MixtureVerifier):
    """Verify against a mixture of p and q whose weights a head predicts.

    With a weight w per position, v = w p + (1 - w) q (arXiv 2604.07622). A head with `needs_token` predicts a weight
    w(x) per token x. `mixture.py` defines acceptance, residual distribution and v for both.

    Args:
        head: the trained `DiversedHead`.
        strictness: in [0, 1], one value, or one per prompt or row. 0 accepts every draft token, 0.5 is the head as
            trained, 1 is lossless. None for the head's default, `config.strictness`.
        max_bias, max_ratio: see `MixtureVerifier`; applied after `strictness`.

    Attributes:
        keeps_inputs: whether each `Verdict`, and therefore the token records, include the head's inputs, for training.

    Raises:
        TypeError: if `head` is not a head.
        ValueError: if values are out of range or, before the first forward pass, if hidden or vocabulary sizes differ
            from those of the head.
    """

    keeps_inputs = False
    row_settings = ("strictness", *MixtureVerifier.row_settings)

    def __init__(
        self,
        head: "DiversedHead",
        strictness: PerRowSetting | None = None,
        max_bias: PerRowSetting | None = None,
        max_ratio: PerRowSetting | None = None,
    ):
        if not hasattr(head, "needs_token"):  # without an import of transformers
            raise TypeError(f"head must be a DiversedHead, got {type(head).__name__}; load one with from_pretrained.")
        super().__init__(max_bias, max_ratio)
        self.head = head
        self.needs_hidden_states = head.needs_hidden_states
        self.num_assistant_tokens = head.config.num_assistant_tokens
        self.strictness = per_row_values("strictness", head.config.strictness if strictness is None else strictness)

    def check(self, context: DecodingContext) -> None:
        config = self.head.config
        for role, expected, found in (
            ("target", config.target_hidden_size, context.target_hidden_size),
            ("draft", config.draft_hidden_size, context.draft_hidden_size),
        ):
            if self.needs_hidden_states and expected != found:
                own = _named(_trained_with(config, role)[0])
                size = found or "none, as with prompt lookup and candidate generators"
                raise ValueError(
                    f"the head was trained for a {role} model of hidden size {expected}, got {size}; "
                    f"use the {role} model it was trained with{own} or train a head for this pair."
                )
        if config.vocab_size not in (None, context.vocab_size):
            raise ValueError(
                f"the head was trained for a vocabulary of {config.vocab_size} ids, got {context.vocab_size}; "
                "use the target it was trained with or train a head for this pair."
            )
        super().check(context)

    def components(self) -> list[object]:
        return [self, self.head]

    def strictness_per_row(self) -> list[float]:
        return self.strictness

    def remarks(self, context: DecodingContext) -> list[str]:
        config = self.head.config
        found = [
            *_remark_on_model(config, "target", context.target_name, context.target),
            *_remark_on_model(config, "draft", context.draft_name, context.draft),
        ]
        draft = _trained_with(config, "draft")
        if context.draft_hidden_size is None and context.target is not None and any(draft):
            found.append(
                f"this head was trained with a draft model{_named(draft[0])}, but the draft tokens of this call have "
                "no distribution: pass that draft model, or measure the quality."
            )
        trained_at, temperature = config.training_temperature, context.temperature
        if trained_at is not None and temperature is not None and trained_at != temperature:
            used = f"at temperature {temperature:g}" if temperature else "greedily (do_sample=False)"
            advice = f"do_sample=True, temperature={trained_at:g}" if trained_at else "do_sample=False"
            found.append(
                f"this head was trained at temperature {trained_at:g}, but this call decodes {used}: pass {advice}, "
                "or measure the quality at this setting."
            )
        return found

    def weights(self, draft: DraftOutput, target: TargetOutput, row_values: dict[str, torch.Tensor]) -> Weights:
        inputs, tv = self.head_inputs(draft, target)
        device, strictness = draft.tokens.device, row_values.get("strictness")  # vLLM omits it if all are 0.5
        # float32: autocast lets the head return a narrower dtype
        weight = self._weight(self.head(**inputs).to(device, torch.float32), strictness)
        kept = inputs if self.keeps_inputs else None
        if not self.head.needs_token:
            return Weights(weight, tv, kept)
        of_prefix = {name: values for name, values in inputs.items() if name != "token"}

        def per_token(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
            logit, start = torch.empty_like(p), 0
            for token in vocabulary_features(p, q):
                end = start + token.shape[-2]
                logit[..., start:end] = self.head(**of_prefix, token=token)
                start = end
            return self._weight(logit, None if strictness is None else strictness[..., None])

        return Weights(weight, tv, kept, per_token)

    def _weight(self, logit: torch.Tensor, strictness: torch.Tensor | None) -> torch.Tensor:
        """Return the weights for logits of the head at a strictness; 0 and 1 are exact even if logits are NaN."""
        if strictness is None:
            return torch.sigmoid(logit)
        if self.head.needs_token:
            slope = self.head.ratio_slope()
            weight = torch.sigmoid(shift_lenience(logit, strictness, slope.to(logit.device)))
        else:
            weight = apply_strictness(torch.sigmoid(logit), strictness)
        return torch.where((strictness == 0.0) | (strictness == 1.0), strictness, weight)

    def head_inputs(
        self, draft: DraftOutput, target: TargetOutput
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor | None]:
        """Return the keyword arguments of the head, and TV(p, q) `[B, G]` if it is one of the features."""
        inputs: dict[str, torch.Tensor] = {}
        tv = None
        if self.needs_hidden_states:
            assert target.hidden is not None
            assert draft.hidden is not None
            inputs |= {"target_hidden": target.hidden[:, :-1], "draft_hidden": draft.hidden}
        if self.head.needs_distributions or self.head.needs_token:
            p, q = target.probs()[:, :-1], draft.probs()
        if self.head.needs_distributions:
            inputs["features"] = distribution_features(p, q)
            tv = inputs["features"][..., TOTAL_VARIATION]
        if self.head.needs_token:
            inputs["token"] = drafted_token_features(p, q, draft.tokens)
        return inputs, tv


def _trained_with(config: Any, role: str) -> tuple[str | None, str | None]:
    """Return name and digest of the target or draft model that a head was trained with."""
    kind = "base_model" if role == "target" else "assistant_model"
    return getattr(config, f"{kind}_name_or_path") or None, getattr(config, f"{kind}_digest", None)


def _remark_on_model(config: Any, role: str, name: str, model: torch.nn.Module | None) -> list[str]:
    """Return a warning if a model is not the one that the head was trained with, or if the head does not record it.

    Digests are compared if both models have the same dtype, else names.
    """
    expected, digest = _trained_with(config, role)
    found = None if digest is None or model is None else cached_weights_digest(model)
    if digest is not None and found is not None and digest.split(" ")[0] == found.split(" ")[0]:
        if digest == found:
            return []
        difference = f"this one{_named(name)} has digest {found} instead of {digest}"
    elif expected is not None and name and expected != name:
        difference = f"this one is {name}"
    elif expected is None and digest is None and model is not None:
        return [f"this head does not record the {role} model it was trained with; it works only with that model."]
    else:
        return []
    return [
        f"this head was trained with another {role} model{_named(expected)}: {difference}. Train a head for this "
        "pair, or measure the quality."
    ]


def _named(name: str | None) -> str:
    return f" ({name})" if name else ""


def apply_strictness(weight: torch.Tensor, strictness: torch.Tensor) -> torch.Tensor:
    """Interpolate linearly between 0 (strictness 0), `weight` (0.5) and 1 (strictness 1); exact at these three.

    Args:
        weight: float32 `[B, G]` in [0, 1].
        strictness: float32, broadcasts.
    """
    permissive = 2.0 * strictness * weight
    strict = weight + (2.0 * strictness - 1.0) * (1.0 - weight)
    return torch.where(strictness <= 0.5, permissive, strict)


def shift_lenience(logit: torch.Tensor, strictness: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    """Shift the logit of a weight per token: -inf at strictness 0, unchanged at 0.5, inf at 1.

    The logit falls with log p/q at rate `slope`. The p/q at which it is 0 is the head's lenience, which strictness s
    multiplies by s / (1 - s). A shift in units of the logit would have little effect except near 0 and 1, as logits
    of tokens span more than 20.

    Args:
        logit: float32.
        strictness: float32, broadcasts.
        slope: float32 scalar, above 0.
    """
    return logit + slope * torch.logit(strictness)
