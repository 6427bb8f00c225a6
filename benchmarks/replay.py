"""Cost of a rejection in a model with recurrent states: process time of target rounds with and without one.

Both kinds of rounds run alternately in one process, on one thread, over the same random Qwen3.5 model.

python -m benchmarks.replay --output results/replay.json
"""

import argparse
import json
import time
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from hf_diversed.generation.ragged_model import RaggedModel
from hf_diversed.generation.rows import RaggedRows
from hf_diversed.provenance import provenance


SIZES = {"vocab_size": 2048, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "linear_num_key_heads": 8}
LINEAR = {"linear_num_value_heads": 8, "linear_key_head_dim": 64, "linear_value_head_dim": 64}
PROMPT, GAMMA, WARM_UP, BLOCK = 32, 4, 10, 20


class Row:
    """A row whose every round drafts `GAMMA` tokens and accepts `accepted` of them."""

    def __init__(self, model, ids: torch.Tensor, accepted: int):
        limit = ids.shape[1]
        self.ids, self.accepted = ids, accepted
        self.rows = RaggedRows(ids[:, :PROMPT], limit - GAMMA, GAMMA, [], 0)
        self.model = RaggedModel(model, None, torch.arange(PROMPT)[None], limit, limit - 1, keep_hidden=False)
        self.model.prefill(ids[:, : PROMPT - 1])

    def round(self) -> float:
        """Return the process time of one round, in seconds."""
        started, last = time.process_time(), self.rows.lengths.host[0] - 1
        self.model(self.ids[:, last : last + GAMMA + 1], self.rows.lengths + (-1), keep=GAMMA + 1)
        self.rows.lengths += self.accepted + 1
        self.model.rewind(self.rows, behind=1)
        return time.process_time() - started


@torch.inference_mode()
def measure(rounds: int, seed: int) -> dict:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3_5_text", **SIZES, **HEADS, **LINEAR)).eval()
    ids = torch.randint(4, SIZES["vocab_size"], (1, PROMPT + (GAMMA + 1) * (rounds + WARM_UP + 1)))
    accepted, rejected = Row(model, ids, GAMMA), Row(model, ids, GAMMA // 2)
    for row in (accepted, rejected):
        for _ in range(WARM_UP):
            row.round()
    before = rejected.model.num_forwards
    times = torch.tensor([[rejected.round(), accepted.round()] for _ in range(rounds)], dtype=torch.float64)
    forwards = (rejected.model.num_forwards - before) / rounds
    # Some rejected rounds have a forward more, so means over blocks of rounds are compared, not single rounds.
    means = times[: rounds - rounds % BLOCK].view(-1, BLOCK, 2).mean(1)
    low, median, high = (
        (means[:, 0] / means[:, 1]).quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)).tolist()
    )
    ratio = {"median": median, "quartiles": [low, high]}
    return {"ratio": ratio, "forwards_per_round": forwards, "parameters": model.num_parameters()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report = measure(arguments.rounds, arguments.seed) | {"rounds": arguments.rounds, "gamma": GAMMA}
    report["provenance"] = provenance(arguments.seed)
    arguments.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
