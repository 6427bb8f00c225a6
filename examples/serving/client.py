"""Query a served pair with OpenAI's client, each request with its own strictness.

hf-diversed serve TARGET --draft DRAFT --head HEAD --per-request-spec-decode-metrics summary
pip install openai && python examples/serving/client.py $'Question: Mia has 74 dollars ...\nAnswer:'
"""

import sys

from openai import BadRequestError, OpenAI


client = OpenAI(base_url="http://localhost:8000/v1", api_key="none")
model = client.models.list().data[0].id
example = "Question: Mia has 74 dollars and buys 9 pens at 7 dollars each. How much money is left?\nAnswer:"
prompt = sys.argv[1] if len(sys.argv) > 1 else example

for strictness in (0.0, 0.5, 1.0):
    answer = client.completions.create(
        model=model,
        prompt=prompt,
        max_tokens=128,
        temperature=1.0,
        extra_body={"vllm_xargs": {"diversed_strictness": strictness}},
    )
    metrics = (answer.model_extra or {}).get("metrics") or {}  # None without --per-request-spec-decode-metrics
    counts = metrics.get("speculative_decoding", {})
    print(f"strictness {strictness}: {answer.choices[0].text!r}\n  {counts}")

try:
    client.completions.create(model=model, prompt=prompt, extra_body={"vllm_xargs": {"diversed_strictness": 7}})
except BadRequestError as error:
    print("strictness 7:", error.message)
