"""The tables of README and documentation: rows, columns and caption of each, by the name of its place on a page."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from hf_diversed.formatting import percent
from tools.figures import TASKS, Figure, command, figures


Format = Callable[[Figure], str]


def rate(figure: Figure) -> str:
    """Format 0.5 as "50.0%", with its bounds."""
    return _with_bounds(figure, percent)


def points(figure: Figure) -> str:
    """Format 0.5 as "50.00", in points, with its bounds."""
    return _with_bounds(figure, lambda value: f"{100 * value:.2f}".replace("-0.00", "0.00"))


def tenths(figure: Figure) -> str:
    """Format 0.5 as "50.0", in points, with its bounds."""
    return _with_bounds(figure, lambda value: f"{100 * value:.1f}".replace("-0.0", "0.0"))


def number(figure: Figure) -> str:
    """Format with two decimals and the bounds."""
    return _with_bounds(figure, lambda value: f"{value:.2f}")


def precise(figure: Figure) -> str:
    """Format with four decimals and the bounds."""
    return _with_bounds(figure, lambda value: f"{value:.4f}")


def times(figure: Figure) -> str:
    """Format 1.5 as "1.50x", with its bounds."""
    return _with_bounds(figure, lambda value: f"{value:.2f}", "x")


def whole(figure: Figure) -> str:
    """Format 0.5 as "50%", without bounds."""
    return f"{100 * figure.value:.0f}%"


def factor(figure: Figure) -> str:
    """Format 1.5 as "1.50x", without bounds."""
    return f"{figure.value:.2f}x"


def count(figure: Figure) -> str:
    """Format an integer."""
    return f"{figure.value:,.0f}"


def short(figure: Figure) -> str:
    """Format with two significant digits, as 1.7e+19."""
    return f"{figure.value:.2g}"


def p_value(figure: Figure) -> str:
    """Format a p-value with three decimals."""
    return "< 0.001" if figure.value < 0.001 else f"{figure.value:.3f}"


def _with_bounds(figure: Figure, form: Callable[[float], str], unit: str = "") -> str:
    value = form(figure.value) + unit
    return value if figure.low is None else f"{value} ({form(figure.low)} to {form(figure.high)})"


class Row(NamedTuple):
    """A row: its label and what its figures have in common."""

    label: str
    method: str = ""
    study: str = ""
    task: str = ""


class Column(NamedTuple):
    """A column: its header, its metric and format, and what its figures have in common."""

    header: str
    metric: str
    form: Format = rate
    study: str = ""
    task: str = ""
    method: str = ""


@dataclass(frozen=True)
class Table:
    """A table of figures.

    Attributes:
        head: header of the labels.
        rows, columns: a row, or else the column, fixes study, task and method of a cell. Without a task, the study
            must have only one figure of this method and metric.
        caption: the setting. `{n}` stands for the numbers of prompts, `{command}` for the first study's command.
    """

    head: str
    rows: Iterable[Row]
    columns: Iterable[Column]
    caption: str

    def render(self) -> str:
        """Return the table and its caption in Markdown.

        Raises:
            KeyError: if a row or a column has no figure.
            ValueError: if two figures belong in one cell.
        """
        rows, columns = list(self.rows), list(self.columns)
        cells = [[_find(row, column) for column in columns] for row in rows]
        for label, found in [*zip(rows, cells), *zip(columns, zip(*cells))]:
            if not any(found):
                raise KeyError(f"there is no figure for {label}")
        shown = [cell for row in cells for cell in row if cell]
        sizes = sorted({cell.n for cell in shown if cell.n is not None})
        study = rows[0].study or columns[0].study
        n = " or ".join(f"{size:,}" for size in sizes)
        caption = self.caption.format(n=n, command=f"`{command(study)}`" if "{command}" in self.caption else "")
        lines = (
            [row.label, *(column.form(cell) if cell else "-" for column, cell in zip(columns, found))]
            for row, found in zip(rows, cells)
        )
        return f"{markdown([self.head, *(column.header for column in columns)], lines)}\n\n{caption}"


def _find(row: Row, column: Column) -> Figure | None:
    study, task, method = row.study or column.study, row.task or column.task, row.method or column.method
    found = [
        figure
        for figure in figures(study)
        if (figure.method, figure.metric) == (method, column.metric) and task in ("", figure.task)
    ]
    if len(found) > 1:
        raise ValueError(f"there must be one figure for {row} and {column}, got {len(found)}.")
    return found[0] if found else None


def markdown(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table; cells are Markdown."""
    header = list(header)
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def methods(study: str, *names: str | tuple[str, str], task: str = "") -> list[Row]:
    """Return rows of methods; a pair is a method and its label."""
    pairs = [(name, f"`{name}`") if isinstance(name, str) else name for name in names]
    return [Row(label, method, study, task) for method, label in pairs]


