"""Heads trained on the cost of single tokens, against lenience and the packaged head.

python -m benchmarks.counterfactual summary

Labels the training and test prompts (`hf_diversed/training/labels.py`) and trains one head per set of inputs on the
training labels. On the test labels, each head and lenience (p/q) rank the rejections of lossless decoding. Measured is
the cost of keeping the first ones, up to a share of the rejections. Then the test prompts are decoded with lenience
and with heads. With --draws, the training labels are drawn several times, and every head that decodes is trained on
each draw. Writes results/counterfactual-TASK.json; finished parts are kept in a folder next to it, so an interrupted
run can continue. Bounds are clustered by prompt; differences are paired.
"""

import argparse
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.differences import p_value, sums
from hf_diversed import DiversedHead, DiversedVerifier, load_demo_pair
from hf_diversed.evaluation import EvaluationSettings, evaluate, read_results
from hf_diversed.evaluation.intervals import Bootstrap, interpolate
from hf_diversed.evaluation.summary import MethodTable
from hf_diversed.files import write_json
from hf_diversed.harness.pair import Pair
from hf_diversed.harness.sampling import Sampling
from hf_diversed.provenance import provenance
from hf_diversed.tasks import Task, get_task, load_records
from hf_diversed.training.counterfactual import FitSettings, fit_head
from hf_diversed.training.labels import Labels, LabelSettings, make_labels
from hf_diversed.zoo.loader import MIXTURE


SHARES = (0.5, 0.7, 0.9)
INPUTS: dict[str, dict[str, Any]] = {
    "same inputs": {"lookahead": 0, "target_after": False},
    "lookahead": {"target_after": False},
    "state after the token": {"lookahead": 0},
    "lookahead and state": {},
}
ALL = "lookahead and state"
SETTINGS = {name: kind | {"head_type": "linear"} for name, kind in INPUTS.items()}
SETTINGS |= {f"{name}, mlp": kind | {"head_type": "mlp"} for name, kind in INPUTS.items()}
# Names of the heads in decoding.
DECODED = dict(zip(("same_inputs", "lookahead", "target_after", "counterfactual"), INPUTS))
DECODED |= {"mlp": f"{ALL}, mlp"}
COUNTS = (500, 1000)  # smaller numbers of labels
OF_TEST = 2  # seed of the test labels


def main() -> None:
    options = _arguments()
    torch.set_num_threads(1)
    pair, task = load_demo_pair(), get_task(options.task, allow_code_execution=True)
    folder = options.output.with_suffix(".parts")
    folder.mkdir(parents=True, exist_ok=True)
    stop_strings = tuple(task.stop_strings)

    def labelled(name: str, n: int, rejections: int, size: int, seed: int) -> Labels:
        sampling = Sampling(max_new_tokens=task.max_new_tokens, batch_size=size, stop_strings=stop_strings)
        records = load_records(task, "test" if seed == OF_TEST else "train", n)
        settings = LabelSettings(rejections, continuations=2, seed=seed)
        prompts = [task.prompt(record) for record in records]
        return make_labels(pair, task, prompts, records, sampling, settings, folder / f"{name}.jsonl")

    seeds = [1, *range(OF_TEST + 1, OF_TEST + options.draws)]
    draws = [
        labelled("train" if seed == 1 else f"train-{seed}", options.num_train, options.rejections, 256, seed)
        for seed in seeds
    ]
    labels = {"train": draws[0], "test": labelled("test", options.num_test, 2, 250, OF_TEST)}

    @cache
    def fit(draw: int, name: str) -> tuple[DiversedHead, dict[str, Any]]:
        return fit_head(draws[draw], FitSettings(**SETTINGS[name]))

    fitted = {name: fit(0, name) for name in SETTINGS}
    parts = [chosen(draws[0], slice(count)) for count in COUNTS] + [together(draws)] * (len(draws) > 1)
    fitted |= {f"{ALL}, {len(part.prompt):,} labels": fit_head(part, FitSettings()) for part in parts}
    orders = {
        "lenience": -labels["test"].inputs["token"][:, 0],
        "packaged head": order(pair.heads[task.name], labels["test"]),
    }
    orders |= {name: order(head, labels["test"]) for name, (head, _) in fitted.items()}
    report: dict[str, Any] = {
        "task": task.name,
        "metric": task.metric,
        "labels": {split: about(of_split) for split, of_split in labels.items()},
        "heads": {name: about_head for name, (_, about_head) in fitted.items()},
        "curve": curve(labels["test"], orders),
    }
    source = provenance(0)
    if options.heads:
        report["draws"] = len(draws)
        report["decoding"] = decode(options, pair, task, fit, folder / "decoding")
        source["sessions"] = read_results(folder / "decoding").sessions
    write_json(options.output, report | {"provenance": source})
    print(json.dumps(report, indent=1))


