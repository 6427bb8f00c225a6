"""Write the README's figures from the JSON results. `--check` only says whether they agree.

python -m tools.render_readme [--check]
"""

import json
import sys
from pathlib import Path

from hf_diversed.formatting import number, percent, with_bounds
from hf_diversed.hub.card import constraint_kept
from hf_diversed.zoo.loader import HEADS, WEIGHTS
from tools.render_results import RESULTS, results


ROOT = Path(__file__).parent.parent
TRAINING = WEIGHTS / "training.json"
SPEED = RESULTS / "against_upstream.json"
ADAPTIVE = RESULTS / "adaptive.json"
COMPILED = RESULTS / "compiled.json"
LARGER = RESULTS / "embedded-1024.json"


def compiled() -> str:
    """Compiled rounds: against upstream's, against plain decoding that is compiled as well, and their own part."""
    record = json.loads(COMPILED.read_text())
    by_threads = record["by_threads"]
    sizes = list(next(iter(by_threads.values()))["throughput_ratio_by_batch"])
    against = "tokens/s, batch {} against upstream's batch 1"
    plain = "tokens/s of the mixture head over compiled plain"
    rows = {
        "cost of a round, batch 1, against upstream's": lambda part: part["round_cost_ratio"],
        **{against.format(n): lambda part, n=n: part["throughput_ratio_by_batch"][n] for n in sizes},
        f"{plain} decoding, batch 1": lambda part: part["head_throughput_ratio_to_plain_compiled"]["1"],
        **{f"% of a round beside the forwards, batch {n}": lambda part, n=n: part["own_percent"][n] for n in sizes},
    }
    lines = ["| embedded pair, compiled | " + " | ".join(f"{n} thread(s)" for n in by_threads) + " |"]
    lines.append("|---|" + "---|" * len(by_threads))
    for name, figure in rows.items():
        lines.append(f"| {name} | {' | '.join(_spread(figure(part)) for part in by_threads.values())} |")
    source, part = next(iter(record["provenance"].values())), next(iter(by_threads.values()))
    setting = (
        f"Median (quartiles) of {record['repeats']} alternating runs; w = {record['weight']}, "
        f"{record['num_assistant_tokens']} drafts per round, {record['max_new_tokens']} new tokens, acceptance rate "
        f"{part['acceptance_rate']:.0%} ({part['head_acceptance_rate']:.0%} with the head); {source['device']}, torch "
        f"{source['versions']['torch']}, transformers {source['versions']['transformers']}. Compiled once per shape: "
        f"{max(part['compile_seconds'].values()):.0f} s at most, with inductor's cache as that run found it."
    )
    return "\n".join([*lines, "", setting])


def adaptive() -> str:
    """Tokens per second with adaptive draft lengths over those with constant ones."""
    record = json.loads(ADAPTIVE.read_text())
    lines = ["| task, rule | drafts per round | over the best constant length | over 5 |", "|---|---|---|---|"]
    for row in record["records"]:
        best, five = (
            _spread({"median": row[name]["ratio"], "quartiles": row[name]["quartiles"]})
            for name in ("over_best_constant", "over_5")
        )
        label = f"{row['task']}, `{row['rule']}`"
        lines.append(f"| {label} | {row['drafted_per_round']:.1f} | {best} ({row['best_constant']}) | {five} |")
    lengths = ", ".join(name for name in record["records"][0]["tokens_per_second"] if name.isdigit())
    setting = (
        f"Tokens per second of CPU time, {record['engine']} engine, batch 1; {record['num_examples']} held-out "
        f"prompts in {record['repeats']} alternating turns, against constant lengths of {lengths}."
    )
    return "\n".join([*lines, "", setting])


def speed() -> str:
    """Ratios against upstream's loop, with the middle half of the repeats."""
    record = json.loads(SPEED.read_text())
    lines = ["| embedded pair | ours / upstream |", "|---|---|"]
    lines.append(f"| cost of a round, batch 1 | {_spread(record['round_cost_ratio'])} |")
    for size, spread in record["throughput_ratio_by_batch"].items():
        lines.append(f"| tokens per second, batch {size} against upstream's batch 1 | {_spread(spread)} |")
    source = record["provenance"]
    versions = source["versions"]
    setting = (
        f"Median (quartiles) of {record['repeats']} alternating runs in one process; w = {record['weight']}, "
        f"{record['num_assistant_tokens']} drafts per round, {record['max_new_tokens']} new tokens, acceptance rate "
        f"{record['acceptance_rate']:.0%}; "
        f"{source['device']}, {source['threads']} threads, torch {versions['torch']}, "
        f"transformers {versions['transformers']}."
    )
    return "\n".join([*lines, "", setting, "", *_larger_shapes()])


def _larger_shapes() -> list[str]:
    """The pair's shapes at hidden size 1024, without weights: what a round costs, and a head's part in it."""
    found = json.loads(LARGER.read_text())
    records = [record for record in found["records"] if record["method"] != "bandwidth limit"]
    source, drafted = found["provenance"], records[-1]
    lines = [
        "The pair's shapes at hidden size 1024 with random weights, "
        f"{drafted['num_assistant_tokens']} drafts per round, a given acceptance of "
        f"{source['benchmark']['acceptance'][0]:g} per draft; medians (quartiles) of "
        f"{source['benchmark']['repeats']} alternating runs on {source['device']}, {source['threads']} thread(s):",
        "",
        "| method | ms per round | tokens/s over plain decoding | head, % of a round |",
        "|---|---|---|---|",
    ]
    for record in records:
        gain = record["ratios"].get("plain", {}).get("tokens_per_second")
        cells = [
            _spread(figure) if figure else "-" for figure in (record["ms_per_round"], gain, record["head_percent"])
        ]
        lines.append(f"| `{record['method']}` | {' | '.join(cells)} |")
    return lines


