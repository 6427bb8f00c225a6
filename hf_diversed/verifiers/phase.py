"""One verifier between two marker tokens, such as <think> and </think>, and another one elsewhere."""

from collections.abc import Callable
from dataclasses import replace

import torch

from hf_diversed.blocks import DraftOutput, TargetOutput, Trace, Verdict
from hf_diversed.sampling import acceptance, total_variation
from hf_diversed.verifiers.base import CompositeVerifier, Verifier, read_integer
from hf_diversed.verifiers.lossless import LosslessVerifier


_NO_TOKEN = -1


class PhaseVerifier(CompositeVerifier):
    """Verify with `inside` after a `begin` token, up to and including the next `end` token; elsewhere with `outside`.

    The phase is computed per row and position; `begin` and `end` may be prompt, draft, residual or bonus tokens.

    Args:
        inside, outside: verifiers; `outside` is lossless by default.
        begin, end: token ids; they must differ. Left padding is treated like other tokens.

    Raises:
        ValueError: if `begin` or `end` is not a token id, or they are equal.

    Example:
        ```python
        begin, end = tokenizer.convert_tokens_to_ids(["<think>", "</think>"])
        verifier = PhaseVerifier(TopKRelaxedVerifier(10, 0.6), begin=begin, end=end)
        ```
    """

    def __init__(self, inside: Verifier, outside: Verifier | None = None, *, begin: int, end: int):
        self.inside, self.outside = inside, LosslessVerifier() if outside is None else outside
        super().__init__(self.inside, self.outside)
        for name, given in (("begin", begin), ("end", end)):
            token = read_integer(given)
            if token is None or token < 0:
                raise ValueError(f"`{name}` must be a token id, got {given!r}; see convert_tokens_to_ids.")
        if begin == end:
            raise ValueError(f"`begin` and `end` must be different tokens, got {begin} for both.")
        self.begin, self.end = int(begin), int(end)
        self.has_emitted_probs = all(part.has_emitted_probs for part in self._parts)

    def settings(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in ("inside", "outside", "begin", "end")}

    def __call__(
        self,
        input_ids: torch.Tensor,
        draft: DraftOutput,
        target: TargetOutput,
        row_values: dict[str, torch.Tensor] | None = None,
    ) -> Verdict:
        is_inside = self._phases(self._started(input_ids, draft.lengths), draft.tokens)[:, :-1]
        drafts = [replace(draft, active=draft.active & in_phase) for in_phase in (is_inside, ~is_inside)]
        verdicts = self.verify_parts(input_ids, drafts, target, row_values)
        return _merge(is_inside, verdicts, draft, target)

    def _started(self, input_ids: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
        """Return whether each row is inside after its last id: bool `[B]`.

        Recomputed from the ids, because rounds without draft tokens add ids but do not call the verifier.
        """
        if lengths is not None:
            columns = torch.arange(input_ids.shape[1], device=input_ids.device)
            input_ids = torch.where(columns < lengths[:, None], input_ids, _NO_TOKEN)
        outside = torch.zeros_like(input_ids[:, 0], dtype=torch.bool)
        return self._phases(outside, input_ids)[:, -1]

    def _phases(self, started: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return whether a row is inside before and after each token: bool `[B, N + 1]`.

        Args:
            started: bool `[B]`, whether the row is inside before the first token.
            tokens: long `[B, N]`.
        """
        # Marks grow with the position: odd for `begin`, even for `end`. cummax finds the last one.
        places = 2 * torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
        marks = torch.where(tokens == self.begin, places + 1, torch.where(tokens == self.end, places, 0))
        return torch.cat([started[:, None].long(), marks], dim=1).cummax(dim=1).values % 2 == 1


def _merge(is_inside: torch.Tensor, verdicts: list[Verdict], draft: DraftOutput, target: TargetOutput) -> Verdict:
    """Combine two verdicts: the first where `is_inside`, bool `[B, G]`, is True, else the second."""
    inside, outside = verdicts
    rows = torch.arange(len(is_inside), device=is_inside.device)

    def either(name: str, default: Callable[[Trace], torch.Tensor]) -> torch.Tensor | None:
        traces = [verdict.trace for verdict in (inside, outside)]
        values = [getattr(trace, name) for trace in traces]
        if all(value is None for value in values):
            return None
        first, second = (default(trace) if value is None else value for trace, value in zip(traces, values))
        return torch.where(is_inside, first, second)

    def replacement(positions: torch.Tensor) -> torch.Tensor:
        residuals = inside.replacement(positions), outside.replacement(positions)
        return torch.where(is_inside[rows, positions, None], residuals[0], residuals[1])

    missing = torch.full(is_inside.shape, float("nan"), dtype=torch.float32, device=is_inside.device)
    emitted = [verdict.trace.emitted_probs for verdict in (inside, outside)]

    def mixed_probs() -> torch.Tensor:
        first, second = (missing[..., None] if part is None else part() for part in emitted)
        return torch.where(is_inside[..., None], first, second)

    def tv(trace: Trace) -> torch.Tensor:
        return total_variation(target.probs()[:, :-1], draft.probs()) if trace.tv is None else trace.tv

    def bias(trace: Trace) -> torch.Tensor:
        return missing if trace.weight is None else (1.0 - trace.weight) * tv(trace)

    trace = Trace(
        weight=either("weight", lambda _: missing),
        tv=either("tv", tv),
        bias=either("bias", bias),
        inputs=inside.trace.inputs if inside.trace.inputs is not None else outside.trace.inputs,
        emitted_probs=None if all(part is None for part in emitted) else mixed_probs,
        strict_prob=either("strict_prob", lambda _: acceptance(target.prob(draft.tokens), draft.prob(draft.tokens))),
    )
    return Verdict(torch.where(is_inside, inside.accept_prob, outside.accept_prob), replacement, trace)
