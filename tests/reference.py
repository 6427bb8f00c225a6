"""A naive speculative decoder to compare the fast path with: one row, no cache, no batching, full forwards only."""

from dataclasses import dataclass

import torch

from hf_diversed.blocks import DraftOutput, TargetOutput
from hf_diversed.sampling import draw


@dataclass
class Randomness:
    """The random numbers of one row by round: noise of each draft, coins, noise of the next token."""

    rounds: list[tuple[list[torch.Tensor], torch.Tensor | None, torch.Tensor]]


@torch.no_grad()
def naive_decoding(
    target,
    draft,
    verifier,
    input_ids,
    max_new_tokens,
    gamma,
    eos_id=None,
    process=lambda scores: scores,
    randomness: Randomness | None = None,
):
    """Relaxed decoding of one unpadded row (long `[1, S]`); returns long `[1, S + T]`.

    Greedy without `randomness`. Models give `.logits` and `.hidden_states`, or both as a pair; `process` maps scores
    `[N, V]`.
    """
    ids, limit, state, number = input_ids, input_ids.shape[1] + max_new_tokens, None, 0
    sampled = randomness is not None
    while ids.shape[1] < limit:
        noises, coins, last_noise = randomness.rounds[number] if sampled else ([], None, None)
        block, steps, number = ids, [], number + 1
        for step in range(min(gamma, limit - ids.shape[1] - 1)):
            raw, hidden = _read(draft, block)
            scores = process(raw[0, -1:])
            steps.append((scores[None], hidden[:, -1:], raw[:, -1:]))
            law = torch.softmax(scores, -1) if sampled else scores
            block = torch.cat([block, draw(law, noises[step] if sampled else None)[:, None]], dim=1)
            if block[0, -1] == eos_id:
                break
        count, kept = len(steps), 0
        raw, hidden = (values[:, -count - 1 :] for values in _read(target, block))
        p = TargetOutput(process(raw[0])[None], hidden, raw)
        if count:
            scores, hidden, raw = (torch.cat(parts, dim=1) for parts in zip(*steps))
            q = DraftOutput(scores, hidden, raw, tokens=block[:, -count:], sampled=sampled)
            verdict = verifier(ids, q, p, state)
            while kept < count and (coins[0, kept] if sampled else 0.5) < verdict.accept_prob[0, kept]:
                kept += 1
            state = None if verdict.state is None else verdict.state[:, kept]
        here = torch.tensor([kept])
        law = verdict.replacement(here) if kept < count else (p.probs(here) if sampled else p.at(here))
        ids = torch.cat([block[:, : ids.shape[1] + kept], draw(law, last_noise)[:, None]], dim=1)
        new = ids[0, input_ids.shape[1] :].tolist()
        if eos_id in new:
            return ids[:, : input_ids.shape[1] + new.index(eos_id) + 1]
    return ids


def _read(model, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Raw logits and last hidden states."""
    out = model(ids, output_hidden_states=True)
    return out if isinstance(out, tuple) else (out.logits.float(), out.hidden_states[-1])