def chosen(labels: Labels, at: slice | torch.Tensor) -> Labels:
    """Return the labels at a slice, or where `at`, bool `[M]`, is true."""
    inputs = {name: values[at] for name, values in labels.inputs.items()}
    return Labels(labels.settings, labels.scores[at], labels.prompt[at], inputs)


def together(draws: list[Labels]) -> Labels:
    """Return the labels of all draws."""
    inputs = {name: torch.cat([labels.inputs[name] for labels in draws]) for name in draws[0].inputs}
    scores, prompt = (torch.cat([getattr(labels, name) for labels in draws]) for name in ("scores", "prompt"))
    return Labels(draws[0].settings, scores, prompt, inputs)


@torch.no_grad()
def order(head: DiversedHead, labels: Labels) -> torch.Tensor:
    """Return the head's logits on the labels; tokens with the lowest logits are kept first."""
    names = ["features", "token"] + ["lookahead"] * (head.lookahead > 0) + ["target_after"] * head.target_after
    return head(**{name: labels.inputs[name] for name in names})


def about(labels: Labels) -> dict[str, Any]:
    return {
        "labels": len(labels.cost),
        "prompts": len(labels.prompt.unique()),
        "continuations": labels.scores.shape[-1],
        "mean_cost": float(labels.cost.mean()),
        "deviation": float(labels.cost.std()),
        "noise": labels.noise,
    }


def curve(labels: Labels, orders: dict[str, torch.Tensor]) -> dict[str, list[dict[str, Any]]]:
    """Return the cost per rejection of keeping a share of the rejections, the first ones of each order, and the saving
    against lenience, by order.

    The bounds hold for the order on these labels, as each replicate keeps the same tokens.
    """
    prompts, index = np.unique(labels.prompt.numpy(), return_inverse=True)
    bootstrap, cost = Bootstrap(len(prompts)), labels.cost.numpy()
    total = bootstrap.totals(np.bincount(index))

    def spent(values: torch.Tensor, share: float) -> np.ndarray:
        order = np.argsort(values.numpy(), kind="stable")
        first = order[: int(share * len(order))]
        return bootstrap.totals(np.bincount(index[first], cost[first], minlength=len(prompts))) / total

    curves: dict[str, list[dict[str, Any]]] = {}
    for name, values in orders.items():
        for share in SHARES:
            costs, lenient = spent(values, share), spent(orders["lenience"], share)
            saving = bootstrap.estimate(lenient - costs).record("saving")
            curves.setdefault(name, []).append({"share": share, **bootstrap.estimate(costs).record("cost"), **saving})
    return curves


