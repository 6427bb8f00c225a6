"""A custom verifier: choose the emitted distribution v and pass it as `verifier=`."""

import torch

from hf_diversed import load_demo_pair
from hf_diversed.verifiers import DistributionVerifier


class ConfidentDraftVerifier(DistributionVerifier):
    """Use the draft distribution where it is confident: v = q if max q >= threshold, else p."""

    def __init__(self, threshold: float):
        self.threshold = threshold

    def emitted_probs(self, draft, target):
        q, p = draft.probs(), target.probs()[:, :-1]
        return torch.where(q.max(-1, keepdim=True).values >= self.threshold, q, p)


torch.manual_seed(0)
pair = load_demo_pair()
prompt = "Question: Mia has 74 dollars and buys 9 pens at 7 dollars each. How much money is left?\nAnswer:"
inputs = pair.tokenizer(prompt, return_tensors="pt")
for threshold in (1.1, 0.9, 0.5):
    out = pair.target.generate(
        **inputs,
        assistant_model=pair.draft,
        verifier=ConfidentDraftVerifier(threshold),
        do_sample=True,
        top_k=0,
        max_new_tokens=100,
        return_dict_in_generate=True,
    )
    answer = pair.tokenizer.decode(out.sequences[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    print(f"threshold {threshold:.1f}  accepted {out.stats.acceptance_rate:5.1%} {answer}")
