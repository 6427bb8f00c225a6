"""Render tables of the embedded pair, its packaged heads and the cost of rounds from the JSON results."""

import json
from pathlib import Path

from hf_diversed.formatting import number, percent, with_bounds
from hf_diversed.hub.card import constraint_kept
from hf_diversed.zoo.loader import HEADS, WEIGHTS
from tools.markdown import prompts, table
from tools.render_results import RESULTS, read_asked


TRAINING = WEIGHTS / "training.json"
SPEED = RESULTS / "against_upstream.json"
ADAPTIVE = RESULTS / "adaptive.json"
COMPILED = RESULTS / "compiled.json"
LARGER = RESULTS / "embedded-1024.json"


def compiled() -> str:
    """Return a table of compiled rounds against transformers and compiled target decoding, and the overhead."""
    record = json.loads(COMPILED.read_text())
    by_threads = record["by_threads"]
    sizes = list(next(iter(by_threads.values()))["throughput_ratio_by_batch"])
    against = "tokens/s, batch {} over transformers' assisted generation at batch 1"
    plain = "tokens/s of the mixture head over compiled plain"
    rows = {
        "cost of a round over that of transformers' assisted generation, batch 1": lambda part: part[
            "round_cost_ratio"
        ],
        **{against.format(n): lambda part, n=n: part["throughput_ratio_by_batch"][n] for n in sizes},
        f"{plain} decoding, batch 1": lambda part: part["head_throughput_ratio_to_plain_compiled"]["1"],
        **{
            f"% of a round outside the forward passes, batch {n}": lambda part, n=n: part["own_percent"][n]
            for n in sizes
        },
    }
    figures = table(
        ("embedded pair, compiled", *(f"{n} thread(s)" for n in by_threads)),
        ((name, *(_spread(figure(part)) for part in by_threads.values())) for name, figure in rows.items()),
    )
    source, part = next(iter(record["provenance"].values())), next(iter(by_threads.values()))
    setting = (
        f"Median (quartiles) of {record['repeats']} alternating runs; w = {record['weight']}, "
        f"{record['num_assistant_tokens']} draft tokens per round, {record['max_new_tokens']} new tokens, acceptance "
        f"rate {part['acceptance_rate']:.0%} ({part['head_acceptance_rate']:.0%} with the head); {source['device']}, "
        f"torch {source['versions']['torch']}, transformers {source['versions']['transformers']}. Compilation, once "
        f"per shape: at most {max(part['compile_seconds'].values()):.0f} s, partly from inductor's cache on disk."
    )
    return f"{figures}\n\n{setting}"


def adaptive() -> str:
    """Return a table of tokens per second with adaptive draft lengths over those with constant ones."""
    record = json.loads(ADAPTIVE.read_text())
    lines = []
    for row in record["records"]:
        best, five = (
            _spread({"median": row[name]["ratio"], "quartiles": row[name]["quartiles"]})
            for name in ("over_best_constant", "over_5")
        )
        label, drafted = f"{row['task']}, `{row['verifier']}`", f"{row['drafted_per_round']:.1f}"
        lines.append([label, drafted, f"{best} ({row['best_constant']})", five])
    lengths = ", ".join(name for name in record["records"][0]["tokens_per_second"] if name.isdigit())
    setting = (
        f"Tokens per second of CPU time, {record['engine']} engine, batch 1; {record['num_examples']} held-out "
        f"prompts in {record['repeats']} alternating turns, compared with constant lengths of {lengths}."
    )
    header = ("task, method", "draft tokens per round", "over the best constant length", "over length 5")
    return f"{table(header, lines)}\n\n{setting}"


def speed() -> str:
    """Return a table of ratios to transformers' assisted generation, with quartiles."""
    record = json.loads(SPEED.read_text())
    gains = {
        "cost of a round, batch 1": record["round_cost_ratio"],
        **{
            f"tokens per second, batch {size} over transformers' batch 1": spread
            for size, spread in record["throughput_ratio_by_batch"].items()
        },
    }
    figures = table(
        ("embedded pair", "hf_diversed / transformers"), ((name, _spread(spread)) for name, spread in gains.items())
    )
    source = record["provenance"]
    versions = source["versions"]
    setting = (
        f"Median (quartiles) of {record['repeats']} alternating runs in one process; w = {record['weight']}, "
        f"{record['num_assistant_tokens']} draft tokens per round, {record['max_new_tokens']} new tokens, acceptance "
        f"rate {record['acceptance_rate']:.0%}; "
        f"{source['device']}, {source['threads']} threads, torch {versions['torch']}, "
        f"transformers {versions['transformers']}."
    )
    return "\n\n".join([figures, setting, _larger_shapes()])


