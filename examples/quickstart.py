"""One answer of the embedded pair at three strictnesses, offline.

With models from the Hub, replace the pair by `AutoModelForCausalLM.from_pretrained(...)` twice and the head by
`DiversedHead.from_pretrained("org/head")`.
"""

import torch

from hf_diversed import load_demo_pair


torch.manual_seed(0)
pair = load_demo_pair()
head = pair.heads["math"]

question = "Question: Mia has 74 dollars and buys 9 pens at 7 dollars each. How much money is left?\nAnswer:"
inputs = pair.tokenizer(question, return_tensors="pt")
for strictness in (0.0, 0.5, 1.0):
    out = pair.target.generate(
        **inputs,
        assistant_model=pair.draft,
        diversed_head=head,
        diversed_strictness=strictness,
        do_sample=True,
        top_k=0,
        max_new_tokens=100,
        return_dict_in_generate=True,
    )
    answer = pair.tokenizer.decode(out.sequences[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    print(f"strictness {strictness:.1f}  accepted {out.stats.acceptance_rate:5.1%} {answer}")
