"""Draft without a model: after each token, propose the token that followed its last occurrence."""

from itertools import pairwise

import torch
from transformers.generation.candidate_generator import CandidateGenerator

from hf_diversed import load_demo_pair


class Followers(CandidateGenerator):
    """Draft up to `length` tokens. They depend on the text only, so no logits are needed."""

    def __init__(self, length: int):
        self.length = length

    def get_candidates(self, input_ids, **kwargs):
        text = input_ids[0].tolist()
        followers, draft_tokens = dict(pairwise(text)), []
        while len(draft_tokens) < self.length and (last := [*text, *draft_tokens][-1]) in followers:
            draft_tokens.append(followers[last])
        return torch.cat([input_ids, input_ids.new_tensor([draft_tokens])], dim=1), None

    def update_candidate_strategy(self, input_ids, scores, num_matches):
        """Change `length` by the number of accepted draft tokens."""
        self.length = max(1, min(8, num_matches + 1))


pair = load_demo_pair()
prompt = "Question: Mia has 74 dollars and buys 9 pens at 7 dollars each. How much money is left?\nAnswer:"
call = {"do_sample": False, "max_new_tokens": 100, "return_dict_in_generate": True}
out = pair.target.generate(
    **pair.tokenizer(prompt, return_tensors="pt"), verifier="lossless", candidate_generator=Followers(4), **call
)
print(pair.tokenizer.decode(out.sequences[0], skip_special_tokens=True))
print(f"accepted {out.stats.acceptance_rate:.0%}, {out.stats.block_efficiency:.2f} tokens per round")
