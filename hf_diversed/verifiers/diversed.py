"""DIVERSED: learned weights per position (arXiv 2604.07622) or per token, with a strictness and bounds."""

from typing import Any, Protocol, cast, runtime_checkable

import torch

from hf_diversed.blocks import DecodingContext, DraftOutput, TargetOutput
from hf_diversed.features import (
    TOTAL_VARIATION,
    distribution_features,
    drafted_token_features,
    vocabulary_features,
)
from hf_diversed.verifiers.learned import LearnedRule, MixtureScore, TokenScore
from hf_diversed.verifiers.mixture import MixtureVerifier, Values, check_row_values, per_row, per_row_values
from hf_diversed.verifiers.weights import Weights


_AS_TRAINED = 0.5


@runtime_checkable
class Head(Protocol):
    """What the rule asks of a head: a `DiversedHead` is one, and so is whatever computes a logit from the same inputs.

    Attributes:
        config: as of `DiversedHeadConfig`: the pair, vocabulary, temperature and draft length it was trained for.
    """

    needs_hidden_states: bool
    needs_distributions: bool
    needs_token: bool
    config: Any

    def __call__(self, **inputs: torch.Tensor) -> torch.Tensor:
        """float32 `[B, G]`, the logit of the weight on the target; inputs as `DiversedHead.forward` names them."""


class TokenHead(Head, Protocol):
    """A head that sees the drafted token, too: `needs_token` is true."""

    def ratio_slope(self) -> torch.Tensor:
        """How fast the logit falls as log p/q of the token rises, nats per nat: a float32 scalar above 0."""