def every(study: str, task: str = "", metric: str = "") -> list[Row]:
    """Return rows of all methods of a study, in its order; only those with a figure of `metric` if it is given."""
    names = dict.fromkeys(
        figure.method for figure in figures(study) if task in ("", figure.task) and metric in ("", figure.metric)
    )
    return methods(study, *names, task=task)


ACCEPTED = Column("accepted / drafted", "acceptance_rate")
LENGTH_COLUMNS = [
    Column("draft tokens per round", "drafted_per_round", lambda figure: f"{figure.value:.1f}"),
    ACCEPTED,
    Column("speed over the best constant length", "over_best_constant", number),
    Column("over the target", "over_target", number),
    Column("over `upstream`", "over_upstream", number),
]
PER_ROUND = Column("tokens per target forward", "block_efficiency", number)
DROP = Column("below the target", "quality_drop")
STATIC_GAIN = Column("above the static curve", "static_gain")


def quality(header: str) -> Column:
    return Column(header, "quality")


def by_task(*tasks: tuple[str, str, str, str]) -> list[Column]:
    """Return two columns, acceptance and quality, for every (title, study, task, metric)."""
    return [
        column
        for title, study, task, metric in tasks
        for column in (
            Column(f"{title}: accepted", "acceptance_rate", study=study, task=task),
            Column(metric, "quality", study=study, task=task),
        )
    ]


def pair() -> dict[str, Table]:
    """Return the tables of the embedded pair."""
    names = {"math": "accuracy", "summary": "ROUGE-2", "code": "pass@1"}
    fixed = [f"static:{weight}" for weight in (0.7, 0.5, 0.3, 0.1)]
    lenience = [f"lenience:{value}" for value in (0.05, 0.3, 0.03)]
    cascade = "spec_cascade:token_v3:0.95"
    sweeps = {"0": "math-t0", "0.1": "math-t0.1", "1": "math"}
    return {
        "first": Table(
            "method",
            methods(
                "math",
                "target",
                "lossless",
                ("lenience:0.05", "`lenience:0.05`, untrained"),
                ("diversed", "`diversed`, a trained head"),
            ),
            [ACCEPTED, PER_ROUND, quality("correct answers")],
            "{n} prompts x 2, temperature 1, 5 draft tokens per round, 95% intervals clustered by prompt.",
        ),
        "heads": Table(
            "method",
            methods("", "target", "lossless", *fixed, *lenience, cascade, "diversed"),
            by_task(*((task, task, task, metric) for task, metric in names.items())),
            "{n} held-out prompts, the smaller number for code, with 2 (math), 3 (summary) and 1 (code) samples each; "
            "temperature 1, 5 draft tokens per round, 95% intervals clustered by prompt.",
        ),
        "contrastive": Table(
            "temperature 1",
            methods("", "lossless", "lenience:0.3", "lenience:0.1", "contrastive:0.1:0.1", "contrastive:0.5:0.1"),
            by_task(*((task, f"verifiers-{task}", task, metric) for task, metric in names.items())),
            "Embedded pair, {n} held-out prompts, 5 draft tokens per round; 95% intervals clustered by prompt.",
        ),
        "mars": Table(
            "temperature 1",
            methods("", "lossless", "lenience:0.3", "mars:0.9", "mars:0.7"),
            by_task(*((task, f"mars-{task}", task, metric) for task, metric in names.items())),
            "Embedded pair, {n} held-out prompts, 5 draft tokens per round; 95% intervals clustered by prompt.",
        ),
        "regret": Table(
            "temperature 0",
            methods("", "lossless", "lenience:0.3", "lenience:0.1", "regret_budget:2.0625", "regret_budget:8"),
            by_task(*((task, f"verifiers-{task}-t0", task, metric) for task, metric in names.items())),
            "Embedded pair, {n} held-out prompts, 5 draft tokens per round; 95% intervals clustered by prompt.",
        ),
        "transfer": Table(
            "trained on",
            methods("transfer", *TASKS),
            by_task(*((f"on {task}", "", task, metric) for task, metric in names.items())),
            "{n} prompts per task, temperature 1, 5 draft tokens per round, 95% intervals clustered by prompt.",
        ),
        "temperatures": Table(
            "method",
            methods("", "target", "lossless", "diversed"),
            by_task(*((f"temperature {value}", study, "", "accuracy") for value, study in sweeps.items())),
            "{n} prompts of math, 5 draft tokens per round, with the head trained at temperature 1; 95% intervals "
            "clustered by prompt.",
        ),
        "truncation": Table(
            "method",
            every("truncation"),
            [
                ACCEPTED,
                quality("accuracy"),
                Column("mean overshoot", "mean_overshoot", lambda figure: f"{figure.value:.3f}"),
                Column("largest v/p", "max_ratio", short),
            ],
            "Embedded pair, math, temperature 1, {n} prompts; 95% intervals clustered by prompt.",
        ),
        "importance": Table(
            "rollouts",
            every("importance"),
            [
                Column("mean reward", "reward"),
                Column("weighted", "weighted_reward"),
                Column("mean weight", "mean_weight", number),
                Column("effective sample size", "effective_share"),
            ],
            "Embedded pair, math, temperature 1, {n} prompts x 2; one standard error over prompts to either side. "
            "Measured by {command}.",
        ),
    }


