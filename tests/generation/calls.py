"""Runs about 180 calls and writes digests of what each returned: `python -m tests.generation.calls OUT.json`.

`test_against_revision.py` runs it on two revisions of the library. It uses the public API only.
"""

import hashlib
import json
import sys
from collections.abc import Iterator

import torch
from peft import LoraConfig, get_peft_model
from transformers import StoppingCriteria

from hf_diversed import DiversedVerifier, PhaseVerifier, RoundStreamer, StaticEnsembleVerifier
from hf_diversed.verifiers import build_verifier
from tests.tiny import ragged_batch, tiny_draft, tiny_head, tiny_model


RULES = (
    *("lossless", "static:0.4", "lenience:0.3", "lossy:0.5", "spec_cascade:token_v3:0.3", "fuzzy:0.2", "contrastive"),
    *("typical:0.3:0.3", "top_k_relaxed:5:0.3", "regret_budget:2", "fly:0.3:1", "block:static:0.5"),
    *("head", "hidden head", "budget", "phase"),
)
EXTRAS = {
    "bare": {},
    "records": {"output_token_records": True, "output_scores": True, "output_logits": True, "repetition_penalty": 1.1},
}

STATIC = {"cache_implementation": "static", "disable_compile": True}
COUNTERS = (
    *("num_rounds", "num_drafted", "num_accepted", "num_rejected", "num_emitted", "target_forwards"),
    *("draft_forwards", "accepted_per_position", "weight_sum", "weight_count", "tv_sum", "tv_count", "bias_sum"),
    *("bias_count", "strictness_sum", "strictness_count", "engine"),
)


def build(name: str, batch_size: int):
    if name == "head":
        return DiversedVerifier(tiny_head(features="distribution"), strictness=0.7)
    if name == "hidden head":
        return DiversedVerifier(tiny_head(), max_bias=0.3)
    if name == "budget":
        return DiversedVerifier(tiny_head(), strictness=[0.2, 0.5, 0.7, 1.0][:batch_size], bias_budget=1.0)
    if name == "phase":
        return PhaseVerifier(StaticEnsembleVerifier(0.2, bias_budget=1.0), begin=30, end=17)
    return build_verifier(name)


class EverySeventh(StoppingCriteria):
    """Stops a row at a token; makes the batch keep its rows."""

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] == 7


class Recorder(RoundStreamer):
    def __init__(self):
        self.rounds = []

    def put_round(self, records, stats):
        self.rounds.append([digest(records.tokens), digest(records.source), counters(stats)])


def digest(value):
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().float().nan_to_num(-7.0)
        return hashlib.sha256(flat.numpy().tobytes() + str(tuple(value.shape)).encode()).hexdigest()[:12]
    return [digest(item) for item in value]


def counters(stats) -> list:
    return [getattr(stats, name) for name in COUNTERS if hasattr(stats, name)]


def describe(output, streamer=None) -> list:
    records = output.token_records
    names = ("source", "relaxed", "weight", "p", "q", "tv")
    recorded = None if records is None else [digest(getattr(records, name)) for name in names]
    stats = [counters(output.stats), [counters(row) for row in output.stats.per_row]]
    rounds = streamer and streamer.rounds
    return [digest(output.sequences), stats, digest(output.scores), digest(output.logits), recorded, rounds]


def cases() -> Iterator[tuple[str, dict, object]]:
    """Name, arguments and verifier of every call."""
    for batch_size in (1, 4):
        for name in RULES:
            for do_sample in (False, True):
                if do_sample and name == "regret_budget:2":
                    continue
                for extra, options in EXTRAS.items():
                    label = f"{name} batch={batch_size} sample={do_sample} {extra}"
                    yield label, {"do_sample": do_sample, **options}, (name, batch_size)
                    if extra == "records" and do_sample:
                        yield f"{label} static", {"do_sample": do_sample, **options, **STATIC}, (name, batch_size)
        for drafts in ({"prompt_lookup_num_tokens": 4}, {"assistant_early_exit": 1}):
            for do_sample in (False, True):
                label = f"{next(iter(drafts))} batch={batch_size} sample={do_sample}"
                yield label, {"do_sample": do_sample, "assistant_model": None, **drafts}, ("static:0.5", batch_size)
        for do_sample in (False, True):
            options = {"do_sample": do_sample, "stopping_criteria": [EverySeventh()], "num_assistant_tokens": 3}
            yield f"criterion batch={batch_size} sample={do_sample}", options, ("static:0.5", batch_size)
            yield (
                f"eos batch={batch_size} sample={do_sample}",
                {"do_sample": do_sample, "eos_token_id": [1, 5, 9]},
                ("static:0.5", batch_size),
            )
        for do_sample in (False, True):
            yield f"adapter batch={batch_size} sample={do_sample}", {"do_sample": do_sample}, ("head", batch_size)
    yield "streamed", {"do_sample": True, "streamer": Recorder()}, ("static:0.5", 1)


def with_adapter(model):
    torch.manual_seed(5)
    return get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False)).eval()


def main(path: str) -> None:
    torch.set_num_threads(1)
    target = tiny_model("llama")
    draft, results = tiny_draft(target), {}
    adapted = with_adapter(tiny_model("llama"))
    for label, options, (name, batch_size) in cases():
        options = {"assistant_model": draft, "max_new_tokens": 24, "top_k": 0, **options}
        options = {key: value for key, value in options.items() if value is not None}
        torch.manual_seed(3)
        call = {**ragged_batch(batch_size), **options, "verifier": build(name, batch_size)}
        output = (adapted if label.startswith("adapter") else target).generate(**call, return_dict_in_generate=True)
        results[label] = describe(output, options.get("streamer"))
    with open(path, "w") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main(sys.argv[1])
