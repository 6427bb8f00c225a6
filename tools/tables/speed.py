"""Tables of times."""

from tools.figures import Figure
from tools.tables.parts import ACCEPTED, Column, Row, Table, count, methods, number, one_decimal, tenths, times


DRAFTED = Column("draft tokens per round", "drafted_per_round", one_decimal)
OVER_TARGET = Column("over the target", "over_target", number)
OVER_UPSTREAM = Column("over transformers", "over_upstream", number)
OVER_CONSTANT = Column("over transformers, best constant number", "over_upstream_constant", number)
UPSTREAM = "upstream"
COUNTED = (
    ("best", "best constant number"),
    ("confidence", '`"confidence"`'),
    ("constant 5", "constant 5"),
    ("transformers", "transformers"),
)
TITLES = (("mbpp", "MBPP"), ("gsm8k", "GSM8K"))


def _label(task: str, method: str) -> str:
    """Return "MBPP, `lossless`, constant 5" for the method "lossless:5"."""
    if method == UPSTREAM:
        return f"{task}, transformers"
    verifier, _, drafting = method.rpartition(":")
    name = "transformers" if verifier == UPSTREAM else f"`{verifier}`"
    schedule = f"constant {drafting}" if drafting.isdecimal() else drafting
    return f"{task}, {name}, {schedule}"


def _ratio_or_best(figure: Figure) -> str:
    """Format the best constant number as "5", and a ratio to its speed as "1.02"."""
    return count(figure) if figure.method == "best" else number(figure)


def speed() -> dict[str, Table]:
    """Return the tables of the time of rounds, and of vLLM."""
    served = ("target", "lossless", "static:0.5", "lenience:0.3", "diversed (heads)", "diversed (mixture-heads)")
    verifiers = ("lossless", "lenience:0.3")
    lengths = [f"{verifier}:{length}" for verifier in verifiers for length in ("5", "confidence")]
    return {
        "draft-lengths-counted": Table(
            "method",
            [
                Row(f"{task}: {label}", method, "draft-lengths-counted", task)
                for verifier in verifiers
                for task in (f"{verifier}, sampled", f"{verifier}, greedy")
                for method, label in COUNTED
                if (verifier, method) != ("lenience:0.3", "transformers")  # which is lossless
            ],
            [Column(f"cost {cost}", f"cost {cost}", _ratio_or_best) for cost in (0.05, 0.1, 0.2, 0.3, 0.43)],
            "Embedded pair, {n} prompts of three tasks, at most 96 new tokens, temperature 1 or greedy. The cost of a "
            "draft token is in target forward passes; the rule assumes it. Ratios are of tokens / (target "
            "forwards + cost * draft forwards) to the best constant number of 1 to 8, 12 and 16, which is chosen on "
            "the same prompts for each cost. transformers: assisted generation with its defaults. Data: {data}, by "
            "`benchmarks/forwards.py` of commit 9691ad82.",
        ),
        "compiled": Table(
            "embedded pair",
            [Row("eager", "static:0.7", "compiled"), Row("compiled", "compiled:static:0.7", "compiled")],
            [
                Column("cost of a round, batch 1", "ms_per_round", number, task="1"),
                *(Column(f"tokens/s, batch {size}", "tokens_per_second", times, task=str(size)) for size in (1, 8)),
            ],
            "Relative to transformers' assisted generation at batch size 1, median (quartiles) of 11 alternating "
            "runs; `static:0.7`, 5 draft tokens per round, at most 64 new tokens, 2 threads of an x86-64 CPU.",
        ),
        "draft-lengths-int4": Table(
            "task, method, schedule",
            [
                *(
                    Row(_label(title, method), method, "draft-lengths-int4", task)
                    for task, title in TITLES
                    for method in ("upstream", "upstream:5", *lengths)
                ),
                *(
                    Row(_label("MBPP, draft model in bfloat16", method), method, "draft-lengths-bf16", "mbpp")
                    for method in ("upstream", "lossless:confidence", "lenience:0.3:confidence")
                ),
            ],
            [
                DRAFTED,
                ACCEPTED,
                OVER_TARGET,
                OVER_UPSTREAM,
                OVER_CONSTANT,
            ],
            "Measured on 2026-11-26, when the rule assumed a cost of 0.3 for all pairs, and at most 8 draft tokens. "
            "Qwen2.5-Coder 1.5B in bfloat16 (oneDNN-packed weights) and 0.5B in int4 (torchao 0.18), or in bfloat16 "
            "(packed) where stated; temperature 1, at most 128 new tokens; ratios of tokens per second with the "
            "prefill, eager engine, batch size 1, two threads of a CPU with bfloat16 instructions; {n} prompts per "
            "task, median (quartiles) of paired ratios. transformers: assisted generation, with default settings "
            "unless a constant number is given; the best constant number of 3, 5 and 8 is the one with the most "
            "tokens per second. Data: {data}, `results/draft-lengths-bf16.json`.",
        ),
        "serving-acceptance": Table(
            "verifier",
            methods("serving", *served),
            [
                Column("accepted in vLLM", "acceptance_rate"),
                Column("by `generate`", "generate_acceptance_rate"),
                Column("difference on shared draft tokens, points", "like_for_like_difference", tenths),
                Column("correct in vLLM", "quality"),
                Column("correct by `generate`", "generate_quality"),
            ],
            "{n} problems of the embedded math task, 2 samples each, temperature 1; 95% intervals clustered by "
            "prompt.",
        ),
    }