def published() -> dict[str, Table]:
    """Return the tables of the Qwen2.5-Coder pair and of SmolLM2."""
    mbpp, gsm8k, head = "qwen-coder-mbpp", "qwen-coder-gsm8k", "diversed:results/real/token-head-mbpp"
    label = (head, "`diversed`, token head trained on MBPP")
    setting = (
        "{n} prompts of each task, temperature 1, 5 draft tokens per round, at most 320 (MBPP) and 400 (GSM8K) new "
        "tokens; 95% intervals clustered by prompt."
    )
    scores = ((mbpp, "MBPP", "pass@1"), (gsm8k, "GSM8K", "accuracy"))
    lenient = f"{head} minus lenience:0.3"
    others = [f"spec_cascade:token_v3:{alpha}" for alpha in (0.5, 0.8, 0.95)]
    others += ["block:lossless", *(f"static:{weight}" for weight in (0.7, 0.5, 0.3, 0.1))]
    others += [f"lenience:{value}" for value in (0.3, 0.1)]
    compared = [f"spec_cascade:token_v3:{alpha}" for alpha in (0.8, 0.95)]
    compared += ["lenience:0.3", "lenience:0.1", "static:0.5"]
    greedy = ("lossless", "lenience:0.3", "lenience:0.03", "static:0.5", "fly", "top_k_relaxed:2", "typical")
    task = {name: [Column("accepted / drafted", "acceptance_rate", study=name)] for name in (mbpp, gsm8k)}
    for name, metric in ((mbpp, "pass@1"), (gsm8k, "accuracy")):
        task[name] += [Column(metric, "quality", study=name), DROP._replace(study=name)]
        task[name].append(STATIC_GAIN._replace(study=name))
    speeds = {
        ("qwen-coder-speed", "mbpp, 5 draft tokens", 1): "1 thread, 5 draft tokens",
        ("qwen-coder-speed", "mbpp, 3 draft tokens", 1): "1 thread, 3",
        ("qwen-coder-speed-batch-1", "mbpp, 3 draft tokens", 1): "2 threads, 3",
        ("qwen-coder-speed-batch-8", "mbpp, 3 draft tokens", 8): "2 threads, 3, batch 8",
    }
    timed = [
        Column(title, f"speedup, {engine}, batch {size}", times, study, part)
        for (study, part, size), name in speeds.items()
        for engine, title in (("eager", name), ("compiled", f"{name}, compiled"))
        if engine == "eager" or study != "qwen-coder-speed"
    ]
    quick = "speedup, eager, batch 1"
    return {
        "brief": Table(
            "verifier",
            methods("", ("target", "none: target alone"), "lossless", "lenience:0.3", "lenience:0.1"),
            [
                Column("speed", quick, factor, "qwen-coder-speed", "mbpp, 5 draft tokens"),
                Column("draft tokens kept", "acceptance_rate", whole, mbpp),
                Column("code: pass@1", "quality", whole, mbpp),
                Column("math: accuracy", "quality", whole, gsm8k),
            ],
            "Qwen2.5-Coder 1.5B with 0.5B on one CPU thread, temperature 1; MBPP and GSM8K, {n} prompts each: "
            "scores are within ±10 points (95%). Speed: median of 3 runs of 4 prompts of MBPP.",
        ),
        "gains": Table(
            "prompt lookup",
            [
                Row("summaries of abstracts", "", "lookup-scitldr", "scitldr"),
                Row("correcting the spelling of a text", "", "lookup-rewrite", "rewrite"),
            ],
            [Column(f"`{name}`: speedup", quick, times, method=name) for name in ("lossless", "lenience:0.3")],
            "SmolLM2-135M-Instruct, one CPU thread, eager, batch size 1, temperature 0.3, 6 and 4 prompts, median "
            "(range) of 3 and 2 alternating runs.",
        ),
        "quality": Table(
            "method",
            methods("", "target", "lossless", *compared, label),
            [
                column
                for study, title, score in scores
                for column in (
                    Column(f"{title}: accepted", "acceptance_rate", study=study),
                    Column(score, "quality", study=study),
                    Column("points below the target", "quality_drop", tenths, study=study),
                )
            ],
            setting,
        ),
        "head-real": Table(
            "token head trained on MBPP",
            [Row(title, "", study) for study, title, _ in scores],
            [
                ACCEPTED._replace(method=head),
                quality("score")._replace(method=head),
                STATIC_GAIN._replace(method=head),
                Column("accepted, points above `lenience:0.3`", "acceptance_rate", tenths, method=lenient),
                Column("score, points above `lenience:0.3`", "quality", tenths, method=lenient),
            ],
            setting,
        ),
        "sampling-check": Table(
            "method",
            every("sampling-check"),
            [
                Column("completions", "n", count),
                Column("left out, too long", "left_out", count),
                Column("tokens", "num_tokens", count),
                Column("mean of -log p(token) - H(p)", "excess_per_token", precise),
                Column("standard error", "standard_error", precise),
                Column("z", "z", number),
            ],
            "Completions of GSM8K at temperature 1. Measured by {command}.",
        ),
        "mbpp": Table("method", methods("", "target", "lossless", *others, label), task[mbpp], setting),
        "gsm8k": Table("method", methods("", "target", "lossless", *others, label), task[gsm8k], setting),
        "greedy": Table(
            "method",
            methods("", *greedy),
            [
                Column("MBPP: accepted", "acceptance_rate", study=f"{mbpp}-t0"),
                Column("below the target", "quality_drop", study=f"{mbpp}-t0"),
                Column("GSM8K: accepted", "acceptance_rate", study=f"{gsm8k}-t0"),
                Column("below the target", "quality_drop", study=f"{gsm8k}-t0"),
            ],
            "{n} prompts of each task, temperature 0, 5 draft tokens per round; 95% intervals clustered by prompt.",
        ),
        "specbench": Table(
            "category",
            [
                Row(name.replace("-turn-", ", turn "), "", "qwen-coder-specbench", name)
                for name in dict.fromkeys(figure.task for figure in figures("qwen-coder-specbench"))
            ],
            [
                column
                for name in ("lossless", "lenience:0.3")
                for column in (
                    Column(f"`{name}`: accepted", "acceptance_rate", method=name),
                    Column("tokens per target forward", "block_efficiency", number, method=name),
                )
            ],
            "{n} questions per row, temperature 1, 5 draft tokens per round, at most 256 new tokens; 95% intervals "
            "clustered by question.",
        ),
        "pair-speed": Table(
            "method",
            methods("", "upstream", "lossless", "lenience:0.3", "lenience:0.1", "static:0.5"),
            timed,
            "Tokens per second over those of the target with the same engine, 4 prompts of MBPP (8 at batch size 8), "
            "median (range) of 3 alternating turns on an x86-64 CPU. `upstream` is transformers' assisted generation.",
        ),
        **_smollm2(),
    }


