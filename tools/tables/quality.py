"""Tables of quality and acceptance, on the embedded pair, the Qwen2.5-Coder pair and SmolLM2."""

from tools.figures import TASKS, dtypes, figures
from tools.tables.parts import (
    ACCEPTED,
    DROP,
    PER_ROUND,
    STATIC_GAIN,
    Column,
    Row,
    Table,
    by_task,
    count,
    every,
    factor,
    methods,
    number,
    precise,
    quality,
    short,
    tenths,
    times,
    whole,
)


RELAXED = ("lenience:0.3", "lenience:0.1", "spec_cascade:token_v3:0.8")
SAMPLED = "temperature 0.7, top-p 0.8, top-k 20"
UPSTREAM = ("upstream", "transformers' assisted generation")


def pair() -> dict[str, Table]:
    """Return the tables of the embedded pair."""
    names = {"math": "accuracy", "summary": "ROUGE-2", "code": "pass@1"}
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
        "phases": Table(
            "temperature 1",
            every("phases-math"),
            [ACCEPTED, quality("accuracy"), DROP],
            "Embedded pair, math, {n} held-out prompts, 5 draft tokens per round; 95% intervals clustered by prompt. "
            "Measured by {command}.",
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
    task = {name: [Column("accepted / drafted", "acceptance_rate", study=name)] for name in (mbpp, gsm8k)}
    for name, metric in ((mbpp, "pass@1"), (gsm8k, "accuracy")):
        task[name] += [Column(metric, "quality", study=name), DROP._replace(study=name)]
        task[name].append(STATIC_GAIN._replace(study=name))
    speeds = _speeds("t0", 1)
    return {
        "brief": Table(
            "verifier",
            [
                *methods("", ("target", "none: target alone"), ("upstream", "transformers' assisted generation")),
                *methods("", "lossless", "lenience:0.3"),
            ],
            [
                speeds[0]._replace(header="tokens/s", form=factor),
                speeds[1]._replace(header="answers/s", form=factor),
                Column("code", "quality", whole, f"{mbpp}-t0"),
                Column("math", "quality", whole, f"{gsm8k}-t0"),
            ],
            "Qwen2.5-Coder 1.5B with 0.5B on two CPU threads, greedy decoding, 5 draft tokens per round. Right "
            "answers to 500 (code, MBPP) and 200 (math, GSM8K) prompts: each score is within ±5 and ±7 points (95%). "
            "Speeds are relative to the target alone, at batch size 1: 8 prompts of MBPP, median of 3 runs.",
        ),
        "gains": Table(
            "prompt lookup",
            [
                Row("summaries of abstracts", "", "lookup-scitldr", "scitldr"),
                Row("correcting the spelling of a text", "", "lookup-rewrite", "rewrite"),
            ],
            [
                Column(f"`{name}`: speedup", "speedup, eager, batch 1", times, method=name)
                for name in ("lossless", "lenience:0.3")
            ],
            "SmolLM2-135M-Instruct, one CPU thread, eager, batch size 1, temperature 0.3, 6 and 4 prompts, median "
            "(range) of 3 and 2 alternating runs.",
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
        **{
            name: Table(
                "method",
                every(name),
                [
                    Column("completions", "n", count),
                    Column("left out, too long", "left_out", count),
                    Column("tokens", "num_tokens", count),
                    Column("mean of -log p(token) - H(p)", "excess_per_token", precise),
                    Column("standard error", "standard_error", precise),
                    Column("z", "z", number),
                    *more,
                ],
                f"Completions of {completions}. Measured by {{command}}.",
            )
            for name, completions, more in (
                ("sampling-check", "GSM8K at temperature 1", []),
                (
                    "sampling-check-humaneval",
                    f"82 prompts of HumanEval, third run, at {SAMPLED}",
                    [Column("towards the draft model: z", "z_draft", number)],
                ),
            )
        },
        "mbpp": Table("method", methods("", "target", "lossless", *others, label), task[mbpp], setting),
        "gsm8k": Table("method", methods("", "target", "lossless", *others, label), task[gsm8k], setting),
        **_setting(
            "greedy",
            "greedy decoding",
            "t0",
            "500 prompts of MBPP, 164 of HumanEval and 200 of GSM8K (100 of them in float32)",
            label,
        ),
        **_setting(
            "sampled", SAMPLED, "t0.7-k20-p0.8", "200 prompts of MBPP, 164 of HumanEval and 100 of GSM8K", label
        ),
        "greedy-others": Table(
            "method",
            methods("", "lossless", "lenience:0.03", "static:0.5", "fly", "top_k_relaxed:2", "typical"),
            [
                column
                for study, title in ((f"{mbpp}-t0-others", "MBPP"), (f"{gsm8k}-t0-others", "GSM8K"))
                for column in (
                    Column(f"{title}: accepted", "acceptance_rate", study=study),
                    Column("points below the target", "quality_drop", tenths, study=study),
                )
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
        **_smollm2(),
    }


def _speeds(suffix: str, *sizes: int) -> list[Column]:
    """Return the columns of tokens and answers per second in a setting of the Qwen2.5-Coder pair, by batch size."""
    return [
        Column(
            f"{unit}/s, batch size {size}",
            f"{metric}, eager, batch {size}",
            times,
            f"qwen-coder-speed-{suffix}",
            "mbpp, 5 draft tokens",
        )
        for size in sizes
        for unit, metric in (("tokens", "speedup"), ("answers", "answers"))
    ]


def _setting(name: str, title: str, suffix: str, prompts: str, label: tuple[str, str]) -> dict[str, Table]:
    """Return the tables of a setting of the Qwen2.5-Coder pair: a summary, the speed, and one table per task."""
    tasks = {"mbpp": ("MBPP", "pass@1"), "humaneval": ("HumanEval", "pass@1"), "gsm8k": ("GSM8K", "accuracy")}
    summary = Table(
        title,
        methods("", "target", UPSTREAM, "lossless", *RELAXED, label),
        [
            *(column._replace(form=factor) for column in _speeds(suffix, 1)),
            *(
                Column(f"{task}: points below the target", "quality_drop", tenths, f"qwen-coder-{key}-{suffix}")
                for key, (task, _) in tasks.items()
            ),
        ],
        f"{prompts}, 5 draft tokens per round, bfloat16 unless stated; 95% intervals clustered by prompt; negative: "
        "above the target. Per second: over the target, 8 prompts of MBPP, two CPU threads, median of 3 alternating "
        "runs.",
    )
    speed = Table(
        title,
        methods("", UPSTREAM, "lossless", *RELAXED, label),
        _speeds(suffix, 1, 8),
        "Over the target with the same batch size, 5 draft tokens per round, bfloat16, linear layers of both models "
        "and of the target alone in oneDNN's blocked layout (`--packed`), eager, 8 prompts of MBPP, median (range) of "
        "3 alternating runs on two threads of a CPU. Measured by {command}.",
    )
    details = {
        f"{name}-{key}": Table(
            task,
            methods(f"qwen-coder-{key}-{suffix}", "target", "lossless", *RELAXED, label),
            [
                ACCEPTED,
                PER_ROUND,
                Column("tokens per answer", "mean_tokens", count),
                quality(metric),
                Column("points below the target", "quality_drop", tenths),
                Column("prompts worse", "prompts_worse", count),
                Column("better", "prompts_better", count),
            ],
            f"{{n}} prompts, {title}, {dtypes(f'qwen-coder-{key}-{suffix}')}, 5 draft tokens per round, at most "
            f"{320 if key == 'mbpp' else 400} new tokens; 95% intervals clustered by prompt.",
        )
        for key, (task, metric) in tasks.items()
    }
    return {f"pair-{name}": summary, f"speed-{name}": speed, **details}


def _smollm2() -> dict[str, Table]:
    """Return a table for each source of draft tokens and task."""
    head = "diversed:build/real/lookup/head-token-aware"
    ordinary = ("target", "lossless", "lenience:0.3", "static:0.5", UPSTREAM)
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
