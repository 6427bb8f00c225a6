"""Tables of quality and acceptance, on the embedded pair and the Qwen2.5-Coder pair."""

from tools.figures import MIXTURE_HEAD, TOKEN_HEAD, figures
from tools.tables.parts import (
    ACCEPTED,
    DROP,
    PER_ROUND,
    Column,
    Row,
    Table,
    below,
    count,
    factor,
    methods,
    num_right,
    number,
    one_decimal,
    tenths,
    times,
)


LENIENCE = ("lenience:0.3", "lenience:0.1")
CASCADE = "spec_cascade:token_v3:0.8"
RELAXED = (*LENIENCE, CASCADE)
SAMPLED = "temperature 0.7, top-p 0.8, top-k 20"
BELOW_EXACT = Column("points below exact decoding", "quality", below, minus="target, lossless")
EXACT_NOTE = "Exact decoding: the mean of `target` and `lossless`, which have the same distribution."
UPSTREAM = ("upstream", "transformers, 5 draft tokens")
UPSTREAMS = (UPSTREAM, ("transformers", "transformers, its default numbers of draft tokens"))
SUMMARY_HEADS = (
    (f"diversed:{TOKEN_HEAD}", "`diversed`, published token head"),
    ("diversed:results/real/token-head-scitldr", "`diversed`, another token head"),
    (f"diversed:{MIXTURE_HEAD}", "`diversed`, published mixture head"),
)
TIMED = {"t0": ("mbpp", "gsm8k"), "t0.7-k20-p0.8": ("mbpp",)}  # tasks, by setting
PUBLISHED = {"mbpp": ("MBPP", "pass@1"), "humaneval": ("HumanEval", "pass@1"), "gsm8k": ("GSM8K", "accuracy")}


def published() -> dict[str, Table]:
    """Return the tables of both pairs, that of summaries excepted."""
    mbpp, gsm8k, head = "qwen-coder-mbpp", "qwen-coder-gsm8k", "diversed:results/real/token-head-mbpp"
    label = (head, "`diversed`, token head trained on MBPP")
    setting = (
        "{n} prompts of each task, temperature 1, bfloat16, 5 draft tokens per round, at most 320 (MBPP) and 400 "
        "(GSM8K) new tokens; 95% intervals clustered by prompt."
    )
    runs = {
        "GSM8K, temperature 1": "lossless-gsm8k",
        "GSM8K, temperature 1, an earlier run on 100 of these prompts": f"{gsm8k}-earlier",
        f"GSM8K, {SAMPLED}": f"{gsm8k}-t0.7-k20-p0.8",
        "MBPP, temperature 1": mbpp,
        "MBPP, temperature 1, an earlier run": f"{mbpp}-earlier",
        "MBPP, temperature 1, another run": "lenience-mbpp",
        f"MBPP, {SAMPLED}": f"{mbpp}-t0.7-k20-p0.8",
        "HumanEval, temperature 1": "qwen-coder-humaneval",
        f"HumanEval, {SAMPLED}": "qwen-coder-humaneval-t0.7-k20-p0.8",
        f"HumanEval, {SAMPLED}, a second run": "lossless-humaneval",
        f"HumanEval, {SAMPLED}, a third run, in float32": "lossless-humaneval-float32",
    }
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
            [ACCEPTED, PER_ROUND, Column("correct answers", "quality")],
            "{n} prompts, 2 samples each, temperature 1, 5 draft tokens per round, 95% intervals clustered by prompt.",
        ),
        "head-real": Table(
            "head trained on MBPP, task",
            [
                Row(f"{kind}, {title}", f"diversed:results/real/{name}", study)
                for kind, name in (("token head", "token-head-mbpp"), ("mixture head", "hidden-head-mbpp"))
                for study, title in ((mbpp, "MBPP"), (gsm8k, "GSM8K"))
            ],
            [
                ACCEPTED,
                Column("score", "quality"),
                *(
                    Column(f"{name}, points above `lenience:0.3`", metric, tenths, minus="lenience:0.3")
                    for name, metric in (("accepted", "acceptance_rate"), ("score", "quality"))
                ),
            ],
            setting,
        ),
        "lossless-runs": Table(
            "task",
            [Row(title, study=study) for title, study in runs.items()],
            [
                Column("answers", "n", count, method="target"),
                Column("right: `target`", "quality", num_right, method="target"),
                Column("right: `lossless`", "quality", num_right, method="lossless"),
            ],
            "One answer per prompt, in bfloat16, except 200 of the 300 answers of GSM8K, 300 of the 500 of MBPP, and "
            "the third run of HumanEval, in float32. Data, in the order of the rows, in `results/real/`: "
            f"{', '.join(f'`{study}.json`' for study in runs.values())}.",
        ),
        "verifiers": Table(
            "task and setting: verifier",
            [
                row._replace(label=f"{setting}: {row.label}")
                for setting, study, names in (
                    ("MBPP, temperature 1", mbpp, ("lossless", "block:lossless", "lenience:0.3", CASCADE)),
                    ("MBPP, greedy", f"{mbpp}-t0-others", ("lossless", "fly")),
                    ("math, temperature 1", "verifiers-math", ("lossless", "contrastive:0.5:0.1")),
                    ("math, temperature 1", "mars-math", ("mars:0.9",)),
                    ("math, temperature 1", "truncation", ("lossless", "typical", "fuzzy:0.3:kl:0.9")),
                    ("math, greedy", "verifiers-math-t0", ("lossless", "lenience:0.3")),
                )
                for row in methods(study, *names)
            ],
            [Column("prompts", "n", count), ACCEPTED, Column("right answers", "quality")],
            "MBPP: Qwen2.5-Coder pair in bfloat16; math: embedded pair; 5 draft tokens per round, 95% intervals "
            "clustered by prompt. Rows below a `lossless` have its prompts. [Results](results.md) has `static` and "
            "`diversed`.",
        ),
        "greedy-tasks": Table(
            "greedy decoding",
            [
                row._replace(label=f"{title}: {row.label}")
                for key, title in (("mbpp", "MBPP"), ("gsm8k", "GSM8K"))
                for row in methods(f"qwen-coder-{key}-t0", "lossless", LENIENCE[0], label)
            ],
            [
                ACCEPTED,
                PER_ROUND,
                Column("target forwards per answer", "mean_rounds", one_decimal),
                Column("tokens per answer", "mean_tokens", count),
                Column("right answers", "quality"),
                Column("prompts worse than the target", "prompts_worse", count),
                Column("prompts better", "prompts_better", count),
            ],
            "500 prompts of MBPP in bfloat16, 300 of GSM8K (100 in bfloat16, 200 in float32), 5 draft tokens per "
            "round; 95% intervals clustered by prompt. Data, also of HumanEval: `results/real/qwen-coder-*-t0.json`.",
        ),
        "pair-greedy": _setting(
            "greedy decoding",
            "t0",
            "500 prompts of MBPP and 164 of HumanEval in bfloat16, 300 of GSM8K (100 in bfloat16, 200 in float32)",
            label,
        ),
        "pair-sampled": _setting(
            SAMPLED,
            "t0.7-k20-p0.8",
            "500 prompts of MBPP (200 in bfloat16, 300 in float32), 164 of HumanEval in bfloat16, 300 of GSM8K (100 "
            "in bfloat16, 200 in float32)",
            label,
        ),
        "summaries-settings": _summaries_in_other_settings(),
        "speed-greedy": Table(
            "greedy decoding",
            methods("", UPSTREAM, "lossless", *RELAXED, label),
            [
                _speed(task, "t0", metric, size)
                for task, size in (("mbpp", 1), ("gsm8k", 1), ("mbpp", 8))
                for metric in ("tokens/s", "speedup")
            ],
            "Relative to `generate` of transformers without a draft model at that batch size, 5 draft tokens per "
            f"round, bfloat16, packed linear layers, eager, two threads of a CPU. {_timed_prompts('t0')}, with 95% "
            "intervals clustered by prompt; at batch size 8 on another CPU, 8 prompts, median (range) of 3 "
            "alternating runs. The speedup is that for the same prompts, whose answers differ in length. Data: "
            "`results/real/qwen-coder-speed-*-t0.json`.",
        ),
    }