def _smollm2() -> dict[str, Table]:
    """Return a table for each source of draft tokens and task."""
    head = "diversed:build/real/lookup/head-token-aware"
    ordinary = ("target", "lossless", "lenience:0.3", "static:0.5", ("upstream", "transformers' assisted generation"))
    setting = (
        "SmolLM2-135M-Instruct in bfloat16, one CPU thread, batch size 1; {n} prompts, temperature 0.3, at most %s "
        "draft tokens per round; 95%% intervals clustered by prompt. Speedup over the target with the same engine, "
        "median (range) of %s alternating runs of %s prompts. Measured by {command}."
    )
    columns = [ACCEPTED, quality("ROUGE-2"), DROP, PER_ROUND]
    columns += [
        Column(title, f"speedup, {engine}, batch 1", times)
        for engine, title in (("eager", "speedup"), ("compiled", "speedup, compiled"))
    ]
    summaries = [
        *methods("lookup-scitldr", *ordinary, (head, "a token head")),
        *methods("lenience-scitldr", "lenience:0.05"),
    ]
    return {
        "lookup-scitldr": Table("method", summaries, columns, setting % (10, "3 (`lenience:0.05`: 1)", 6)),
        "lookup-rewrite": Table("method", methods("lookup-rewrite", *ordinary), columns, setting % (10, 2, 4)),
    }


