"""Relax one part of an answer, with `PhaseVerifier`: the worked steps or the final number.

    python -m benchmarks.phases --output results/phases-math.json

The embedded pair answers word problems with worked steps and "The answer is N."; the steps stand in for the thinking
phase of a reasoning model. A fixed weight relaxes the whole answer, only the steps, or only what follows "answer"; the
rest is verified losslessly.
"""

import argparse
from pathlib import Path

import torch

from hf_diversed import LosslessVerifier, PhaseVerifier, StaticEnsembleVerifier, load_demo_pair
from hf_diversed.evaluation import EvaluationSettings, evaluate
from hf_diversed.files import write_json
from hf_diversed.provenance import provenance
from hf_diversed.tasks import get_task, load_records


WEIGHTS = (0.3, 0.1)
STEPS_BEGIN, STEPS_END = ":", "Ġanswer"  # of "Answer:" in the prompt, and of "The answer is"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--num-examples", default=500, type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    pair, task = load_demo_pair(), get_task("math")
    vocabulary = pair.tokenizer.get_vocab()
    steps = {"begin": vocabulary[STEPS_BEGIN], "end": vocabulary[STEPS_END]}
    methods = ["target", "lossless", *(f"static:{weight}" for weight in WEIGHTS), "lenience:0.05"]
    for weight in WEIGHTS:
        relaxed, strict = StaticEnsembleVerifier(weight), LosslessVerifier()
        methods.append((f"static:{weight} in the steps", PhaseVerifier(relaxed, strict, **steps)))
        methods.append((f"static:{weight} after the steps", PhaseVerifier(strict, relaxed, **steps)))
    settings = EvaluationSettings(num_examples=options.num_examples, batch_size=128)
    records = evaluate(pair, task, load_records(task, "test"), methods, settings)
    write_json(options.output, {"records": records, "provenance": provenance(0)})


if __name__ == "__main__":
    main()
