"""Test whether saved completions are samples from the target model.

    python -m benchmarks.sampling_check --target qwen-coder-1.5b --draft qwen-coder-0.5b \\
        --data gsm8k=gsm8k_train_7473.jsonl --output build/real-pair --parts 3 --methods target,lossless,static:0.7

`--output` contains the completions, as `benchmarks.real_pair` saves them. Both models score each of them separately,
without padding and without a cache. Temperature, top-k and top-p are those of the run, applied by transformers' own
classes; p and q are the resulting distributions of the target and of the draft model. If the tokens are samples from
p, the expected value of f(token) - E_p[f] is 0 for any function f, and its variance is Var_p(f). z is the sum over all
tokens, divided by the square root of the summed variances; it is approximately standard normal. There are two tests:

- `z`: f = -log p. Positive if unlikely tokens are sampled too often, negative if likely tokens are. With top-p,
  rounding at the limit can make it slightly negative.
- `z_draft`: f = q / (p + q). Positive if tokens that the draft model prefers are sampled too often, which relaxed
  verifiers cause.

The saved texts are encoded again. Completions whose number of tokens then differs are excluded; `left_out` is their
number. Tokens that p excludes, for example by a rounding error at the limit of top-p, are not counted;
`num_excluded` is their number. Another encoding of equal length is not detected, and the end token is assumed to be
the tokenizer's. Methods that are already in `--report` are kept.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    PreTrainedTokenizerBase,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from benchmarks import packaged
from benchmarks.cpu_layers import pack_linear_layers
from benchmarks.real_pair import chosen_records
from hf_diversed.evaluation import read_results
from hf_diversed.evaluation.decoder import encode
from hf_diversed.files import write_json
from hf_diversed.provenance import provenance
from hf_diversed.tasks import PromptedTask, get_task
from hf_diversed.zoo import load_pair


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    target, draft = packaged.resolve(arguments.target), packaged.resolve(arguments.draft)
    pair = load_pair(target, draft, "cpu", dtype=arguments.dtype)
    for model in (pair.target, pair.draft):
        pack_linear_layers(model)
    name, path = arguments.data.split("=", 1)
    source = name.partition("-")[0]
    task = PromptedTask(get_task(source, allow_code_execution=True), pair.tokenizer, chat=True)
    prompts = encode(pair.tokenizer, [task.prompt(record) for record in chosen_records(source, Path(path))], False)
    about = {"task": name, "parts": arguments.parts, "run": arguments.output.name, "dtype": arguments.dtype}
    about |= {"target": arguments.target, "draft": arguments.draft}
    records = earlier_records(arguments.report, about)
    done = {record["method"] for record in records}
    for method in arguments.methods:
        if method in done:
            continue
        folder = arguments.output / name
        saved, warpers = completions(folder, arguments.parts, method), run_warpers(folder)
        rows = []
        for index, text, num_tokens, ended in saved:
            if tokens := encoded(pair.tokenizer, text, num_tokens, ended):
                p, q = (
                    warpers(None, scores(model, prompts[index], tokens)).double().softmax(-1)
                    for model in (pair.target, pair.draft)
                )
                rows.append(deviations(p, q, torch.tensor(tokens)))
        if not rows:
            raise ValueError(f"No completion of {method!r} is encoded to its number of tokens; nothing can be tested.")
        n, num_excluded, total, variance, draft_total, draft_variance = torch.stack(rows).sum(0).tolist()
        records.append(
            {
                "method": method,
                "n": len(rows),
                "left_out": len(saved) - len(rows),
                "num_tokens": int(n),
                "num_excluded": int(num_excluded),
                "excess_per_token": total / n,
                "standard_error": math.sqrt(variance) / n,
                "z": total / math.sqrt(variance),
                "z_draft": draft_total / math.sqrt(draft_variance),
            }
        )
        print(json.dumps(records[-1]), flush=True)
        write_json(arguments.report, about | {"records": records, "provenance": provenance(0, "cpu")})


def earlier_records(path: Path, about: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the records of a report, if it exists. Raises ValueError if it was written with other settings."""
    if not path.is_file():
        return []
    found = json.loads(path.read_text())
    if different := {key: found.get(key) for key, value in about.items() if found.get(key, value) != value}:
        raise ValueError(f"{path} has {different}, not {about}; choose another --report or remove it.")
    return found["records"]


