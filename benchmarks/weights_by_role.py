"""Measure the head's mean weight, TV and acceptance by the role of a token, on the math task.

python benchmarks/weights_by_role.py --num-examples 500

Roles: "result": digits after an equals sign or in the last sentence, which determine the answer. "operand": all other
digits, including results repeated in the text. "operator": the signs of equations. "wording": everything else.
Writes results/roles-math.json.
"""

import argparse
import json
from pathlib import Path

import torch

from hf_diversed import load_demo_pair
from hf_diversed.outputs import SOURCES
from hf_diversed.provenance import provenance
from hf_diversed.tasks import get_task, load_records
from hf_diversed.zoo.loader import MIXTURE


ROLES = ("result", "operand", "operator", "wording")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-examples", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("results/roles-math.json"))
    options = parser.parse_args()
    pair, task = load_demo_pair(heads=MIXTURE), get_task("math")
    prompts = [task.prompt(record) for record in load_records(task, "test", options.num_examples, options.seed)]
    inputs = pair.tokenizer(prompts, return_tensors="pt", padding=True)
    torch.manual_seed(options.seed)
    output = pair.target.generate(
        **inputs,
        assistant_model=pair.draft,
        diversed_head=pair.heads["math"],
        do_sample=True,
        top_k=0,
        max_new_tokens=task.max_new_tokens,
        num_assistant_tokens=5,
        return_dict_in_generate=True,
        output_token_records=True,
    )
    roles = measure(output.token_records, pair.tokenizer)
    options.output.write_text(
        json.dumps({"roles": roles, "n": len(prompts), "provenance": provenance(options.seed)}, indent=1) + "\n"
    )
    print(json.dumps(roles, indent=1))


def measure(records, tokenizer) -> dict[str, dict[str, float]]:
    """Return by role: number of verified tokens, mean weight, mean TV(p, q), share of accepted draft tokens."""
    words = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    roles = torch.tensor(
        [[ROLES.index(role) for role in row_roles([words[i] for i in row])] for row in records.tokens]
    )
    verified = ~records.weight.isnan()
    by_role = {}
    for index, role in enumerate(ROLES):
        chosen = verified & (roles == index)
        by_role[role] = {
            "tokens": int(chosen.sum()),
            "mean_weight": records.weight[chosen].mean().item(),
            "mean_tv": records.tv[chosen].mean().item(),
            "accepted_share": (records.source[chosen] == SOURCES.index("draft")).float().mean().item(),
        }
    return by_role


def row_roles(tokens: list[str]) -> list[str]:
    """Return the role of every token of one completion."""
    roles, in_result, last = [], False, False
    for token in tokens:
        text = token.strip("Ġ▁ ")
        last = last or text == "answer"
        if text.isdigit():
            roles.append("result" if in_result or last else "operand")
            continue
        in_result = text == "="
        roles.append("operator" if text in set("+-*/=") else "wording")
    return roles


if __name__ == "__main__":
    main()
