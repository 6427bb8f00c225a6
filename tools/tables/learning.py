"""Tables of trained heads."""

from tools.figures import TASKS
from tools.tables.parts import (
    ACCEPTED,
    Column,
    Row,
    Table,
    by_task,
    every,
    methods,
    number,
    p_value,
    points,
    quality,
)


LINEAR = "linear head, trained on token costs"


def learning() -> dict[str, Table]:
    """Return the tables of trained heads on the embedded pair."""
    studies = [(task, f"learning-{task}", task, name) for task, name in zip(TASKS, ("accuracy", "ROUGE-2", "pass@1"))]
    cascade = "spec_cascade:token_v3:0.95"
    others = [
        ("lenience, matched", "lenience, matched"),
        (cascade, "SpecCascade, token_v3 0.95"),
        ("diversed-mixture", "the mixture head"),
    ]
    orders = {"oracle": "an oracle", "lenience": "p/q, as lenience", "mixture head": "the mixture head"}
    orders["token head"] = "the token head"
    against = [
        Row(f"{task}: {title}", method, f"counterfactual-{task}", task)
        for task, method, title in (
            ("math", "lenience:0.0001", "`lenience:0.0001`"),
            ("math", "lenience:1e-07", "`lenience:1e-07`"),
            ("math", "diversed", "token head, trained on rewards"),
            ("math", "mlp@0.35", "MLP head, trained on token costs, strictness 0.35"),
            ("math", "mlp@0.2", "the same head, strictness 0.2"),
            ("math", "same_inputs@0.2", f"{LINEAR}, without the block and the state, strictness 0.2"),
            ("summary", "lenience:1e-05", "`lenience:1e-05`"),
            ("summary", "diversed", "token head, trained on rewards"),
            ("summary", "counterfactual@0.7", f"{LINEAR}, strictness 0.7"),
            ("summary", "counterfactual@0.6", "the same head, strictness 0.6"),
            ("summary", "counterfactual@0.5", "the same head, strictness 0.5"),
            ("summary", "mlp@0.55", "MLP head, trained on token costs, strictness 0.55"),
            ("summary", "same_inputs@0.55", f"{LINEAR}, without the block and the state, strictness 0.55"),
        )
    ]
    return {
        "learning": Table(
            "method",
            against,
            [
                ACCEPTED,
                quality("score"),
                Column("points below the target", "quality_drop", points),
                Column("points above lenience", "gain", points),
                Column("p", "p", p_value),
            ],
            "Embedded pair, {n} test prompts, temperature 1, 5 draft tokens per round; 95% intervals clustered by "
            "prompt. Lenience at the same acceptance is interpolated. p-values of no difference from lenience, "
            "corrected for all compared methods of each study (Holm). Rows of heads trained on token costs are means "
            "of three heads, trained on different draws of the labels; intervals do not include the variation between "
            "draws. Data: `results/counterfactual-math.json`, `counterfactual-summary.json`.",
        ),
        "rewards": Table(
            "method",
            methods("", ("lossless", "lossless"), *others, ("diversed", "the token head")),
            by_task(*studies),
            '{n} prompts, the smaller number for code; 95% intervals clustered by prompt. "Matched" methods have the '
            "acceptance of the token head on rollouts of training prompts.",
        ),
        "reward-differences": Table(
            "heads of three seeds minus",
            methods("", *((f"three seeds minus {name}", title) for name, title in others)),
            [
                column
                for task, study, *_ in studies
                for column in (
                    Column(f"{task}: accepted", "acceptance_rate", points, study),
                    Column("quality", "quality", points, study),
                    Column("p", "p", p_value, study),
                )
            ],
            "In points, with 95% intervals clustered by prompt; p-values of the quality, corrected (Holm) for twelve "
            "comparisons: with these methods and with an untrained head, on three tasks. Intervals do not include the "
            "variation between seeds.",
        ),
        "ceiling": Table(
            "ranked by",
            [
                Row(f"{task}: {title}", order, f"ceiling-{task}")
                for task in ("math", "summary")
                for order, title in orders.items()
            ],
            [Column("free share", "free share"), Column("verified tokens accepted with it", "verified")],
            "Free share: largest share of the rejected tokens that can be kept at no cost, lowest rank first, to "
            "first order; {n} rejections.",
        ),
        "calibration": Table(
            "task, tolerated drop in points",
            [
                Row(f"{task}, {row.label.strip('`')}", row.method, study)
                for task, study in (("math", "calibration"), ("summary", "calibration-summary"))
                for row in every(study)
            ],
            [
                Column("calibrations that found a strictness", "found"),
                Column("calibrations with a drop within the limit", "kept"),
            ],
            "{n} calibrations of 600 prompts each, resampled from the measured ones, at a confidence of 95%. "
            "The drop is measured over all prompts; it is 0 if no strictness was found.",
        ),
    }


def costs() -> dict[str, Table]:
    """Return the tables of heads trained on token costs."""
    sizes = {"math": ("500 labels", "1,000 labels", "11,921 labels"), "summary": ("500 labels", "1,000 labels")}
    every_input = "lookahead and state"
    orders = [
        Row(f"{task}: {order}", order, f"counterfactual-{task}", "orders")
        for task in ("math", "summary")
        for order in (
            *("same inputs", "state after the token", every_input, f"{every_input}, mlp"),
            *(f"{every_input}, {size}" for size in sizes[task]),
        )
    ]
    orders += [
        Row(f"GSM8K, Qwen2.5-Coder: {order}", order, "held-out-costs-gsm8k", "orders")
        for order in ("same inputs", every_input)
    ]
    return {
        "agreement": Table(
            "ranked by",
            every("agreement"),
            [Column("AUC", "auc", number)],
            "Embedded pair, math, temperature 0; rejected draft tokens of {n} prompts; 95% intervals of a bootstrap "
            "over prompts. Data: {data}.",
        ),
        "orders": Table(
            "head",
            orders,
            [Column("R²", "R²"), Column("points saved against lenience", "90% kept", points)],
            "R²: share of the variance of held-out labels that the head explains. Saved: estimated points of the "
            "score per rejected token, relative to lenience, if both keep 90% of them; 95% intervals clustered by "
            "prompt. Heads are linear and trained on 4,002 (math), 3,136 (summary) and 382 (GSM8K) labels unless "
            "stated.",
        ),
    }