def completions(folder: Path, num_parts: int, method: str) -> list[tuple[int, str, int, bool]]:
    """Return the saved completions of a method, in the order of the prompts.

    Returns:
        Prompt index, text, number of generated tokens, and whether the last one is an end token.

    Raises:
        ValueError: if there is no completion, or texts were not saved.
    """
    rows, first = [], 0
    for part in range(num_parts):
        results = read_results(folder / f"part-{part}")
        limit = results.header["max_new_tokens"]
        for (label, _, _), entry in results.entries.items():
            if label == method and "text" in entry["rows"]:
                columns = (entry["rows"][column] for column in ("prompt", "text", "tokens"))
                rows += [(first + index, text, n, n < limit) for index, text, n in zip(*columns)]
        first += results.header["n"]
    if not rows:
        raise ValueError(
            f"{folder} contains no texts of {method!r}; measure it with benchmarks.real_pair in a new --output."
        )
    return sorted(rows)


def encoded(tokenizer: PreTrainedTokenizerBase, text: str, num_tokens: int, ended: bool) -> list[int] | None:
    """Return the token ids of a completion, or None if the text is encoded to another number of tokens.

    Args:
        num_tokens: number of generated tokens.
        ended: whether the last one is the end token, which is not in the text.
    """
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id] * ended
    return tokens if len(tokens) == num_tokens else None


@torch.inference_mode()
def scores(model: torch.nn.Module, prompt: list[int], tokens: list[int]) -> Tensor:
    """Return the model's float32 logits at the positions that predict `tokens`, `[T, V]`."""
    output = model(input_ids=torch.tensor([prompt + tokens]), logits_to_keep=len(tokens) + 1)
    return output.logits[0, :-1].float()


def run_warpers(folder: Path) -> LogitsProcessorList:
    """Return the temperature, top-k and top-p of a run, as transformers applies them; ValueError if it is greedy."""
    settings = read_results(folder / "part-0").header["settings"]
    if not settings["temperature"]:
        raise ValueError(f"{folder} has greedy completions; measure samples, with a temperature above 0.")
    warpers = LogitsProcessorList([TemperatureLogitsWarper(float(settings["temperature"]))])
    if settings["top_k"]:
        warpers.append(TopKLogitsWarper(settings["top_k"]))
    if settings["top_p"] < 1:
        warpers.append(TopPLogitsWarper(settings["top_p"]))
    return warpers


def deviations(p: Tensor, q: Tensor, tokens: Tensor) -> Tensor:
    """Sum f(token) - E_p[f] over the tokens with p(token) > 0, for f = -log p and f = q / (p + q).

    Args:
        p, q: float64 `[T, V]`, distributions of the target and the draft model.
        tokens: long `[T]`.

    Returns:
        float64 `[6]`: the number of these tokens, the number of the others, and for each f the sum and its variance
        for samples from p. NaN in p propagates.
    """
    included = p.gather(-1, tokens[:, None])[:, 0] != 0
    result = [included.sum(), (~included).sum()]
    for values in (-p.where(p != 0, 1).log(), q / (p + q).where(p + q != 0, 1)):
        centred = values - (p * values).sum(-1, keepdim=True)
        chosen = centred.gather(-1, tokens[:, None])[:, 0]
        result += [chosen[included].sum(), (p * centred.square()).sum(-1)[included].sum()]
    return torch.stack([value.double() for value in result])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--target", required=True, help="Hub id, folder or name in benchmarks.packaged of the target.")
    add("--draft", default="qwen-coder-0.5b", help="The same, of the draft model.")
    add("--data", required=True, help="Subfolder of the run and the task's file: gsm8k=FILE.")
    add("--output", required=True, type=Path, help="Output folder of benchmarks.real_pair.")
    add("--report", default=Path("build/sampling-check.json"), type=Path, help="JSON file to write.")
    add("--methods", default=["target", "lossless"], type=lambda text: text.split(","))
    add("--parts", default=1, type=int, help="Parts of the study to read.")
    add("--threads", default=1, type=int, help="Number of torch's threads.")
    add("--dtype", default="bfloat16", help="Dtype of the models; that of the run.")
    return parser.parse_args()


if __name__ == "__main__":
    main()
