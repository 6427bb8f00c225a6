"""Compare the acceptance of `lossless` and `block:lossless` on the same draft blocks of the embedded pair.

    python -m benchmarks.block_acceptance --output results/block-acceptance.json

Prompts are decoded with `lossless` at temperature 1. For each of its draft blocks, both verifiers' expected numbers of
accepted draft tokens follow from the acceptance probabilities. Intervals are clustered by prompt.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.utils import logging

from benchmarks.forwards import TASKS
from hf_diversed import BlockVerifier, LosslessVerifier
from hf_diversed.blocks import DraftOutput, TargetOutput, Verdict
from hf_diversed.evaluation.decoder import Sampling, encode, left_padded, timed_call
from hf_diversed.evaluation.statistics import Bootstrap
from hf_diversed.files import write_json
from hf_diversed.provenance import provenance
from hf_diversed.tasks import PromptedTask, get_task, load_records
from hf_diversed.zoo import load_pair
from hf_diversed.zoo.loader import Pair


METHODS = ("lossless", "block:lossless")


class ComparingVerifier(LosslessVerifier):
    """Verify losslessly, and add up the expected accepted draft tokens of both verifiers.

    Attributes:
        totals: float64 `[P, 4]`: accepted by `lossless` and by `block:lossless`, draft tokens, and blocks of a prompt.
    """

    def __init__(self) -> None:
        self._block = BlockVerifier()

    def row_values(self, batch_size: int, device: torch.device) -> dict[str, torch.Tensor]:
        self.totals = torch.zeros(batch_size, 4, dtype=torch.float64)
        return {"prompt": torch.arange(batch_size, device=device)[:, None]}

    def __call__(  # type: ignore[override]  # as all verifiers with values per row
        self, input_ids: torch.Tensor, draft: DraftOutput, target: TargetOutput, row_values: dict[str, torch.Tensor]
    ) -> Verdict:
        verdict = super().__call__(input_ids, draft, target)
        verdicts = verdict, self._block(input_ids, draft, target)
        counts = [(each.accept_prob * draft.active).cumprod(dim=-1).sum(dim=-1) for each in verdicts]
        counts += [draft.num_drafted, (draft.num_drafted > 0).long()]
        self.totals.index_add_(0, row_values["prompt"][:, 0], torch.stack([each.double() for each in counts], dim=1))
        return verdict


def compare(pair: Pair, prompts: Sequence[Sequence[int]], gamma: int, seed: int, **settings: Any) -> np.ndarray:
    """Decode prompts in one batch and return `ComparingVerifier.totals`."""
    verifier = ComparingVerifier()
    inputs = left_padded(prompts, pair.tokenizer.pad_token_id, pair.target.device)
    call = {"assistant_model": pair.draft, "verifier": verifier, "num_assistant_tokens": gamma} | settings
    timed_call(pair.target, seed, **inputs, **call)
    return verifier.totals.numpy()


def summarize(task: str, totals: np.ndarray) -> Iterator[dict[str, Any]]:
    """Yield the accepted draft tokens per block and per drafted token, and their ratio to those of `lossless`."""
    bootstrap = Bootstrap(len(totals))
    for method, accepted in zip(METHODS, totals.T):
        ratios = {
            "accepted_per_block": bootstrap.ratio(accepted, totals[:, 3]),
            "acceptance_rate": bootstrap.ratio(accepted, totals[:, 2]),
            "over_lossless": bootstrap.ratio(accepted, totals[:, 0]),
        }
        record: dict[str, Any] = {"task": task, "method": method, "n": len(totals), "blocks": int(totals[:, 3].sum())}
        for name, values in ratios.items():
            record |= bootstrap.estimate(values).record(name)
        yield record


def main() -> None:
    arguments = _arguments()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    pair, found = load_pair(), {}
    for name in TASKS:
        task = get_task(name, allow_code_execution=True)
        chosen = load_records(task, "test", arguments.num_prompts, arguments.seed)
        prompts = encode(pair.tokenizer, [*map(PromptedTask(task, pair.tokenizer, chat=False).prompt, chosen)])
        sampling = Sampling(1.0, max_new_tokens=arguments.max_new_tokens).generate_kwargs()
        found[name] = compare(pair, prompts, arguments.gamma, arguments.seed, **sampling)
    found["all"] = np.concatenate([*found.values()])
    records = [record for name, totals in found.items() for record in summarize(name, totals)]
    print(json.dumps(records, indent=1))
    settings = {"temperature": 1.0, "gamma": arguments.gamma, "max_new_tokens": arguments.max_new_tokens}
    write_json(arguments.output, settings | {"records": records, "provenance": provenance(arguments.seed, "cpu")})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--num-prompts", default=48, type=int)
    parser.add_argument("--max-new-tokens", default=96, type=int)
    parser.add_argument("--gamma", default=5, type=int)
    parser.add_argument("--seed", default=0, type=int)
    return parser.parse_args()


if __name__ == "__main__":
    main()