def summaries() -> str:
    """Return the tables of summaries at temperature 1, with their heading."""
    study = "qwen-coder-scitldr"
    others = ("lenience:0.03", "lossy:0.7", "spec_cascade:token_v3:0.95")
    fixed = [f"static:{weight}" for weight in (0.7, 0.5, 0.3, 0.2, 0.1)]
    scores = {"ROUGE-1": "rouge1", "ROUGE-2": "quality"}
    speed, prefill = "qwen-coder-speed-scitldr", "qwen-coder-speed-scitldr-prefill"
    speed_in_batches = "qwen-coder-speed-batch8-scitldr"
    columns = (
        ACCEPTED,
        PER_ROUND,
        Column("tokens/s", "tokens/s, batch 1", times, speed),
        Column("tokens/s, batch size 8", "tokens/s, batch 8", times, speed_in_batches),
        Column("target forwards per answer", "mean_rounds", one_decimal),
        Column("tokens per answer", "mean_tokens", count),
        *(Column(name, metric, tenths) for name, metric in scores.items()),
        *(BELOW_EXACT._replace(header=f"{name} below exact decoding", metric=scores[name]) for name in scores),
        Column("answers with an unknown word, above exact decoding", "unknown_word", tenths, minus="target, lossless"),
    )
    every_method = Table(
        "SciTLDR, temperature 1",
        methods("", "target", *UPSTREAMS, "lossless", *LENIENCE, *others, CASCADE, *SUMMARY_HEADS, *fixed),
        [column._replace(study=column.study or study) for column in columns],
        f"{figures(study)[0].n} abstracts, one answer each, float32, 5 draft tokens per round; 95% intervals "
        f"clustered by prompt. {EXACT_NOTE} A word is unknown if its stem is in no abstract and no summary of the "
        "800 records; some of these words are correct. Tokens per second relative to `target`: "
        f"{figures(speed)[0].n} of the abstracts, batch size 1, packed linear layers, two threads of a CPU without "
        f"bfloat16 instructions. They include the prefill, {seconds(prefill, 'target')} of {seconds(speed, 'target')} "
        f"per answer with `target` and {seconds(prefill, 'lossless')} of {seconds(speed, 'lossless')} with `lossless` "
        f"(prefill: {figures(prefill)[0].n} abstracts). At batch size 8: {figures(speed_in_batches)[0].n} abstracts, "
        "with the figures of the two batches in brackets. Data: `results/real/qwen-coder*-scitldr*.json`.",
    )
    at_equal_acceptance = Table(
        "points above a verifier with the same acceptance rate",
        methods(study, *LENIENCE, *others, *SUMMARY_HEADS),
        [
            Column(f"`{verifier}`, {name}", metric, tenths, minus=verifier)
            for verifier in ("static", "lenience")
            for name, metric in [*scores.items(), ("ROUGE-L", "rougeL")]
        ],
        "The same abstracts; 95% intervals. Scores of `static` and `lenience` are interpolated between their rows.",
    )
    return f"## Summaries\n\n{every_method.render()}\n\n{at_equal_acceptance.render()}"


