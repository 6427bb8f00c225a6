"""Measure the cost of a rejection in a model with recurrent states: process time of target rounds with and without.

Both kinds of rounds run alternately in one process, on one thread, with the same random Qwen3.5 model.

python -m benchmarks.replay --output results/replay.json
"""

import argparse
from pathlib import Path
from statistics import mean

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.turns import spread, take_turns
from hf_diversed.files import write_json
from hf_diversed.generation.recurrent_model import open_model
from hf_diversed.generation.rows import PerRow, RaggedRows
from hf_diversed.provenance import provenance


SIZES = {"vocab_size": 2048, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "linear_num_key_heads": 8}
LINEAR = {"linear_num_value_heads": 8, "linear_key_head_dim": 64, "linear_value_head_dim": 64}
PROMPT, GAMMA, WARM_UP, BLOCK = 32, 4, 10, 20
ACCEPTED = {1: [2], 4: [0, 1, 3, 4]}  # accepted draft tokens per row, half of `GAMMA` on average, by batch size


class Batch:
    """Rows whose rounds draft `GAMMA` tokens each and accept `accepted` of them; the counts rotate over the rows."""

    def __init__(self, model, ids: torch.Tensor, accepted: list[int]):
        self.accepted = torch.tensor(accepted)
        self.rows = RaggedRows(ids[:, :PROMPT], ids.shape[1] - GAMMA, GAMMA, [], 0)
        self.rows.ids[:] = ids
        positions = torch.arange(PROMPT).expand(len(ids), -1)
        self.model = open_model(model, self.rows, None, positions, keep_hidden=False)
        self.model.prefill(ids[:, : PROMPT - 1])

    def round(self, turn: int) -> None:
        starts = self.rows.lengths + (-1)
        columns = starts.device[:, None] + torch.arange(GAMMA + 1)
        self.model(self.rows.ids.gather(1, columns), starts, keep=GAMMA + 1)
        emitted = self.accepted + 1
        self.rows.advance(
            PerRow(emitted.tolist(), emitted), PerRow([0] * len(emitted), torch.zeros_like(emitted).bool())
        )
        self.model.rewind()
        self.accepted = self.accepted.roll(1)


@torch.inference_mode()
def measure(model, rounds: int, accepted: list[int]) -> dict:
    """Return the ratio of times with and without rejections, for a batch with a row for each entry of `accepted`."""
    size = len(accepted), PROMPT + (GAMMA + 1) * (rounds + WARM_UP + 1)
    ids = torch.randint(4, SIZES["vocab_size"], size)
    rejecting, accepting = Batch(model, ids, accepted), Batch(model, ids, [GAMMA] * len(accepted))
    for batch in (rejecting, accepting):
        for turn in range(WARM_UP):
            batch.round(turn)
    before = rejecting.model.num_forwards
    turns = list(take_turns({"rejecting": rejecting.round, "accepting": accepting.round}, rounds))
    forwards = (rejecting.model.num_forwards - before) / rounds
    # Some rejecting rounds take one more forward pass, so means over blocks of rounds are compared.
    means = {
        name: [
            mean(turn[name].seconds for turn in turns[at : at + BLOCK]) for at in range(0, rounds - BLOCK + 1, BLOCK)
        ]
        for name in turns[0]
    }
    ratios = [with_rejections / without for with_rejections, without in zip(means["rejecting"], means["accepting"])]
    return {"ratio": spread(ratios), "forwards_per_round": forwards}


def build(seed: int):
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3_5_text", **SIZES, **HEADS, **LINEAR)).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = build(arguments.seed)
    batches = {str(size): measure(model, arguments.rounds, accepted) for size, accepted in ACCEPTED.items()}
    report = {"batches": batches, "parameters": model.num_parameters(), "rounds": arguments.rounds, "gamma": GAMMA}
    report["provenance"] = provenance(arguments.seed)
    write_json(arguments.output, report)


if __name__ == "__main__":
    main()