def decode(
    options: argparse.Namespace, pair: Pair, task: Task, fit: Callable[..., Any], folder: Path
) -> list[dict[str, Any]]:
    """Return drop and acceptance of lenience, of the packaged heads and of new ones at some strictnesses.

    Heads trained on different draws of the labels count as one method. `gain` is the quality of a method minus that of
    lenience, interpolated at the acceptance of the method; None outside of the values of lenience. `gain_p` is the
    two-sided p-value of no gain, from the standard error clustered by prompt.
    """
    settings = EvaluationSettings(
        num_examples=options.num_test, samples_per_prompt=options.samples, batch_size=250, num_assistant_tokens=5
    )
    lenient = [f"lenience:{value}" for value in options.lenience]
    mixture = load_demo_pair(heads=MIXTURE).heads[task.name]
    named = {"diversed": DiversedVerifier(pair.heads[task.name]), "mixture head": DiversedVerifier(mixture)}
    labels_of = {method: [method] for method in [*options.others, *named]}
    for method in options.heads:
        name, _, strictness = method.partition("@")
        labels_of[method] = [method, *(f"{method}, draw {number}" for number in range(2, options.draws + 1))]
        for draw, label in enumerate(labels_of[method]):
            named[label] = DiversedVerifier(fit(draw, DECODED[name])[0], float(strictness))
    examples = load_records(task, "test", options.num_test)
    specs = ["target", *lenient, *options.others]
    rows = evaluate(pair, task, examples, [*specs, *named.items()], settings, output=folder)
    columns = ("method", "n", "quality", "quality_drop", "quality_drop_ci", "acceptance_rate", "acceptance_rate_ci")
    rows = [row for row in rows if row["method"] in (*specs, *named)]  # the folder may contain others
    records = {row["method"]: {name: row[name] for name in columns} for row in rows}
    results, bootstrap = read_results(folder), Bootstrap(options.num_test)
    tables = {label: MethodTable(results, label) for label in (*specs, *named)}

    def point(labels: list[str]) -> tuple[np.ndarray, np.ndarray]:
        rate = bootstrap.ratio(*sums(tables, labels, "num_accepted", "num_drafted"))
        return rate, bootstrap.ratio(*sums(tables, labels, "score", "rows"))

    def gain(labels: list[str]) -> np.ndarray:
        rate, quality = point(labels)
        return quality - interpolate(rate, rates, qualities)

    rates, qualities = (np.stack(values, axis=1) for values in zip(*(point([label]) for label in lenient)))
    target = sums(tables, ["target"], "score", "rows")
    for method, labels in labels_of.items():
        record = records[method]
        rate, quality = point(labels)
        estimates = {
            "acceptance_rate": bootstrap.estimate_mean(rate, 0.0, 1.0),
            "quality": bootstrap.estimate_mean(quality, 0.0, 1.0),
            "quality_drop": bootstrap.estimate_difference(target, sums(tables, labels, "score", "rows")),
        }
        for name, estimate in estimates.items():
            record |= estimate.record(name)
        gains = gain(labels)
        above = bootstrap.estimate(gains)
        known = not np.isnan([above.value, above.low]).any()
        record |= {**above.record("gain"), "gain_p": p_value(gains)} if known else {"gain": None}
        for label in labels[1:]:
            del records[label]
    return list(records.values())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--num-train", type=int, default=1024, help="prompts with labels for training")
    parser.add_argument("--num-test", type=int, default=1000)
    parser.add_argument("--rejections", type=int, default=4, help="labels per training completion")
    parser.add_argument("--draws", type=int, default=1, help="draws of the training labels")
    parser.add_argument("--samples", type=int, default=3, help="completions per test prompt")
    parser.add_argument(
        "--lenience",
        type=float,
        nargs="*",
        default=[0.5, 0.3, 0.12, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-10],
    )
    parser.add_argument("--others", nargs="*", default=["lossless", "static:0.7", "static:0.5"])
    parser.add_argument(
        "--heads",
        nargs="*",
        metavar="NAME@STRICTNESS",
        default=[
            *(f"counterfactual@{strictness}" for strictness in (0.7, 0.6, 0.55, 0.5)),
            *("same_inputs@0.55", "lookahead@0.55", "target_after@0.55", "mlp@0.55"),
        ],
        help=f"heads to decode with, of {', '.join(DECODED)}",
    )
    parser.add_argument("--output", type=Path, help="results/counterfactual-TASK.json by default")
    options = parser.parse_args()
    options.output = options.output or Path("results") / f"counterfactual-{options.task}.json"
    return options


if __name__ == "__main__":
    main()