def pair() -> str:
    """What the pair is and does, from the record of its training."""
    record = json.loads(TRAINING.read_text())
    held_out, target, draft = record["held_out"], record["training"]["target"], record["training"]["draft"]
    minutes = (target["seconds"] + draft["seconds"]) / 60
    tasks = held_out["tasks"]
    repeated = ", ".join(f"{values['repeated_8grams']:.0%} ({name})" for name, values in tasks.items())
    lines = [
        f"Target {target['parameters'] / 1e6:.1f} M parameters, draft {draft['parameters'] / 1e6:.2f} M; training "
        f"took {minutes:.0f} minutes with {record['threads']} thread(s). "
        f"On {held_out['n']} held-out prompts per task at temperature 1, "
        f"{held_out['num_assistant_tokens']} drafts per round, quality (accuracy, ROUGE-2, pass@1) and acceptance "
        f"(accepted / drafted). Of the prompts' and references' word 8-grams {repeated} occur in the training text.",
        "",
        "| method | " + " | ".join(f"{name}: quality | accepted" for name in tasks) + " |",
        "|---|" + "---|" * (2 * len(tasks)),
    ]
    labels = {"ar": "target alone", "draft": "draft alone", "sd": "`lossless`"}
    for method in ("ar", "draft", "sd", "static:0.7", "static:0.5", "static:0.3"):
        rows = [values["methods"][method] for values in tasks.values()]
        cells = " | ".join(f"{row['quality']:.1%} | {percent(row['acceptance_rate'])}" for row in rows)
        lines.append(f"| {labels.get(method, f'`{method}`')} | {cells} |")
    return "\n".join(lines)


def heads() -> str:
    """What the packaged heads do on held-out prompts."""
    lines = []
    for path in sorted(RESULTS / f"{folder.name}.json" for folder in (WEIGHTS / HEADS).iterdir()):
        if not path.is_file():
            continue  # `results` says what makes it
        rows = {row["method"]: row for row in json.loads(path.read_text())["records"]}
        first = rows["diversed"]
        lines += [
            f"**{path.stem}** ({first['n']} held-out prompts x {first['samples_per_prompt']} samples, temperature "
            f"{first['temperature']:g}, {first['num_assistant_tokens']} drafts per round; 95% bounds clustered by "
            "prompt):",
            "",
            f"| method | {first['metric']} | below the target | accepted / drafted | tokens per round |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| `{method}` | {with_bounds(row, 'quality')} | {with_bounds(row, 'quality_drop')} "
            f"| {with_bounds(row, 'acceptance_rate')} | {number(row['block_efficiency'])} |"
            for method, row in rows.items()
        ]
        if first.get("static_gain") is not None:
            gain = with_bounds(first, "static_gain")
            lines += ["", f"Quality above the static curve at the same acceptance: {gain}."]
        lines += ["", _training(path.stem), ""]
    return "\n".join(lines).strip()


def _training(task: str) -> str:
    """How long the head took, from the log of its run."""
    log = json.loads((RESULTS / "training" / f"{task}.json").read_text())["log_history"]
    source = json.loads((WEIGHTS / HEADS / task / "provenance.json").read_text())
    times = [line for line in log if "time/rollout" in line][-1]
    measured, kept = source["validation"], constraint_kept(source)
    spent = {name.removeprefix("time/"): value for name, value in times.items() if name.startswith("time/")}
    shares = ", ".join(f"{name} {value / sum(spent.values()):.0%}" for name, value in spent.items() if name != "save")
    return (
        f"Trained in {sum(spent.values()) / 60:.0f} minutes by {source['world_size']} process(es) of "
        f"{source['threads']} thread(s) ({shares}). Shipped is step {source['step']} of "
        f"{source['training']['max_steps']}: on {source['num_eval_prompts']:,} evaluation prompts its drop was "
        f"{100 * measured['quality_drop']:.1f} points, standard error {100 * measured['quality_drop_error']:.1f}; "
        f"the bound of {100 * source['training']['max_quality_drop']:.1f} on their sum was "
        f"{'' if kept else 'not '}kept."
    )


def _spread(spread: dict) -> str:
    low, high = spread["quartiles"]
    return f"{spread['median']:.2f} ({low:.2f} to {high:.2f})"


SECTIONS = {
    "heads": heads,
    "pair": pair,
    "results": results,
    "speed": speed,
    "compiled": compiled,
    "adaptive": adaptive,
}


def render(text: str) -> str:
    """The README with every marked section replaced."""
    for name, section in SECTIONS.items():
        begin, end = f"<!-- begin:{name} -->", f"<!-- end:{name} -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{section()}\n{end}{rest.split(end, 1)[1]}"
    return text


def main() -> int:
    readme = ROOT / "README.md"
    rendered = render(readme.read_text())
    if "--check" in sys.argv[1:]:
        return int(rendered != readme.read_text())
    readme.write_text(rendered)
    return 0


if __name__ == "__main__":
    sys.exit(main())
