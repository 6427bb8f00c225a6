"""One round's outcome: what the rule says, how the coins fall, which token follows. Tensors in, tensors out."""

import torch

from hf_diversed.outputs import DraftOutput, TargetOutput, Verdict


# What a row's numbers can suffer from, as its part of a round's one transfer says it; 0 is nothing.
FAULTS = (
    "",
    "the target's scores are not finite (nan or inf) where a token was to be chosen, so its law is none; look at its "
    "weights and dtype (float16 overflows where bfloat16 does not).",
    "the draft's scores are not finite (nan or inf) where a token was to be verified, so its law is none; look at its "
    "weights and dtype (float16 overflows where bfloat16 does not).",
    "{rule} gave an acceptance that is not finite though both models' scores are; look at its settings, and at the "
    "weights of its head and the hidden states that it reads, if any.",
)


def find_faults(
    draft: DraftOutput | None, target: TargetOutput, verdict: Verdict | None, num_accepted: torch.Tensor
) -> torch.Tensor:
    """Index into `FAULTS` for every row, long `[B]`: of the positions that this round's tokens hang on."""

    def strikes(values: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
        return (~torch.isfinite(values) & used).any(dim=-1)

    positions = torch.arange(target.scores.shape[1], device=num_accepted.device)
    reached = positions <= num_accepted[:, None]
    # The best score tells of all: nan and inf carry over to it, and it is -inf where every token is forbidden.
    fault = strikes(target.scores.amax(dim=-1), reached).long()
    if draft is None or verdict is None:
        return fault
    verified = reached[:, :-1] & draft.active
    later = torch.where(strikes(verdict.accept_prob, verified), 3, fault)
    later = torch.where(strikes(draft.scores.amax(dim=-1), verified), 2, later)
    return torch.where(fault > 0, fault, later)


def refuse_faults(faults: list[int], rule: object) -> None:
    """Stop before anything is emitted that no model meant. Raises FloatingPointError."""
    if any(faults):
        raise FloatingPointError(FAULTS[min(fault for fault in faults if fault)].format(rule=type(rule).__name__))
