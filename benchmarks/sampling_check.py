"""Test whether saved completions are samples from the target model at temperature 1.

    python -m benchmarks.sampling_check --target qwen-coder-1.5b --data gsm8k=gsm8k_train_7473.jsonl \\
        --output build/real-pair --parts 3 --methods target,lossless,static:0.7

The completions are those that `benchmarks.real_pair` saved in `--output`. The target model scores each of them again,
one sequence at a time, without draft model, padding or cache. If a token x is a sample from the target's distribution
p, then -log p(x) - H(p) has mean 0 and variance Var(log p). Its sum over all tokens, divided by the square root of the
summed variances, is then close to a standard normal variable. Sampling too often from unlikely tokens makes it
positive, too often from likely ones negative.

A completion whose text is encoded to another number of tokens than the method generated is left out and counted.
"""

import argparse
import json
import math
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.real_pair import chosen_records, pack_linear_layers
from hf_diversed.cli.models import LOOKUP, load_pair
from hf_diversed.evaluation import read_results
from hf_diversed.provenance import provenance
from hf_diversed.running.files import write_json
from hf_diversed.running.prompts import encode
from hf_diversed.tasks import PromptedTask, get_task


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    pair = load_pair(arguments.target, LOOKUP, "cpu", chat=True, dtype="bfloat16")
    pack_linear_layers(pair.target)
    name, path = arguments.data.split("=", 1)
    task = PromptedTask(get_task(name, allow_code_execution=True), pair.tokenizer, chat=True)
    prompts = encode(pair.tokenizer, [task.prompt(record) for record in chosen_records(name, Path(path))], False)
    records = []
    for method in arguments.methods:
        saved = completions(arguments.output / name, arguments.parts, method)
        rows, changed = [], 0
        for index, text, num_tokens in saved[: arguments.num_examples]:
            tokens = pair.tokenizer(text, add_special_tokens=False)["input_ids"]
            if len(tokens) == num_tokens - 1:  # the text does not contain the end token
                tokens.append(pair.tokenizer.eos_token_id)
            if len(tokens) != num_tokens:
                changed += 1
                continue
            rows.append(excess(scores(pair.target, prompts[index], tokens), torch.tensor(tokens)))
        total, variance, n = torch.tensor(rows, dtype=torch.float64).sum(0).tolist()
        records.append(
            {
                "method": method,
                "n": len(rows),
                "left_out": changed,
                "num_tokens": int(n),
                "excess_per_token": total / n,
                "standard_error": math.sqrt(variance) / n,
                "z": total / math.sqrt(variance),
            }
        )
        print(json.dumps(records[-1]), flush=True)
        write_json(arguments.report, {"task": name, "records": records, "provenance": provenance(0, "cpu")})


def completions(folder: Path, num_parts: int, method: str) -> list[tuple[int, str, int]]:
    """Return prompt index, completion and number of generated tokens of all saved completions of a method."""
    rows, first = [], 0
    for part in range(num_parts):
        results = read_results(folder / f"part-{part}")
        for (label, _, _), entry in results.entries.items():
            if label == method:
                columns = (entry["rows"][column] for column in ("prompt", "text", "tokens"))
                rows += [(first + index, text, n) for index, text, n in zip(*columns)]
        first += results.header["n"]
    return sorted(rows)


@torch.inference_mode()
def scores(model: torch.nn.Module, prompt: list[int], tokens: list[int]) -> Tensor:
    """Return the model's float32 logits at the positions that predict `tokens`, `[T, V]`."""
    output = model(input_ids=torch.tensor([prompt + tokens]), logits_to_keep=len(tokens) + 1)
    return output.logits[0, :-1].float()


def excess(logits: Tensor, tokens: Tensor) -> tuple[float, float, int]:
    """Return the sum of -log p(x) - H(p) over the tokens, its variance for samples from p, and the number of tokens.

    Args:
        logits: finite float `[T, V]`.
        tokens: long `[T]`.
    """
    log_probs = logits.log_softmax(-1)
    probs = log_probs.exp()
    entropy = -(probs * log_probs).sum(-1)
    chosen = -log_probs.gather(-1, tokens[:, None])[:, 0]
    variance = (probs * (log_probs + entropy[:, None]).square()).sum(-1)
    return float((chosen - entropy).sum()), float(variance.sum()), len(tokens)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--target", required=True, help="Hub id, folder or packaged name of the target.")
    add("--data", required=True, help="Task and its JSON Lines file: gsm8k=FILE.")
    add("--output", required=True, type=Path, help="Output folder of benchmarks.real_pair.")
    add("--report", default=Path("build/sampling-check.json"), type=Path, help="JSON file to write.")
    add("--methods", default=["target", "lossless"], type=lambda text: text.split(","))
    add("--parts", default=1, type=int, help="Parts of the study to read.")
    add("--num-examples", type=int, help="Prompts per method; by default all that were saved.")
    add("--threads", default=1, type=int, help="Number of torch's threads.")
    return parser.parse_args()


if __name__ == "__main__":
    main()
