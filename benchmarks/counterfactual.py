"""Heads trained on the cost of single tokens, against lenience and the packaged head.

python -m benchmarks.counterfactual summary

Makes labels of the training and of the test prompts (`hf_diversed/training/labels.py`) and trains one head per set of
inputs on the former. On the latter it measures what it costs to keep the cheapest share of the rejections of lossless
decoding, or to gain a share of the tokens after them, in the order of each head and of lenience (p/q). Then it decodes
the test prompts with lenience and the heads with all inputs, priced per token kept and per token gained. Writes
results/counterfactual-TASK.json; a folder beside it keeps what is done, to continue. Bounds are clustered by prompt;
differences are paired.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_diversed import DiversedHead, DiversedVerifier, load_demo_pair
from hf_diversed.evaluation import EvaluationSettings, evaluate, read_results
from hf_diversed.evaluation.intervals import Bootstrap, interpolate
from hf_diversed.evaluation.summary import MethodTable
from hf_diversed.provenance import provenance
from hf_diversed.running.files import write_json
from hf_diversed.running.sampling import Sampling
from hf_diversed.tasks import get_task, load_records
from hf_diversed.training.counterfactual import FitSettings, fit_head
from hf_diversed.training.labels import Labels, LabelSettings, make_labels


SHARES = (0.2, 0.5, 0.7)
INPUTS: dict[str, dict[str, Any]] = {
    "same inputs": {"lookahead": 0, "target_after": False},
    "lookahead": {"target_after": False},
    "state after the token": {"lookahead": 0},
    "lookahead and state": {},
    "lookahead and state, per token gained": {"per_token_gained": True},
}
# Names of the heads in decoding.
DECODED = dict(zip(("same_inputs", "lookahead", "target_after", "counterfactual", "per_gain"), INPUTS))


def main() -> None:
    options = _arguments()
    torch.set_num_threads(1)
    pair, task = load_demo_pair(), get_task(options.task, allow_code_execution=True)
    folder = options.output.with_suffix(".parts")
    folder.mkdir(parents=True, exist_ok=True)
    labels = {}
    runs = (("train", options.num_train, options.rejections, 256), ("test", options.num_test, 2, 250))
    for seed, (split, n, rejections, size) in enumerate(runs, start=1):
        stop_strings = tuple(task.stop_strings)
        sampling = Sampling(max_new_tokens=task.max_new_tokens, batch_size=size, stop_strings=stop_strings)
        records = load_records(task, split, n)
        settings = LabelSettings(rejections, continuations=2, seed=seed)
        prompts = [task.prompt(record) for record in records]
        labels[split] = make_labels(pair, task, prompts, records, sampling, settings, folder / f"{split}.jsonl")
    heads, reports = {}, {}
    for name, inputs in INPUTS.items():
        for head_type in ("linear", "mlp"):
            label = name if head_type == "linear" else f"{name}, mlp"
            heads[label], reports[label] = fit_head(labels["train"], FitSettings(head_type, **inputs))
    orders = {"lenience": -labels["test"].inputs["token"][:, 0], "packaged head": order(pair.heads[task.name], labels)}
    orders |= {name: order(head, labels) for name, head in heads.items()}
    report: dict[str, Any] = {
        "task": task.name,
        "metric": task.metric,
        "labels": {split: about(found) for split, found in labels.items()},
        "heads": reports,
        "curve": curve(labels["test"], orders, torch.ones_like(labels["test"].cost)),
        "gain_curve": curve(labels["test"], orders, labels["test"].gain),
    }
    if options.heads:
        report["decoding"] = decode(options, pair, task, heads, folder / "decoding")
    write_json(options.output, report | {"provenance": provenance(0)})
    print(json.dumps(report, indent=1))


@torch.no_grad()
def order(head: DiversedHead, labels: dict[str, Labels]) -> torch.Tensor:
    """Return the head's logits on the test labels: it keeps the lowest first."""
    names = ["features", "token"] + ["lookahead"] * (head.lookahead > 0) + ["target_after"] * head.target_after
    return head(**{name: labels["test"].inputs[name] for name in names})


def about(labels: Labels) -> dict[str, Any]:
    return {
        "labels": len(labels.cost),
        "prompts": len(labels.prompt.unique()),
        "continuations": labels.scores.shape[-1],
        "mean_cost": float(labels.cost.mean()),
        "deviation": float(labels.cost.std()),
        "noise": labels.noise,
    }


