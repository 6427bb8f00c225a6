"""FLy (arXiv 2511.22972): accept a rejected draft token if p has high entropy and the next draft tokens pass."""

import torch
import torch.nn.functional as F

from hf_diversed.blocks import DraftOutput, TargetOutput, Trace, Verdict
from hf_diversed.verifiers.base import Verifier, check_count, check_range
from hf_diversed.verifiers.lossless import LosslessVerifier


class FLyVerifier(Verifier):
    """Lossless verification, except that a rejection may be forgiven: the rejected draft token is then accepted.

    A rejection is forgiven if the target's entropy is at least `entropy_threshold` and lossless verification accepts
    the next `window_size` draft tokens, all within the block. The entropy is - sum p log p over the `top_k` most
    likely tokens, in nats, as in serving engines. Draft tokens with p(x) = 0 are never forgiven. Residual tokens are
    those of lossless verification.

    Args:
        entropy_threshold: at least 0, `fly_entropy_threshold`.
        window_size: at least 1, `fly_window_size`. None is the number of draft tokens after the first one, at most 6.
            A shorter block would have a smaller window and accept more, so confidence does not end its blocks.
        top_k: at least 1, `fly_entropy_top_k`.
    """

    needs_input_ids = False

    def __init__(self, entropy_threshold: float = 0.3, window_size: int | None = None, top_k: int = 3):
        self.entropy_threshold = check_range(
            "entropy_threshold", entropy_threshold, 0.0, float("inf"), "Smaller accepts more."
        )
        self.window_size = None if window_size is None else check_count("window_size", window_size)
        self.top_k = check_count("top_k", top_k)

    @property
    def allows_early_stop(self) -> bool:  # type: ignore[override]
        return self.window_size is not None

    def __call__(self, input_ids: torch.Tensor, draft: DraftOutput, target: TargetOutput) -> Verdict:
        native = LosslessVerifier()(input_ids, draft, target)
        best = target.probs()[:, :-1].topk(min(self.top_k, target.scores.shape[-1]), dim=-1).values
        unsure = torch.special.entr(best).sum(-1) >= self.entropy_threshold
        # Draft tokens after the first one of this row; other rows may have more.
        fitting = (draft.num_drafted - 1).clamp(1, 6)
        window = fitting if self.window_size is None else torch.full_like(fitting, self.window_size)
        forgivable = unsure & (target.prob(draft.tokens) > 0.0)
        accept_prob, strict_prob = forgiving_acceptance(native.accept_prob, forgivable, draft.active, window)
        return Verdict(accept_prob, native.replacement, trace=Trace(strict_prob=strict_prob))


def forgiving_acceptance(
    native: torch.Tensor, forgivable: torch.Tensor, active: torch.Tensor, window: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the acceptance probability of each draft token, given that all earlier ones are accepted.

    Each draft token passes lossless verification with probability `native`. A forgiven rejection requires the next
    `window` draft tokens to pass; no other rejection is forgiven until they have. `pending[c]` is the joint
    probability of reaching a position with c passes still required.

    Args:
        native: float32 `[B, G]`.
        forgivable, active: bool `[B, G]`; a window must lie in active positions.
        window: long `[B]`; rows with a window of G or more forgive nothing.

    Returns:
        The acceptance probabilities, and the part of each that lossless verification contributes; float32 `[B, G]`
        each.
    """
    count = native.shape[1]
    # run_prob[k][:, i]: the probability that the k draft tokens after i all pass.
    # has_run[k][:, i]: whether at least k active positions follow i.
    run_prob, has_run = [torch.ones_like(native)], [torch.ones_like(active)]
    for k in range(1, count):
        run_prob.append(run_prob[-1] * F.pad(native.masked_fill(~active, 0.0)[:, k:], (0, k)))
        has_run.append(has_run[-1] & F.pad(active[:, k:], (0, k)))
    sizes = [window == c for c in range(count)]
    fits = torch.stack([size[:, None] & enough for size, enough in zip(sizes, has_run)]).any(dim=0)
    pending = [torch.ones_like(native[:, 0])] + [torch.zeros_like(native[:, 0])] * (count - 1)
    previous = torch.ones_like(native[:, 0])
    accept, strict = [], []
    for i in range(count):
        passes, is_active = native[:, i], active[:, i]
        forgiven = pending[0] * (1.0 - passes) * (forgivable[:, i] & fits[:, i])
        shifted = [*pending[1:], torch.zeros_like(passes)]
        shifted[0] = pending[0] + shifted[0]  # c = 0 stays 0
        updated = [prob * passes + forgiven * size for prob, size in zip(shifted, sizes)]
        # Another verifier decides at inactive positions. Windows do not reach them, so reset.
        initial = [torch.ones_like(passes)] + [torch.zeros_like(passes)] * (count - 1)
        pending = [torch.where(is_active, a, b) for a, b in zip(updated, initial)]
        terms = [pending[c] * run_prob[c][:, i] for c in range(count)]
        kept = sum(terms)
        lossless = kept - sum(term * size for term, size in zip(terms, sizes))
        safe = previous.clamp_min(torch.finfo(native.dtype).tiny)
        accept.append((kept / safe).clamp_max(1.0))
        strict.append((lossless / safe).clamp_max(1.0))
        previous = torch.where(is_active, kept, 1.0)
    return torch.stack(accept, dim=1), torch.stack(strict, dim=1)