class DiversedVerifier(MixtureVerifier):
    """Verify between q and p with weights on the target that a head predicts.

    From both models' states at the position: v = w p + (1 - w) q (arXiv 2604.07622). A head that sees the drafted
    token, too, gives every token x a weight w(x) of its own, in place of all that the draft would say there or
    nothing; acceptance, replacement and the law v of either kind are in `weights.py`.

    Args:
        head: the trained `DiversedHead`.
        strictness: in [0, 1], one value or one per row. 0 accepts every draft token, 0.5 is the head as trained, 1 is
            lossless.
        max_bias, bias_budget, max_ratio: one value or one per row, see `MixtureVerifier`; all act after `strictness`.

    Attributes:
        keeps_inputs: put what the head saw into every `Verdict`, and so into the token records; training reads it.

    Raises:
        ValueError: on values out of range or, before the first forward, on hidden sizes that are not the head's.
    """

    keeps_inputs = False
    row_settings = ("strictness", *MixtureVerifier.row_settings)

    def __init__(
        self,
        head: Head,
        strictness: Values = 0.5,
        max_bias: Values | None = None,
        bias_budget: Values | None = None,
        max_ratio: Values | None = None,
    ):
        if not isinstance(head, Head):
            raise TypeError(f"head must be a DiversedHead, got {type(head).__name__}; load one with from_pretrained.")
        super().__init__(max_bias, bias_budget, max_ratio)
        self.head = head
        self.needs_hidden_states = head.needs_hidden_states
        self.num_assistant_tokens = head.config.num_assistant_tokens
        self.strictness: list[float] = per_row_values(
            "strictness", strictness, "0 accepts every draft, 0.5 is the head as trained, 1 is lossless."
        )

    @property
    def score(self) -> LearnedRule:
        """What training asks of the rule."""
        return TokenScore() if self.head.needs_token else MixtureScore()

    def check(self, context: DecodingContext) -> None:
        config = self.head.config
        for role, expected, found in (
            ("target", config.target_hidden_size, context.target_hidden_size),
            ("draft", config.draft_hidden_size, context.draft_hidden_size),
        ):
            if self.needs_hidden_states and expected != found:
                raise ValueError(
                    f"the head was made for a {role} of hidden size {expected}, got {found}; "
                    f"use the {role} it was trained with ({config.base_model_name_or_path} / "
                    f"{config.assistant_model_name_or_path}) or train a head for this pair."
                )
        if config.vocab_size not in (None, context.vocab_size):
            raise ValueError(
                f"the head was made for a vocabulary of {config.vocab_size} ids, got {context.vocab_size}; "
                "use the target it was trained with or train a head for this pair."
            )
        check_row_values(context, diversed_strictness=self.strictness)
        super().check(context)

    def components(self) -> list[object]:
        return [self, self.head]

    def strictness_per_row(self) -> list[float]:
        return self.strictness

    def remarks(self, context: DecodingContext) -> list[str]:
        config = self.head.config
        uses = (
            ("target", config.base_model_name_or_path, context.target_name),
            ("draft", config.assistant_model_name_or_path, context.draft_name),
            ("temperature", config.training_temperature, context.temperature),
        )
        return [
            f"this head was trained for {role} {expected}, and is used with {found}."
            for role, expected, found in uses
            if expected not in (None, "") and found not in (None, "") and expected != found
        ]

    def dials(self, batch_size: int, device: torch.device) -> dict[str, torch.Tensor]:
        dials = super().dials(batch_size, device)
        if any(value != _AS_TRAINED for value in self.strictness):
            dials["strictness"] = per_row(self.strictness, batch_size, device)
        return dials

    def weights(self, draft: DraftOutput, target: TargetOutput, dials: dict[str, torch.Tensor]) -> Weights:
        inputs, tv = self.observe(draft, target)
        device, strictness = draft.tokens.device, dials.get("strictness")
        weight = self._dialled(self.head(**inputs).to(device), strictness)
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
            return self._dialled(logit, None if strictness is None else strictness[..., None])

        return Weights(weight, tv, kept, per_token)

    def _dialled(self, logit: torch.Tensor, strictness: torch.Tensor | None) -> torch.Tensor:
        """Weights from the head's logits, moved by the dial; at its ends they do not depend on the logits."""
        if strictness is None:
            return torch.sigmoid(logit)
        if self.head.needs_token:
            slope = cast(TokenHead, self.head).ratio_slope()
            weight = torch.sigmoid(shift_lenience(logit, strictness, slope.to(logit.device)))
        else:
            weight = apply_strictness(torch.sigmoid(logit), strictness)
        return torch.where((strictness == 0.0) | (strictness == 1.0), strictness, weight)

    def observe(self, draft: DraftOutput, target: TargetOutput) -> tuple[dict[str, torch.Tensor], torch.Tensor | None]:
        """What the head sees, by the names of its arguments, and TV(p, q) `[B, G]` where something needs it."""
        inputs: dict[str, torch.Tensor] = {}
        tv = None
        if self.head.needs_hidden_states:
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


def apply_strictness(weight: torch.Tensor, strictness: torch.Tensor) -> torch.Tensor:
    """Move a weight towards 0 (strictness 0) or 1 (strictness 1), linearly and exactly at 0, 0.5 and 1.

    Args:
        weight: float32 `[B, G]` in [0, 1]. `strictness`: float32, broadcasts.
    """
    permissive = 2.0 * strictness * weight
    strict = weight + (2.0 * strictness - 1.0) * (1.0 - weight)
    return torch.where(strictness <= 0.5, permissive, strict)


def shift_lenience(logit: torch.Tensor, strictness: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    """Shift the logit of a weight per token: -inf at strictness 0, unchanged at 0.5, inf at 1.

    Such logits fall with log p/q by some `slope`, and their zero, the p/q at which a token is kept with even odds, is
    the head's lenience. Strictness s multiplies that by s / (1 - s). A shift in units of the logit would have no
    effect except near the ends: logits of tokens span more than 20.

    Args:
        logit: float32. strictness: float32, broadcasts. slope: float32 scalar, above 0.
    """
    return logit + slope * torch.logit(strictness)
