"""Estimate the target's mean reward from relaxed rollouts with importance weights, on the embedded pair.

python -m benchmarks.importance

Every method completes the same prompts. Weighted by exp(log_prob_target - log_prob) per row, the mean reward of
relaxed rollouts estimates that of the target's own samples. Writes results/importance.json.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from hf_diversed import load_demo_pair
from hf_diversed.files import write_json
from hf_diversed.formatting import PLAIN
from hf_diversed.harness.decode import Decoder
from hf_diversed.harness.methods import Method, build_methods
from hf_diversed.harness.prompts import encode
from hf_diversed.harness.sampling import Sampling
from hf_diversed.provenance import provenance
from hf_diversed.tasks import get_task, load_records


METHODS = [PLAIN, "static:0.95", "static:0.9", "static:0.7"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-prompts", type=int, default=256)
    parser.add_argument("--samples-per-prompt", type=int, default=4)
    parser.add_argument("--output", type=Path, default=Path("results/importance.json"))
    options = parser.parse_args()
    records = measure(METHODS, options.num_prompts, options.samples_per_prompt)
    write_json(options.output, {"records": records, "provenance": provenance(0)})
    for record in records:
        print(record)


def measure(methods: Sequence[str], num_prompts: int, samples_per_prompt: int) -> list[dict]:
    """Return plain and weighted mean rewards per method, with standard errors clustered by prompt.

    `token_excess` is the sum over a row's tokens of p / v - 1, whose expectation is 0. `effective_share` is the
    effective sample size, (sum w)^2 / sum w^2, per completion.
    """
    pair, task = load_demo_pair(), get_task("math")
    records = load_records(task, "test", num_prompts)
    prompts = encode(pair.tokenizer, [task.prompt(record) for record in records])
    sampling = Sampling(max_new_tokens=task.max_new_tokens, stop_strings=tuple(task.stop_strings))
    decoder = Decoder(pair, sampling)
    records_by_method = []
    for method in build_methods(methods, pair.heads["math"]):
        columns = [_sample(decoder, task, method, prompts, records, seed) for seed in range(samples_per_prompt)]
        rewards, weights, excess = (torch.stack(column, dim=1) for column in zip(*columns))  # [prompts, samples]
        records_by_method.append(
            {
                "method": method.label,
                "num_prompts": num_prompts,
                "samples_per_prompt": samples_per_prompt,
                "reward": _mean(rewards),
                "weighted_reward": _mean(weights * rewards),
                "mean_weight": _mean(weights),
                "token_excess": _mean(excess),
                "effective_share": (weights.sum() ** 2 / (weights**2).sum() / weights.numel()).item(),
            }
        )
    return records_by_method


def _sample(decoder: Decoder, task, method: Method, prompts, records, seed: int) -> tuple[torch.Tensor, ...]:
    """Complete every prompt once; return rewards, weights and token excess, float64 `[prompts]` each."""
    options = {} if method.is_plain else {"output_token_records": True}
    # The target's own samples are independent of those of the other methods.
    decoded = decoder(method, prompts, 1000 + seed if method.is_plain else seed, **options)
    texts = [decoder.text(ids) for ids in decoded.tokens]
    rewards = torch.tensor(task.score_batch(texts, records), dtype=torch.float64)
    if decoded.records is None:
        return rewards, torch.ones_like(rewards), torch.zeros_like(rewards)
    log_ratio = (decoded.records.log_prob_target - decoded.records.log_prob).double()
    return rewards, decoded.records.importance_weights().double(), (log_ratio.exp() - 1.0).nansum(1)


def _mean(values: torch.Tensor) -> dict[str, float]:
    """Return the mean of `[prompts, samples]` and its standard error over prompts."""
    per_prompt = values.mean(1)
    return {"mean": per_prompt.mean().item(), "error": (per_prompt.std() / len(per_prompt) ** 0.5).item()}


if __name__ == "__main__":
    main()
