"""Decodes some hundred calls and writes what each returned, as digests: `python -m tests.generation.calls OUT.json`.

`test_against_revision.py` runs it on two revisions of the library. It uses the public surface only.
"""

import hashlib
import json
import sys
from collections.abc import Iterator

import torch
from transformers import StoppingCriteria

from hf_diversed import DiversedVerifier, PhaseVerifier, RoundStreamer, StaticEnsembleVerifier
from hf_diversed.verifiers import build_verifier
from tests.tiny import ragged_batch, tiny_draft, tiny_head, tiny_model


RULES = (
    *("lossless", "static:0.4", "lenience:0.3", "lossy:0.5", "spec_cascade:token_v3:0.3", "fuzzy:0.2", "contrastive"),
    *("cactus:0.3", "typical:0.3:0.3", "top_k_relaxed:5:0.3", "regret_budget:2", "fly:0.3:1", "block:static:0.5"),
    *("head", "hidden head", "budget", "phase"),
)
EXTRAS = {
    "bare": {},
    "told": {"output_token_records": True, "output_scores": True, "output_logits": True, "repetition_penalty": 1.1},
}


def rule(name: str, batch_size: int):
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


class Listener(RoundStreamer):
    def __init__(self):
        self.heard = []

    def put_round(self, records, stats):
        self.heard.append([digest(records.tokens), digest(records.source), str(stats)])


def digest(value):
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().float().nan_to_num(-7.0)
        return hashlib.sha256(flat.numpy().tobytes() + str(tuple(value.shape)).encode()).hexdigest()[:12]
    return [digest(item) for item in value]


def describe(output, streamer=None) -> list:
    records = output.token_records
    names = ("source", "relaxed", "weight", "p", "q", "tv")
    told = None if records is None else [digest(getattr(records, name)) for name in names]
    stats = [str(output.stats), [str(row) for row in output.stats.per_row]]
    heard = streamer and streamer.heard
    return [digest(output.sequences), stats, digest(output.scores), digest(output.logits), told, heard]


def cases() -> Iterator[tuple[str, dict, object]]:
    """Name, arguments and rule of every call."""
    for batch_size in (1, 4):
        for name in RULES:
            for do_sample in (False, True):
                if do_sample and name == "regret_budget:2":
                    continue
                for extra, options in EXTRAS.items():
                    label = f"{name} batch={batch_size} sample={do_sample} {extra}"
                    yield label, {"do_sample": do_sample, **options}, (name, batch_size)
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
                (
                    "static:0.5",
                    batch_size,
                ),
            )
    yield "streamed", {"do_sample": True, "streamer": Listener()}, ("static:0.5", 1)


def main(path: str) -> None:
    torch.set_num_threads(1)
    target = tiny_model("llama")
    draft, results = tiny_draft(target), {}
    for label, options, (name, batch_size) in cases():
        options = {"assistant_model": draft, "max_new_tokens": 24, "top_k": 0, **options}
        options = {key: value for key, value in options.items() if value is not None}
        torch.manual_seed(3)
        call = {**ragged_batch(batch_size), **options, "verifier": rule(name, batch_size)}
        output = target.generate(**call, return_dict_in_generate=True)
        results[label] = describe(output, options.get("streamer"))
    with open(path, "w") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main(sys.argv[1])
