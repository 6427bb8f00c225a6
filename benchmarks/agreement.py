"""Measure how well heads and divergences predict that keeping a rejected draft token changes the answer.

    hf-diversed label --task math --agreement --temperature 0 --continuations 1 --output build/agreement.jsonl
    python -m benchmarks.agreement build/agreement.jsonl --output results/agreement.json

`hf-diversed label --agreement` writes the file; no reference is used. Heads are trained on labels of two thirds of the
prompts and rank the tokens of the others. The report contains the AUC of each ranking: the probability that a token
that changes the answer is ranked above one that does not. KL(p || q) and log(max p / p(token)) need no labels.
Intervals are from a bootstrap over prompts.
"""

import argparse
from pathlib import Path

import torch

from benchmarks.counterfactual import chosen, order
from hf_diversed.evaluation.intervals import Bootstrap
from hf_diversed.features import KL_DIVERGENCE, LOG_BELOW_TOP
from hf_diversed.files import write_json
from hf_diversed.provenance import provenance
from hf_diversed.training.counterfactual import FitSettings, fit_head
from hf_diversed.training.labels import AGREEMENT, load_labels


COUNTS = (100, 300, 1000, 3000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("labels", type=Path)
    parser.add_argument("--output", required=True, type=Path)
    options = parser.parse_args()
    labels = load_labels(options.labels)
    if labels.settings["metric"] != AGREEMENT:
        raise ValueError(
            f"{options.labels} has metric {labels.settings['metric']!r}, expected {AGREEMENT!r}; make it with "
            "`hf-diversed label --agreement`."
        )
    held_out = labels.prompt % 3 == 0
    train, test = chosen(labels, ~held_out), chosen(labels, held_out)
    rankings = {
        "KL(p || q)": test.inputs["features"][:, KL_DIVERGENCE],
        "log(max p / p)": -test.inputs["token"][:, LOG_BELOW_TOP],
    }
    for count in [*(count for count in COUNTS if count < len(train.cost)), len(train.cost)]:
        head, _ = fit_head(chosen(train, slice(count)), FitSettings())
        rankings[f"head, {count:,} labels"] = order(head, test)
    changed = test.cost > 0
    about = {"task": labels.settings["task"], "n": len(test.prompt.unique())}
    about |= {"labels": len(test.cost), "changed": int(changed.sum())}
    records = [about | {"method": name} | auc(ranking, changed, test.prompt) for name, ranking in rankings.items()]
    write_json(options.output, {"records": records, "provenance": provenance(0)})
    for record in records:
        print(record)


def auc(ranking: torch.Tensor, positive: torch.Tensor, prompt: torch.Tensor) -> dict[str, object]:
    """Return the area under the ROC curve and its 95% bounds.

    Args:
        ranking: `[M]`, high where a positive is expected. positive: bool `[M]`. prompt: long `[M]`, prompt of each.
    """
    above = (ranking[positive, None] > ranking[~positive]).double()
    above += 0.5 * (ranking[positive, None] == ranking[~positive])
    _, index = prompt.unique(return_inverse=True)
    count = int(index.max()) + 1
    times = torch.from_numpy(Bootstrap(count).counts)[:, index]  # [R + 1, M]
    first, second = times[:, positive], times[:, ~positive]
    values = ((first @ above) * second).sum(-1) / (first.sum(-1) * second.sum(-1))
    bounds = values[1:].nanquantile(torch.tensor([0.025, 0.975], dtype=torch.float64))
    return {"auc": float(values[0]), "auc_ci": bounds.tolist()}


if __name__ == "__main__":
    main()
