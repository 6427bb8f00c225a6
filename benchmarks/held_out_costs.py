"""Compare heads and lenience on a file of labels, by cross-validation over prompts.

    python -m benchmarks.held_out_costs labels.jsonl --output build/held-out.json

`hf-diversed label` writes the file. Heads are trained on four fifths of the prompts and order the rejected tokens of
the others; lenience orders them by p/q, or by p / max p in labels of greedy decoding. The report contains
the cost per rejection of keeping the first tokens of each order, and the saving against lenience. Bounds are clustered
by prompt.
"""

import argparse
import math
from pathlib import Path

import torch

from benchmarks.counterfactual import ALL, SETTINGS, about, chosen, curve, order
from hf_diversed.features import LOG_BELOW_TOP, LOG_RATIO
from hf_diversed.files import write_json
from hf_diversed.provenance import provenance
from hf_diversed.training.counterfactual import FitSettings, fit_head, folds, r2
from hf_diversed.training.labels import Labels, load_labels


HEADS = ("same inputs", "lookahead", "state after the token", ALL, f"{ALL}, mlp")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("labels", type=Path)
    parser.add_argument("--output", type=Path, default=Path("build/held-out-costs.json"))
    options = parser.parse_args()
    labels = load_labels(options.labels)
    greedy = labels.settings["sampling"]["temperature"] == 0
    orders = {"lenience": -labels.inputs["token"][:, LOG_BELOW_TOP if greedy else LOG_RATIO]}
    orders |= {name: held_out(labels, FitSettings(**SETTINGS[name])) for name in HEADS}
    costs, described = labels.cost, about(labels)
    if math.isnan(described["noise"]):  # one continuation per branch
        del described["noise"]
    report = {
        "task": labels.settings["task"],
        "metric": labels.settings["metric"],
        "temperature": labels.settings["sampling"]["temperature"],
        "labels": described | {"positive": int((costs > 0).sum()), "negative": int((costs < 0).sum())},
        "r2": {name: r2(orders[name], costs) for name in HEADS},
        "curve": curve(labels, orders),
    }
    write_json(options.output, report | {"provenance": provenance(0)})
    for name, values in report["curve"].items():
        print(name, report["r2"].get(name), values)


def held_out(labels: Labels, settings: FitSettings) -> torch.Tensor:
    """Return the predicted cost of each label, from a head trained on the labels of other prompts."""
    fold, predicted = folds(labels.prompt, settings), torch.zeros_like(labels.cost)
    for number in range(settings.folds):
        head, report = fit_head(chosen(labels, fold != number), settings)
        logits = order(head, chosen(labels, fold == number)).double()
        predicted[fold == number] = logits * report["spread"] / settings.sharpness + report["price"]
    return predicted


if __name__ == "__main__":
    main()
