"""A verifier with a given acceptance rate, to measure speed without a trained pair; the text is meaningless."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from hf_diversed.blocks import DecodingContext, DraftOutput, TargetOutput, Verdict
from hf_diversed.verifiers import Verifier
from hf_diversed.verifiers.base import CompositeVerifier, check_range


class SyntheticVerifier(CompositeVerifier):
    """Run a verifier, then accept at given rates instead.

    Args:
        inner: the verifier that is executed; residual tokens follow its distribution.
        acceptance: in [0, 1], P(token j is accepted | all earlier ones are): one rate for all positions or one for
            each. The unconditional rates of vLLM's `synthetic` are the running products.

    Raises:
        ValueError: for rates out of range, for greedy decoding (before the first forward), and for more draft tokens
            than rates.
    """

    needs_input_ids = False  # an instance needs them if `inner` does

    def __init__(self, inner: Verifier, acceptance: float | Sequence[float]):
        super().__init__(inner)
        self.needs_check = inner.needs_check  # given rates need no check
        self.inner = inner
        rates = [acceptance] if isinstance(acceptance, (int, float)) else list(acceptance)
        self.acceptance = [check_range("acceptance", rate, 0.0, 1.0) for rate in rates]

    def check(self, context: DecodingContext) -> None:
        super().check(context)
        if context.temperature == 0:
            raise ValueError("synthetic acceptance needs do_sample=True: greedy decoding draws no random numbers.")

    def components(self) -> list[object]:
        # Excludes this class: one from outside the library would have the guards of compiled rounds checked each time.
        return self.inner.components()

    def settings(self) -> dict[str, object]:
        return {"inner": self.inner, "acceptance": self.acceptance}

    def __call__(
        self,
        input_ids: torch.Tensor,
        draft: DraftOutput,
        target: TargetOutput,
        row_values: dict[str, torch.Tensor] | None = None,
    ) -> Verdict:
        verdict = self.verify_parts(input_ids, [draft], target, row_values)[0]
        count = draft.tokens.shape[1]
        rates = self.acceptance * count if len(self.acceptance) == 1 else self.acceptance[:count]
        if len(rates) < count:
            raise ValueError(f"acceptance has {len(rates)} rates for {count} draft tokens; give one, or one each.")
        accept_prob = verdict.accept_prob.new_tensor(rates).expand_as(verdict.accept_prob)
        return replace(verdict, accept_prob=accept_prob)