def learning() -> dict[str, Table]:
    """Return the tables of trained heads on the embedded pair."""
    studies = [(task, f"learning-{task}", task, name) for task, name in zip(TASKS, ("accuracy", "ROUGE-2", "pass@1"))]
    cascade = "spec_cascade:token_v3:0.95"
    matched = [("lenience, matched", "lenience, matched"), ("untrained, matched", "untrained head, matched")]
    seeds = [("diversed", "**token head**"), ("seed-43", "token head, seed 43"), ("seed-44", "token head, seed 44")]
    others = [*matched, (cascade, f"`{cascade}`"), ("diversed-mixture", "the mixture head")]
    orders = {"oracle": "an oracle", "lenience": "p/q, as lenience", "mixture head": "the mixture head"}
    orders["token head"] = "the token head"
    shares = [Column(f"{share}% kept", f"{share}% kept", tenths) for share in (50, 70, 80, 90, 100)]
    against = [
        Row(f"{task}: {title}", method, f"counterfactual-{task}", task)
        for task, method, title in (
            ("math", "diversed", "token head, trained on rewards"),
            ("math", "mlp@0.35", "MLP head, trained on token costs, strictness 0.35"),
            ("math", "mlp@0.2", "the same head, strictness 0.2"),
            ("summary", "diversed", "token head, trained on rewards"),
            ("summary", "counterfactual@0.6", "linear head, trained on token costs, strictness 0.6"),
            ("summary", "counterfactual@0.5", "the same head, strictness 0.5"),
        )
    ]
    return {
        "learning": Table(
            "head",
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
            "corrected for all rows of each study (Holm).",
        ),
        "rewards": Table(
            "method",
            methods("", ("lossless", "lossless"), *others[3:], others[2], *matched, *seeds),
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
            "In points, with 95% intervals clustered by prompt; p-values of the quality, corrected for all "
            "comparisons of this table (Holm). Intervals do not include the variation between seeds.",
        ),
        "ceiling": Table(
            "ranked by",
            [
                Row(f"{task}: {title}", order, f"ceiling-{task}")
                for task in ("math", "summary")
                for order, title in orders.items()
            ],
            [*shares, Column("free share", "free share"), Column("verified tokens accepted with it", "verified")],
            "Cost of keeping a share of the rejected tokens, lowest rank first, in points of the score per "
            "completion, to first order; {n} rejections; 95% intervals clustered by prompt.",
        ),
        "calibration": Table(
            "tolerated drop",
            [
                Row(f"{task}, {row.label.strip('`')}", row.method, study)
                for task, study in (("math", "calibration"), ("summary", "calibration-summary"))
                for row in every(study)
            ],
            [Column("found a strictness", "found"), Column("true drop within it", "kept")],
            "{n} calibrations of 600 prompts each, resampled from the measured ones, at a confidence of 95%.",
        ),
    }


