"""Record summaries of one abstract, decoded with several verifiers; `python -m tools.draw_figures` draws them.

python -m benchmarks.answers --data-file scitldr_800.jsonl
"""

import argparse
from pathlib import Path
from typing import Any

import torch

from benchmarks.pair import LIMITS, chosen_records, load
from hf_diversed.evaluation.decoder import Sampling
from hf_diversed.files import write_json
from hf_diversed.provenance import provenance
from hf_diversed.tasks import PromptedTask, get_task
from hf_diversed.zoo.loader import Pair
from tools.figures import RESULTS, TOKEN_HEAD


METHODS = {
    "lossless": {"verifier": "lossless"},
    "static:0.2": {"verifier": "static:0.2"},
    "diversed": {"diversed_head": TOKEN_HEAD},
}
OUTPUT = RESULTS / "real" / "answers-scitldr.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-file", required=True, type=Path, help="SciTLDR's records, JSON Lines.")
    data_file = parser.parse_args().data_file
    pair = load(argparse.Namespace(target="qwen-coder-1.5b", draft="qwen-coder-0.5b", device="cpu", dtype="float32"))
    task = PromptedTask(get_task("scitldr"), pair.tokenizer, chat=True)
    prompt = task.prompt(chosen_records("scitldr", data_file)[0])
    inputs = pair.tokenizer(prompt, return_tensors="pt")
    answers = {name: answer(pair, {**inputs, **method}) for name, method in METHODS.items()}
    write_json(OUTPUT, {"answers": answers, "provenance": provenance(seed=0)})


def answer(pair: Pair, arguments: dict[str, Any]) -> list[tuple[str, str]]:
    """Return text and origin of each token of one answer, sampled at temperature 1 with seed 0.

    Args:
        arguments: inputs and method, as arguments of `generate`.
    """
    torch.manual_seed(0)
    output = pair.target.generate(
        **arguments,
        assistant_model=pair.draft,
        num_assistant_tokens=5,
        **Sampling(max_new_tokens=LIMITS["scitldr"]).generate_kwargs(),
        output_token_records=True,
        return_dict_in_generate=True,
    )
    return output.token_records.pieces(pair.tokenizer)


if __name__ == "__main__":
    main()
