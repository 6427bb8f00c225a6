"""Compare the packaged token-aware head of a task with verifiers that are not trained.

python -m benchmarks.learning math

Trains the packaged head with other seeds. The heads are compared with lenience and with the untrained head they
started from, both set to the same acceptance on rollouts of training prompts. All methods then decode the same test
prompts. The results are added to those of `hf-diversed evaluate --output results/TASK.json`, which must run first.
Writes results/learning-TASK.json. Trained heads and finished batches are kept, so an interrupted run can continue.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.differences import compare
from benchmarks.head_training import DONE, train
from embedded.records import draw_records
from hf_diversed import DiversedHead, load_demo_pair
from hf_diversed.evaluation import EvaluationSettings, evaluate, read_results
from hf_diversed.files import write_json
from hf_diversed.harness.pair import Pair
from hf_diversed.harness.sampling import Sampling
from hf_diversed.head import load_head
from hf_diversed.provenance import provenance
from hf_diversed.tasks import Task, get_task, load_records
from hf_diversed.training import DiversedConfig
from hf_diversed.training.acceptance import TokenAcceptance
from hf_diversed.training.loading import fresh_head
from hf_diversed.training.rollout import Sampler
from hf_diversed.verifiers import DiversedVerifier
from hf_diversed.zoo.loader import HEADS, MIXTURE, WEIGHTS


SEEDS = {f"seed-{seed}": {"seed": seed} for seed in (43, 44)}
MATCHED_ROLLOUTS = 512
PACKAGED, OF_MIXTURE, UNTRAINED, CASCADE = "diversed", "diversed-mixture", "untrained", "spec_cascade:token_v3:0.95"
BASELINES = ["target", "lossless", CASCADE]


def main() -> None:
    options = _arguments()
    parts = options.output.with_suffix(".parts")
    pair, task = load_demo_pair(), get_task(options.task, allow_code_execution=True)
    packaged = WEIGHTS / HEADS / task.name
    for name in SEEDS:
        train(SEEDS[name], pair, task, parts / name, packaged)
    heads = {PACKAGED: packaged, **{name: parts / name for name in SEEDS}}
    matched = {name: match(pair, task, folder) for name, folder in heads.items()}
    methods: dict[str, Any] = {name: DiversedVerifier(load_head(str(folder))) for name, folder in heads.items()}
    methods[OF_MIXTURE] = DiversedVerifier(load_head(str(WEIGHTS / MIXTURE / task.name)))
    for match_of_head in matched.values():
        verifier = DiversedVerifier(untrained(pair, packaged), match_of_head["untrained_strictness"])
        methods[match_of_head["untrained"]] = verifier
    labels = [*BASELINES, *(match_of_head["lenience"] for match_of_head in matched.values())]
    settings = EvaluationSettings(
        num_examples=options.num_examples,
        samples_per_prompt=options.samples_per_prompt,
        batch_size=options.batch_size,
        split="test",
    )
    examples = load_records(task, "test", options.num_examples)
    done = options.output.parent / f"{task.name}.parts"
    rows = evaluate(pair, task, examples, [*dict.fromkeys(labels), *methods.items()], settings, output=done)
    results = read_results(done)
    seeds = [PACKAGED, *SEEDS]
    comparisons = [
        *(compare(results, seeds, [matched[name][kind] for name in seeds]) for kind in ("lenience", "untrained")),
        *(compare(results, seeds, other) for other in (CASCADE, OF_MIXTURE)),
    ]
    source = provenance(settings.seed) | {"sessions": results.sessions}
    record = {"records": rows, "matched": matched, "comparisons": comparisons, "provenance": source}
    write_json(options.output, record)
    print(json.dumps(comparisons, indent=1))


@torch.no_grad()
def match(pair: Pair, task: Task, folder: Path) -> dict[str, Any]:
    """Return the lenience, and the strictness of the untrained head, that accept as many draft tokens as a head.

    Acceptance is measured on rollouts of training prompts.
    """
    head, source = load_head(str(folder)), json.loads((folder / DONE).read_text())
    settings = Sampling(
        max_new_tokens=source["training"]["max_completion_length"],
        batch_size=128,
        stop_strings=tuple(task.stop_strings),
    )
    sampler = Sampler(pair, settings)
    rows = draw_records(task.name, "train", MATCHED_ROLLOUTS, source["seed"])
    rollouts = sampler.relaxed([task.prompt(row) for row in rows], head, seed=source["seed"])
    decisions, score = rollouts.decisions, TokenAcceptance()

    def accepted(logit: torch.Tensor) -> float:
        return 1.0 - float(score.expected_rejection(logit, decisions).mean())

    start = untrained(pair, folder)
    logit, slope = start(**rollouts.inputs), start.ratio_slope()
    goal = accepted(head(**rollouts.inputs))
    lenience = crossing(lambda value: float((decisions.strict_prob / value).clamp_max(1.0).mean()), goal)
    strictness = crossing(lambda value: accepted(logit + slope * torch.logit(torch.tensor(value))), goal)
    return {
        "lenience": f"lenience:{lenience:.4g}",
        "untrained": f"{UNTRAINED}@{strictness:.4g}",
        "untrained_strictness": strictness,
    }


def crossing(falling: Callable[[float], float], goal: float) -> float:
    """Return the argument in (0, 1) at which a decreasing function reaches `goal`."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > goal else (low, middle)
    return (low + high) / 2


def untrained(pair: Pair, folder: Path) -> DiversedHead:
    """Return the untrained head from which a folder's head was trained."""
    settings = json.loads((folder / DONE).read_text())["training"]
    args = DiversedConfig(
        output_dir=str(folder),
        token_features=True,
        initial_lenience=settings["initial_lenience"],
        eval_strategy="no",
        load_best_model_at_end=False,
        use_cpu=True,
    )
    head = fresh_head(pair.target, pair.draft, args)
    return head.eval()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--num-examples", type=int, default=1000)
    parser.add_argument("--samples-per-prompt", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=250)
    parser.add_argument("--output", type=Path, help="results/learning-TASK.json by default")
    options = parser.parse_args()
    options.output = options.output or Path("results") / f"learning-{options.task}.json"
    return options


if __name__ == "__main__":
    main()