def mixture() -> dict[str, Table]:
    """Return the tables of mixture heads on math."""
    inputs = [f"{name}-{kind}" for name in ("hidden", "distribution", "both") for kind in ("linear", "mlp")]
    return {
        "mixture": Table(
            "mixture head",
            methods("features-math", ("diversed", "the packaged head"), *inputs),
            [ACCEPTED, quality("accuracy"), STATIC_GAIN],
            "{n} prompts of math x 3, temperature 1, 5 draft tokens per round; 95% intervals clustered by prompt.",
        ),
    }


def costs() -> dict[str, Table]:
    """Return the tables of heads trained on token costs."""
    found = {}
    for task, metric in (("math", "accuracy"), ("summary", "ROUGE-2")):
        study = f"counterfactual-{task}"
        found[f"costs-{task}"] = Table(
            "method",
            every(study, task, "quality"),
            [
                ACCEPTED,
                quality(metric),
                Column("drop from the target, points", "quality_drop", points),
                Column("above lenience, points", "gain", points),
                Column("p", "p", p_value),
            ],
            "{n} test prompts, temperature 1, 5 draft tokens per round; 95% intervals clustered by prompt; p-values "
            "of no difference from lenience, corrected for all rows (Holm). Measured by {command}.",
        )
    sizes = {"math": ("500 labels", "1,000 labels", "11,921 labels"), "summary": ("500 labels", "1,000 labels")}
    every_input = "lookahead and state"
    orders = [
        Row(f"{task}: {order}", order, f"counterfactual-{task}", "orders")
        for task in ("math", "summary")
        for order in (
            *("same inputs", "lookahead", "state after the token", every_input, f"{every_input}, mlp"),
            *(f"{every_input}, {size}" for size in sizes[task]),
        )
    ]
    orders += [
        Row(f"GSM8K, Qwen2.5-Coder: {order}", order, "held-out-costs-gsm8k", "orders")
        for order in ("same inputs", every_input)
    ]
    found["orders"] = Table(
        "head",
        orders,
        [Column("R²", "R²"), Column("points saved against lenience", "90% kept", points)],
        "R²: share of the variance of held-out labels that the head explains. Saved: points of the score per rejected "
        "token of the test prompts when 90% are kept, to first order; 95% intervals clustered by prompt. Heads are "
        "linear and trained on 4,002 (math), 3,136 (summary) and 382 (GSM8K) labels unless stated.",
    )
    return found


