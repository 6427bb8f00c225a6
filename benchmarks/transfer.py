"""Evaluate every packaged head on every embedded task: acceptance and quality outside the head's own task.

python -m benchmarks.transfer --output results/transfer.json
"""

import argparse
import json
from pathlib import Path

from hf_diversed import load_demo_pair
from hf_diversed.evaluation import EvaluationSettings, evaluate, read_results
from hf_diversed.files import write_json
from hf_diversed.provenance import provenance
from hf_diversed.tasks import get_task, load_records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-examples", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True, help="JSON file; finished parts are kept next to it.")
    options = parser.parse_args()
    pair = load_demo_pair()
    settings = EvaluationSettings(num_examples=options.num_examples, batch_size=options.batch_size, seed=options.seed)
    records, sessions = [], []
    for trained_on in pair.heads:
        for tested_on in pair.heads:
            task = get_task(tested_on, allow_code_execution=True)
            examples = load_records(task, "test", options.num_examples, options.seed)
            folder = options.output.with_suffix(".parts") / f"{trained_on}-{tested_on}"
            head = pair.heads[trained_on]
            (record,) = evaluate(pair, task, examples, ["diversed"], settings, head=head, output=folder)
            sessions += read_results(folder).sessions
            records.append({"trained_on": trained_on, "tested_on": tested_on, **record})
            print(json.dumps({name: records[-1][name] for name in ("trained_on", "tested_on", "quality")}))
    write_json(options.output, {"records": records, "provenance": provenance(options.seed) | {"sessions": sessions}})


if __name__ == "__main__":
    main()
