"""150 random calls that use documented arguments only. `python -m tests.recorded.calls` records their results.

Models compute in double precision where they can, so that rounding on another processor rarely changes a token.
"""

import functools
import json
import random
from pathlib import Path
from typing import Any

import torch
from transformers.modeling_layers import MtpModel

from hf_diversed import LosslessVerifier, PhaseVerifier, StaticEnsembleVerifier
from hf_diversed.generation.confidence import ConfidenceRule
from tests.families.compare import prepare
from tests.families.shrink import small_model
from tests.generation import sources
from tests.tiny import EOS, ragged_batch, rule_of_a_cheap_draft_model, tiny_draft, tiny_head, tiny_model


RESULTS = Path(__file__).with_name("results.json")
NUM_CALLS = 150
COUNTERS = ("num_rounds", "num_drafted", "num_accepted", "num_rejected", "num_emitted", "accepted_per_position")
SUMS = ("weight_sum", "tv_sum", "bias_sum")

ATTENTION = ("llama", "qwen2", "qwen3", "cohere2", "gemma2", "gemma3_text", "mistral", "phi3", "gpt2", "falcon")
RECURRENT = ("qwen3_5_text", "lfm2", "falcon_h1")
OTHER_SOURCES = ("mtp:glm4_moe", "dflash", "gemma4", "own")
VERIFIERS = (
    *("lossless", "lossless", "static:0.7", "static:0.2", "lenience:0.3", "lenience:0.1", "lossy:0.5"),
    *("spec_cascade:token_v3:0.5", "spec_cascade:chow:0.3", "fuzzy:0.2:js", "contrastive:0.5:0.1", "typical"),
    *("top_k_relaxed:10:0.6", "mars:0.9", "fly:0.3:2", "block:lossless", "block:static:0.7", "phase"),
    *("diversed", "diversed", "diversed", "token", "token", "token"),
)


@functools.cache
def pair(family: str):
    """Return a target and a draft model."""
    if family in RECURRENT:
        target = small_model(family)
        prepare(target)
    else:
        target = tiny_model(family, attention="eager" if family == "gemma2" else "sdpa")
    target.double()
    return target, tiny_draft(target, 0.15)


@functools.cache
def source(name: str):
    return sources.SOURCES[name]()  # in float32: torch has no experts in double precision


@functools.cache
def head(token_features: bool):
    return tiny_head(3, token_features=token_features, features="distribution" if token_features else "both").double()


def random_call(draw: random.Random) -> dict[str, Any]:
    """Return the description of a call, as JSON."""
    kind = draw.choices(("draft", "lookup", "copies", "recurrent", "other"), (9, 2, 2, 1, 2))[0]
    family = draw.choice({"recurrent": RECURRENT, "other": OTHER_SOURCES}.get(kind, ATTENTION))
    sampled, verifier = draw.random() < 0.65, draw.choice(VERIFIERS)
    if kind in ("recurrent", "other"):
        verifier = draw.choice(("lossless", "lenience:0.3", "block:lossless", "lossy:0.5"))
    if kind == "other":
        sampled = False
    if kind == "lookup":
        verifier = draw.choice(("lossless", "lenience:0.3", "lossy:0.5", "typical", "block:lossless"))
    if verifier.startswith("mars"):
        sampled = False
    call: dict[str, Any] = {"kind": kind, "family": family, "verifier": verifier, "seed": draw.randrange(2**16)}
    call["rows"] = 1 if kind == "other" else draw.choice((1, 1, 2, 4, 6))
    settings: dict[str, Any] = {"max_new_tokens": draw.choice((1, 7, 16, 24)), "do_sample": sampled}
    if sampled:
        settings |= {"temperature": draw.choice((0.5, 1.0, 1.4)), "top_k": draw.choice((0, 0, 8))}
        settings["top_p"] = draw.choice((1.0, 1.0, 0.8))
    if draw.random() < 0.7 or kind not in ("draft", "recurrent"):
        settings["num_assistant_tokens"] = draw.randint(1, 7)
    if kind in ("draft", "copies"):
        settings["num_assistant_tokens_schedule"] = draw.choice(("constant", "confidence"))
    processors = {
        "repetition_penalty": draw.uniform(0.8, 1.4),
        "no_repeat_ngram_size": draw.randint(2, 3),
        "min_new_tokens": draw.randint(1, settings["max_new_tokens"]),
        "bad_words_ids": [[draw.randrange(4, 60)]],
        "suppress_tokens": [draw.randrange(4, 60)],
        "eos_token_id": [EOS, draw.randrange(4, 60)],
    }
    settings |= {name: value for name, value in processors.items() if draw.random() < 0.12}
    if verifier in ("diversed", "token"):
        bounds = {
            "diversed_strictness": draw.choice((0.0, 0.3, 0.8, 1.0)),
            "diversed_max_bias": draw.choice((0.05, 0.3)),
            "diversed_max_ratio": draw.choice((1.5, 4.0)),
        }
        settings |= {name: value for name, value in bounds.items() if draw.random() < 0.3}
        if "diversed_strictness" in settings and draw.random() < 0.4:
            settings["diversed_strictness"] = [round(draw.random(), 2) for _ in range(call["rows"])]
    if kind in ("draft", "copies", "lookup") and draw.random() < 0.15:
        settings |= {"cache_implementation": "static", "disable_compile": True}
    return call | {"settings": settings}


def run(call: dict[str, Any]) -> dict[str, Any]:
    """Decode one call and return its new tokens and statistics, as JSON."""
    settings = dict(call["settings"])
    if call["kind"] == "other":
        target, arguments = source(call["family"])
        settings |= arguments
    else:
        target, draft = pair(call["family"])
        if call["kind"] != "lookup":
            settings["assistant_model"] = draft
        if call["kind"] in ("lookup", "copies"):
            settings["prompt_lookup_num_tokens"] = settings["num_assistant_tokens"]
        if call["kind"] == "lookup":
            del settings["num_assistant_tokens"]
    if call["verifier"] in ("diversed", "token"):
        settings["diversed_head"] = head(call["verifier"] == "token")
    elif call["verifier"] == "phase":
        settings["verifier"] = PhaseVerifier(StaticEnsembleVerifier(0.5), LosslessVerifier(), begin=5, end=6)
    else:
        settings["verifier"] = call["verifier"]
    batch = ragged_batch(call["rows"], seed=call["seed"])
    torch.manual_seed(call["seed"])
    out = target.generate(**batch, **settings, return_dict_in_generate=True)
    rows = [
        {name: getattr(row, name) for name in COUNTERS} | {name: getattr(row, name) for name in SUMS}
        for row in out.stats.per_row
    ]
    return {"tokens": out.sequences[:, batch["input_ids"].shape[1] :].tolist(), "rows": rows}


def main() -> None:
    MtpModel.from_pretrained = sources.random_mtp_model
    ConfidenceRule.for_models = rule_of_a_cheap_draft_model
    draw, records, refused = random.Random(2026), [], 0
    while len(records) < NUM_CALLS:
        call = json.loads(json.dumps(random_call(draw)))
        try:
            records.append({"call": call, "result": run(call)})
        except (ValueError, FloatingPointError) as error:  # arguments that exclude each other
            refused += 1
            print(call, error)
    RESULTS.write_text("[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n")
    print(f"{len(records)} calls recorded, {refused} refused")


if __name__ == "__main__":
    main()
