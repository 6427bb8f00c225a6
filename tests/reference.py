"""A naive speculative decoder to compare the fast path with: one row, no cache, no batching, full forwards only."""

import torch

from hf_diversed.outputs import DraftOutput, TargetOutput


def naive_decoding(target, draft, verifier, input_ids, max_new_tokens, gamma, eos_id=None):
    """Greedy relaxed decoding of one unpadded row (long `[1, S]`); returns long `[1, S + T]`."""
    ids, limit, state = input_ids, input_ids.shape[1] + max_new_tokens, None
    while ids.shape[1] < limit:
        block, scores_q, hidden_q = ids, [], []
        for _ in range(min(gamma, limit - ids.shape[1] - 1)):
            out = draft(block, output_hidden_states=True)
            scores_q.append(out.logits[:, -1:].float())
            hidden_q.append(out.hidden_states[-1][:, -1:])
            block = torch.cat([block, out.logits[:, -1:].argmax(-1)], dim=1)
            if block[0, -1] == eos_id:
                break
        count = len(scores_q)
        out = target(block, output_hidden_states=True)
        logits, hidden = out.logits[:, -count - 1 :].float(), out.hidden_states[-1][:, -count - 1 :]
        p = TargetOutput(logits, hidden, logits)
        kept = 0
        if count:
            q_logits = torch.cat(scores_q, dim=1)
            q = DraftOutput(q_logits, torch.cat(hidden_q, dim=1), q_logits, tokens=block[:, -count:], sampled=False)
            verdict = verifier(ids, q, p, state)
            while kept < count and verdict.accept_prob[0, kept] == 1:
                kept += 1
            state = None if verdict.state is None else verdict.state[:, kept]
        law = logits[:, kept] if kept == count else verdict.replacement(torch.tensor([kept]))
        ids = torch.cat([block[:, : block.shape[1] - count + kept], law.argmax(-1, keepdim=True)], dim=1)
        new = ids[0, input_ids.shape[1] :].tolist()
        if eos_id in new:
            return ids[:, : input_ids.shape[1] + new.index(eos_id) + 1]
    return ids
