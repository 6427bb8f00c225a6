"""Relax one part of an answer, with `PhaseVerifier`.

    python -m benchmarks.phases --output results/phases-math.json

The embedded pair has no thinking part. Its worked answers write most computations between ":" and ".", as in "we sum
14 and 6: 14+6=20 dollars." A fixed weight relaxes the whole answer, only these parts, or only the text outside of
them; the rest is verified losslessly.
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
BEGIN, END = ":", "."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--num-examples", default=500, type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    pair, task = load_demo_pair(), get_task("math")
    vocabulary = pair.tokenizer.get_vocab()
    marks = {"begin": vocabulary[BEGIN], "end": vocabulary[END]}
    methods = ["target", "lossless", *(f"static:{weight}" for weight in WEIGHTS), "lenience:0.05"]
    for weight in WEIGHTS:
        relaxed, strict = StaticEnsembleVerifier(weight), LosslessVerifier()
        methods.append((f"static:{weight} inside", PhaseVerifier(relaxed, strict, **marks)))
        methods.append((f"static:{weight} outside", PhaseVerifier(strict, relaxed, **marks)))
    settings = EvaluationSettings(num_examples=options.num_examples, batch_size=128)
    records = evaluate(pair, task, load_records(task, "test"), methods, settings)
    write_json(options.output, {"records": records, "provenance": provenance(0)})


if __name__ == "__main__":
    main()
