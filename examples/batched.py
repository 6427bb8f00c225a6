"""A batch of prompts of different lengths, each with its own strictness, and statistics per row."""

import torch

from hf_diversed import load_demo_pair
from hf_diversed.tasks import get_task, load_records


torch.manual_seed(0)
pair = load_demo_pair()
head = pair.heads["math"]

prompts = [record["prompt"] for record in load_records(get_task("math"), "test", 4)]
inputs = pair.tokenizer(prompts, return_tensors="pt", padding=True)  # the tokenizer pads on the left
out = pair.target.generate(
    **inputs,
    assistant_model=pair.draft,
    diversed_head=head,
    diversed_strictness=[0.0, 0.4, 0.8, 1.0],
    do_sample=True,
    top_k=0,
    max_new_tokens=100,
    return_dict_in_generate=True,
)
for row, stats in enumerate(out.stats.per_row):
    print(f"row {row}: accepted {stats.acceptance_rate:.1%}, {stats.block_efficiency:.2f} tokens per round")
print(f"all: accepted {out.stats.acceptance_rate:.1%} in {out.stats.target_forwards} target forwards")
