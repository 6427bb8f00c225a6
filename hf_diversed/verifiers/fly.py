"""FLy (arXiv 2511.22972): forgive a rejection where the target is unsure and agrees with what follows."""

import torch
import torch.nn.functional as F

from hf_diversed.blocks import DraftOutput, TargetOutput, Trace, Verdict
from hf_diversed.verifiers.base import Verifier, check_count, check_range
from hf_diversed.verifiers.lossless import LosslessVerifier


class FLyVerifier(Verifier):
    """Keep a draft that lossless verification rejects if the target's entropy there is high and lossless
    verification keeps the next `window_size` drafts, which must lie in the block.

    The entropy is that of the `top_k` likeliest tokens, - sum p log p in nats, as serving engines compute it. A draft
    with p(x) = 0 is never forgiven. What is rejected is replaced as in lossless verification.

    Args:
        entropy_threshold: at least 0, `fly_entropy_threshold`. top_k: at least 1, `fly_entropy_top_k`.
        window_size: at least 1, `fly_window_size`; None for 6, or all that fit behind the first draft.
    """

    needs_input_ids = False

    def __init__(self, entropy_threshold: float = 0.3, window_size: int | None = None, top_k: int = 3):
        self.entropy_threshold = check_range(
            "entropy_threshold", entropy_threshold, 0.0, float("inf"), "Smaller accepts more."
        )
        self.window_size = None if window_size is None else check_count("window_size", window_size)
        self.top_k = check_count("top_k", top_k)

    def __call__(
        self, input_ids: torch.Tensor, draft: DraftOutput, target: TargetOutput, state: torch.Tensor | None = None
    ) -> Verdict:
        native = LosslessVerifier()(input_ids, draft, target)
        best = target.probs()[:, :-1].topk(min(self.top_k, target.scores.shape[-1]), dim=-1).values
        unsure = torch.special.entr(best).sum(-1) >= self.entropy_threshold
        # As many as fit behind the first draft of the row, not of the longest one beside it.
        fitting = (draft.num_drafted - 1).clamp(1, 6)
        window = fitting if self.window_size is None else torch.full_like(fitting, self.window_size)
        forgivable = unsure & (target.prob(draft.tokens) > 0.0)
        accept_prob, strict_prob = forgiving_acceptance(native.accept_prob, forgivable, draft.active, window)
        return Verdict(accept_prob, native.replacement, trace=Trace(strict_prob=strict_prob))


def forgiving_acceptance(
    native: torch.Tensor, forgivable: torch.Tensor, active: torch.Tensor, window: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Chance of keeping each draft, given those before it, if a rejection may be made up for by the drafts behind it.

    Every draft has a coin that keeps it with chance `native`. Scanning from the left, a forgiven rejection leaves
    `window` keeps owed; while any are owed, no other rejection is forgiven. `owing[c]` is the chance to have come so
    far with c owed.

    Args:
        native: float32 `[B, G]`. forgivable, active: bool `[B, G]`; a window must lie in active positions.
        window: long `[B]`; a row whose window is as wide as the block, or wider, is forgiven nothing.

    Returns:
        the chances, and the part of each in which the draft's own coin kept it; float32 `[B, G]` each.
    """
    count = native.shape[1]
    # runs[k][:, i]: the chance that the k active drafts behind i are all kept by their own coins.
    # clear[k][:, i]: whether there are so many behind it.
    runs, clear = [torch.ones_like(native)], [torch.ones_like(active)]
    for k in range(1, count):
        behind, open_behind = F.pad((native * active)[:, k:], (0, k)), F.pad(active[:, k:], (0, k))
        runs.append(runs[-1] * behind)
        clear.append(clear[-1] & open_behind)
    sizes = [window == c for c in range(count)]
    fits = torch.stack([size[:, None] & there for size, there in zip(sizes, clear)]).any(dim=0)
    owing = [torch.ones_like(native[:, 0])] + [torch.zeros_like(native[:, 0])] * (count - 1)
    previous = torch.ones_like(native[:, 0])
    accept, strict = [], []
    for i in range(count):
        own, open_here = native[:, i], active[:, i]
        forgiven = owing[0] * (1.0 - own) * (forgivable[:, i] & fits[:, i])
        owed = [*owing[1:], torch.zeros_like(own)]
        owed[0] = owing[0] + owed[0]  # who owes nothing goes on so
        paid = [chance * own + forgiven * size for chance, size in zip(owed, sizes)]
        # Where another rule decides nothing is owed, as windows do not reach there, and all starts anew.
        fresh = [torch.ones_like(own)] + [torch.zeros_like(own)] * (count - 1)
        owing = [torch.where(open_here, a, b) for a, b in zip(paid, fresh)]
        terms = [owing[c] * runs[c][:, i] for c in range(count)]
        kept = sum(terms)
        by_coin = kept - sum(term * size for term, size in zip(terms, sizes))
        safe = previous.clamp_min(torch.finfo(native.dtype).tiny)
        accept.append((kept / safe).clamp_max(1.0))
        strict.append((by_coin / safe).clamp_max(1.0))
        previous = torch.where(open_here, kept, 1.0)
    return torch.stack(accept, dim=1), torch.stack(strict, dim=1)