def _summaries_in_other_settings() -> Table:
    """Return the table of summaries with truncated sampling and in greedy decoding, and of news articles."""
    published, mixture = SUMMARY_HEADS[0], SUMMARY_HEADS[2]
    settings = (
        (SAMPLED, "scitldr-t0.7-k20-p0.8", ("lossless", *LENIENCE, published, mixture)),
        ("greedy", "scitldr-t0", ("lossless", *LENIENCE, published, mixture)),
        ("news articles, temperature 1", "cnndm", ("lossless", "lenience:0.3", published)),
    )
    return Table(
        "summaries",
        [
            row._replace(label=f"{title}: {row.label}")
            for title, suffix, names in settings
            for row in methods(f"qwen-coder-{suffix}", *names)
        ],
        [
            Column("prompts", "n", count),
            ACCEPTED,
            PER_ROUND,
            Column("target forwards per answer", "mean_rounds", one_decimal),
            Column("target forwards minus those of `lossless`", "mean_rounds", number, minus="lossless"),
            Column("tokens per answer", "mean_tokens", count),
            BELOW_EXACT._replace(header="ROUGE-1 below exact decoding", metric="rouge1"),
            BELOW_EXACT._replace(header="ROUGE-2 below exact decoding"),
        ],
        "The same abstracts, and the first articles of Spec-Bench (CNN/DailyMail); one answer each, at most 128 "
        "tokens, float32, 5 draft tokens per round; 95% intervals clustered by prompt. The summaries of articles were "
        "not scored; in those of 8 articles that were read, the head, which was trained on abstracts, makes more "
        f"visible errors. {EXACT_NOTE}",
    )


def seconds(study: str, method: str) -> str:
    """Return the mean seconds per prompt at batch size 1."""
    (found,) = [each.value for each in figures(study) if (each.method, each.metric) == (method, "seconds, batch 1")]
    return f"{found:.1f} s"


def _speed(task: str, suffix: str, metric: str, size: int = 1) -> Column:
    """Return the column of "tokens/s" or "speedup" of the Qwen2.5-Coder pair, relative to the target."""
    title = PUBLISHED[task][0] + (f", batch size {size}" if size > 1 else "")
    study = f"qwen-coder-speed-{task if size == 1 else f'batch{size}'}-{suffix}"
    return Column(f"{title}: {metric}", f"{metric}, batch {size}", times, study, f"{task}, 5 draft tokens")


def _timed_prompts(suffix: str) -> str:
    """Return "12 prompts of MBPP and ..." for the timed tasks of a setting."""
    return " and ".join(
        f"{figures(f'qwen-coder-speed-{task}-{suffix}')[0].n} prompts of {PUBLISHED[task][0]}"
        for task in TIMED[suffix]
    )


def _setting(title: str, suffix: str, prompts: str, label: tuple[str, str]) -> Table:
    """Return the table of speed and scores in a setting of the Qwen2.5-Coder pair."""
    if suffix == "t0":
        drop, note, shown, measured = DROP, "", "speedup", "Speed for the same prompts"
    else:  # the lengths of sampled answers differ by chance
        drop, note, shown, measured = BELOW_EXACT, f" {EXACT_NOTE}", "tokens/s", "Tokens per second"
    form = factor if suffix == "t0" else times  # the table of greedy speed has the bounds
    return Table(
        title,
        methods("", "target", UPSTREAM, "lossless", *RELAXED, label),
        [
            *(_speed(task, suffix, shown)._replace(form=form) for task in TIMED[suffix]),
            *(
                drop._replace(header=f"{task}: {drop.header}", study=f"qwen-coder-{key}-{suffix}")
                for key, (task, _) in PUBLISHED.items()
            ),
        ],
        f"{prompts}, 5 draft tokens per round; 95% intervals; negative values: the method scores "
        f"higher.{note} {measured} relative to `target`: {_timed_prompts(suffix)}, batch size 1, bfloat16, "
        "packed linear layers, two CPU threads.",
    )
