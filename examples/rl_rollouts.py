"""GRPO with speculative rollouts: lossless by default, or relaxed with importance weights, as `--verifier static:0.7`.

A plain loop in torch without TRL, to show how importance weights are used. The policy is the target model of the
embedded pair; the draft model is not trained.
"""

import argparse

import torch

from hf_diversed import load_demo_pair
from hf_diversed.tasks import get_task, load_records
from hf_diversed.verifiers import build_verifier


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--verifier", default="lossless", help="a relaxed verifier reduces the effective sample size")
    parser.add_argument("--updates", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=16, help="prompts per update")
    parser.add_argument("--group", type=int, default=8, help="completions per prompt")
    options = parser.parse_args()
    if not build_verifier(options.verifier).has_emitted_probs:
        parser.error(
            f"{options.verifier!r} has no emitted distribution, so its rollouts have no importance weights; use "
            "lossless, static, fuzzy or block."
        )

    torch.manual_seed(0)
    pair, task = load_demo_pair(), get_task("math")
    policy, tokenizer = pair.target.requires_grad_(True), pair.tokenizer
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-5)
    records = load_records(task, "train", options.updates * options.prompts)
    for update in range(options.updates):
        batch = records[update * options.prompts :][: options.prompts]
        inputs = tokenizer([task.prompt(record) for record in batch], return_tensors="pt", padding=True)
        out = policy.generate(
            **inputs,
            assistant_model=pair.draft,
            verifier=options.verifier,
            do_sample=True,
            top_k=0,
            num_return_sequences=options.group,
            max_new_tokens=48,
            return_dict_in_generate=True,
            output_token_records=True,
        )
        tokens = out.token_records
        ended = tokens.source < 0
        texts = tokenizer.batch_decode(tokens.tokens, skip_special_tokens=True)
        rewards = torch.tensor(task.score_batch(texts, [record for record in batch for _ in range(options.group)]))

        # Weighted averages are unbiased for the policy. With lossless rollouts, all weights are 1. These sampling
        # settings do not change scores, so the target's processed distribution is the policy.
        weights = tokens.importance_weights()
        weighted = (weights * rewards).view(-1, options.group)
        baseline = weighted.sum(1, keepdim=True) / weights.view(-1, options.group).sum(1, keepdim=True)
        advantages = weights * (rewards.view(-1, options.group) - baseline).flatten()

        log_probs = completion_log_probs(policy, inputs, tokens.tokens, ended, options.group)
        loss = -(advantages[:, None] * log_probs).sum() / (~ended).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        share = (weights.sum() ** 2 / weights.square().sum() / len(weights)).item()
        print(
            f"update {update + 1}: reward {weighted.mean():.3f}, {out.stats.acceptance_rate:.1%} accepted, "
            f"effective sample size {share:.0%}"
        )


def completion_log_probs(policy, inputs, tokens: torch.Tensor, ended: torch.Tensor, group: int) -> torch.Tensor:
    """Return the policy's log-probabilities of the tokens, `[B, T]`; 0 after a row's end."""
    prompt, mask = (inputs[name].repeat_interleave(group, 0) for name in ("input_ids", "attention_mask"))
    mask = torch.cat([mask, (~ended).long()], 1)
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    logits = policy(torch.cat([prompt, tokens], 1), attention_mask=mask, position_ids=positions).logits
    log_probs = logits[:, prompt.shape[1] - 1 : -1].log_softmax(-1)
    return log_probs.gather(-1, tokens[..., None]).squeeze(-1).masked_fill(ended, 0.0)


if __name__ == "__main__":
    main()