def curve(labels: Labels, orders: dict[str, torch.Tensor], weight: torch.Tensor) -> dict[str, list[dict[str, Any]]]:
    """Return the cost per rejection of keeping the first ones until they have a share of the total weight, and the
    saving against lenience, by order.

    The bounds hold for the order on these labels, as each replicate keeps the same tokens.
    """
    prompts, index = np.unique(labels.prompt.numpy(), return_inverse=True)
    bootstrap, cost = Bootstrap(len(prompts)), labels.cost.numpy()
    total = bootstrap.totals(np.bincount(index))

    def spent(values: torch.Tensor, share: float) -> np.ndarray:
        order = np.argsort(values.numpy(), kind="stable")
        first = order[: np.searchsorted(weight.numpy()[order].cumsum(), share * float(weight.sum()), side="right")]
        return bootstrap.totals(np.bincount(index[first], cost[first], minlength=len(prompts))) / total

    found: dict[str, list[dict[str, Any]]] = {}
    for name, values in orders.items():
        for share in SHARES:
            own, lenient = spent(values, share), spent(orders["lenience"], share)
            value, saving = bootstrap.estimate(own), bootstrap.estimate(lenient - own)
            found.setdefault(name, []).append(
                {
                    "share": share,
                    "cost": value.value,
                    "cost_ci": [value.low, value.high],
                    "saving": saving.value,
                    "saving_ci": [saving.low, saving.high],
                }
            )
    return found


def decode(
    options: argparse.Namespace, pair, task, heads: dict[str, DiversedHead], folder: Path
) -> list[dict[str, Any]]:
    """Return drop and acceptance of lenience and of heads at some strictnesses. `gain` of a head is its quality minus
    that of lenience, interpolated at the acceptance of the head; None outside of the values of lenience."""
    settings = EvaluationSettings(
        num_examples=options.num_test, samples_per_prompt=options.samples, batch_size=250, num_assistant_tokens=5
    )
    lenient = [f"lenience:{value}" for value in options.lenience]
    own = []
    for method in options.heads:
        name, _, strictness = method.partition("@")
        own.append((method, DiversedVerifier(heads[DECODED[name]], float(strictness))))
    examples = load_records(task, "test", options.num_test)
    rows = evaluate(pair, task, examples, ["target", *lenient, *own], settings, output=folder)
    shown = ("method", "n", "quality", "quality_drop", "quality_drop_ci", "acceptance_rate", "acceptance_rate_ci")
    records = {row["method"]: {name: row[name] for name in shown} for row in rows}
    results, bootstrap = read_results(folder), Bootstrap(options.num_test)

    def point(label: str) -> tuple[np.ndarray, np.ndarray]:
        sums = MethodTable(results, label).sums
        return bootstrap.ratio(sums["num_accepted"], sums["num_drafted"]), bootstrap.ratio(sums["score"], sums["rows"])

    rates, qualities = (np.stack(values, axis=1) for values in zip(*map(point, lenient)))
    for label, _ in own:
        rate, quality = point(label)
        gain = bootstrap.estimate(quality - interpolate(rate, rates, qualities))
        known = not np.isnan([gain.value, gain.low]).any()
        records[label] |= {"gain": gain.value, "gain_ci": [gain.low, gain.high]} if known else {"gain": None}
    return list(records.values())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--num-train", type=int, default=1024, help="prompts with labels for training")
    parser.add_argument("--num-test", type=int, default=1000)
    parser.add_argument("--rejections", type=int, default=4, help="labels per training completion")
    parser.add_argument("--samples", type=int, default=3, help="completions per test prompt")
    parser.add_argument("--lenience", type=float, nargs="*", default=[0.12, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-10])
    parser.add_argument(
        "--heads",
        nargs="*",
        metavar="NAME@STRICTNESS",
        default=["counterfactual@0.6", "counterfactual@0.55", "counterfactual@0.5"],
        help=f"linear heads to decode with, of {', '.join(DECODED)}",
    )
    parser.add_argument("--output", type=Path, help="results/counterfactual-TASK.json by default")
    options = parser.parse_args()
    options.output = options.output or Path("results") / f"counterfactual-{options.task}.json"
    return options


if __name__ == "__main__":
    main()
