"""Measure what accepting rejected draft tokens costs in quality, for an oracle and for each verifier's order.

python -m benchmarks.ceiling math

At every position of a lossless completion, one draft token is sampled and accepted or rejected losslessly. For a
sample of the rejections, the target continues both branches several times: from the draft token and from its
replacement. The mean score difference is the cost of keeping that token, to first order, because the rest of the text
follows the target. An oracle keeps the tokens that cost least on one half of the continuations; its cost is measured
on the other half. Verifiers keep tokens in their own order: lenience by p/q, a head by its weight. Writes
results/ceiling-TASK.json: the largest share of the rejections that can be kept at no cost.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_diversed import load_demo_pair
from hf_diversed.features import distribution_features, drafted_token_features
from hf_diversed.files import write_json
from hf_diversed.harness.decode import Decoder
from hf_diversed.harness.methods import Method
from hf_diversed.harness.pair import Pair
from hf_diversed.harness.prompts import encode, plan_batches
from hf_diversed.harness.sampling import Sampling
from hf_diversed.provenance import module_digest, provenance
from hf_diversed.sampling import residual
from hf_diversed.tasks import Task, get_task, load_records
from hf_diversed.training.labels import cut
from hf_diversed.verifiers import LosslessVerifier
from hf_diversed.zoo.loader import MIXTURE


_BRANCHES = ("kept", "replaced")


def main() -> None:
    options = _arguments()
    torch.set_num_threads(options.threads)
    pair, task = load_demo_pair(), get_task(options.task, allow_code_execution=True)
    examples = load_records(task, "test", options.num_examples)
    sampling = Sampling(max_new_tokens=task.max_new_tokens, batch_size=250, stop_strings=tuple(task.stop_strings))
    decoder = Decoder(pair, sampling)
    prompts = encode(pair.tokenizer, [task.prompt(example) for example in examples])
    completions = complete(decoder, prompts, options.seed)
    heads = {"token head": pair.heads[task.name], "mixture head": load_demo_pair(heads=MIXTURE).heads[task.name]}
    torch.manual_seed(options.seed)
    with torch.no_grad():
        seen = [rejections(pair, prompt, ids, heads) for prompt, ids in zip(prompts, completions)]
    chosen = [
        {"example": index, **found[place]}
        for index, (found, _) in enumerate(seen)
        for place in torch.randperm(len(found))[: options.per_completion].tolist()
    ]
    print(f"{len(chosen)} rejections of {len(completions)} completions")
    for number in range(options.continuations):
        for branch in _BRANCHES:
            starts = [prompts[entry["example"]] + completions[entry["example"]][: entry["place"]] for entry in chosen]
            scores = continue_and_score(
                decoder, task, examples, prompts, chosen, starts, branch, options.seed + 1 + number
            )
            for entry, score in zip(chosen, scores):
                entry.setdefault(branch, []).append(score)
        print(f"continued {number + 1} of {options.continuations} times", flush=True)
    verified, rejected = sum(len(ids) for ids in completions), sum(float(tv) for _, tv in seen)
    report = {
        "task": task.name,
        "metric": task.metric,
        "completions": len(completions),
        "continuations": options.continuations,
        "lossless_acceptance": 1.0 - rejected / verified,
        "positions": len(chosen),
        "free": free_shares(chosen, list(heads), options.seed),
        "heads": {name: module_digest(head) for name, head in heads.items()},
        "provenance": provenance(options.seed),
    }
    write_json(options.output, report)
    print(json.dumps({name: value for name, value in report.items() if name != "provenance"}, indent=1))


def complete(decoder: Decoder, prompts: list[list[int]], seed: int) -> list[list[int]]:
    """Return one completion of the target per prompt, in the order of the prompts."""
    ids: list[list[int]] = [[] for _ in prompts]
    method = Method("lossless", LosslessVerifier())
    for number, order in enumerate(plan_batches([len(prompt) for prompt in prompts], decoder.sampling.batch_size)):
        drawn = decoder(method, [prompts[index] for index in order], 1000 * seed + number)
        for index, tokens in zip(order, drawn.tokens):
            ids[index] = tokens
    return ids


def rejections(pair: Pair, prompt: list[int], ids: list[int], heads: dict) -> tuple[list[dict[str, Any]], float]:
    """Return the positions of one completion at which a draft token is rejected, and their expected number."""
    text = torch.tensor([prompt + ids])
    inside = slice(len(prompt) - 1, len(prompt) - 1 + len(ids))
    p, q = (model(text).logits[:, inside].float().softmax(-1) for model in (pair.target, pair.draft))
    drafted = torch.multinomial(q[0], 1).T
    p_drafted, q_drafted = (probs.gather(-1, drafted[..., None]).squeeze(-1) for probs in (p, q))
    rejected = torch.rand(p_drafted.shape) >= p_drafted / q_drafted
    replacement = torch.multinomial(residual(p, q, p)[0], 1).T
    inputs = {"features": distribution_features(p, q), "token": drafted_token_features(p, q, drafted)}
    order = {"lenience": -(p_drafted / q_drafted).log()}
    for name, head in heads.items():
        order[name] = head(**{key: value for key, value in inputs.items() if key != "token" or head.needs_token})
    found = [
        {
            "place": place,
            "tokens": {"kept": int(drafted[0, place]), "replaced": int(replacement[0, place])},
            "strictness": {name: float(values[0, place]) for name, values in order.items()},
        }
        for place in rejected[0].nonzero()[:, 0].tolist()
    ]
    return found, float((p - q).clamp_min(0.0).sum())


def continue_and_score(decoder, task: Task, examples, prompts, chosen, starts, branch: str, seed: int) -> list[float]:
    """Continue every rejection with the target after one branch and return the scores."""
    texts = [[*start, entry["tokens"][branch]] for start, entry in zip(starts, chosen)]
    unfinished = [index for index, text in enumerate(texts) if text[-1] not in decoder.eos_ids]
    drawn = complete(decoder, [texts[index] for index in unfinished], seed)
    for index, ids in zip(unfinished, drawn):
        texts[index] = texts[index] + ids
    answers = [
        cut(decoder.text(text[len(prompts[entry["example"]]) :]), decoder.stop_strings)
        for text, entry in zip(texts, chosen)
    ]
    return task.score_batch(answers, [examples[entry["example"]] for entry in chosen])


def free_shares(chosen: list[dict[str, Any]], heads: list[str], seed: int) -> dict[str, float]:
    """Return the largest share of the rejected tokens that can be kept at no cost, in steps of 1%, by order.

    The oracle and each verifier rank the tokens, and keep the first ones.
    """
    costs = np.array([np.subtract(entry["replaced"], entry["kept"]) for entry in chosen])  # [M, K]
    half = costs.shape[1] // 2
    charged = {"oracle": costs[:, half:].mean(1), **dict.fromkeys(("lenience", *heads), costs.mean(1))}
    strictness = {name: np.array([entry["strictness"][name] for entry in chosen]) for name in ("lenience", *heads)}
    strictness["oracle"] = costs[:, :half].mean(1)
    ties = np.random.default_rng(seed).random(len(chosen))
    sizes = [round(percent / 100 * len(chosen)) for percent in range(101)]
    free = {}
    for order, cost in charged.items():
        ranked = cost[np.lexsort((ties, strictness[order]))]
        free[order] = max(size for size in sizes if ranked[:size].sum() <= 0.0) / len(chosen)
    return free


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--num-examples", type=int, default=1000)
    parser.add_argument("--per-completion", type=int, default=2, help="rejections measured per completion")
    parser.add_argument("--continuations", type=int, default=4, help="continuations of each branch; an even number")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="results/ceiling-TASK.json by default")
    options = parser.parse_args()
    options.output = options.output or Path("results") / f"ceiling-{options.task}.json"
    return options


if __name__ == "__main__":
    main()