def speed() -> dict[str, Table]:
    """Return the tables of the time of rounds."""
    quartiles = "median (quartiles) of"
    return {
        "compiled": Table(
            "embedded pair, compiled",
            [
                Row("2 threads", "static:0.7", "compiled", "2 threads"),
                Row("1 thread", "static:0.7", "compiled", "1 threads"),
            ],
            [
                Column("cost of a round, batch 1", "round_cost_ratio", number),
                *(Column(f"tokens/s, batch {size}", str(size), number) for size in (1, 2, 4, 8, 16)),
                Column("mixture head over the compiled target, batch 1", "head over target", number),
            ],
            f"Over transformers' assisted generation at batch size 1 unless stated, {quartiles} 11 alternating runs; "
            "`static:0.7`, 5 draft tokens per round, 128 new tokens, 72% accepted, an x86-64 CPU.",
        ),
        "draft-lengths": Table(
            "task, method",
            [
                Row(f"{task}, `{verifier}:{schedule}`", f"{verifier}:{schedule}", "draft-lengths", task)
                for task in TASKS
                for verifier in ("lossless", "lenience:0.3")
                for schedule in ("5", "confidence", "adaptive")
            ],
            LENGTH_COLUMNS,
            "Tokens per second of wall time, eager engine, batch size 1, one thread; {n} held-out prompts per task, "
            "median (quartiles) of paired ratios. Constant lengths: 2, 3, 5, 8. `upstream` is transformers' assisted "
            "generation with its defaults. Measured by {command}.",
        ),
        "draft-lengths-qwen": Table(
            "method",
            [
                Row(f"`{method}`", method, "draft-lengths-qwen", "gsm8k")
                for method in (
                    *("upstream:3", "upstream:5", "lossless:3", "lossless:5", "lossless:confidence"),
                    *("lossless:adaptive", "lenience:0.3:3", "lenience:0.3:5", "lenience:0.3:confidence"),
                    "lenience:0.3:adaptive",
                )
            ],
            LENGTH_COLUMNS,
            "Qwen2.5-Coder 1.5B and 0.5B in float32 (oneDNN-packed weights), GSM8K, at most 48 new tokens; tokens per "
            "second of wall time, eager engine, batch size 1, two threads of a CPU without bfloat16 instructions; {n} "
            "prompts, median (quartiles) of paired ratios. Constant lengths: 3, 5. Measured by {command}.",
        ),
        "draft-lengths-replay": Table(
            "task, method",
            [
                Row(f"{task}, `{verifier}:{schedule}`", f"{verifier}:{schedule}", "draft-lengths-replay", task)
                for task in TASKS
                for verifier in ("lossless", "lenience:0.3")
                for schedule in ("confidence", "adaptive")
            ],
            [
                Column("blocks", "blocks", count),
                *(Column(f"cost {cost}", f"ratio at {cost}", number) for cost in ("0.15", "0.3", "0.43")),
            ],
            "Tokens per target-forward time over those of the best constant length up to 8, if a draft token costs so "
            "many target forwards; {n} prompts per task. Measured by {command}.",
        ),
        "random-draft": Table(
            "engine, batch size",
            [row._replace(label=row.method) for row in every("random-draft")],
            [
                Column("CPU time over the target alone", "over_target", number),
                Column("first call", "first_call", number),
                Column("draft forwards per target forward", "draft_forwards", lambda figure: f"{figure.value:.3f}"),
            ],
            f"Embedded target, 96 new tokens per row, {quartiles} 21 alternating calls. Measured by {{command}}.",
        ),
        "head-costs": Table(
            "engine",
            [row._replace(label=row.method) for row in every("head-costs")],
            [
                Column("lossless, ms per round", "lossless_ms", number),
                Column("more with the head", "extra"),
                Column("turns", "turns", count),
            ],
            "Hidden size 1024, 4 target layers, random weights, 5 draft tokens per round, one thread; median "
            "(quartiles). Measured by {command}.",
        ),
        "replay": Table(
            "batch size",
            [row._replace(label=row.method) for row in every("replay")],
            [
                Column("time", "ratio", number),
                Column("forward passes per round", "forwards_per_round", number),
            ],
            "Time of the target's part of a round that rejects half of 4 draft tokens per row (in batches from none "
            "all of them), relative to a round that accepts all. Qwen3.5 architecture with 31 million random weights, "
            f"one CPU thread, process time, {quartiles} means over 20 rounds, 400 alternating rounds each. Measured "
            "by `python -m benchmarks.replay`.",
        ),
    }


def serving() -> dict[str, Table]:
    """Return the tables of vLLM."""
    return {
        "serving-acceptance": Table(
            "verifier",
            every("serving-acceptance"),
            [
                Column("accepted in vLLM", "acceptance_rate"),
                Column("by `generate`", "generate_acceptance_rate"),
                Column("difference, points", "difference", tenths),
                Column("like for like", "like_for_like_difference", tenths),
                Column("right in vLLM", "quality"),
                Column("right by `generate`", "generate_quality"),
            ],
            "{n} problems of the embedded math task x 2, temperature 1; 95% intervals clustered by prompt.",
        ),
        "serving-cost": Table(
            "verifier, requests at once",
            [row._replace(label=row.method) for row in every("serving-cost")],
            [
                Column("CPU ms per round without the plugin", "ms_without", number),
                Column("with it", "ms_with", number),
                Column("added", "added"),
            ],
            "300 rounds each; 95% intervals.",
        ),
        "serving-load": Table(
            "",
            [row._replace(label=row.method) for row in every("serving-load")],
            [
                *(Column(name, name, count) for name in ("answered", "refused", "cancelled", "error", "lost")),
                *(Column(f"accepted at strictness {value}", f"strictness {value}") for value in ("0", "0.5", "1")),
            ],
            "300 requests at once in each line; 95% intervals clustered by request.",
        ),
    }


TABLES = {**pair(), **published(), **learning(), **mixture(), **costs(), **speed(), **serving()}