def _larger_shapes() -> str:
    """Describe the cost of a round at hidden size 1024 with random weights, and the head's share of it."""
    found = json.loads(LARGER.read_text())
    records = [record for record in found["records"] if record["method"] != "bandwidth limit"]
    source, drafted = found["provenance"], records[-1]
    note = (
        "The pair's shapes at hidden size 1024 with random weights, "
        f"{drafted['num_assistant_tokens']} draft tokens per round, an imposed acceptance of "
        f"{source['benchmark']['acceptance'][0]:g} per draft token; medians (quartiles) of "
        f"{source['benchmark']['repeats']} alternating runs on {source['device']}, {source['threads']} thread(s). "
        "`upstream` is transformers' assisted generation, and `fresh:` an untrained head with the given inputs:"
    )
    lines = []
    for record in records:
        gain = record["ratios"].get("plain", {}).get("tokens_per_second")
        figures = (record["ms_per_round"], gain, record["head_percent"])
        lines.append([f"`{record['method']}`", *(_spread(figure) if figure else "-" for figure in figures)])
    header = ("method", "ms per round", "tokens/s over plain decoding", "head, % of a round")
    return f"{note}\n\n{table(header, lines)}"


def pair() -> str:
    """Return a table of the pair's size, training and quality, from the record of its training."""
    record = json.loads(TRAINING.read_text())
    held_out, target, draft = record["held_out"], record["training"]["target"], record["training"]["draft"]
    minutes = (target["seconds"] + draft["seconds"]) / 60
    tasks = held_out["tasks"]
    repeated = ", ".join(f"{values['repeated_8grams']:.0%} ({name})" for name, values in tasks.items())
    note = (
        f"Target {target['parameters'] / 1e6:.1f} M parameters, draft {draft['parameters'] / 1e6:.2f} M; training "
        f"took {minutes:.0f} minutes with {record['threads']} thread(s). "
        f"On {held_out['n']} held-out prompts per task at temperature 1, "
        f"{held_out['num_assistant_tokens']} draft tokens per round, quality (accuracy, ROUGE-2, pass@1) and "
        f"acceptance (accepted / drafted). Of the prompts' and references' word 8-grams {repeated} occur in the "
        "training text."
    )
    lines = []
    labels = {"target": "target alone", "draft": "draft alone", "lossless": "`lossless`"}
    for method in ("target", "draft", "lossless", "static:0.7", "static:0.5", "static:0.3"):
        rows = [values["methods"][method] for values in tasks.values()]
        cells = [percent(row[figure]) for row in rows for figure in ("quality", "acceptance_rate")]
        lines.append([labels.get(method, f"`{method}`"), *cells])
    header = ("method", *(title for name in tasks for title in (f"{name}: quality", "accepted")))
    return f"{note}\n\n{table(header, lines)}"


def heads() -> str:
    """Return tables of the packaged heads on held-out prompts."""
    paths = sorted(RESULTS / f"{folder.name}.json" for folder in (WEIGHTS / HEADS).iterdir())
    return "\n\n".join(_head(path) for path in paths if path.is_file())  # `tasks` has the commands for the others


def _head(path: Path) -> str:
    """Return a table of one task's head and the methods measured with it, and its training."""
    rows = {row["method"]: row for row in read_asked(path)}
    first = rows["diversed"]
    parts = [
        f"**{path.stem}** ({prompts([first])} samples, held out, temperature {first['temperature']:g}, "
        f"{first['num_assistant_tokens']} draft tokens per round; 95% intervals clustered by prompt):",
        table(
            ("method", first["metric"], "below the target", "accepted / drafted", "tokens per round"),
            (
                [
                    f"`{method}`",
                    *(with_bounds(row, name) for name in ("quality", "quality_drop", "acceptance_rate")),
                    number(row["block_efficiency"]),
                ]
                for method, row in rows.items()
            ),
        ),
    ]
    if first.get("static_gain") is not None:
        parts.append(f"Quality above the static curve at the same acceptance: {with_bounds(first, 'static_gain')}.")
    return "\n\n".join([*parts, _training(path.stem)])


def _training(task: str) -> str:
    """Describe the head's training, from its log."""
    log = json.loads((RESULTS / "training" / f"{task}.json").read_text())["log_history"]
    source = json.loads((WEIGHTS / HEADS / task / "provenance.json").read_text())
    times = [line for line in log if "time/rollout" in line][-1]
    measured, kept = source["validation"], constraint_kept(source)
    spent = {name.removeprefix("time/"): value for name, value in times.items() if name.startswith("time/")}
    shares = ", ".join(f"{name} {value / sum(spent.values()):.0%}" for name, value in spent.items() if name != "save")
    return (
        f"Trained in {sum(spent.values()) / 60:.0f} minutes by {source['world_size']} process(es) of "
        f"{source['threads']} thread(s) ({shares}). The packaged head is that of step {source['step']} of "
        f"{source['training']['max_steps']}: on {source['num_eval_prompts']:,} evaluation prompts its quality drop "
        f"was {100 * measured['quality_drop']:.1f} points, standard error {100 * measured['quality_drop_error']:.1f}; "
        f"the limit of {100 * source['training']['max_quality_drop']:.1f} on their sum was "
        f"{'' if kept else 'not '}kept."
    )


def _spread(spread: dict) -> str:
    low, high = spread["quartiles"]
    return f"{spread['median']:.2f} ({low:.2f} to {high:.2f})"
